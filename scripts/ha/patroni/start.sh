#!/usr/bin/env bash
# Start runs one after the other, as a client does that has to be sure: a key is asked for until it
# is acknowledged. FOLDER/TARGET.asked has a line a try, FOLDER/TARGET.acked one an answer: the time
# in ms, the key, the run, the outcome, the server's port. FOLDER/TARGET.wanted says how many keys
# there are by now (without it: one each 500 ms); FOLDER/stop ends it.
#   start.sh KIND TARGET FOLDER PSQL-WORDS…
set -uo pipefail
home=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
kind=$1 target=$2 folder=$3
shift 3

now_ms() { REPLY=$((${EPOCHREALTIME/[.,]/} / 1000)); }

wanted() {
  [ -e "$folder/$target.wanted" ] || return 0
  read -r REPLY <"$folder/$target.wanted" && [ "$1" -lt "${REPLY:-0}" ]
}

for ((number = 0; ; number++)); do
  until wanted "$number" || [ -e "$folder/stop" ]; do sleep 0.05; done
  [ ! -e "$folder/stop" ] || exit 0
  while :; do
    now_ms
    printf '%s\t%s\n' "$REPLY" "$target-$number" >>"$folder/$target.asked"
    # TERM, never INT: psql would cancel the wait for the standby, and call that a success
    answer=$(timeout -s TERM 5 "$@" -XqAt -F $'\t' -v ON_ERROR_STOP=1 -v kind="$kind" \
      -v target="$target" -v run_key="$target-$number" -f "$home/start.sql" \
      2>>"$folder/$target.errors") && [ -n "$answer" ] && break
    sleep 0.1
  done
  now_ms
  printf '%s\t%s\t%s\n' "$REPLY" "$target-$number" "$answer" >>"$folder/$target.acked"
  [ -e "$folder/$target.wanted" ] || sleep 0.5
done
