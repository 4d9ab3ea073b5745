# Who works on the database of a drill, as users have it: controls, workers, and clients.
# After gate.sh and node.sh; used by ha_partition.sh and ha_clock.sh.
# shellcheck shell=bash disable=SC2154
#
#   install NODE LOCK             roles, logins, `migrate`, `publish` of the witness (and what stdin
#                                 adds to the package); LOCK are words in front of the product there
#   control_start NAME DSN VIA…   a control under a supervisor, its health at health_port[NAME]
#   worker_start NAME DSN VIA…    a worker under a supervisor, leases of 5 s
#   clients_start SIDE CONNINFO VIA…   asks for runs until clients_stop
#   clients_stop                  waits until nothing is owed any more
#   ready NAME VIA…               whether /readyz of a control says 200
#   up_ms                         milliseconds since boot, in $REPLY
#   witnessed NODE SQL… -v …      psql on NODE with said, asked, acked, ended_there as tables
#   verdicts FILE                 gates and figures from its rows

crew_home=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
declare -A health_port=()
declare -a crew_env=()
lease=5s slots=20
crew_logins="drill_admission ql_admission ql_reader
drill_scheduler ql_scheduler ql_reader
drill_worker ql_worker
drill_operator ql_operator ql_reader"

install() {
  local node=$1 login word
  shift
  witness=$scratch/witness clients=$scratch/clients
  rm -rf "$witness" "$clients"
  mkdir -p "$witness" "$clients"
  shown "psql -c 'create database $database'; psql -f sql/postgres/role.sql"
  sql_database=postgres ask "$node" "create database $database" >/dev/null
  sql "$node" postgres -f "$root/sql/postgres/role.sql" >/dev/null
  word=$(secret)
  remember ql_migrator "$word"
  sql "$node" postgres -c "alter role ql_migrator password '$word'"
  shown "$* qinglong-sql migrate --dsn $(crew_dsn "$node" ql_migrator)"
  "$@" "$product" migrate --dsn "$(crew_dsn "$node" ql_migrator)" >"$scratch/migrate.log" 2>&1 ||
    die "migrate failed: $(tail -n 3 "$scratch/migrate.log")"
  while read -r -a login; do login_make "$node" "${login[@]}"; done <<<"$crew_logins"
  { sed "s#@WITNESS@#$witness#" "$crew_home/../witness.yaml"; cat; } >"$scratch/drill.yaml"
  shown "$* qinglong-sql publish drill.yaml --dsn $(crew_dsn "$node" drill_admission)"
  "$@" "$product" publish "$scratch/drill.yaml" --dsn "$(crew_dsn "$node" drill_admission)" \
    >"$scratch/publish.log" 2>&1 || die "publish failed: $(tail -n 3 "$scratch/publish.log")"
}

crew_dsn() { dsn_of "${node_host[$1]}" "${node_port[$1]}" "$2"; }

control_start() {
  local name=$1 dsn=$2 REPLY
  shift 2
  free_port
  health_port[$name]=$REPLY
  shown "qinglong-sql control --dsn $dsn  # $name, started again when it ends"
  spawn "$name" "$@" "${crew_env[@]}" "$crew_home/supervise.sh" "$product" control --dsn "$dsn" \
    --listen "127.0.0.1:$REPLY" --log-format json
}

worker_start() {
  local name=$1 dsn=$2
  shift 2
  shown "qinglong-sql worker --dsn $dsn --name $name --lease $lease  # started again when it ends"
  spawn "$name" "$@" "${crew_env[@]}" "$crew_home/supervise.sh" "$product" worker --dsn "$dsn" \
    --name "$name" --lease $lease --slots "$slots" --drain-timeout 3s \
    --state "$scratch/state-$name" --base-dir "$scratch" --log-format json
}

ready() {
  local name=$1
  shift
  # shellcheck disable=SC2016
  "$@" timeout 2 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" &&
    printf "GET /readyz HTTP/1.0\r\n\r\n" >&3 && read -r _ status _ <&3 && [ "$status" = 200 ]' - "${health_port[$name]}" 2>/dev/null
}

clients_start() {
  local side=$1 conninfo=$2
  shift 2
  shown "psql -d '$conninfo' -f load/admit.sql -v run_key=$side-0  # $side-1, …"
  PGCONNECT_TIMEOUT=2 spawn "clients-$side" "$@" "$crew_home/admit.sh" "$side" "$clients" \
    "${pg_env[@]}" "$bin/psql" -d "$conninfo"
}

clients_stop() {
  local one REPLY
  touch "$clients/stop"
  for one in "${!child[@]}"; do
    [[ $one = clients-* ]] || continue
    reaped "$one" 60 || die "$one still waits: $(tail -n 1 "$clients/${one#*-}.errors")"
  done
}

up_ms() {
  local up
  read -r up _ </proc/uptime
  REPLY=$((10#${up/./} * 10))
}

# The time of day less the time since boot, in milliseconds.
offset_ms() {
  local REPLY
  up_ms
  printf '%s\n' $((${EPOCHREALTIME/[.,]/} / 1000 - REPLY))
}

witnessed() {
  local node=$1 file=$2 one
  shift 2
  {
    printf '%s\n' "set client_min_messages = warning;" \
      "create temporary table said (
        attempt_id text, pid bigint, word text, up_s numeric, side text);" \
      "create temporary table asked (run_key text, up_s numeric);" \
      "create temporary table acked (
        run_key text, run_id text, outcome text, server text, up_s numeric);" \
      "create temporary table ended_there (attempt_id text, status text);"
    copied said "$witness"/*
    copied asked "$clients"/*.asked
    copied acked "$clients"/*.acked
    copied ended_there "$clients"/ended_there
    cat "$crew_home/lives.sql" "$file"
  } >"$scratch/judging.sql"
  sql "$node" postgres -f "$scratch/judging.sql" "$@"
}

copied() {
  local table=$1
  shift
  printf 'copy %s from stdin;\n' "$table"
  # a line that was cut by a death is no line
  [ ! -e "$1" ] || awk -F '\t' -v wanted="$(copied_columns "$table")" 'NF == wanted' "$@"
  printf '\\.\n'
}

copied_columns() {
  case $1 in said | acked) echo 5 ;; asked | ended_there) echo 2 ;; esac
}

verdicts() {
  local name truth words
  while IFS='|' read -r name truth words; do
    if [ "$name" = figure ]; then
      figure "${prefix:-}$truth" "$words"
      say "        ${prefix:-}$truth $words"
    else
      case $truth in t) truth=true ;; *) truth=false ;; esac
      gate "$name" "$truth" "$words"
    fi
  done <"$1"
}
