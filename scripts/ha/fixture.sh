# The domain fixtures: every command of the product by its real login, its answer lost at the client
# at the commit, repeated, and repeated again after a promotion. psql and bash alone judge.
# shellcheck shell=bash disable=SC2154,SC2034,SC1091
#
# Needs `sql NODE LOGIN [psql options]`, `gate`, `until_true`, `same`, `say` and $scratch (gate.sh,
# node.sh). A drill calls, in this order, with the names of its nodes:
#   fixture_logins                    prints "login group" lines: the logins that it must have made
#   fixture_prepare PRIMARY           once, as superuser: the view that all judging reads
#   fixture_run PRIMARY STANDBY       all commands; nobody else works in the database meanwhile
#   fixture_claim PRIMARY STANDBY     a scheduler claims what is due, and is never seen again
#   fixture_keep PRIMARY              remember every row; what a promotion must not change
#   fixture_takeover PRIMARY          wait until the claim runs out, and see its one run
#   fixture_replay PRIMARY            every command again, word for word; nothing may be added
#   fixture_counts PRIMARY [STANDBY]  the exact rows of each table; no invariant is broken
#   fixture_late OLD PRIMARY          who writes to the old primary, or with an old fence
# Control processes may run from fixture_claim on; workers may, on any queue but `drill`.

fixture_sql=$(cd "$(dirname "${BASH_SOURCE[0]}")/fixture" && pwd -P)
source "$(dirname "${BASH_SOURCE[0]}")/asking.sh"
source "$(dirname "${BASH_SOURCE[0]}")/stories.sh"
dba=${dba:-postgres}
# gate, tables, stories (regular expressions): what must be the same before and after a promotion
fixture_survivors=(
  'workflowAdmission ^(run|run_input|step_run|package.*|workflow.*)$ ^(?!abandoned)'
  'workflowFrontier ^(run|run_event|step_run|step_output|agenda)$ ^(?!abandoned)'
  'taskAttempt ^(task_attempt|attempt_.*|attestation|refused_report)$ ^(?!abandoned)'
  'remoteWorkflowCancellation . ^live'
)

fixture_logins() {
  local group
  for group in admission scheduler worker operator reader; do echo "drill_$group ql_$group"; done
}

fixture_prepare() {
  fixture_folder=$scratch/fixture
  mkdir -p "$fixture_folder"
  : >"$fixture_folder/commands"
  shown "psql $1 -f scripts/ha/fixture/prepare.sql"
  sql "$1" "$dba" -f "$fixture_sql/prepare.sql"
}

story() {  # WORDS NAME NODE…
  say "  $1"
  "story_of_$2" "${@:3}"
}

# --- a schedule's claim

# claimed NODE GATE OWNER: what is due, by a lost answer and the same again; kept for `decision`.
claimed() {
  local code=0 first
  rows_now=''
  first=$(asks "$1" drill_scheduler lose claim "owner=$3") || code=$?
  expect "$2" "claim, broken off" 2 "$code"
  asks "$1" drill_scheduler ask claim "owner=$3" >"$fixture_folder/claim"
  expect "$2" "claim, repeated" "$first" "$(cat "$fixture_folder/claim")"
  printf '%s|scheduler|claim|owner=%s|nothing\n' "$2" "$3" >>"$fixture_folder/commands"
  claim_owner=$3
}

# decision TRIGGER: what a scheduler commits for it: the claim's versions, its times in ms.
decision() {
  local trigger claim state cursor observed due next
  while IFS='|' read -r trigger claim state cursor observed due next; do
    [ "$trigger" = "$1" ] || continue
    echo "trigger=$trigger owner=$claim_owner claim_version=$claim state_version=$state" \
      "cursor=$cursor due=$due observed=$observed next=$next"
  done <"$fixture_folder/claim"
}

# --- what a drill calls

fixture_run() {
  local node=$1 standby=$2
  shown "psql $node -U drill_… -f scripts/ha/fixture/lose.sql, tear.sql, ask.sql  # every command"
  story "two packages, two workers: publish, register" publication "$node"
  # their leases run out while the others go on
  story "a worker claims and is silent, or starts and is silent: lease, begin, running, drain" \
    silent_workers "$node"
  story "a run begins: start" admission "$node"
  story "two steps, one after the other: admit, lease, begin, running, report, advance" \
    success "$node" "$standby"
  story "a run is cancelled while it runs: renew, cancel, report, converge; and retried: again" \
    cancellation "$node"
  story "a package goes: withdraw" withdrawal "$node"
  story "an occurrence: claim, commit; its run is cancelled: settle" occurrence "$node"
  story "the silent worker's work comes back: recover, retry" recovery "$node"
  story "who may do what: start, admit, trespass.sql, acl.sql, revoke" rights "$node"
  told workflowAdmissionAtomic "torn before the commit nothing; after it run, steps, events"
  told workflowAdmissionFencedAfterRevocation "withdrawn QL404, revoked 42501; its run is answered"
  told workflowAdmissionRuntimeOnly "other logins and other ways 42501; no right in the catalog"
  told workflowFrontierTerminalisesAtomically "torn before the commit nothing; after it the end"
  told taskAttemptAtomic "torn before the commit nothing; after it attempt and event"
  told taskAttemptReplicatedBeforePromotion "all rows of attempts are the same on the standby"
  told taskAttemptRuntimeOnlyAcl "other logins and other ways 42501; no right in the catalog"
  told remoteWorkflowCancellationReturnsStopRequested "the renewal says: stop, user"
  told remoteWorkflowCancellationTargetBound "the neighbour goes on; another fence is QL410"
}

fixture_claim() {
  local node=$1 gate=schedulerClaimReplicatedBeforePromotion held answer
  until_true 5 "the abandoned trigger is due" is_due "$node" || true
  claimed "$node" $gate drill-gone
  abandoned=$(decision abandoned)
  refused schedulerClaimTakenOverAfterExpiry "$node" scheduler heir "next=1" "nothing is due"
  judged "$node" claim_held || true
  held=$answer
  expect $gate "whose claim" drill-gone "${held%%|*}"
  finds $gate "the claim on the standby" "$held" "$2" claim_held
  claim_expires=${held##*|}
  told $gate "owner, token, version and expiry are the same on the standby"
}

is_due() {
  [ "$(sql "$1" "$dba" -c "select s.next_fire_at_ms <= ql.now_ms() from ql.trigger_schedule as s
    where s.package_key = 'drill' and s.trigger_key = 'abandoned'")" = t ]
}

fixture_keep() {
  local gate tables stories
  while read -r gate tables stories; do
    digest "$1" "$tables" "$stories" >"$fixture_folder/$gate" </dev/null
  done < <(printf '%s\n' "${fixture_survivors[@]}")
}

fixture_takeover() {
  local node=$1 gate=schedulerOccurrenceAdmittedExactlyOnce
  rows_now=''
  local times=${abandoned#*due=} late=schedulerClaimTakenOverAfterExpiry answer
  judged "$node" -c "select ql.now_ms() < $claim_expires - 500" || true
  case $answer in
    t) refused $late "$node" scheduler heir "next=${times##*next=}" "nothing is due" ;;
    f) ;;  # it has expired already
    *) wrong $late "whether the claim has expired $answer" ;;
  esac
  # a real control process may be quicker than we are; either is an heir
  until_true 60 "the claim is taken over" inherited "$node" "next=${times##*next=}" ||
    wrong "$late $gate" "nobody took the claim over"
  until_true 20 "its run has its attempt" occurrence_admitted "$node" || true
  judged "$node" occurrence "expires=$claim_expires" "due=${times%% *}" || true
  [[ $answer = *"too early 0,"* ]] || wrong $late "taken over before its time: $answer"
  expect $gate "the occurrence" "runs 1, too early 0, of another time 0, marks 1, steps 1, \
attempts 1, workflow.admitted step.created workflow.task_attempt_admitted" "$answer"
  rows_now=''
  # who was away comes back with what it had claimed
  refused $gate "$node" scheduler commit "$abandoned" contended
  told $late "nothing before the claim's end by the database's clock; admitted after it"
  told $gate "1 run, 1 step, 1 attempt, 3 events; the old owner's commit is contended"
}

inherited() {
  asks "$1" drill_scheduler ask heir "$2" >/dev/null || true
  [ "$(sql "$1" "$dba" -c "select count(*) > 0 from ql.run as r
    where r.package_key = 'drill' and r.trigger_key = 'abandoned'")" = t ]
}

occurrence_run() {
  sql "$1" drill_reader -c "select min(r.run_id) from ql.run_state as r
    where r.package_key = 'drill' and r.trigger_key = 'abandoned'"
}

occurrence_admitted() {
  asks "$1" drill_scheduler ask admit "run_id=$(occurrence_run "$1")"
  [ "$(sql "$1" "$dba" -c "select count(*) from ql.task_attempt as a join ql.run as r
    on r.run_id = a.run_id where r.package_key = 'drill' and r.trigger_key = 'abandoned'")" = 1 ]
}

fixture_replay() {
  local node=$1 gates login file words later list before count=0
  survived "$node"
  before=$(digest "$node")
  while IFS='|' read -r gates login file words later; do
    [ "$later" != - ] || continue
    count=$((count + 1))
    read -ra list <<<"$words"
    expect "$gates" "$file $words, after the promotion" "$later" \
      "$(asks "$node" "drill_$login" ask "$file" "${list[@]}" </dev/null)"
  done <"$fixture_folder/commands"
  meets taskAttemptExactReplay "$node" scheduler admit "run_id=$(occurrence_run "$node")" \
    "settled 0" "contended 0"
  rows_now=$before
  unmoved replayAddsNothing "$node" "all commands again"
  [ $count -gt 0 ] || wrong replayAddsNothing "no command was repeated"
  told workflowAdmissionExactReplay "existing, and another input is a conflict"
  told workflowFrontierExactReplay "settled, and nothing moved"
  told taskAttemptExactReplay "settled; of two at once one is contended"
  told schedulerCommitResponseLossConvergedExactlyOnce "settled; one run, one mark"
  told remoteWorkerCompletionCommitWindowConvergedExactlyOnce "the same answers, each counted once"
  told runCancellationCommitWindowsConvergedExactlyOnce "accepted and settled, each counted once"
  told remoteWorkflowCancellationCompletionExactReplay "cancelled again; another end is QL410"
  told remoteWorkflowCancellationConvergedAfterResponseLoss "the run is cancelled, settled again"
}

# survived NODE: not a column of a row differs from what fixture_keep saw.
survived() {
  local gate tables stories
  while read -r gate tables stories; do
    alike "${gate}SurvivesPromotion" "the promotion" "$(cat "$fixture_folder/$gate")" \
      "$(digest "$1" "$tables" "$stories" </dev/null)"
    told "${gate}SurvivesPromotion" "every column of every row is as it was"
  done < <(printf '%s\n' "${fixture_survivors[@]}")
}

fixture_counts() {
  local node
  for node; do
    finds replayAddsNothing "what is wrong with the rows on $node" nothing "$node" counts
    finds violationEmpty "violations on $node" nothing "$node" violation
  done
  told replayAddsNothing "every command again: not one row more, less or other"
  told violationEmpty "ql.violation has no row"
}

fixture_late() {
  local old=$1 node=$2 gate=oldPrimaryLateWritersRefused login file words mine
  rows_now=''
  look "$node"
  while read -r login file words; do
    read -ra mine <<<"$words"
    expect $gate "$file $words at $old" 25006 \
      "$(asks "$old" "drill_$login" ask "$file" "${mine[@]}" </dev/null)"
  done <<'LATE'
admission start run=flow key=late
admission cancel run=near
scheduler admit run=flow
scheduler claim owner=drill-late
worker register worker=drill-late
worker report run=dark
operator drain worker=drill-worker
LATE
  unmoved $gate "$node" "late writers at $old"
  story_of_old_fences $gate "$node"
  told $gate "25006 at $old; with an old fence, token or claim QL410 and contended at $node"
}
