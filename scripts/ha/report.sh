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
    printf '  "only": %s,\n' "$([ -n "$only" ] && json "$only" || echo null)"
    printf '  "sabotage": %s,\n' "$([ -n "$sabotage" ] && json "$sabotage" || echo null)"
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
