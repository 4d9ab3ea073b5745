# What the failover drill asks before it promotes, and of each COMMIT: does the standby stream, is
# the old primary fenced, who waits for whom. After node.sh; `mark` and its table in the drill's own
# database keep apart what was acknowledged from the product's rows.
# shellcheck shell=bash disable=SC2154
#
# A question is true by something that was seen, never because asking failed.

streams() {  # PRIMARY STANDBY
  in_recovery "$2" && asked "$1" "
    select r.state || ' ' || s.active || ' ' || s.slot_type
    from pg_stat_replication as r join pg_replication_slots as s on s.active_pid = r.pid
    where r.application_name = '$2' and s.slot_name = '$2'" "streaming true physical" &&
    asked "$2" "select status from pg_stat_wal_receiver" streaming
}

# --- promotion

# The guard: no promotion while the old primary may still acknowledge something.
promote_fenced() {  # STANDBY OLD-PRIMARY
  if ! fenced "$2"; then
    say "  refused: PRIMARY_NOT_FENCED ($2 runs)"
    return 3
  fi
  node_promote "$1"
}

# It was started by us and has ended, and its port says so: any other failure proves nothing.
fenced() {
  [ -n "${node_port[$1]:-}" ] && gone "node-$1" &&
    [[ $( (exec 3<>"/dev/tcp/127.0.0.1/${node_port[$1]}") 2>&1) = *"Connection refused"* ]]
}

promotion_refused() {  # STANDBY PRIMARY
  local code=0
  promote_fenced "$1" "$2" || code=$?
  [ "$code" = 3 ] && alive "node-$2" && in_recovery "$1"
}

both_so() { "$1" "$2" && "$3" "$4"; }

# --- commits

# mark NODE TEXT: as the DBA, in the database of the markers.
mark() { sql_database=drill ask "$@"; }

marked() { sql_database=drill asked "$1" "select count(*) from marker where name = '$2'" "$3"; }

# mark_away NAME NODE [CMD…]: a client of its own inserts the marker NAME, and says `acknowledged` to
# its log when it was told so. CMD bounds it.
mark_away() {
  local psql
  sql_database=drill psql_at "$2" postgres
  spawn "commit-$1" "${@:3}" "${psql[@]}" -c "insert into marker values ('$1')" \
    -c "select 'acknowledged'"
}

waiting() {
  echo "select count(*) from pg_stat_activity
    where wait_event = 'SyncRep' and query like '%''$1''%'"
}

waits_or_ended() { gone "commit-$1" || asked "$2" "$(waiting "$1")" 1; }

told_times() { grep -c acknowledged "$scratch/commit-$1.log" || true; }

# waits_for_apply GATE PRIMARY STANDBY: COMMIT is acknowledged when the standby has applied it, and no
# sooner. Its replay is paused, and it has flushed the commit: still nobody is told. Then it goes on.
waits_for_apply() {
  local gate=$1 node=$2 standby=$3 name=applied-$((commits += 1)) lsn seen REPLY
  shown "psql $standby -c 'select pg_wal_replay_pause()'; psql $node -c 'insert …' &"
  ask "$standby" "select pg_wal_replay_pause()" >/dev/null
  must 10 "the replay on $standby is paused" asked "$standby" \
    "select pg_get_wal_replay_pause_state()" paused
  mark_away "$name" "$node"
  until_true 10 "its COMMIT waits in SyncRep" waits_or_ended "$name" "$node" || true
  lsn=$(ask "$node" "select pg_current_wal_flush_lsn()")
  sleep 1  # many times what an apply takes
  # the primary knows that it is flushed there: with less than remote_apply it would tell its client
  seen="flushed $(ask "$node" "select flush_lsn >= '$lsn' from pg_stat_replication
    where application_name = '$standby'"),"
  seen+=" $(ask "$node" "$(waiting "$name")") waits, told $(told_times "$name");"
  shown "psql $standby -c 'select pg_wal_replay_resume()'"
  ask "$standby" "select pg_wal_replay_resume()" >/dev/null
  REPLY=none
  reaped "commit-$name" 20 || kill_child "commit-$name" TERM
  # read once, at once
  seen+=" resumed: exit $REPLY, told $(told_times "$name"), on $standby $(mark "$standby" \
    "select count(*) from marker where name = '$name'")"
  gate "$gate" "$(verdict same "flushed t, 1 waits, told 0; resumed: exit 0, told 1, on $standby 1" \
    "$seen")" "COMMIT on $node while $standby does not apply: $seen"
}
commits=0
