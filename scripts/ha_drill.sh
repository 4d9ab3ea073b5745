#!/usr/bin/env bash
# The failover drill: two PostgreSQL nodes, synchronous remote_apply, the primary is lost and another
# promoted, with qinglong-sql at work on it. It shows that what was acknowledged is kept, that what
# was not can be repeated, and that repeating everything adds nothing.
#
#   scripts/ha_drill.sh                         all phases; ends 0 only if every gate is true
#   scripts/ha_drill.sh --list                  phases, gates, sabotage
#   scripts/ha_drill.sh --report FILE           JSON, readable by you alone; scripts/ha_audit.py FILE
#   scripts/ha_drill.sh --only PHASE            that phase and those that it stands on
#   scripts/ha_drill.sh --bindir DIR            PostgreSQL's programs; else PG_BINDIR, embedded,
#                                               /usr/lib/postgresql/*/bin (the newest), PATH
#   scripts/ha_drill.sh --sabotage NAME         break one thing on purpose: its gate must be false
#   scripts/ha_drill.sh --keep                  keep the folder: nodes, logs, passwords
#
# Needs bash 5, coreutils, util-linux, a PostgreSQL 15 to 18, and Python 3.11 for the product and
# the switchable endpoint; bash and psql judge. Root or not: as root the servers run as `postgres` or
# `nobody`. All of it is on loopback, below one folder of TMPDIR, and gone at the end. It takes about
# a minute, of which half is the wait until an abandoned claim has expired (30 s).
# QINGLONG_SQL=/path/to/qinglong-sql drills that one; else a virtual environment of its own is made.
# Exit 1: a gate is false, or it could not go on; 2 a wrong call; 77 it cannot run here; 129, 130,
# 143 ended by HUP, INT, TERM.
case ${BASH_VERSION:-} in [5-9].*) ;; *) echo "$0 needs bash 5: bash $0" >&2; exit 2 ;; esac
set -euo pipefail

ha=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)/ha
drill=ha_drill
gates_file=$ha/gates.txt
source "$ha/gate.sh"
source "$ha/node.sh"
source "$ha/guard.sh"
source "$ha/control.sh"
source "$ha/fixture.sh"
[ ! -e "$ha/sabotage.sh" ] || source "$ha/sabotage.sh"

phases=(
  "nodes"$'\t'"a primary and a standby that streams from it"
  "roles"$'\t'"roles, schema and logins"
  "sync"$'\t'"COMMIT waits until the standby has applied it"
  "fixtures"$'\t'"every command by its login, its answer lost at the commit"
  "doubt"$'\t'"a commit in doubt, an open transaction, an abandoned claim"
  "controls"$'\t'"two control processes by way of the endpoint"
  "cut"$'\t'"the replication link is cut; promotion is refused"
  "hang"$'\t'"a COMMIT under the partition is not acknowledged"
  "fence"$'\t'"the old primary is fenced; the old controls withdraw"
  "promote"$'\t'"the standby is promoted: timeline 1 to 2"
  "rejoin"$'\t'"the old primary is rewound and is the synchronous standby"
  "endpoint"$'\t'"the endpoint is switched; two fresh control processes"
  "takeover"$'\t'"the abandoned claim expires and is taken over"
  "replay"$'\t'"every command again, word for word; exact rows"
  "late"$'\t'"who still writes to the old primary is refused"
)

infrastructure="nodes roles sync"
needs=(
  [nodes]="" [roles]="nodes" [sync]="nodes roles" [fixtures]="$infrastructure"
  [doubt]="$infrastructure fixtures" [controls]="$infrastructure"
  [cut]="$infrastructure" [hang]="$infrastructure cut" [fence]="$infrastructure controls cut hang"
  [promote]="$infrastructure controls cut hang fence"
  [rejoin]="$infrastructure controls cut hang fence promote"
  [endpoint]="$infrastructure controls cut hang fence promote rejoin"
)

drill_usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$ha/../ha_drill.sh"; }

drill_begin() {
  find_programs
  find_product
  say "PostgreSQL $pg_version of $bin, $product_version"
}

phase_nodes() {
  node_init alpha
  node_start alpha
  replication_login alpha
  shown "createdb $database, createdb drill"
  sql_database=postgres ask alpha "create database $database"
  sql_database=postgres ask alpha "create database drill"
  relay_start link alpha  # the standby's way to the primary, which can be cut
  node_backup beta alpha
  node_follow beta alpha 127.0.0.1 "${node_port[link]}"
  node_start beta
  until_true 30 "beta streams from alpha" streams alpha beta || true
  judge physicalStreaming "beta is in recovery and streams by its slot" streams alpha beta
  event streaming
}

phase_roles() {
  local login group
  shown "psql -f sql/postgres/role.sql"
  sql alpha postgres -f "$root/sql/postgres/role.sql"
  login_password alpha ql_migrator
  QINGLONG_DSN=$(dsn_of 127.0.0.1 "${node_port[alpha]}" ql_migrator) \
    step product migrate >"$scratch/migrate.log" 2>&1 ||
    die "migrate failed: $(tail -n 5 "$scratch/migrate.log")"
  while read -r login group; do login_make alpha "$login" "$group"; done < <(fixture_logins)
  login_make alpha drill_control ql_scheduler ql_reader
  # markers are kept apart from the product's database
  mark alpha "create table marker (name text primary key)"
}

phase_sync() {
  node_sync alpha beta
  waits_for_apply synchronousRemoteApplyBeforePartition alpha beta
  event synchronous
}

phase_fixtures() {
  fixture_prepare alpha
  fixture_run alpha beta
  event fixtures
}

phase_doubt() {
  local state
  shown "psql alpha: begin; insert …; commit; select pg_terminate_backend(pg_backend_pid())"
  state=$(sql_database=drill state_of sql alpha postgres -c "begin; insert into marker values \
('in doubt'); commit; select pg_terminate_backend(pg_backend_pid());")
  [ "$state" != 00000 ] || die "the commit in doubt was answered"
  event commitInDoubt "$state"
  sql_database=drill psql_at alpha postgres
  spawn open-transaction "${psql[@]}" -c "begin" -c "insert into marker values ('uncommitted')" \
    -c "select pg_sleep(600)"
  must 20 "a transaction is left open" asked alpha "
    select count(*) from pg_stat_activity where query = 'select pg_sleep(600)'
      and backend_xid is not null" 1
  say "  left open on alpha: begin; insert into marker values ('uncommitted')"
  fixture_claim alpha beta
  fixture_keep alpha
}

phase_controls() {
  relay_start endpoint alpha
  control_start old-1 old-2
  controls_ready old-1 old-2 || die "the controls are not ready"
  must 20 "both have backends of their own" both control_backends alpha old-1 old-2
  event oldControlsReady
}

phase_cut() {
  point link nowhere
  until_true 20 "the link is cut" link_cut || true
  judge replicationLinkPartitionObserved "no walsender on alpha, no walreceiver on beta" link_cut
  event linkCut
  judge promotionRejectedBeforeOldPrimaryFence "PRIMARY_NOT_FENCED; beta is still in recovery" \
    promotion_refused beta alpha
  event promotionRefused
}

link_cut() {
  asked alpha "select count(*) from pg_stat_replication" 0 &&
    asked beta "select count(*) from pg_stat_wal_receiver" 0
}

phase_hang() {
  local told
  shown "timeout 1.5 psql alpha -c \"insert into marker values ('partitioned')\""
  mark_away partitioned alpha timeout --foreground 1.5
  until_true 10 "its COMMIT waits in SyncRep" waits_or_ended partitioned alpha || true
  reaped commit-partitioned 20 || die "the client of the partitioned commit does not give up"
  told=$REPLY
  # the backend outlives its client, and the row is committed here; but nobody was told
  judge partitionedCommitNotAcknowledged "the client gave up (exit $told) unanswered, its backend \
still waits" not_acknowledged "$told"
  ask alpha "select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'" \
    >/dev/null
  must 10 "the waiting backend has ended" asked alpha "$(waiting partitioned)" 0
  if marked alpha partitioned 1; then
    say "  the row can be read on alpha all the same: seen is not acknowledged"
  fi
  event commitGivenUp
}

not_acknowledged() {  # EXIT
  same "124 0" "$1 $(told_times partitioned)" && asked alpha "$(waiting partitioned)" 1
}

phase_fence() {
  node_fence alpha
  judge oldPrimaryFencedBeforePromotion "alpha and its backends have ended, beta is in recovery" \
    both_so fenced alpha in_recovery beta
  event oldPrimaryFenced
  moment fenced
  point endpoint silent  # as a host without power: nobody there to refuse
  unset "child[open-transaction]"  # its connection ended with the server
  until_true 60 "the old controls have withdrawn" both control_withdrawn old-1 old-2 || true
  # as their supervisor would: they come up, live, and wait for a primary
  control_again old-1 old-2
  until_true 30 "both live and neither is ready" both control_waits old-1 old-2 || true
  judge bothOldReplicasNotReady "they ended by themselves (exit ${control_ended[old-1]:-none}, \
${control_ended[old-2]:-none}); started again: /livez 200, /readyz 503" \
    old_controls_out
  event oldControlsNotReady
}

old_controls_out() {
  same "6 6" "${control_ended[old-1]:-none} ${control_ended[old-2]:-none}" &&
    both control_waits old-1 old-2
}

phase_promote() {
  promote_fenced beta alpha
  event promoted "timeline $(timeline_of beta)"
  lasted fenceToPromotionSeconds fenced
  moment promoted
  [ "$(timeline_of beta)" = 2 ] || die "beta is on timeline $(timeline_of beta)"
  judge unacknowledgedPartitionedCommitAbsentAfterPromotion "the partitioned row is not on beta" \
    marked beta partitioned 0
  if ran doubt; then
    judge uncommittedWriteRolledBack "the open transaction's row is not on beta" \
      marked beta uncommitted 0
    judge ambiguousCommitRequiresDurableInspection "the commit in doubt stands on beta" \
      marked beta "in doubt" 1
  fi
  # all that it was ever pointed at, by the record of its switches
  judge endpointSwitchedAfterPromotion "until now the endpoint has led to: ${led[endpoint]}" \
    led_only endpoint alpha silent nowhere
  point endpoint nowhere
}

phase_rejoin() {
  sync_wanted beta alpha  # nothing more is acknowledged until alpha has it too
  slot_make beta alpha
  node_rewind alpha beta
  event rewound
  point link beta
  node_follow alpha beta 127.0.0.1 "${node_port[link]}"
  node_start alpha
  until_true 30 "alpha streams from beta" streams beta alpha || true
  judge oldPrimaryRewoundAndRejoinedReadOnly "alpha streams on timeline 2, 25006 for a write, the \
partitioned row is gone" rejoined
  event rejoined
  sync_awaited beta alpha
  lasted promotionToSynchronousSeconds promoted
  waits_for_apply synchronousReplicationRestoredBeforeEndpointSwitch beta alpha
  event synchronousAgain
}

rejoined() {
  streams beta alpha && asked alpha "select received_tli from pg_stat_wal_receiver" 2 &&
    marked alpha partitioned 0 && same 25006 "$(sql_database=drill state_of sql alpha postgres \
      -c "insert into marker values ('never')")"
}

phase_endpoint() {
  control_stop old-1 old-2
  point endpoint beta
  until_true 20 "the endpoint leads to beta" leads_to beta || true
  judge endpointSwitchedAfterPromotion "now it leads to beta, a primary" leads_to beta
  event endpointSwitched
  must 20 "a command is answered by way of the endpoint" first_command
  lasted promotionToFirstCommandSeconds promoted
  control_start fresh-1 fresh-2
  controls_ready fresh-1 fresh-2 || true
  until_true 20 "both have backends of their own" both control_backends beta fresh-1 fresh-2 || true
  judge bothFreshReplicasReady "/readyz 200, each with backends of its own on beta" fresh_ready
  lasted promotionToFreshControlsSeconds promoted
  event freshControlsReady
}

# One that finds nothing to do, by a scheduler's login.
first_command() { sql endpoint drill_scheduler -f "$fixture_sql/settle.sql"; }

moment() { now_ms && moments[$1]=$REPLY; }

lasted() {  # FIGURE MOMENT: the seconds since
  now_ms
  REPLY=$((REPLY - moments[$2]))
  figure "$1" "$((REPLY / 1000)).$(printf %03d $((REPLY % 1000)))"
}
declare -A moments=()

leads_to() {
  [ "$(sql endpoint drill_control -c "select inet_server_port(), pg_is_in_recovery()")" = \
    "${node_port[$1]}|f" ]
}

fresh_ready() {
  both control_ready fresh-1 fresh-2 && both control_backends beta fresh-1 fresh-2
}

phase_takeover() {
  # once more, when all clients are there
  waits_for_apply synchronousReplicationRestoredBeforeEndpointSwitch beta alpha
  fixture_takeover beta
  event claimTakenOver
}

phase_replay() {
  fixture_replay beta
  fixture_counts beta alpha
  event replayed
}

phase_late() {
  fixture_late alpha beta
  event lateWritersRefused
}

drill_main "$@"
