#!/usr/bin/env bash
# The wall clock of a PostgreSQL is set an hour ahead and ten minutes back while controls, workers,
# clients and triggers work on it. See --help.
case ${BASH_VERSION:-} in [5-9].*) ;; *) echo "$0 needs bash 5: bash $0" >&2; exit 2 ;; esac
set -euo pipefail
ha=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)/ha
source "$ha/gate.sh"
source "$ha/node.sh"
source "$ha/load/crew.sh"
source "$ha/clock/clock.sh"

drill=ha_clock
gates_file=$ha/gates_clock.txt
phases=(
  $'server\ta PostgreSQL whose clock can be set'
  $'crew\troles, schema, package; two controls, two workers, clients'
  $'load\truns are started, triggers fire every two seconds'
  $'ahead\tthe clock is set an hour ahead'
  $'probes\twork of each kind that stands in the database by its clock'
  $'back\tthe clock is set ten minutes back'
  $'right\tthe clock is set those ten minutes ahead again'
  $'end\tthe clients get what they asked for, and all runs end'
  $'judge\twhat the database says, against what clients heard and what the work says of itself'
)
HOUR=3600 TEN=600
number_option=--runs no_only="the clock's story is told as a whole"
times=0

drill_usage() {
  cat <<'HELP'
Usage: scripts/ha_clock.sh [OPTIONS]

A PostgreSQL under libfaketime (Debian's, fetched when it is not there), two controls, two workers
(leases of 5 s), clients and triggers. Its wall clock is set an hour ahead, ten minutes back, and
right again while they work; clocks that only count stay true, and so do those of everybody else.
No root is needed. Nothing is left behind. Where it cannot run it says why, and exits 77.

  --runs N        N times in a row, each on a fresh server (1)
  --report FILE   write a JSON report (mode 0600): gates, timeline, figures
  --keep          leave the scratch folder
  --list          the phases and the gates
  --bindir DIR    the folder of PostgreSQL's programs, 15 to 18; else they are looked for

It uses `qinglong-sql` of an environment of its own, or QINGLONG_SQL=/path/to/qinglong-sql.
Exit 0 only if every gate is true each time; 1 one is false, or it could not go on; 2 a wrong call;
77 it cannot run here; 129, 130, 143 ended by HUP, INT, TERM.
HELP
}

drill_begin() {
  local once=("${phases[@]}") _
  find_programs
  clock_possible
  find_product
  phases=()
  for _ in $(seq "${rounds:-1}"); do phases+=("${once[@]}"); done
  say "PostgreSQL $pg_version, $product_version, ${#phases[@]} phases"
}

phase_server() {
  times=$((times + 1))
  prefix=run$times.
  : >"$scratch/pgpass"
  rm -rf "$scratch"/state-* "$scratch"/control-*.log "$scratch"/worker-*.log
  clock_set 0
  node_folder[c]=$scratch/server/$times
  with_clock node_init c
  with_clock node_start c
}

phase_crew() {
  local one
  install c env <"$ha/clock/package.yaml"
  for one in 1 2; do
    control_start "control-$one" "$(crew_dsn c drill_scheduler)" env
    worker_start "worker-$one" "$(crew_dsn c drill_worker)" env
  done
  for one in 1 2; do must 60 "control-$one is ready" ready "control-$one" env; done
}

phase_load() {
  local one
  for one in a b; do
    clients_start "$one" "$(crew_dsn c drill_admission)" env
  done
  must 60 "triggers fire" fired_since 0 ""
  must 60 "long and short work runs" asked c "
    select count(*) filter (where r.target_key = 'long') > 3
      and count(*) filter (where r.target_key = 'middle') > 0
    from ql.attempt_state as a join ql.run_state as r on r.run_id = a.run_id
    where a.status = 'running'" t
  event working
}

server_ms() { ask c "select floor(extract(epoch from clock_timestamp()) * 1000)::bigint"; }

# Whether each trigger has started two runs for times after FROM, and before UNTIL.
fired_since() {
  asked c "select count(*) = 2 from (
      select r.trigger_key from ql.run_state as r
      where r.scheduled_at_ms > $1 ${2:+and r.scheduled_at_ms < $2}
      group by r.trigger_key having count(*) >= 2
    ) as f" t
}

# Set it, and see that it is so and that both controls have told of it.
stepped() {  # SECONDS SIGN
  local one told=() REPLY
  for one in 1 2; do told[one]=$(jumps "$one" "$2"); done
  clock_set "$1" c
  clock_ahead c
  [ $((REPLY - $1 * 1000)) -gt -3000 ] && [ $((REPLY - $1 * 1000)) -lt 3000 ] || return
  for one in 1 2; do
    until_true 20 "control-$one tells of it" told_more "$one" "$2" "${told[one]}" || return
  done
}

jumps() {
  grep -Ec "\"event\": \"clock\".*\"jump_ms\": $2[0-9]" "$scratch/control-$1.log" || true
}

told_more() { [ "$(jumps "$1" "$2")" -gt "$3" ]; }

# Each control is the process that it was, and ready.
stayed() {
  local one
  for one in 1 2; do
    until_true 20 "control-$one is ready" ready "control-$one" env || return
    if grep -q '^supervisor:' "$scratch/control-$one.log"; then return 1; fi
  done
}

goes_on() {  # WHEN FROM UNTIL
  local from_ms REPLY
  up_ms
  from_ms=$REPLY
  gate triggersGoOn "$(until_true 30 "triggers fire $1" fired_since "$2" "$3" >/dev/null &&
    echo true || echo false)" "$1"
  up_ms
  figure "${prefix}msToTwoFires.${1// /-}" $((REPLY - from_ms))
}

phase_ahead() {
  judge clockSetAhead "by $HOUR s" stepped $HOUR ''
  event setAhead
  ahead_ms=$(server_ms)
  goes_on "after the step ahead" "$ahead_ms" ""
  must 60 "what was given up runs again" asked c "
    select count(*) > 0 and count(*) filter (where n.attempt_id is null) = 0
    from ql.attempt_state as a
    join ql.step_run as s on s.run_id = a.run_id and s.step_key = a.step_key
    join ql.task_revision as t on t.task_id = s.task_id and t.on_lost = 'retry'
    left join ql.attempt_state as n on n.run_id = a.run_id and n.step_key = a.step_key
      and n.number > a.number and n.started_at_ms is not null
    where a.status = 'lost'" t
  judge controlsStayed "ready, and the same processes" stayed
}

probe() {
  shown "psql -f load/admit.sql -v flow=$1 -v run_key=probe-$1"
  sql c drill_admission -f "$crew_home/admit.sql" -v flow="$1" -v run_key="probe-$1" >/dev/null
}

# One value of a probe's only step, attempt and run.
of_probe() {
  ask c "select $2 from ql.run_state as r join ql.step_state as s on s.run_id = r.run_id
    left join ql.attempt_state as a on a.run_id = r.run_id and a.finished_at_ms is null
    where r.run_key = 'probe-$1'"
}

probed() { [ "$(of_probe "$1" "$2")" = "$3" ]; }

phase_probes() {
  local one
  silent_worker worker-silent
  probe silent
  must 60 "the silent worker's work runs" probed silent a.status running
  for one in later limited stopped soon; do probe $one; done
  must 60 "what was to be stopped runs" probed stopped a.status running
  must 60 "what failed waits for its next try" probed later s.status retry_wait
  shown "psql -c \"select ql_scheduler.claim_schedule('dba', 'abandoned', 1)\""
  sql c drill_scheduler -c "do \$\$ begin
      for turn in 1 .. 2000 loop
        perform from ql_scheduler.claim_schedule('dba', 'abandoned', 1);
        exit when found;
        perform pg_sleep(0.005);
      end loop;
    end \$\$" >/dev/null
  must 5 "a claim is abandoned" asked c "$abandoned" 1
  must 60 "a short back-off waits" probed soon s.status retry_wait
  shown "kill -KILL ${child[worker-silent]}  # worker-silent"
  kill_child worker-silent KILL
  reaped worker-silent 10
}

abandoned="select count(*) from ql.trigger_schedule where claim_token = 'abandoned'"

# Without a supervisor: one is to be killed, the other knows nothing of what the first has left.
silent_worker() {  # NAME
  spawn "$1" env "$product" worker --dsn "$(crew_dsn c drill_worker)" --name "$1" --queue silent \
    --lease 60s --slots 1 --state "$scratch/state-$1" --base-dir "$scratch" --log-format json
}

# How many seconds from now, by the server's clock.
due_in() { of_probe "$1" "round(($2 - extract(epoch from clock_timestamp()) * 1000) / 1000)"; }

lost_now() { ask c "select count(*) from ql.attempt_state where status = 'lost'"; }

# Later by the step, within a few seconds of what it had to wait anyway.
by_the_step() {  # GATE PROBE DUE OWN WORDS
  local seconds
  seconds=$(due_in "$2" "$3")
  figure "${prefix}secondsToGoAfterTheStepBack.$2" "$seconds"
  gate "$1" "$([ "$seconds" -gt $((TEN - 60)) ] && [ "$seconds" -le $((TEN + $4)) ] && echo true ||
    echo false)" "$5: $seconds s to go, of its own $4 s at most"
}

phase_back() {
  local before REPLY
  before=$(lost_now)
  back_ms=$(server_ms)
  judge clockSetBack "by $TEN s" stepped $((HOUR - TEN)) -
  event setBack
  by_the_step silentWorkComesLater silent "a.lease_expires_at_ms + 2000" 62 \
    "its lease and the grace"
  by_the_step longBackOffsComeLater later s.due_at_ms 102 "its back-off"
  by_the_step runDeadlinesComeLater limited r.deadline_at_ms 90 "its deadline"
  judge shortBackOffsEndAtOnce "it is due, and may be tried again" until_true 10 "it is over" \
    asked c "select not exists (
      select from ql.run_state as r join ql.step_state as s on s.run_id = r.run_id
      where r.run_key = 'probe-soon' and s.status = 'retry_wait'
        and s.due_at_ms > extract(epoch from clock_timestamp()) * 1000 + 68000)" t
  judge abandonedClaimReturned "another scheduler may have it" until_true 10 "the claim is free" \
    asked c "$abandoned" 0
  goes_on "after the step back" "$((back_ms - TEN * 1000 + 4000))" "$back_ms"
  judge attemptTimeoutsAreKept "its worker has stopped it" until_true 30 "it is stopped" \
    probed stopped r.status timed_out
  must 30 "longer than lease and grace" asked c "select clock_timestamp() >
    to_timestamp($back_ms / 1000.0 - $TEN + 12)" t
  gate stepBackGivesNothingUp "$([ "$(lost_now)" = "$before" ] && echo true || echo false)" \
    "$before attempts were lost before it, and $(lost_now) are"
  judge controlsStayed "ready, and the same processes" stayed
}

phase_right() {
  local right_ms
  right_ms=$(($(server_ms) + TEN * 1000))
  judge clockSetAhead "by $TEN s" stepped $HOUR ''
  event setRight
  silent_worker worker-late
  goes_on "after the step to right" "$right_ms" ""
  judge silentWorkComesLater "when the clock had come there it was given up, and ran again" \
    until_true 120 "it has run" probed silent r.status succeeded
  judge longBackOffsComeLater "when the clock had come there it was tried again" \
    until_true 120 "it is tried again" probed later r.status failed
  judge runDeadlinesComeLater "when the clock had come there the run was over" \
    until_true 120 "it is timed out" probed limited r.status timed_out
}

phase_end() {
  local one
  clients_stop
  for one in once never; do
    shown "psql -c \"select ql_operator.pause_trigger('drill', '$one')\""
    sql c drill_operator -c "select ql_operator.pause_trigger('drill', '$one')" >/dev/null
  done
  must 120 "all runs have ended" asked c "select count(*) from ql.open_run" 0
  event runsEnded
  judge controlsStayed "ready, and the same processes" stayed
}

phase_judge() {
  if grep -q "was terminated by signal" "$scratch/node-c.log"; then
    die "the server has crashed, which libfaketime can do to it: this says nothing, run it again"
  fi
  # a third of a lease until it is renewed, an eighth until it is killed, and a slow machine
  witnessed c "$ha/clock/judge.sql" -v ahead_ms="$ahead_ms" -v back_ms="$back_ms" \
    -v bound_ms=3500 -v longest_ms=180000 >"$scratch/verdicts" ||
    die "judging failed: $(tail -n 3 "$scratch/verdicts")"
  verdicts "$scratch/verdicts"
  end_children
}

drill_main "$@"
