# Who works on the cluster while its nodes die, as users have it: clients that start runs, two
# controls, two workers; and what they themselves wrote down. Sourced by scripts/ha_patroni.sh.
# shellcheck shell=bash disable=SC2154,SC2034

load_home=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# A renewal comes each third of a lease, so two thirds of it are the least that is left when a
# leader dies: that must be more than ttl, and what clients need to find the next one. The default
# of 30 s leaves 20 to 30 s, which is a matter of luck (--sabotage short-lease: 15 s).
worker_lease=60s

# both_nodes LOGIN: whichever of the two takes writes, as every client of a cluster should say it.
both_nodes() {
  printf 'postgresql://%s@127.0.0.1:%s,127.0.0.1:%s/%s?target_session_attrs=read-write' \
    "$1" "${node_port[one]}" "${node_port[two]}" "$database"
}

load_publish() {
  witness=$scratch/witness clients=$scratch/clients
  may_go=$witness.go  # the long executions wait for it
  mkdir -p "$witness" "$clients"
  : >"$clients/crashes"
  sed "s#@WITNESS@#$witness#" "$load_home/load.yaml" >"$scratch/load.yaml"
  shown "qinglong-sql publish load.yaml"
  QINGLONG_DSN=$(both_nodes drill_publisher) product publish "$scratch/load.yaml" \
    >"$scratch/publish.log" 2>&1 || die "publish failed: $(tail -n 3 "$scratch/publish.log")"
}

load_start() {
  local name
  for name in 1 2; do
    free_port && control_port[$name]=$REPLY
    shown "qinglong-sql control --dsn '$(both_nodes drill_control)'  # $name, and again at its end"
    QINGLONG_CONTROL_DSN="$(both_nodes drill_control)" spawn "control-$name" \
      "$load_home/supervise.sh" "$scratch/control-$name.ends" "$product" control \
      --listen "127.0.0.1:${control_port[$name]}" --grace-ms 300000
    shown "qinglong-sql worker --dsn '$(both_nodes drill_worker)' --name load-$name"
    QINGLONG_WORKER_DSN="$(both_nodes drill_worker)" spawn "worker-$name" \
      "$load_home/supervise.sh" "$scratch/worker-$name.ends" "$product" worker \
      --name "load-$name" --queue load --slots 4 --lease "$worker_lease" \
      --state "$scratch/worker-$name"
  done
  must 30 "both controls are ready" controls_are_ready
  load_wanted twenty 0
  load_wanted long 0
  clients_begin workflow twenty
  clients_begin task long
  clients_begin task probe
}

clients_begin() {
  shown "psql -f patroni/start.sql -v target=$2 -v run_key=$2-0, …, until it is acknowledged"
  spawn "clients-$2" "$load_home/start.sh" "$1" "$2" "$clients" \
    "${pg_env[@]}" PGCONNECT_TIMEOUT=2 "$bin/psql" -d "$(both_nodes drill_admission)"
}

controls_are_ready() { control_is_ready 1 && control_is_ready 2; }

control_is_ready() { [ "$(page "${control_port[$1]}" /readyz)" = 200 ]; }

# load_wanted TARGET N: so many of its runs are to be asked for by now, in all.
load_wanted() {
  echo "$2" >"$clients/$1.new"
  mv -f "$clients/$1.new" "$clients/$1.wanted"
}

# No client is owed an answer; then none of them asks any more.
load_ends() {
  local one REPLY
  must 60 "all $1 runs are acknowledged" acknowledged twenty "$1"
  touch "$clients/stop"
  for one in twenty long probe; do
    reaped "clients-$one" 30 || die "clients of $one do not end"
  done
}

acknowledged() { [ "$(cat "$clients/$1.acked" 2>/dev/null | wc -l)" -ge "$2" ]; }

# --- what they wrote down

# witnessed NODE FILE [-v …]: psql runs FILE with the tables asked, acked, witness,
# reported and crash.
witnessed() {
  local node=$1 file=$2
  shift 2
  {
    printf '%s\n' "set client_min_messages = warning;" \
      "create temporary table asked (at_ms bigint, run_key text);" \
      "create temporary table acked (at_ms bigint, run_key text, run_id text, outcome text," \
      "  port int);" \
      "create temporary table witness (run_id text, step_key text, number bigint, word text," \
      "  at_ms bigint);" \
      "create temporary table reported (run_id text, step_key text, number bigint, at_ms bigint);" \
      "create temporary table crash (crashed_ms bigint, heir_ms bigint);"
    echo "copy crash from stdin;" && whole_lines 2 "$clients/crashes"
    echo "copy asked from stdin;" && whole_lines 2 "$clients"/*.asked
    echo "copy acked from stdin;" && whole_lines 5 "$clients"/*.acked
    echo "copy witness from stdin;" && lived
    echo "copy reported from stdin;" && kept_logs
    cat "$file"
  } >"$scratch/judging.sql"
  sql "$node" postgres -f "$scratch/judging.sql" "$@"
}

# A line that is being written is no line yet.
whole_lines() {
  cat "${@:2}" 2>/dev/null | awk -F '\t' -v wanted="$1" 'NF == wanted'
  echo '\.'
}

# What executions said: files RUN.STEP.NUMBER with lines `begin MS` and `end MS`.
lived() {
  find "$witness" -type f -exec awk -F '\t' -v OFS='\t' 'NF == 2 {
    name = FILENAME; sub(/.*\//, "", name); split(name, part, "."); $1 = $1
    print part[1], part[2], part[3], $1, $2
  }' {} +
  echo '\.'
}

# A worker moves a log to its place when its report was answered: then, not before.
kept_logs() {
  find "$scratch"/worker-[12]/log -name '*.log' -printf '%P\t%C@\n' 2>/dev/null |
    awk -F '\t' -v OFS='\t' '{
      split($1, at, "/"); split(at[2], part, ".")
      printf "%s\t%s\t%s\t%.0f\n", at[1], part[1], part[2], $2 * 1000
    }'
  echo '\.'
}

# Sabotage of the judges: an answer, a start, a report and a second execution that never were.
load_forge() {
  local one
  printf '%s\t%s\t%s\t%s\t%s\n' 1 forged-0 runever created 1 >>"$clients/probe.acked"
  printf 'begin\t1\n' >"$witness/runever.main.1"
  mkdir -p "$scratch/worker-1/log/runever"
  : >"$scratch/worker-1/log/runever/main.1.log"
  for one in "$witness"/*.end.1; do
    printf 'begin\t1\n' >>"$one"
    return
  done
}
