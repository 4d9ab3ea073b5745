#!/usr/bin/env bash
# Start a command again a second after it has ended, as its unit does; TERM is passed on, and ends
# both. Each end is a line in FILE: the time in ms, and the exit code.
#   supervise.sh FILE CMD…
set -u
file=$1 one='' ending=''
shift
trap 'ending=1; [ -z "$one" ] || kill -TERM "$one" 2>/dev/null' TERM
while [ -z "$ending" ]; do
  "$@" &
  one=$!
  while :; do  # a signal ends the wait, not the command
    status=0
    wait "$one" || status=$?
    kill -0 "$one" 2>/dev/null || break
  done
  printf '%s\t%s\n' $((${EPOCHREALTIME/[.,]/} / 1000)) "$status" >>"$file"
  [ -n "$ending" ] || sleep 1
done
exit "$status"
