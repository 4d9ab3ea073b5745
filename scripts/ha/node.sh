# PostgreSQL nodes on loopback: made, replicated, fenced, promoted, rewound. After gate.sh.
# shellcheck shell=bash disable=SC2154,SC2034,SC1091
#
# It offers (a NODE is a name such as alpha; all but `ask`, `sql` and the questions end the drill
# when they fail, and what changes a node prints its command):
#   find_programs                    sets bin, pg_version, pg_major, server_as (root's other user)
#   find_product                     then sets product, python, product_version: QINGLONG_SQL, or ours
#   program NAME ARGS…               one of PostgreSQL's programs, as ourselves
#   as_server CMD…                   a command as the user who owns the servers
#   node_init NODE                   initdb with checksums, pg_hba, settings, the superuser postgres
#   node_start NODE                  postgres as a child of ours (spawn: not from a subshell); waits
#                                    until it answers (not with node_wait=no)
#   node_backup NODE FROM            slot on FROM, pg_basebackup; NODE is then a standby to start
#   node_follow NODE FROM [HOST PORT]  rewrite NODE's postgresql.auto.conf: standby of FROM, reached
#                                    at HOST PORT (a relay, say), else at FROM itself
#   node_sync NODE STANDBY           synchronous remote_apply on NODE; waits until it is sync
#   sync_wanted · sync_awaited NODE STANDBY   its two halves: set it (nothing more is acknowledged
#                                    before STANDBY has it too), wait for it
#   node_async NODE                  the way back: NODE waits for nobody
#   node_stop NODE [SIGNAL]          INT (fast, default), QUIT or TERM; waits for its end
#   node_fence NODE                  KILL, then waits until all its backends are gone too
#   node_promote NODE                pg_promote; waits until it is a primary
#   node_rewind NODE FROM            pg_rewind --write-recovery-conf of a fenced node
#   sql NODE LOGIN [-f FILE | -c TEXT] [-v NAME=VALUE]…   psql -XqAt; the text goes by stdin, so
#                                    :'name' works in -c too; stops at the first error, 60 s at most
#   psql_at NODE LOGIN               the words of such a psql in the array psql, for spawn
#   ask NODE TEXT                    sql NODE postgres -c TEXT, in one word
#   asked NODE TEXT WANTED           whether ask answers WANTED
#   state_of CMD…                    the SQLSTATE that a sql … ends with: 00000, 42501, QL410, …;
#                                    08006 when the connection broke
#   replication_login PRIMARY        the login drill_replication, before node_backup and node_rewind
#   slot_make NODE STANDBY           a physical slot for STANDBY on NODE, if there is none
#   login_make NODE LOGIN [GROUP…]   a login with a random password, member of the groups
#   login_password NODE LOGIN        a random password for a login that is there
#   dsn_of HOST PORT LOGIN           URL without a password (it comes from PGPASSFILE)
#   node_at NODE HOST PORT           name a server that somebody else runs (Patroni); then sql works
#   in_recovery NODE · timeline_of NODE · caught_up STANDBY PRIMARY · answers NODE   questions
# node_host[NODE], node_port[NODE], node_folder[NODE], node_via[NODE] (words in front of a command
# that runs at the node: ip netns exec …) may be set before node_init. database=qinglong.

source "$here/program.sh"

declare -A node_host=() node_port=() node_folder=() node_via=()
database=qinglong
hba_network=127.0.0.1/32

# --- logins

secret() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }

remember() {  # LOGIN PASSWORD
  printf '*:*:*:%s:%s\n' "$1" "$2" >>"$scratch/pgpass"
  printf '%s\n' "$2" >>"$scratch/secrets"
}

login_make() {
  local node=$1 login=$2 group
  shift 2
  shown "psql -c 'create role $login login${*:+ in role ${*// /, }}'"
  sql "$node" postgres -c "create role $login login"
  login_password "$node" "$login"
  for group; do sql "$node" postgres -c "grant $group to $login"; done
}

login_password() {
  local word
  word=$(secret)
  remember "$2" "$word"
  sql "$1" postgres -c "alter role $2 password '$word'"
}

dsn_of() { printf 'postgresql://%s@%s:%s/%s\n' "$3" "$1" "$2" "$database"; }

# --- psql

psql_at() {
  local via=()
  read -ra via <<<"${node_via[$1]:-}"
  psql=("${via[@]}" "${pg_env[@]}" "PGCONNECT_TIMEOUT=${connect_s:-5}" "PGAPPNAME=$2"
    "$bin/psql" -XqAt
    -v ON_ERROR_STOP=1 -v VERBOSITY=verbose -h "${node_host[$1]:-127.0.0.1}" -p "${node_port[$1]}"
    -U "$2" -d "${sql_database:-$database}")
}

sql() {
  local psql words=() text='' file=-
  psql_at "$1" "$2"
  shift 2
  while [ $# -gt 0 ]; do
    case $1 in
      -c) text=$2 ;;
      -f) file=$2 ;;
      -v) words+=(-v "$2") ;;
      *) die "sql: what is '$1'?" ;;
    esac
    shift 2
  done
  timeout --foreground "${sql_s:-60}" "${psql[@]}" "${words[@]}" -f "$file" <<<"$text"
}

ask() { sql "$1" postgres -c "$2"; }

asked() { [ "$(ask "$1" "$2" 2>/dev/null)" = "$3" ]; }

state_of() {
  local said
  if said=$("$@" 2>&1 >/dev/null); then echo 00000; return; fi
  if [[ $said =~ (ERROR|FATAL|PANIC):\ \ ([0-9A-Z]{5}): ]]; then
    echo "${BASH_REMATCH[2]}"
  else
    echo 08006
  fi
}

answers() { asked "$1" "select 1" 1; }

in_recovery() { asked "$1" "select pg_is_in_recovery()" t; }

timeline_of() {
  ask "$1" "select case when pg_is_in_recovery()
    then (select received_tli from pg_stat_wal_receiver)
    else ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int end"
}

caught_up() {  # all that PRIMARY has written by now is applied on STANDBY
  local lsn
  lsn=$(ask "$2" "select pg_current_wal_flush_lsn()") &&
    must 20 "$1 has applied $lsn" asked "$1" "select pg_last_wal_replay_lsn() >= '$lsn'" t
}

# --- nodes

node_at() { node_host[$1]=$2 node_port[$1]=$3; }

node_init() {
  local node=$1 word folder
  word=$(secret)
  remember postgres "$word"
  node_address "$node"
  folder=${node_folder[$node]}
  (umask 077 && printf '%s\n' "$word" >"$scratch/server/word")
  give "$scratch/server"
  shown "initdb -D $folder -U postgres --auth=scram-sha-256 --data-checksums --locale=C.UTF-8"
  server_program "$node" initdb -D "$folder" -U postgres --auth=scram-sha-256 --data-checksums \
    --locale=C.UTF-8 -E UTF8 --pwfile="$scratch/server/word" >"$scratch/initdb.log" ||
    die "initdb failed: $(tail -n 3 "$scratch/initdb.log")"
  rm -f "$scratch/server/word"
  settings | as_server tee -a "$folder/postgresql.conf" >/dev/null
  printf '%s\n' "host replication drill_replication $hba_network scram-sha-256" \
    "host all all $hba_network scram-sha-256" | as_server tee "$folder/pg_hba.conf" >/dev/null
}

node_address() {
  node_folder[$1]=${node_folder[$1]:-$scratch/server/$1}
  node_host[$1]=${node_host[$1]:-127.0.0.1}
  [ -n "${node_port[$1]:-}" ] && return
  free_port
  node_port[$1]=$REPLY
}

# wal_log_hints and wal_keep_size are pg_rewind's; synchronous settings are not here, since they do
# not replicate: each new primary gets them anew.
settings() {
  cat <<'CONF'
unix_socket_directories = ''
wal_level = replica
wal_log_hints = on
wal_keep_size = '256MB'
max_wal_senders = 10
max_replication_slots = 10
hot_standby = on
wal_receiver_status_interval = '1s'
wal_retrieve_retry_interval = '200ms'
wal_receiver_timeout = '10s'
wal_sender_timeout = '10s'
shared_buffers = '64MB'
max_wal_size = '256MB'
max_connections = 80
timezone = 'UTC'
log_line_prefix = '%m [%p] %u@%d '
log_statement = none
log_min_error_statement = panic
CONF
}

# The replication login, which pg_rewind uses too, with just the functions that it needs.
replication_login() {  # PRIMARY
  local word
  word=$(secret)
  printf '%s\n' "$word" >>"$scratch/secrets"
  sql_database=postgres sql "$1" postgres -c "
    create role drill_replication login replication password '$word';
    grant execute on function pg_ls_dir(text, boolean, boolean), pg_stat_file(text, boolean),
      pg_read_binary_file(text), pg_read_binary_file(text, bigint, bigint, boolean)
      to drill_replication;"
  printf '*:*:*:drill_replication:%s\n' "$word" | as_server tee "$scratch/server/pgpass" >/dev/null
  as_server chmod 600 "$scratch/server/pgpass"
}

node_start() {
  local node=$1 via=()
  read -ra via <<<"${node_via[$node]:-}"
  shown "postgres -D ${node_folder[$node]} -p ${node_port[$node]}"
  spawn_end=QUIT spawn "node-$node" "${via[@]}" "${server_as[@]}" "${pg_env[@]}" \
    "PGPASSFILE=$scratch/server/pgpass" "$bin/postgres" -D "${node_folder[$node]}" \
    -p "${node_port[$node]}" -c "listen_addresses=${node_host[$node]}" -c "cluster_name=$node"
  [ "${node_wait:-}" = no ] && return
  until_true 60 "$node answers" up_or_gone "$node" || true
  sql_database=postgres answers "$node" ||
    die "$node does not answer: $(tail -n 3 "$scratch/node-$node.log")"
}

up_or_gone() { gone "node-$1" || sql_database=postgres answers "$1"; }

slot_make() {  # NODE STANDBY
  shown "psql -c \"select pg_create_physical_replication_slot('$2')\""
  ask "$1" "select pg_create_physical_replication_slot('$2', true)
    where not exists (select from pg_replication_slots where slot_name = '$2')" >/dev/null
}

node_backup() {
  local node=$1 from=$2
  node_address "$node"
  sql_database=postgres slot_make "$from" "$node"
  shown "pg_basebackup -D ${node_folder[$node]} -R -X stream -S $node -c fast"
  server_program "$node" pg_basebackup -D "${node_folder[$node]}" -h "${node_host[$from]}" \
    -p "${node_port[$from]}" -U drill_replication -w -R -X stream -S "$node" -c fast
}

node_follow() {
  local node=$1 from=$2 host=${3:-${node_host[$2]}} port=${4:-${node_port[$2]}}
  shown "cat >${node_folder[$node]}/postgresql.auto.conf  # standby of $from at $host:$port"
  # quoted twice: for libpq, and for the file of settings
  as_server tee "${node_folder[$node]}/postgresql.auto.conf" >/dev/null <<CONF
primary_conninfo = 'host=$host port=$port user=drill_replication application_name=$node \
passfile=''$scratch/server/pgpass'' connect_timeout=5'
primary_slot_name = '$node'
recovery_target_timeline = 'latest'
CONF
  as_server touch "${node_folder[$node]}/standby.signal"
}

node_sync() {
  sync_wanted "$1" "$2"
  sync_awaited "$1" "$2"
}

sync_wanted() {
  shown "psql $1 -c \"alter system set synchronous_standby_names = '$2'\" (remote_apply), reload"
  ask "$1" "alter system set synchronous_commit = 'remote_apply';
    alter system set synchronous_standby_names = '$2'; select pg_reload_conf()" >/dev/null
  must 10 "$1 waits for $2" asked "$1" "show synchronous_standby_names" "$2"
}

sync_awaited() {
  must 30 "$2 is the synchronous standby of $1" asked "$1" \
    "select state || ' ' || sync_state from pg_stat_replication where application_name = '$2'" \
    "streaming sync"
}

node_async() {
  shown "psql $1 -c 'alter system reset synchronous_standby_names', reload"
  ask "$1" "alter system reset synchronous_standby_names; select pg_reload_conf()" >/dev/null
}

node_stop() {
  local node=$1 REPLY
  shown "kill -${2:-INT} ${child[node-$node]}  # postgres of $node"
  kill_child "node-$node" "${2:-INT}"
  reaped "node-$node" 30 || die "$node does not stop"
}

node_fence() {
  local node=$1 all one REPLY
  local pid=${child[node-$node]}
  all=$(cat "/proc/$pid/task/$pid/children")
  shown "kill -KILL $pid  # postgres of $node, and wait for its backends"
  kill_child "node-$node" KILL
  reaped "node-$node" 10 || die "$node does not die"
  for one in $all; do must 20 "backend $one of $node has ended" no_such "$one"; done
}

no_such() { [ ! -e "/proc/$1" ] || [[ $(cat "/proc/$1/stat") = *") Z "* ]]; }

node_promote() {
  shown "psql $1 -c 'select pg_promote()'"
  [ "$(ask "$1" "select pg_promote(true, 30)")" = t ] || die "$1 was not promoted"
  must 30 "$1 is a primary" asked "$1" "select pg_is_in_recovery()" f
}

node_rewind() {
  local node=$1 from=$2
  shown "pg_rewind -D ${node_folder[$node]} --source-server=$from --write-recovery-conf"
  # a checkpoint, or the source's control file may still name the old timeline
  ask "$from" "checkpoint"
  server_program "$node" pg_rewind -D "${node_folder[$node]}" --write-recovery-conf \
    --source-server="host=${node_host[$from]} port=${node_port[$from]} user=drill_replication \
dbname=postgres" >>"$scratch/rewind.log" 2>&1 ||
    die "pg_rewind failed: $(tail -n 3 "$scratch/rewind.log")"
}
