#!/usr/bin/env bash
# Start runs one after the other, as a client does that has to be sure: a key is asked for until it
# is acknowledged, and what was said stands in FOLDER/SIDE.asked and FOLDER/SIDE.acked, with the
# time since boot. Ends when FOLDER/stop is there and nothing is owed any more.
#   admit.sh SIDE FOLDER PSQL-WORDS…
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
side=$1 folder=$2
shift 2
flows=(short middle short long)  # a long one outlasts its lease

up() { read -r REPLY _ </proc/uptime; }

for ((number = 0; ; number++)); do
  [ ! -e "$folder/stop" ] || exit 0
  key=$side-$number flow=${flows[number % ${#flows[@]}]}
  while :; do
    up
    printf '%s\t%s\n' "$key" "$REPLY" >>"$folder/$side.asked"
    # TERM, never INT: psql would cancel the wait for the standby, and call that a success
    answer=$(timeout -s TERM 5 "$@" -XqAt -F $'\t' -v ON_ERROR_STOP=1 \
      -v flow="$flow" -v run_key="$key" -f "$here/admit.sql" 2>>"$folder/$side.errors") &&
      [ -n "$answer" ] && break
    sleep 0.2
  done
  up
  printf '%s\t%s\t%s\n' "$key" "$answer" "$REPLY" >>"$folder/$side.acked"
  sleep "${PAUSE:-1.2}"
done
