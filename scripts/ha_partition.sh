#!/usr/bin/env bash
# A network partition between two nodes of PostgreSQL, with controls, workers and clients on both
# sides, told twice: the old primary can be fenced, and it cannot be reached. See --help.
case ${BASH_VERSION:-} in [5-9].*) ;; *) echo "$0 needs bash 5: bash $0" >&2; exit 2 ;; esac
set -euo pipefail
ha=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)/ha
source "$ha/gate.sh"
source "$ha/node.sh"
source "$ha/load/crew.sh"
source "$ha/partition/rooms.sh"

drill=ha_partition
gates_file=$ha/gates_partition.txt
phases=(
  $'rooms\ttwo networks and a wire; PostgreSQL in each, b the synchronous standby of a'
  $'crew\troles, schema, package; a control, a worker and clients on both sides'
  $'load\truns are started on both sides, some longer than a lease'
  $'cut\tthe wire is cut without a word: nothing is acknowledged on the side of a'
  $'promote\tthe guard refuses until a is fenced, or an operator says that it cannot be reached; b'
  $'alone\tthe side of b gives up what the other side ran, and starts it again'
  $'heal\tthe wire is mended; a is rewound and follows b'
  $'end\tthe clients get what they asked for, and all runs end'
  $'judge\twhat the new primary says, against what clients heard and what the work says of itself'
)
story='' stories=0
number_option=--runs no_only="a story is told as a whole"

drill_usage() {
  cat <<'HELP'
Usage: scripts/ha_partition.sh [OPTIONS]

Root only: makes two network namespaces with a wire between them, a PostgreSQL in each (a the
primary, b its synchronous standby with remote_apply), and a control, a worker (leases of 5 s) and clients on
both sides. The wire is cut for longer than a lease while they work, b is promoted, the wire is
mended, a is rewound and follows b. Told twice: first a is fenced before b is promoted, then a
cannot be reached and lives on. Nothing is left behind. Where it cannot run it says why, and exits 77.

  --runs N        tell both stories N times (1)
  --report FILE   write a JSON report (mode 0600): gates, timeline, figures
  --keep          leave the scratch folder
  --list          the phases and the gates
  --bindir DIR    the folder of PostgreSQL's programs, 15 to 18; else they are looked for

It uses `qinglong-sql` of an environment of its own, or QINGLONG_SQL=/path/to/qinglong-sql.
Exit 0 only if every gate is true in every story; 1 one is false, or it could not go on; 2 a wrong
call; 77 it cannot run here; 129, 130, 143 ended by HUP, INT, TERM.
HELP
}

drill_begin() {
  local once=("${phases[@]}") _
  rooms_possible
  find_programs
  find_product
  phases=()
  for _ in $(seq $((2 * ${rounds:-1}))); do phases+=("${once[@]}"); done
  say "PostgreSQL $pg_version, $product_version, ${#phases[@]} phases"
}

drill_tidy() { rooms_away; }

both_dsn() {  # LOGIN [FIRST SECOND]
  local one=${2:-a} two=${3:-b}
  printf 'postgresql://%s@%s:%s,%s:%s/%s?target_session_attrs=read-write&connect_timeout=2\n' "$1" \
    "${node_host[$one]}" "${node_port[$one]}" "${node_host[$two]}" "${node_port[$two]}" "$database"
}

phase_rooms() {
  local one
  stories=$((stories + 1))
  story=$([ $((stories % 2)) = 1 ] && echo fenced || echo unreachable)
  prefix="run$(((stories + 1) / 2)).$story."
  say "   story: the old primary, before the new one is promoted, is $story"
  story_over
  rooms_make
  hba_network=${address[a]%.*}.0/24
  for one in a b; do
    node_host[$one]=${address[$one]} node_folder[$one]=$scratch/server/$stories-$one
    node_via[$one]="ip netns exec ${room[$one]}"
  done
  node_init a
  node_start a
  replication_login a
  node_backup b a
  node_follow b a
  node_start b
}

# What an earlier story has left: whoever lives in its rooms, and the rooms.
story_over() {
  rooms_away
  local one REPLY
  : >"$scratch/pgpass"
  for one in "${!child[@]}"; do reaped "$one" 10 || die "$one lives on"; done
}

phase_crew() {
  local one
  install a inside a </dev/null
  node_sync a b
  gate synchronousRemoteApplyBeforePartition "$(verdict asked a \
    "select sync_state || ' ' || current_setting('synchronous_commit') from pg_stat_replication" \
    "sync remote_apply")" "b is the synchronous standby of a, with remote_apply"
  event synchronous
  for one in a b; do
    control_start "control-$one" "$(both_dsn drill_scheduler)" ip netns exec "${room[$one]}"
    worker_start "worker-$one" "$(both_dsn drill_worker)" ip netns exec "${room[$one]}"
  done
  for one in a b; do must 60 "control-$one is ready" ready "control-$one" inside "$one"; done
  wrong=$(inside a readlink /proc/self/ns/net)
}

phase_load() {
  local one
  for one in a b; do
    clients_start "$one" "$(both_dsn drill_admission)" ip netns exec "${room[$one]}"
  done
  fed=0 fed_at=$((SECONDS - 60))
  must 180 "short and long work runs on both sides" fed_and_running
}

# What is to be cut off: work that will outlast its lease, and work that will end within it. There is
# some more of it every ten seconds until it runs where it should.
fed_and_running() {
  local flow
  if [ $((SECONDS - fed_at)) -ge 10 ]; then
    fed_at=$SECONDS
    for flow in stuck stuck stuck stairs stairs; do
      fed=$((fed + 1))
      sql a drill_admission -f "$crew_home/admit.sql" -v flow=$flow -v run_key="fed-$fed"
    done
  fi
  asked a "
    select count(*) filter (where r.target_key = 'stuck' and a.worker_id = 'worker-a') > 1
      and count(*) filter (where r.target_key = 'stairs' and a.worker_id = 'worker-a') > 3
      and count(*) filter (where a.worker_id = 'worker-b') > 0
    from ql.attempt_state as a join ql.run_state as r on r.run_id = a.run_id
    where a.status = 'running'" t
}

reaches() {
  # shellcheck disable=SC2016
  inside "$1" timeout 1 bash -c 'exec 3<>"/dev/tcp/$1/$2"' - "${node_host[$2]}" "${node_port[$2]}"
}

# Neither reaches the other, and both ends of the replication still believe in it.
silent() {
  ! reaches a b && ! reaches b a && asked a "select count(*) from pg_stat_replication" 1 &&
    asked b "select status from pg_stat_wal_receiver" streaming
}

phase_cut() {
  local REPLY
  wire_cut
  up_ms
  cut_ms=$REPLY
  event wireCut
  judge partitionObserved "no way through, and no end of a connection was told of it" silent 2>&1
  judge partitionedCommitNotAcknowledged "a client of a waits for 3 s and is told nothing" \
    unanswered nobody
}

# An admission at a that has no answer; its backend waits for the standby, and nobody sees its row.
unanswered() {
  local code
  shown "timeout 3 psql -h ${node_host[a]} -f load/admit.sql -v run_key=$1"
  code=$(sql_s=3 state_of sql a drill_admission -f "$crew_home/admit.sql" -v flow=short \
    -v run_key="$1")
  [ "$code" = 08006 ] && asked a "select count(*) > 0 from pg_stat_activity
    where wait_event = 'SyncRep' and usename = 'drill_admission'" t &&
    asked a "select count(*) from ql.run_state where run_key = '$1'" 0
}

# What a drill may not do by mistake: two primaries. An operator who cannot reach the old one says
# so, and may: with remote_apply and one standby, what that one has not applied nobody was told of.
promote_guarded() {  # STANDBY OLD [WORD]
  if alive "node-$2" && [ "${3:-}" != cannot-be-reached ]; then
    say "  PRIMARY_NOT_FENCED: $2 is not known to have ended; $1 is not promoted"
    return 1
  fi
  node_promote "$1"
}

ends_there() {
  ask a "copy (select attempt_id, status from ql.attempt_state where finished_at_ms is not null)
    to stdout" >"$clients/ended_there"
}

phase_promote() {
  local REPLY
  if promote_guarded b a; then REPLY=false; else REPLY=true; fi
  gate promotionRejectedBeforeOldPrimaryFence $REPLY "refused: PRIMARY_NOT_FENCED"
  event promotionRefused
  if [ "$story" = fenced ]; then
    ends_there
    node_fence a
    event oldPrimaryFenced
    promote_guarded b a
    judge oldPrimaryFencedBeforePromotion "a had ended with all its backends" gone node-a
  else
    promote_guarded b a cannot-be-reached
  fi
  up_ms
  promoted_ms=$REPLY
  event bPromoted
  # the operator starts one beside the new primary; the others come when they have given up waiting
  control_start control-fresh "$(both_dsn drill_scheduler b a)" ip netns exec "${room[b]}"
  judge promotedOnOneSide "b is the primary of timeline 2" asked b \
    "select pg_walfile_name(pg_current_wal_lsn()) like '00000002%' and not pg_is_in_recovery()" t
}

phase_alone() {
  local held="from ql.attempt_state as a
    join ql.step_run as s on s.run_id = a.run_id and s.step_key = a.step_key
    join ql.task_revision as t on t.task_id = s.task_id
    where a.worker_id = 'worker-a' and a.status in ('claimed', 'starting', 'running')"
  figure "${prefix}heldByTheWrongSideAtPromotion" "$(ask b "select count(*) $held")"
  must 90 "what the other side ran was given up" asked b "
    select count(*) = 0 $held and a.lease_status = 'leased' and t.on_lost <> 'hold'" t
  must 60 "it was started again" asked b "
    select count(*) > 0 from ql.attempt_state as a join ql.attempt_state as n
      on n.run_id = a.run_id and n.step_key = a.step_key and n.number > a.number
    where a.worker_id = 'worker-a' and a.status = 'lost' and n.worker_id = 'worker-b'
      and n.status = 'succeeded'" t
  event givenUpAndStartedAgain
}

phase_heal() {
  local REPLY
  if [ "$story" = unreachable ]; then
    judge unreachablePrimaryAcknowledgedNothing "in the cut a client of a is told nothing" \
      unanswered nobody-2
  fi
  wire_mend
  event wireMended
  up_ms
  mended_ms=$REPLY
  REPLY=$((mended_ms - cut_ms))
  figure "${prefix}secondsOfCut" "$((REPLY / 1000)).$((REPLY / 100 % 10))"
  if [ "$story" = unreachable ]; then
    judge unreachablePrimaryAcknowledgedNothing "b is there again, and no standby: a still waits" \
      unanswered nobody-3
    ends_there
    node_fence a
    event oldPrimaryFenced
  fi
  sql_database=postgres slot_make b a
  node_rewind a b
  node_follow a b
  node_start a
  judge oldPrimaryRewoundAndRejoinedReadOnly "a follows b and takes no writes" rejoined
  event rewound
  node_sync b a
  judge synchronousReplicationRestored "a is the synchronous standby of b" asked b \
    "select sync_state || ' ' || current_setting('synchronous_commit') from pg_stat_replication" \
    "sync remote_apply"
  event synchronousAgain
}

rejoined() {
  must 30 "a streams" asked a "select status from pg_stat_wal_receiver" streaming
  same 25006 "$(state_of sql a postgres -c 'create table written ()')"
}

phase_end() {
  local one
  clients_stop
  for one in a b; do must 60 "control-$one is ready" ready "control-$one" inside "$one"; done
  gate bothControlsReadyAgain true "/readyz of both says 200"
  must 120 "all runs have ended" asked b "select count(*) from ql.open_run" 0
  event runsEnded
  for one in a b; do
    gate unacknowledgedCommitAbsent "$(verdict asked "$one" \
      "select count(*) from ql.run_state where run_key like 'nobody%'" 0)" "not on $one"
  done
}

phase_judge() {
  witnessed b "$ha/partition/judge.sql" -v offset_ms="$(offset_ms)" -v cut_ms="$cut_ms" \
    -v mended_ms="$mended_ms" -v promoted_ms="$promoted_ms" -v wrong="$wrong" \
    -v old="${node_host[a]}" \
    >"$scratch/verdicts" || die "judging failed: $(tail -n 3 "$scratch/verdicts")"
  verdicts "$scratch/verdicts"
}

drill_main "$@"
