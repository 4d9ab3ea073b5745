# What every drill says, times and judges. Bash 5 and nothing else: no Python judges here.
# shellcheck shell=bash disable=SC2154,SC2034,SC1091
#
# A drill sets before it calls `drill_main "$@"`:
#   drill        its name: ha_drill, ha_patroni, …
#   gates_file   its list of gates (scripts/ha/gates.txt says how one looks)
#   phases       array of "name<TAB>words": run in this order, as functions phase_NAME
#   needs        associative, optional: needs[name]="phases that it stands on"; else all before it
#   number_option  optional: its option for how often, --runs or --failovers: then in $rounds
#   no_only      optional: why it knows no --only
#   sabotages    array of "name<TAB>gates that turn false<TAB>words", optional; before each phase
#                `sabotage_before PHASE` is called when --sabotage was given (its name: $sabotage)
#   drill_usage  function that prints the help
#   drill_begin  function, optional: what comes before the first phase (finds programs, and so on)
#   drill_tidy   function, optional: what must be stopped at the end, whatever happened
#
# It offers
#   say WORDS…                       a line for people
#   die WORDS…                       the drill cannot go on: ends 1, the report says passed: false
#   refuse WORDS…                    a wrong call: ends 2
#   cannot WORDS…                    it cannot run on this machine: ends 77
#   (129, 130, 143 are HUP, INT, TERM. What a program inside ended with is never the drill's own.)
#   shown WORDS…                     print a command as `  $ …`, scratch and program paths cut off
#   step CMD…                        shown, then run
#   ran PHASE                        whether that phase was run (not, maybe, with --only)
#   gate NAME true|false WORDS       judge; one line. Once false stays false
#   judge NAME WORDS CMD…            gate by the exit code of CMD (its output is dropped)
#   verdict CMD…                     prints true or false by the exit code of CMD
#   same WANTED FOUND                whether both texts are equal; says so on stderr when not
#   until_true SECONDS WORDS CMD…    bounded wait: true when CMD is; else says WORDS, returns 1
#   must SECONDS WORDS CMD…          the same, but the drill ends when it is in vain
#   event NAME [WORDS]               a point on the timeline, in milliseconds
#   figure NAME NUMBER               a number for the report
#   now_ms                           milliseconds since the drill began, in $REPLY
#   spawn NAME CMD…                  start a child; its words go to $scratch/NAME.log (call it from
#                                    the drill's own shell, never from a subshell)
#   alive NAME · kill_child NAME SIGNAL · reaped NAME SECONDS   that child; its exit in $REPLY
#   free_port                        a loopback port that nobody listens on, in $REPLY
# and sets scratch, keep, report, only, bindir, sabotage, rounds from the options.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
source "$here/../lib.sh"
source "$here/options.sh"
source "$here/report.sh"
export LC_ALL=C.UTF-8
pg_bindir=${PG_BINDIR:-}
unset "${!PG@}"  # a stranger's PGHOST or PGOPTIONS

keep='' report='' only='' bindir='' sabotage='' rounds='' scratch='' phase_now='' phases_done=''
number_option='' no_only='' leaving='' drill_sum='' drill_commit=''
declare -A gate_seen=() gate_words=() gate_known=() child=() needs=()
declare -a gate_names=() timeline=() figures=() ports_given=() sabotages=() limitations=()
began_us=${EPOCHREALTIME/[.,]/}

say() { printf '%s\n' "$*"; }

die() {
  printf '%s\n' "$drill: $*" >&2
  exit 1
}

refuse() {
  printf '%s\n' "$drill: $*" "Try '$drill.sh --help'." >&2
  leave 2
}

cannot() {
  printf '%s\n' "$drill: cannot run here: $*" >&2
  leave 77
}

leave() {
  leaving=$1
  exit "$1"
}

now_ms() { REPLY=$(((${EPOCHREALTIME/[.,]/} - began_us) / 1000)); }

shown() {
  local words="$*"
  words=${words//"$scratch/"/}
  printf '  $ %s\n' "${words//"${bin:-/nowhere}/"/}"
}

step() {
  shown "$*"
  "$@"
}

# --- judging

gate() {
  local name=$1 truth=$2 words=${3:-}
  [ -n "${gate_known[$name]:-}" ] || die "no gate is called $name in $gates_file"
  [[ $truth = true || $truth = false ]] || die "gate $name is neither true nor false: '$truth'"
  [ "${gate_seen[$name]:-true}" = true ] || truth=false
  gate_seen[$name]=$truth gate_words[$name]=$words
  event "gate:$name" "$truth"
  if [ "$truth" = true ]; then say "  ok    $name${words:+: $words}"; else
    say "  FALSE $name${words:+: $words}"
  fi
}

verdict() { if "$@" >/dev/null; then echo true; else echo false; fi; }

judge() { gate "$1" "$(verdict "${@:3}")" "$2"; }

same() {
  [ "$1" = "$2" ] && return
  printf '        wanted %s, found %s\n' "$1" "$2" >&2
  return 1
}

until_true() {
  local seconds=$1 words=$2 end
  shift 2
  end=$((${EPOCHREALTIME/[.,]/} + seconds * 1000000))
  until "$@" >/dev/null 2>&1; do
    if [ "${EPOCHREALTIME/[.,]/}" -gt "$end" ]; then
      say "  in vain for $seconds s: $words"
      return 1
    fi
    sleep 0.05
  done
}

must() { until_true "$@" || die "$2 did not come true within $1 s"; }

event() {
  local REPLY
  now_ms
  timeline+=("{\"ms\": $REPLY, \"phase\": $(json "$phase_now"), \"event\": $(json "$1")${2:+, \
\"words\": $(json "$2")}}")
}

figure() { figures+=("$(json "$1"): $2"); }

# --- children

spawn() {
  local name=$1 apart=()
  shift
  # apart from the terminal's Ctrl-C, which is ours to answer; and it does not outlive us
  if command -v setpriv >/dev/null; then apart=(setpriv --pdeathsig "${spawn_end:-TERM}" --); fi
  setsid "${apart[@]}" "$@" </dev/null >>"$scratch/$name.log" 2>&1 &
  child[$name]=$!
}

alive() { [ -n "${child[$1]:-}" ] && kill -0 "${child[$1]}" 2>/dev/null; }

kill_child() { [ -z "${child[$1]:-}" ] || kill -s "$2" "${child[$1]}" 2>/dev/null || true; }

reaped() {
  # bash itself would say `Killed` here
  until_true "$2" "$1 has ended" gone "$1" 2>/dev/null || return 1
  REPLY=0
  wait "${child[$1]}" 2>/dev/null || REPLY=$?
  unset "child[$1]"
}

gone() { ! alive "$1"; }

free_port() {
  local _
  for _ in {1..200}; do
    REPLY=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
    [[ " ${ports_given[*]} " = *" $REPLY "* ]] && continue
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$REPLY") 2>/dev/null; then
      ports_given+=("$REPLY")
      return
    fi
  done
  die "no free port on loopback"
}

# --- the frame

drill_main() {
  read_gates
  read_options "$@"
  umask 077
  exec {out}>&1 {err}>&2
  trap 'at_end $?' EXIT
  set -E
  trap 'say "  failed: ${BASH_SOURCE[0]##*/} line $LINENO: ${BASH_COMMAND%%$'"'\\n'"'*}" >&2' ERR
  trap 'leave 129' HUP
  trap 'leave 130' INT
  trap 'leave 143' TERM
  trap 'leave 141' PIPE  # who reads our words has gone, such as `| head`
  make_scratch
  which_drill
  if declare -F drill_begin >/dev/null; then drill_begin; fi
  run_phases
}

# A folder that the servers' user may walk into, and nobody may look around in.
make_scratch() {
  local base given=${TMPDIR:-} odd='[]["`$;:#%&|*?\'"'"'[:cntrl:]]'
  # the folder's name stands in YAML, in settings, in lists with colons
  [[ ! $given =~ $odd ]] || cannot "TMPDIR=$given: such a character in its name upsets programs"
  [ -z "$given" ] || { [ -d "$given" ] && [ -w "$given" ]; } ||
    cannot "TMPDIR=$given is no folder that we may write into"
  for base in ${given:+"$given"} /tmp /var/tmp; do
    [ -d "$base" ] && [ -w "$base" ] &&
      scratch=$(mktemp -d "$(realpath -- "$base")/qinglong-ha.XXXXXX") && break
  done
  [ -n "$scratch" ] || cannot "no temporary folder: set TMPDIR"
  chmod 711 "$scratch"
  cd "$scratch" || die "cannot enter $scratch"
}

run_phases() {
  local one name number=0 wanted="" before=""
  for one in "${phases[@]}"; do
    [ -n "$only" ] || wanted+=" ${one%%$'\t'*} "
    [ "${one%%$'\t'*}" != "$only" ] || wanted=" ${needs[$only]-$before} $only "
    before+=" ${one%%$'\t'*}"
  done
  for one in "${phases[@]}"; do
    name=${one%%$'\t'*} number=$((number + 1))
    [[ $wanted = *" $name "* ]] || continue
    phase_now=$name
    printf '%2d %s: %s\n' "$number" "$name" "${one#*$'\t'}"
    event "phase" "$name"
    if [ -n "$sabotage" ]; then sabotage_before "$name"; fi
    "phase_$name"
    phases_done+=" $name "
  done
  phase_now=''
  whole=1
}

ran() { [[ $phases_done = *" $1 "* ]]; }

# Whatever happened: judge, publish, stop all that was started, leave nothing behind.
at_end() {
  local status=$1 passed=true
  [ "$status" = 0 ] || status=${leaving:-1}
  trap '' INT TERM HUP PIPE
  trap - EXIT
  set +e
  exec 1>&"$out" 2>&"$err"  # a signal may have come where words were dropped
  verdict_of_all "$status" || passed=false
  # whoever called it wrongly has begun nothing, and keeps the report of before
  [ -z "$report" ] || [ "$status" = 2 ] || publish "$passed" || passed=false
  if declare -F drill_tidy >/dev/null; then drill_tidy; fi
  end_children
  if [ -n "$keep" ]; then say "kept: $scratch"; elif [ -n "$scratch" ]; then rm -rf -- "$scratch"; fi
  if [ "$status" = 0 ] && [ "$passed" = false ]; then status=1; fi
  exit "$status"
}

verdict_of_all() {
  local name right=0 asked=${#gate_names[@]} wrong=() missing=() REPLY
  for name in "${gate_names[@]}"; do
    case ${gate_seen[$name]:-} in
      true) right=$((right + 1)) ;;
      false) wrong+=("$name") ;;
      *) if [ -n "$only" ]; then asked=$((asked - 1)); else missing+=("$name"); fi ;;
    esac
  done
  now_ms
  if [ -z "${whole:-}" ] && [ ${#gate_seen[@]} = 0 ]; then
    say "the drill did not come to its end (exit $1, phase ${phase_now:-none}): none of" \
      "${#gate_names[@]} gates was reached"
    return 1
  fi
  [ -n "${whole:-}" ] || say "the drill did not come to its end (exit $1, phase ${phase_now:-none})"
  [ ${#wrong[@]} = 0 ] || say "false: ${wrong[*]}"
  [ ${#missing[@]} = 0 ] || say "not reached: $(some 5 "${missing[@]}")"
  say "$right of $asked gates true in $((REPLY / 1000)).$((REPLY / 100 % 10)) s"
  [ -n "${whole:-}" ] && [ ${#wrong[@]} = 0 ] && [ ${#missing[@]} = 0 ]
}

some() {  # N WORDS…: the first N of them, and how many more there are
  local all=("${@:2}")
  printf '%s' "${all[*]:0:$1}"
  [ ${#all[@]} -le "$1" ] || printf ' and %d more' $((${#all[@]} - $1))
}

# Twice, since a child that is only just forked may miss the first; then with KILL.
end_children() {
  local name seconds
  for name in "${!child[@]}"; do kill_child "$name" "$(end_signal "$name")"; done
  for name in "${!child[@]}"; do
    for seconds in 2 10; do
      until_true "$seconds" "" gone "$name" >/dev/null && continue 2
      kill_child "$name" "$(end_signal "$name")"
    done
    kill_child "$name" KILL
    until_true 5 "$name has ended" gone "$name"
  done
}

end_signal() { if [[ $1 = node-* ]]; then echo QUIT; else echo TERM; fi; }
