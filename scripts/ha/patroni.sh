# A cluster that Patroni keeps: one etcd, two nodes, all on loopback below $scratch. Sourced by
# scripts/ha_patroni.sh. After gate.sh and node.sh.
# shellcheck shell=bash disable=SC2154,SC2034

# Patroni takes no ttl below 20 s. A dead leader's key is gone that long after its last refresh, of
# which there is one each loop_wait; so a standby is promoted 18 to 20 s after a crash.
patroni_ttl=20
patroni_loop_wait=2
patroni_retry_timeout=5  # loop_wait + 2 * retry_timeout <= ttl is Patroni's own rule
patroni_nodes=(one two)

declare -A rest_port=()

# --- programs

# Sets $etcd_bin and $patroni_bin: what is on PATH or named, else fetched once into a folder that
# the servers' user may enter. No service is installed.
patroni_tools() {
  local tools said
  tools=$(umask 022 && cache_folder)/patroni
  (umask 022 && mkdir -p "$tools")
  as_server test -x "$tools" || tools=$scratch/tools
  (umask 022 && mkdir -p "$tools")
  etcd_bin=$(command -v etcd || true)
  if [ -z "$etcd_bin" ]; then
    etcd_bin=$tools/etcd/usr/bin/etcd
    [ -x "$etcd_bin" ] || (umask 022 && patroni_unpack etcd-server "$tools/etcd")
  fi
  patroni_bin=${QINGLONG_PATRONI:-$tools/env/bin}
  as_server "$patroni_bin/patroni" --version >/dev/null 2>&1 ||
    (umask 022 && patroni_environment "$tools/env")
  said=$(as_server "$etcd_bin" --version) || die "$etcd_bin does not run"
  patroni_version=$(as_server "$patroni_bin/patroni" --version) || die "Patroni does not run"
  patroni_version="$patroni_version, ${said%%$'\n'*}"
}

# Patroni starts itself anew for each postgres, so the servers' user must be able to run its Python.
patroni_environment() {
  local folder=$1 one own='' wanted=('patroni[etcd3,psycopg3]==4.1.*' 'psycopg[binary]')
  for one in $(type -ap python3) /usr/bin/python3; do
    # by a shell: setpriv itself would still have root's rights
    if as_server sh -c "'$one' -c 'import sys, venv; sys.exit(sys.version_info < (3, 9))'"; then
      own=$one
      break
    fi
  done 2>/dev/null
  [ -n "$own" ] || die "no python3 that the user of the servers may run"
  say "Making a virtual environment for Patroni in $folder …"
  rm -rf "$folder"
  "$own" -m venv --without-pip "$folder"
  if [ -x "${product%/*}/uv" ]; then
    "${product%/*}/uv" pip install --quiet --python "$folder/bin/python3" "${wanted[@]}"
  else
    "$(find_python)" -m venv "$folder/pip"
    "$folder/pip/bin/python3" -m pip --python "$folder/bin/python3" install --quiet "${wanted[@]}"
  fi >"$scratch/install.log" 2>&1 || die "no Patroni: $(tail -n 3 "$scratch/install.log")"
}

# A Debian package's programs in a folder, without the service that an installation would begin.
patroni_unpack() {
  local package=$1 folder=$2
  command -v apt-get >/dev/null && command -v dpkg >/dev/null ||
    die "etcd is not on PATH, and there is no apt-get to fetch $package with"
  mkdir -p "$folder"
  (cd "$folder" && apt-get download -q "$package" && dpkg -x "$package"_*.deb .) \
    >"$scratch/fetch.log" 2>&1 || die "could not fetch $package: $(tail -n 2 "$scratch/fetch.log")"
  rm -f "$folder"/*.deb
}

# --- HTTP, for Patroni's REST and etcd's gateway

# http PORT METHOD PATH [BODY [LOGIN:PASSWORD]]: the answer's body; fails unless its status is 2xx.
http() {
  local port=$1 method=$2 path=$3 body=${4:-} answer status
  local fields="Host: 127.0.0.1"$'\r\n'"Content-Type: application/json"
  [ -z "${5:-}" ] || fields+=$'\r\n'"Authorization: Basic $(printf '%s' "$5" | base64 -w 0)"
  answer=$(
    exec 3<>"/dev/tcp/127.0.0.1/$port" || exit 1
    printf '%s %s HTTP/1.0\r\n%s\r\nContent-Length: %d\r\n\r\n%s' \
      "$method" "$path" "$fields" "${#body}" "$body" >&3
    timeout "${http_s:-5}" cat <&3
  ) 2>/dev/null || return
  status=${answer#* }
  printf '%s\n' "${answer##*$'\r\n\r\n'}"
  [[ ${status%% *} = 2* ]]
}

# --- etcd

etcd_start() {
  local port peer
  free_port && etcd_port=$REPLY
  free_port && peer=$REPLY
  mkdir -m 700 "$scratch/etcd"
  give "$scratch/etcd"
  port=$etcd_port
  shown "etcd --listen-client-urls http://127.0.0.1:$port"
  spawn etcd "${server_as[@]/#QUIT/TERM}" "$etcd_bin" --name drill --data-dir "$scratch/etcd" \
    --listen-client-urls "http://127.0.0.1:$port" \
    --advertise-client-urls "http://127.0.0.1:$port" \
    --listen-peer-urls "http://127.0.0.1:$peer" \
    --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
    --initial-cluster "drill=http://127.0.0.1:$peer" --log-level warn --logger zap
  must 20 "etcd answers" http "$port" GET /health
  etcd_guard || die "etcd takes no password: $(tail -n 2 "$scratch/etcd.log")"
}

# Who may write there decides what Patroni runs: nobody without a password.
etcd_guard() {
  local password
  password=$(own_secret etcd)
  http "$etcd_port" POST /v3/auth/user/add "{\"name\": \"root\", \"password\": \"$password\"}" &&
    http "$etcd_port" POST /v3/auth/role/add '{"name": "root"}' &&
    http "$etcd_port" POST /v3/auth/user/grant '{"user": "root", "role": "root"}' &&
    http "$etcd_port" POST /v3/auth/enable '{}'
} >/dev/null

# own_secret NAME: a password of the cluster's own; the same whenever it is asked for.
own_secret() {
  if [ ! -e "$scratch/secret-$1" ]; then
    secret >"$scratch/secret-$1"
    { cat "$scratch/secret-$1" && echo; } >>"$scratch/secrets"
  fi
  cat "$scratch/secret-$1"
}

# --- nodes

# The settings of one node, for the eyes of the user that Patroni runs as.
patroni_settings() {
  local node=$1 folder=$scratch/server/$1 port
  node_address "$node"
  node_folder[$node]=$folder/data
  free_port && rest_port[$node]=$REPLY
  port=${node_port[$node]}
  as_server mkdir -m 700 "$folder"
  as_server sh -c "umask 077 && cat >'$folder/patroni.yml'" <<END
scope: drill
name: $node
restapi:
  listen: 127.0.0.1:${rest_port[$node]}
  connect_address: 127.0.0.1:${rest_port[$node]}
  authentication: {username: drill, password: "$(own_secret rest)"}
etcd3: {hosts: "127.0.0.1:$etcd_port", username: root, password: "$(own_secret etcd)"}
bootstrap:
  dcs:
    ttl: $patroni_ttl
    loop_wait: $patroni_loop_wait
    retry_timeout: $patroni_retry_timeout
    maximum_lag_on_failover: 1048576
    synchronous_mode: true
    postgresql:
      use_pg_rewind: true
      use_slots: true
      parameters:
        synchronous_commit: remote_apply
        wal_log_hints: "on"
        wal_keep_size: 512MB
        max_connections: 100
        log_min_error_statement: panic
  initdb: [data-checksums, {encoding: UTF8}, {locale: C.UTF-8}]
postgresql:
  listen: 127.0.0.1:$port
  connect_address: 127.0.0.1:$port
  data_dir: $folder/data
  bin_dir: $bin
  pgpass: $folder/pgpass
  authentication:
    superuser: {username: postgres, password: "$(own_secret superuser)"}
    replication: {username: drill_replication, password: "$(own_secret replication)"}
    rewind: {username: drill_rewind, password: "$(own_secret rewind)"}
  parameters: {unix_socket_directories: ""}
  pg_hba:
    - host replication drill_replication 127.0.0.1/32 scram-sha-256
    - host all all 127.0.0.1/32 scram-sha-256
END
}

patroni_start() {
  local node=$1
  shown "patroni $node/patroni.yml"
  spawn "patroni-$node" "${server_as[@]/#QUIT/TERM}" "${pg_env[@]}" PATRONI_LOG_LEVEL=INFO \
    "$patroni_bin/patroni" "$scratch/server/$node/patroni.yml"
}

# patroni_is NODE PAGE: what a balancer would ask; /primary holds the key and takes writes, /sync is
# the standby that a commit waits for.
patroni_is() { http "${rest_port[$1]}" GET "/$2" >/dev/null; }

other_node() { if [ "$1" = one ]; then echo two; else echo one; fi; }

# The name of the node that takes writes; fails while there is none.
leader() {
  local node
  for node in one two; do
    if patroni_is "$node" primary; then
      echo "$node"
      return
    fi
  done
  return 1
}

# A leader has its standby, and commits wait for it.
whole_cluster() {
  local node
  node=$(leader) && patroni_is "$(other_node "$node")" sync &&
    sql_database=postgres asked "$node" "
      select count(*) from pg_stat_replication where sync_state = 'sync'" 1
}

# All processes below one, itself first.
family() {
  local child
  echo "$1"
  for child in $(cat "/proc/$1/task"/*/children 2>/dev/null || true); do family "$child"; done
}

all_gone() {
  local pid
  for pid in "$@"; do no_such "$pid" || return 1; done
} 2>/dev/null

postmaster_of() { as_server head -n 1 "$scratch/server/$1/data/postmaster.pid" 2>/dev/null; }

# crash NODE postmaster|node: KILL for the postmaster and its Patroni, whose backends then end by
# themselves, or for every process of the node at once. Sets $crashed_ms and, when none of them is
# left that could still commit, $gone_ms.
crash() {
  local node=$1 kind=$2 postmaster patroni pids REPLY
  postmaster=$(postmaster_of "$node") || die "$node has no postmaster"
  patroni=${child[patroni-$node]}
  mapfile -t pids < <(family "$patroni" && family "$postmaster")
  epoch_ms && crashed_ms=$REPLY
  if [ "$kind" = node ]; then
    shown "kill -KILL ${pids[*]}  # all of $node"
    kill -KILL "${pids[@]}" 2>/dev/null || true
  else
    shown "kill -KILL $postmaster $patroni  # postgres of $node and its Patroni"
    kill -KILL "$postmaster" "$patroni"
  fi
  reaped "patroni-$node" 10 || die "Patroni of $node does not die"
  must 20 "nothing of $node is left" all_gone "${pids[@]}"
  epoch_ms && gone_ms=$REPLY
}

epoch_ms() { REPLY=$((${EPOCHREALTIME/[.,]/} / 1000)); }

# How often a node was rewound, by its Patroni's own log.
rewound() { grep -c 'pg_rewind exit code=0' "$scratch/patroni-$1.log" || true; }

# Let the other node lead, as `patronictl switchover` does; ends when Patroni says that it does.
switchover() {
  shown "patronictl switchover --leader $1 --candidate $2  # by POST /switchover of $1"
  http_s=60 http "${rest_port[$1]}" POST /switchover \
    "{\"leader\": \"$1\", \"candidate\": \"$2\"}" "drill:$(own_secret rest)" \
    >"$scratch/switchover.log" || die "no switchover: $(tail -n 3 "$scratch/switchover.log")"
}

# What is thrown away needs no orderly end: the nodes first, or each would wait for the others.
patroni_end() {
  local node postmaster REPLY
  for node in one two; do
    kill_child "patroni-$node" KILL
    reaped "patroni-$node" 5
    postmaster=$(postmaster_of "$node") && kill -QUIT "$postmaster" 2>/dev/null &&
      until_true 10 "postgres of $node has ended" all_gone "$postmaster"
  done
  return 0
}
