# What a drill is asked to do, and what --list says of it. Part of gate.sh.
# shellcheck shell=bash disable=SC2154,SC2034

read_gates() {
  local name group words
  while IFS=$'\t' read -r name group words; do
    case $name in
      '# limitation: '*) limitations+=("${name#*: }") ;;
      '' | '#'*) ;;
      *) gate_names+=("$name") gate_known[$name]="$group: $words" ;;
    esac
  done <"$gates_file"
}

read_options() {
  while [ $# -gt 0 ]; do
    case $1 in
      --rounds | --runs | --failovers)
        [ "$1" = "$number_option" ] || refuse "there is no $1 in this drill" ;;
    esac
    case $1 in
      --keep) keep=1 ;;
      --list) list_all; exit 0 ;;
      --help | -h) drill_usage; exit 0 ;;
      --report | --only | --bindir | --sabotage | --runs | --failovers)
        [ -n "${2:-}" ] || refuse "$1 needs a word"
        case $1 in
          --report)
            [[ $2 != */ ]] || refuse "--report $2 is a folder"
            report=$(realpath -m -- "$2") ;;
          --only) only=$2 ;;
          --bindir) bindir=$(realpath -m -- "$2") ;;
          --sabotage) sabotage=$2 ;;
          *) [[ $2 =~ ^[1-9][0-9]{0,3}$ ]] || refuse "$1 is a number from 1 on"; rounds=$2 ;;
        esac
        shift ;;
      *) refuse "what is '$1'?" ;;
    esac
    shift
  done
  [ -z "$only" ] || [ -z "$no_only" ] || refuse "$no_only: no --only here"
  [ -z "$only" ] || [ -z "$sabotage" ] || refuse "one of --only and --sabotage, not both"
  [ -z "$only" ] || listed "$only" "${phases[@]}" || refuse "no phase is called '$only': --list"
  [ -z "$sabotage" ] || listed "$sabotage" "${sabotages[@]}" ||
    refuse "no sabotage is called '$sabotage': --list"
  [ -z "$report" ] || may_publish
  if declare -F check_given >/dev/null; then check_given; fi
}

# Told now, and not when the drill has run.
may_publish() {
  [ ! -d "$report" ] || refuse "--report $report is a folder"
  [ -w "${report%/*}/" ] || refuse "cannot write into ${report%/*}"
  { rm -f -- "$report.new" && (umask 077 && : >"$report.new") && rm -f -- "$report.new"; } \
    2>/dev/null || refuse "cannot write $report.new, which becomes $report"
}

listed() {
  local one
  for one in "${@:2}"; do [ "${one%%$'\t'*}" = "$1" ] && return; done
  return 1
}

list_all() {
  local one number=0 name gates words
  say "Phases"
  for one in "${phases[@]}"; do
    printf '  %2d %-10s %s\n' $((number += 1)) "${one%%$'\t'*}" "${one#*$'\t'}"
  done
  printf '\nGates\n'
  for one in "${gate_names[@]}"; do printf '  %s\n      %s\n' "$one" "${gate_known[$one]}"; done
  [ ${#sabotages[@]} = 0 ] || printf '\nSabotage\n'
  for one in "${sabotages[@]}"; do
    IFS=$'\t' read -r name gates words <<<"$one"
    printf '  %s\n      %s\n      false then: %s\n' "$name" "$words" "$gates"
  done
}
