# The report of a drill: JSON, readable by its owner alone. Part of gate.sh.
# shellcheck shell=bash disable=SC2154,SC2034,SC1091

# A JSON string; control characters become blanks.
json() {
  local text=${1//[[:cntrl:]]/ }
  text=${text//\\/\\\\}
  printf '"%s"' "${text//\"/\\\"}"
}

# One element a line, as the inside of an array or object.
listing() {
  local one before=$'\n    '
  for one; do
    printf '%s%s' "$before" "$one"
    before=$',\n    '
  done
  [ $# = 0 ] || printf '\n  '
}

# Which drill this is: a sum over its files, as they are now, and the commit of its tree, if any.
# scripts/ha_audit.py makes the same sum: change both.
which_drill() {
  local commit=''
  [ -n "$report" ] || return 0
  drill_sum=$(
    cd "$here/.." || exit
    { find ha "$drill.sh" -type f ! -name '.*' ! -path '*/__pycache__/*' -print0 || true; } \
      2>/dev/null | LC_ALL=C sort -z | xargs -0 sha256sum -b | sha256sum
  )
  drill_sum=${drill_sum%% *}
  # not the commit of a tree that this one only lies in
  commit=$(env -u GIT_DIR -u GIT_WORK_TREE git -C "$root" rev-parse --show-toplevel HEAD \
    2>/dev/null) || return 0
  [ "${commit%$'\n'*}" != "$root" ] || drill_commit=${commit##*$'\n'}
}

or_null() { if [ -n "$1" ]; then json "$1"; else echo null; fi; }

publish() {
  local name gates=() words=() missing=() told=() one REPLY
  for name in "${gate_names[@]}"; do
    if [ -z "${gate_seen[$name]:-}" ]; then
      [ -z "$only" ] || continue
      missing+=("$(json "$name")")
    fi
    gates+=("$(json "$name"): ${gate_seen[$name]:-false}")
    words+=("$(json "$name"): $(json "${gate_words[$name]:-}")")
  done
  for one in "${limitations[@]}"; do told+=("$(json "$one")"); done
  now_ms
  one=$(
    printf '{\n  "drill": %s,\n  "format": 1,\n' "$(json "$drill")"
    printf '  "began": "%(%Y-%m-%dT%H:%M:%SZ)T",\n' $((began_us / 1000000))
    printf '  "ms": %d,\n  "postgres": %s,\n' "$REPLY" "$(json "${pg_version:-}")"
    printf '  "product": %s,\n' "$(json "${product_version:-}")"
    printf '  "drillSum": %s,\n' "$(json "$drill_sum")"
    printf '  "commit": %s,\n' "$(or_null "$drill_commit")"
    printf '  "only": %s,\n' "$(or_null "$only")"
    printf '  "sabotage": %s,\n' "$(or_null "$sabotage")"
    printf '  "gates": {%s},\n' "$(listing "${gates[@]}")"
    printf '  "seen": {%s},\n' "$(listing "${words[@]}")"
    printf '  "notReached": [%s],\n' "$(listing "${missing[@]}")"
    printf '  "figures": {%s},\n' "$(listing "${figures[@]}")"
    printf '  "timeline": [%s],\n' "$(listing "${timeline[@]}")"
    printf '  "limitations": [%s],\n' "$(listing "${told[@]}")"
    printf '  "passed": %s\n}\n' "$1"
  )
  if [ -e "$scratch/secrets" ] && grep -qFf "$scratch/secrets" <<<"$one"; then
    say "the report is not published: a password of the drill stands in it"
    return 1
  fi
  # new with its mode, then in place: nobody reads half of it, nobody but us reads it
  rm -f -- "$report.new" && (umask 077 && printf '%s\n' "$one" >"$report.new") &&
    mv -f -- "$report.new" "$report" && say "report: $report"
}
