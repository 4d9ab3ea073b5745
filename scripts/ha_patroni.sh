#!/usr/bin/env bash
# The failover drill with a real cluster manager: etcd and two nodes that Patroni keeps, synchronous
# remote_apply, with controls, workers and clients at work. Patroni decides who leads; the drill
# switches over once and then kills whoever leads, again and again.
#
#   scripts/ha_patroni.sh                      one switchover, two crashes; some four minutes
#   scripts/ha_patroni.sh --failovers 10       ten crashes; some ten minutes
#   scripts/ha_patroni.sh --list               phases and gates
#   scripts/ha_patroni.sh --report FILE        JSON, readable by you alone; scripts/ha_audit.py FILE
#   scripts/ha_patroni.sh --only PHASE         that phase and those that it stands on
#   scripts/ha_patroni.sh --bindir DIR         PostgreSQL's programs, 15 to 18
#   scripts/ha_patroni.sh --sabotage NAME      break one thing on purpose: its gate must be false
#   scripts/ha_patroni.sh --keep               keep the folder: nodes, logs, passwords
#
# Exit 0 only if every gate is true; 1 one is false, or it could not go on; 2 a wrong call; 77 it
# cannot run here; 129, 130, 143 ended by HUP, INT, TERM.
#
# Needs what scripts/ha_drill.sh needs, and fetches once, below the cache folder or the scratch one:
# Patroni (PyPI) into an environment of its own, etcd (Debian's etcd-server, unpacked, no service)
# unless it is on PATH. QINGLONG_PATRONI=/folder/of/patroni takes one that is there.
#
# What to expect of the times: Patroni takes no ttl below 20 s. A dead leader's key lives so long
# after its last refresh (one each loop_wait, 2 s here), so that a standby leads 18 to 20 s after a
# crash; the clients then find it by themselves. A switchover has no such wait. What runs meanwhile
# goes on if two thirds of its worker's --lease are longer than that: 60s here, good for Patroni's
# default ttl of 30 s too. The default lease of 30s is a matter of luck with a ttl of 20 s, and too
# short for one of 30 s: what runs is killed then, and counts as lost.
case ${BASH_VERSION:-} in [5-9].*) ;; *) echo "$0 needs bash 5: bash $0" >&2; exit 2 ;; esac
set -euo pipefail

ha=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)/ha
drill=ha_patroni
gates_file=$ha/gates_patroni.txt
source "$ha/gate.sh"
source "$ha/node.sh"
source "$ha/control.sh"
source "$ha/fixture.sh"
source "$ha/patroni.sh"
source "$ha/patroni/load.sh"

runs_wanted=50 steps_of_run=20 failovers=2 number_option=--failovers

phases=(
  "cluster"$'\t'"etcd and two nodes of Patroni, synchronous remote_apply"
  "roles"$'\t'"roles, schema and logins"
  "fixtures"$'\t'"every command by its login, its answer lost at the commit"
  "load"$'\t'"two controls, two workers, clients that start runs"
  "switchover"$'\t'"the other node leads, as an operator asks for it, under load"
  "replay"$'\t'"the fixtures' commands again, word for word; exact rows"
  "crashes"$'\t'"whoever leads is killed, under load; Patroni brings it back"
  "end"$'\t'"all runs end; what was acknowledged is there"
)
sabotages=(
  "short-lease"$'\t'"executionsOutlivedTheFailovers"$'\t'"workers whose lease of 15 s ends before another node leads"
  "forged"$'\t'"acknowledgedAdmissionsKept acknowledgedStartsKept acknowledgedReportsKept \
executionsNotDoubled admittedExactlyOnce"$'\t'"ledgers that tell of what never was"
)
needs=([load]="cluster roles" [switchover]="cluster roles load" [crashes]="cluster roles load"
  [end]="cluster roles load switchover crashes")

drill_usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$ha/../ha_patroni.sh"; }

drill_begin() {
  failovers=${rounds:-$failovers}
  find_programs
  find_product
  patroni_tools
  say "PostgreSQL $pg_version of $bin, $patroni_version, $product_version"
}

drill_tidy() { patroni_end; }

sabotage_before() {
  case $sabotage:$1 in
    short-lease:load) event sabotage "$sabotage"; worker_lease=15s ;;
    forged:end) event sabotage "$sabotage"; load_forge ;;
  esac
}

phase_cluster() {
  local node
  etcd_start
  for node in one two; do patroni_settings "$node"; done
  remember postgres "$(own_secret superuser)"
  patroni_start one
  must 60 "one leads" patroni_is one primary
  patroni_start two
  must 90 "two is its synchronous standby" whole_cluster
  sql_database=postgres ask one "create table probe as select now() as at" >/dev/null
  judge synchronousRemoteApply "what COMMIT acknowledged is read on two at once" \
    reads_at_once one two
  event synchronous
}

reads_at_once() {
  local at
  at=$(sql_database=postgres ask "$1" "show synchronous_commit") && same remote_apply "$at" &&
    at=$(sql_database=postgres ask "$1" "update probe set at = clock_timestamp() returning at") &&
    sql_database=postgres asked "$2" "select at from probe" "$at"
}

phase_roles() {
  local login group
  sql_database=postgres ask one "create database $database"
  shown "psql -f sql/postgres/role.sql"
  sql one postgres -f "$root/sql/postgres/role.sql"
  login_password one ql_migrator
  shown "qinglong-sql migrate --dsn '$(both_nodes ql_migrator)'"
  QINGLONG_DSN=$(both_nodes ql_migrator) product migrate >"$scratch/migrate.log" 2>&1 ||
    die "migrate failed: $(tail -n 5 "$scratch/migrate.log")"
  while read -r login group; do login_make one "$login" "$group"; done < <(fixture_logins)
  login_make one drill_control ql_scheduler ql_reader
  login_make one drill_publisher ql_admission ql_reader
}

phase_fixtures() {
  fixture_prepare one
  fixture_run one two
  fixture_claim one two
  fixture_keep one
  event fixtures
}

phase_load() {
  load_publish
  load_start
  wanted_runs=0
  event load
}

# So many of the runs are asked for now: the same number before each time that a leader goes.
more_runs() {
  wanted_runs=$((runs_wanted * $1 / (failovers + 1)))
  load_wanted twenty "$wanted_runs"
  must 60 "executions are under way" at_work
}

at_work() {
  [ "$(ask "$(leader)" "select count(*) from ql.attempt_state as t
    where t.status in ('starting', 'running') and t.queue = 'load'")" -ge 5 ]
}

phase_switchover() {
  local from to REPLY
  from=$(leader) && to=$(other_node "$from")
  more_runs 1
  epoch_ms && crashed_ms=$REPLY
  switchover "$from" "$to"
  must 60 "$to leads" patroni_is "$to" primary
  epoch_ms && gone_ms=$REPLY
  recovered switchover "$to"
  must 90 "$from is the synchronous standby" whole_cluster
  judge switchoverKeptTheCluster "$to leads, $from follows and takes no writes" \
    in_recovery "$from"
  event promoted "$to, by a switchover"
  judge_kept "$to"
  must 60 "both controls are ready again" controls_are_ready
  event freshControlsReady
}

phase_replay() {
  local node
  node=$(leader)
  fixture_takeover "$node"
  fixture_replay "$node"
  fixture_counts "$node" "$(other_node "$node")"
  fixture_late "$(other_node "$node")" "$node"
  event replayed
}

phase_crashes() {
  local number kind
  rejoined=true rewinds=0
  for ((number = 1; number <= failovers; number++)); do
    if ((number % 2)); then kind=postmaster; else kind=node; fi
    one_crash "$number" "$kind"
  done
  figure rewinds "$rewinds"
  gate everyCrashFailedOver true "$failovers crashes, each time the other node led"
  gate deadNodeRejoinedSynchronous "$rejoined" "$failovers times by its Patroni, $rewinds rewound"
  event crashed
}

one_crash() {
  local number=$1 kind=$2 node heir before old REPLY
  node=$(leader) && heir=$(other_node "$node")
  old=$(timeline_of "$node") before=$(rewound "$node")
  until_true 60 "the long execution before has ended" no_long_one "$node" || true
  rm -f "$may_go"
  load_wanted long "$number"
  must 90 "a long execution has begun" long_one_runs "$node"
  more_runs $((number + 1))
  sleep "$((RANDOM % 2)).$((RANDOM % 10))"  # at another moment of the load each time
  say "  crash $number of $failovers: $kind of $node"
  crash "$node" "$kind"
  event "crash $number" "$kind of $node"
  must 90 "$heir leads" patroni_is "$heir" primary
  epoch_ms && figure "failover.$number.leaderMs" $((REPLY - crashed_ms)) &&
    times+=("leader $((REPLY - crashed_ms))")
  event "heir $number" "$heir"
  recovered "failover.$number" "$heir"
  epoch_ms && printf '%s\t%s\n' "$crashed_ms" "$REPLY" >>"$clients/crashes"
  touch "$may_go"
  [ "$(timeline_of "$heir")" -gt "$old" ] || die "$heir has not begun a timeline of its own"
  judge_kept "$heir"
  patroni_start "$node"
  if must 120 "$node is the synchronous standby again" whole_cluster; then
    epoch_ms && times+=("whole $((REPLY - crashed_ms))")
    in_recovery "$node" || rejoined=false
  fi
  [ "$(rewound "$node")" -le "$before" ] || rewinds=$((rewinds + 1))
  must 60 "both controls are ready again" controls_are_ready
}

long_one_runs() { ! no_long_one "$1" && [ "$(long_ones "$1" running)" -ge 1 ]; }

no_long_one() { [ "$(long_ones "$1" 'starting|running')" = 0 ]; }

long_ones() {  # NODE STATUS
  ask "$1" "select count(*) from ql.attempt_state as t
    join ql.run_state as r on r.run_id = t.run_id
    where r.target_key = 'long' and t.status ~ '^($2)\$'"
}

# recovered NAME NODE: wait for the first admission and completion on the new leader, and time them.
recovered() {
  local name=$1 node=$2 found admission completion
  must 90 "a client was told of an admission by $node" timed "$node" 1
  must 120 "an execution has ended by $node" timed "$node" 2
  found=$(times_at "$node")
  IFS='|' read -r admission completion <<<"$found"
  figure "$name.firstAdmissionMs" "$admission"
  figure "$name.firstCompletionMs" "$completion"
  say "  first admission after $admission ms, first completion after $completion ms"
  [ "$name" = switchover ] || times+=("admission $admission" "completion $completion")
}

times_at() {
  witnessed "$1" "$load_home/times.sql" -v "crashed_ms=$crashed_ms" -v "gone_ms=$gone_ms"
}

timed() { [ -n "$(times_at "$1" | cut -d'|' -f"$2")" ]; }

# judge_kept NODE: nothing that anybody was told of is lost there.
judge_kept() {
  local kind acknowledged lost rows=0
  while IFS='|' read -r kind acknowledged lost; do
    gate "acknowledged${kind^}sKept" "$(verdict same 0 "$lost")" "$acknowledged told of, $lost lost"
    kept[$kind]=$acknowledged rows=$((rows + 1))
  done < <(witnessed "$1" "$load_home/kept.sql")
  [ "$rows" = 3 ] || die "what is kept cannot be judged on $1"
}

phase_end() {
  local node name truth words
  load_wanted twenty "$runs_wanted"
  load_ends "$runs_wanted"
  node=$(leader)
  until_true 180 "all runs have ended" asked "$node" \
    "select count(*) from ql.run_state where package_key = 'load' and finished_at_ms is null" 0 ||
    true
  judge_kept "$node"
  while IFS='|' read -r name truth words; do
    gate "$name" "$([ "$truth" = t ] && echo true || echo false)" "$words"
  done < <(witnessed "$node" "$load_home/judge.sql")
  gate violationEmpty "$(verdict asked "$node" "select count(*) from ql.violation" 0)" "no row"
  judge workersNeverEnded "the two of the beginning" workers_stayed
  figures_of_all
  event ended
}

workers_stayed() { [ ! -s "$scratch/worker-1.ends" ] && [ ! -s "$scratch/worker-2.ends" ]; }

figures_of_all() {
  local kind
  figure failovers "$failovers"
  figure runs "$runs_wanted" && figure stepsOfRun "$steps_of_run"
  for kind in admission start report; do figure "acknowledged.$kind" "${kept[$kind]:-0}"; done
  figure controlEnds "$(cat "$scratch"/control-*.ends 2>/dev/null | wc -l)"
  for kind in leader admission completion whole; do spread "$kind"; done
}

# spread KIND: least, median and most of the times of all failovers.
spread() {
  local sorted=() count middle
  mapfile -t sorted < <(printf '%s\n' "${times[@]}" | sed -n "s/^$1 //p" | sort -n)
  count=${#sorted[@]}
  [ "$count" -gt 0 ] || return 0
  middle=$(((sorted[(count - 1) / 2] + sorted[count / 2]) / 2))
  figure "$1Ms.min" "${sorted[0]}"
  figure "$1Ms.median" "$middle"
  figure "$1Ms.max" "${sorted[count - 1]}"
  say "  crash to $1: ${sorted[0]} / $middle / ${sorted[count - 1]} ms" \
    "(least, median, most of $count)"
}

declare -a times=()
declare -A kept=()
drill_main "$@"
