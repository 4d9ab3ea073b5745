#!/usr/bin/env bash
# Start a command again a second after it has ended otherwise than well, as a supervisor does. TERM
# is passed on once and ends both.
#   supervise.sh CMD…
set -u
one='' ending=''
trap 'ending=1; [ -z "$one" ] || kill -TERM "$one" 2>/dev/null' TERM
while [ -z "$ending" ]; do
  "$@" &
  one=$!
  status=0
  while :; do  # a signal ends the wait, not the command
    wait "$one"
    status=$?
    kill -0 "$one" 2>/dev/null || break
  done
  if [ "$status" = 0 ] || [ -n "$ending" ]; then exit "$status"; fi
  printf 'supervisor: ended with %s, starting again\n' "$status" >&2
  sleep 1
done
