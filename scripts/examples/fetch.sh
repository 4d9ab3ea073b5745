#!/bin/sh
# The first try fails on purpose; the retry brings the figures.
set -eu
sleep 0.3
if [ "$QL_TRY" = 1 ]; then
  echo "nobody at home" >&2
  exit 1
fi
printf '{"north": [12, 30], "east": [7, 5, 9], "south": [40], "west": [3, 18]}' >"$QL_OUTPUT"
