# Sabotage: one thing is broken on purpose, and the drill must say which gate has seen it. Every one
# acts after the fresh controls are ready, on the promoted node. After node.sh and fixture.sh.
# shellcheck shell=bash disable=SC2034,SC2154
#
# gate.sh prints `sabotages` with --list and calls `sabotage_before PHASE` before each phase.

sabotages=(
  local-commit$'\t'synchronousReplicationRestoredBeforeEndpointSwitch$'\t'"before takeover: \
synchronous_commit = local on the new primary, so COMMIT is acknowledged before the standby has it"
  not-fenced$'\t'oldPrimaryLateWritersRefused$'\t'"before late: the old primary comes \
back as a primary of its own, as one does that nobody fenced; its late writers are heard"
  fresh-key$'\t'replayAddsNothing$'\t'"before replay: a client repeats its start under a fresh key, \
and takes what it is told for an answer"
  no-unique$'\t'taskAttemptExactReplay$'\t'"before replay: task admission without its unique \
constraint and without the lock on the run, so that of two at once none is contended"
  no-fence-check$'\t'oldPrimaryLateWritersRefused$'\t'"before late: reports are accepted without \
looking at fence and token of the lease"
)

sabotage_before() {
  case $sabotage:$1 in
    local-commit:takeover | not-fenced:late | fresh-key:replay | no-unique:replay | \
      no-fence-check:late)
      say "  sabotage: $sabotage"
      event sabotage "$sabotage"
      "sabotage_${sabotage//-/_}" beta alpha ;;
  esac
}

sabotage_local_commit() {
  ask "$1" "alter system set synchronous_commit = local; select pg_reload_conf()" >/dev/null
  must 10 "COMMIT is local" asked "$1" "show synchronous_commit" local
}

# The new primary has to do without its standby, or it would wait for ever.
sabotage_not_fenced() {
  node_async "$1"
  node_stop "$2"
  as_server rm "${node_folder[$2]}/standby.signal"
  node_start "$2"
  must 20 "$2 is a primary again" asked "$2" "select pg_is_in_recovery()" f
}

# What the client is told (created) is true: only the rows tell that there is a second run.
sabotage_fresh_key() {
  sed -i '0,/|start|run=flow|existing succeeded$/s//|start|run=flow key=two|created running/' \
    "$fixture_folder/commands"
  grep -q 'key=two|created running$' "$fixture_folder/commands"
}

sabotage_no_unique() {
  ask "$1" "alter table ql.task_attempt drop constraint one_admission_an_epoch" >/dev/null
  without "$1" "ql.hold_run(text)" "for no key update skip locked"
}

sabotage_no_fence_check() {
  without "$1" "ql.accept_reports(ql.command[], text, bigint)" "and l.fence = c.fence"
  without "$1" "ql.accept_reports(ql.command[], text, bigint)" "and l.token_digest = c.token_digest"
}

# without NODE FUNCTION TEXT: the function as it stands, but for that text.
without() {
  sql "$1" "$dba" -v "name=$2" -v "text=$3" -f "$fixture_sql/without.sql"
}
