# The stories of the fixtures: what each command is asked, and what it must say. After fixture.sh.
# shellcheck shell=bash disable=SC2154,SC2034
#
# `lost` GATE NODE LOGIN FILE "VARIABLES" and three answers: what the lost one said, what the
# repetition says, and what it says again after the promotion, when everything has ended.
# `torn` and `refused` have one answer, and leave every row of every table as it was.

admission=workflowAdmissionExactReplay
attempt=taskAttemptExactReplay
frontier=workflowFrontierExactReplay
completion=remoteWorkerCompletionCommitWindowConvergedExactlyOnce
cancellation=runCancellationCommitWindowsConvergedExactlyOnce
remote=remoteWorkflowCancellation

# A worker takes attempt NUMBER of RUN over the start barrier: lease, begin, running.
worked() {
  local node=$1 run=$2 step=$3 number=$4 worker=${5:-drill-worker} ms=${6:-120000} late=${7:-nothing}
  local words="run=$run number=$number worker=$worker lease_ms=$ms"
  lost $completion "$node" worker lease "$words" "$step $number fence 1" "$step $number fence 1" \
    "$late"
  lost $completion "$node" worker begin "$words" applied applied "blocked QL410"
  lost $completion "$node" worker running "$words" applied applied applied
}

admitted() {  # RUN: started, and its first steps admitted
  lost $admission "$1" admission start "run=$2" "created running" "existing running" "existing $3"
  lost $attempt "$1" scheduler admit "run=$2" "applied 1" "settled 0" "settled 0"
}

story_of_publication() {
  lost $admission "$1" admission publish "" published existing existing
  # not repeated at the end: withdrawn content that is published again is a new generation
  lost $admission "$1" admission publish "package=drill-old" published existing -
  lost $completion "$1" worker register "worker=drill-worker" "1 online" "1 online" "1 online"
  lost $completion "$1" worker register "worker=drill-silent" "1 online" "1 online" "1 draining"
}

# One worker claims and says no more; and one says no more after the start.
story_of_silent_workers() {
  admitted "$1" idle succeeded
  lost $completion "$1" worker lease "run=idle worker=drill-silent lease_ms=7000" \
    "a 1 fence 1" "a 1 fence 1" QL410
  admitted "$1" dark succeeded
  worked "$1" dark a 1 drill-silent 7000 QL410
  lost $completion "$1" operator drain "worker=drill-silent" \
    "draining applied" "draining existing" "draining existing"
}

story_of_admission() {
  torn workflowAdmissionAtomic "$1" admission start "run=flow" "created running"
  lost $admission "$1" admission start "run=flow" \
    "created running" "existing running" "existing succeeded"
  refused $admission "$1" admission start 'run=flow input={"other":1}' "conflict running"
  finds workflowAdmissionAtomic "what an admission wrote" \
    "agenda 1, run 1, run_event 3, run_input 1, step_run 2" "$1" rows "story=flow one"
}

# flow: a, then b, then the end.
story_of_success() {
  local node=$1 standby=$2
  torn taskAttemptAtomic "$node" scheduler admit "run=flow" "applied 1"
  lost $attempt "$node" scheduler admit "run=flow" "applied 1" "settled 0" "settled 0"
  finds taskAttemptAtomic "what a task admission wrote" \
    "run 1, run_event 4, run_input 1, step_run 2, task_attempt 1" "$node" rows "story=flow one"
  alike taskAttemptReplicatedBeforePromotion "replication: attempts, read on the standby at once" \
    "$(digest "$node" 'attempt|step|event')" "$(digest "$standby" 'attempt|step|event')"
  worked "$node" flow a 1
  torn $completion "$node" worker report "run=flow" "applied succeeded"
  reported "$node" flow 1
  torn workflowFrontierTerminalisesAtomically "$node" scheduler advance "run=flow" "applied 1"
  lost $frontier "$node" scheduler advance "run=flow" "applied 1" "settled 0" "settled 0"
  meets $attempt "$node" scheduler admit "run=flow" "applied 1" "contended 0"
  worked "$node" flow b 2
  reported "$node" flow 2
  torn workflowFrontierTerminalisesAtomically "$node" scheduler advance "run=flow" "applied 1"
  finds workflowFrontierTerminalisesAtomically "the run after a torn end" \
    "run running; a succeeded, b succeeded; a 1 succeeded completed, b 2 succeeded completed; \
due expiry, frontier" "$node" end "story=flow one"
  lost $frontier "$node" scheduler advance "run=flow" "applied 1" "settled 0" "settled 0"
  finds workflowFrontierTerminalisesAtomically "the run after its end" \
    "run succeeded; a succeeded, b succeeded; a 1 succeeded completed, b 2 succeeded completed" \
    "$node" end "story=flow one"
}

reported() {  # RUN NUMBER: it ended well
  lost $completion "$1" worker report "run=$2 number=$3" \
    "applied succeeded" "applied succeeded" "applied succeeded"
}

ended() {  # RUN: the frontier ends it
  lost $frontier "$1" scheduler advance "run=$2" "applied 1" "settled 0" "settled 0"
}

# live is cancelled while it runs on a worker; near, on the same worker, goes on.
story_of_cancellation() {
  local node=$1 run
  for run in live near; do
    admitted "$node" $run "$([ $run = live ] && echo cancelled || echo succeeded)"
    worked "$node" $run a 1
  done
  renewed "$node" ${remote}TargetBound "live applied go on, near applied go on"
  torn $cancellation "$node" admission cancel "run=live" "accepted running"
  lost $cancellation "$node" admission cancel "run=live" \
    "accepted running" "accepted running" "accepted cancelled"
  renewed "$node" "${remote}ReturnsStopRequested ${remote}TargetBound" \
    "live applied user, near applied go on"
  lost $cancellation "$node" scheduler converge "run=live" \
    "blocked 0 1" "blocked 0 1" "settled 0 0"
  refused ${remote}TargetBound "$node" worker report "run=live fence=2" "blocked QL410"
  torn ${remote}CompletionExactReplay "$node" worker report "run=live" "applied cancelled"
  lost ${remote}CompletionExactReplay "$node" worker report "run=live" \
    "applied cancelled" "applied cancelled" "applied cancelled"
  lost ${remote}CompletionExactReplay "$node" worker report "run=live exit_code=1" \
    "blocked QL410" "blocked QL410" "blocked QL410"
  torn ${remote}ConvergedAfterResponseLoss "$node" scheduler converge "run=live" "settled 0 0"
  lost ${remote}ConvergedAfterResponseLoss "$node" scheduler converge "run=live" \
    "settled 0 0" "settled 0 0" "settled 0 0"
  finds ${remote}ConvergedAfterResponseLoss "the cancelled run" \
    "run cancelled workflow_cancelled; a cancelled execution_cancelled; \
a 1 cancelled execution_cancelled completed" "$node" end "story=live one"
  reported "$node" near 1
  ended "$node" near
  story_of_retry "$node"
}

renewed() {  # NODE GATES ANSWER
  lost "$2" "$1" worker renew "" "$3" "$3" "live blocked QL410, near blocked QL410"
}

# A run that retries the cancelled one, and is cancelled before it starts.
story_of_retry() {
  lost $admission "$1" admission again "run=live key=again" \
    "created running" "existing running" "existing cancelled"
  lost $cancellation "$1" admission cancel "run=live key=again" \
    "accepted running" "accepted running" "accepted cancelled"
  torn $cancellation "$1" scheduler converge "run=live key=again" "settled 0 0"
  lost $cancellation "$1" scheduler converge "run=live key=again" \
    "settled 0 0" "settled 0 0" "settled 0 0"
}

# A package that is withdrawn starts nothing new; the run that it has is still answered.
story_of_withdrawal() {
  local fenced=workflowAdmissionFencedAfterRevocation old="package=drill-old run=flow"
  lost $admission "$1" admission start "$old" \
    "created running" "existing running" "existing cancelled"
  lost $fenced "$1" admission withdraw "package=drill-old" withdrawn existing existing
  refused $fenced "$1" admission start "$old key=two" QL404
  refused $fenced "$1" admission start "$old" "existing running"
  lost $cancellation "$1" admission cancel "$old" \
    "accepted running" "accepted running" "accepted cancelled"
  lost $cancellation "$1" scheduler converge "$old" "settled 0 0" "settled 0 0" "settled 0 0"
}

# nightly is due and becomes a run; abandoned gets its cursor, a second from now.
story_of_occurrence() {
  local node=$1 gate=schedulerCommitResponseLossConvergedExactlyOnce run words
  claimed "$node" $gate drill-first
  words=$(decision nightly)
  torn $gate "$node" scheduler commit "$words" "applied admit"
  lost $gate "$node" scheduler commit "$words" "applied admit" settled settled
  lost $gate "$node" scheduler commit "$(decision abandoned)" "applied initialize" settled contended
  finds $gate "what the occurrence wrote" "agenda 1, run 1, run_event 2, run_input 1, step_run 1, \
trigger_run 1" "$node" rows "story=nightly"
  run=$(sql "$node" drill_reader -c "select run_id from ql.run_state where trigger_key = 'nightly'")
  lost $cancellation "$node" admission cancel "run_id=$run" \
    "accepted running" "accepted running" "accepted cancelled"
  torn $cancellation "$node" scheduler settle "" "settled 2"
  lost $cancellation "$node" scheduler settle "" "settled 2" nothing nothing
}

# What the silent worker left: a claim that comes back, and work that is lost and done again.
story_of_recovery() {
  local node=$1 run
  until_true 12 "the leases of the silent worker have run out" silence_is_over "$node" || true
  for run in idle dark; do
    torn $completion "$node" scheduler recover "run=$run" "applied 2"
    lost $completion "$node" scheduler recover "run=$run" "applied 2" "settled 0" "settled 0"
    if [ $run = dark ]; then
      until_true 8 "the back-off of dark is over" back_off_is_over "$node" || true
      lost $completion "$node" scheduler retry "run=dark" "applied 1" "settled 0" "settled 0"
    fi
    lost $attempt "$node" scheduler admit "run=$run" "applied 1" "settled 0" "settled 0"
    worked "$node" $run a 2
    reported "$node" $run 2
    ended "$node" $run
  done
  # it wakes up, and reports what it holds no more: kept, and of no consequence
  lost $completion "$node" worker report "run=dark worker=drill-silent" \
    "blocked QL410" "blocked QL410" "blocked QL410"
}

silence_is_over() {
  [ "$(sql "$1" "$dba" -c "select count(*) from ql.recovery_due as d
    join drill.story as s on s.run_id = d.run_id
    where s.story in ('idle one', 'dark one') and d.due_at_ms <= ql.now_ms()")" = 2 ]
}

back_off_is_over() {
  [ "$(sql "$1" "$dba" -c "select e.due_at_ms <= ql.now_ms() from ql.retry_effect as e
    join drill.story as s on s.run_id = e.run_id where s.story = 'dark one'")" = t ]
}

story_of_rights() {
  local node=$1 login gates="workflowAdmissionRuntimeOnly taskAttemptRuntimeOnlyAcl" six
  six=$(printf '42501\n%.0s' 1 2 3 4 5 6)
  for login in worker scheduler operator reader; do
    refused workflowAdmissionRuntimeOnly "$node" $login start "run=flow key=two" 42501
  done
  for login in admission worker operator reader; do
    refused taskAttemptRuntimeOnlyAcl "$node" $login admit "run=flow" 42501
  done
  for login in admission scheduler worker; do
    expect "$gates" "$login at the tables" "$six" \
      "$(sql "$node" drill_$login -f "$fixture_sql/trespass.sql" 2>/dev/null)"
  done
  finds "$gates" "rights by the catalog" nothing "$node" acl
  sql "$node" "$dba" -c "revoke ql_admission from drill_admission"
  refused workflowAdmissionFencedAfterRevocation "$node" admission start "run=flow key=two" 42501
  refused workflowAdmissionFencedAfterRevocation "$node" admission start "run=flow" 42501
  sql "$node" "$dba" -c "grant ql_admission to drill_admission"
  refused workflowAdmissionFencedAfterRevocation "$node" admission start "run=flow" \
    "existing succeeded"
}

# Someone else's fence or token for work that runs now; and what was held before the promotion.
story_of_old_fences() {
  local gate=$1 node=$2 one file answer words
  one="run=abandoned run_id=$(occurrence_run "$node")"
  read -ra words <<<"$one"
  for file in lease:"main 1 fence 1" begin:applied running:applied; do
    answer=$(asks "$node" drill_worker ask "${file%%:*}" "${words[@]}")
    expect "$gate" "${file%%:*} of the occurrence" "${file#*:}" "$answer"
  done
  rows_now=''
  refused "$gate" "$node" worker report "$one fence=2" "blocked QL410"
  refused "$gate" "$node" worker report "$one key=stranger" "blocked QL410"
  refused "$gate" "$node" worker report "run=dark worker=drill-silent" "blocked QL410"
  refused "$gate" "$node" scheduler commit "$abandoned" contended
}
