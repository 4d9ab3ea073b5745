# A server whose wall clock can be set while it runs, by libfaketime; clocks that only count stay
# true, as they do when a person or NTP sets the other one.
# shellcheck shell=bash disable=SC2154
#
#   clock_possible        finds libfaketime, or fetches Debian's; else ends the drill with 77
#   with_clock CMD…       node_init or node_start: the server gets that clock
#   clock_set SECONDS [NODE]   how far it is ahead of the machine's from now on; NODE runs with it
#   clock_ahead NODE      how far NODE's clock is ahead, in milliseconds, in $REPLY

clock_possible() {
  local one
  for one in /usr/lib/*/faketime /usr/lib/faketime "$scratch"/faketime/usr/lib/*/faketime; do
    if [ -e "$one/libfaketimeMT.so.1" ]; then
      faketime=$one/libfaketimeMT.so.1
      [[ $faketime != *' '* ]] || cannot "a library's path may have no blank: set another TMPDIR"
      return
    fi
  done
  if [ ! -d "$scratch/faketime" ] && command -v apt-get >/dev/null &&
    command -v dpkg >/dev/null; then
    say "fetching libfaketime from Debian …"
    mkdir -m 755 "$scratch/faketime"
    (cd "$scratch/faketime" && apt-get download -q libfaketime && dpkg -x libfaketime_*.deb . &&
      chmod -R go+rX .) >"$scratch/faketime.log" 2>&1 || true
    clock_possible
    return
  fi
  cannot "no libfaketime; apt-get install --no-install-recommends faketime"
}

# Only the server has it, and only once it is its own user: the library's semaphore is of its maker.
# The file is read at each new second. To read it each time (NO_CACHE) is to allocate memory in the
# signal handlers of PostgreSQL, which look at the clock too: under load a backend dies of that.
with_clock() {
  local before=("${pg_env[@]}")
  pg_env+=("LD_PRELOAD=$faketime" "FAKETIME_TIMESTAMP_FILE=$scratch/clock" FAKETIME_CACHE_DURATION=0
    FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1)
  "$@"
  pg_env=("${before[@]}")
}

# All processes of the server stand still meanwhile, or some would be in the old time still.
clock_set() {  # SECONDS [NODE]
  local stopped=()
  if [ -n "${2:-}" ]; then
    shown "kill -STOP …; echo $(printf '%+d' "$1") >clock; kill -CONT …  # seconds ahead"
    standing_still "$2"
  fi
  printf '%+d\n' "$1" >"$scratch/clock.new"
  chmod 644 "$scratch/clock.new"  # the server may run as somebody else
  mv -f "$scratch/clock.new" "$scratch/clock"
  [ ${#stopped[@]} = 0 ] || sleep 1.1  # who goes on then reads it anew
  kill -CONT "${stopped[@]}" 2>/dev/null || true
}

standing_still() {  # NODE: its processes in the array stopped, the one that makes others first
  local pid=${child[node-$1]} one
  kill -STOP "$pid"
  stopped=("$pid")
  for one in $(cat "/proc/$pid/task/$pid/children"); do
    kill -STOP "$one" 2>/dev/null && stopped+=("$one")
  done
}

clock_ahead() {
  local there
  there=$(ask "$1" "select floor(extract(epoch from clock_timestamp()) * 1000)::bigint")
  REPLY=$((there - ${EPOCHREALTIME/[.,]/} / 1000))
}
