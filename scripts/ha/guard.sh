# Before a standby is promoted: does it stream, and is the old primary fenced? After node.sh.
# shellcheck shell=bash disable=SC2154

streams() {  # PRIMARY STANDBY
  in_recovery "$2" && asked "$1" "
    select r.state || ' ' || s.active || ' ' || s.slot_type
    from pg_stat_replication as r join pg_replication_slots as s on s.active_pid = r.pid
    where r.application_name = '$2' and s.slot_name = '$2'" "streaming true physical" &&
    asked "$2" "select status from pg_stat_wal_receiver" streaming
}

# The guard: no promotion while the old primary may still acknowledge something.
promote_fenced() {  # STANDBY OLD-PRIMARY
  if ! fenced "$2"; then
    say "  refused: PRIMARY_NOT_FENCED ($2 runs)"
    return 3
  fi
  node_promote "$1"
}

fenced() { gone "node-$1" && ! (exec 3<>"/dev/tcp/127.0.0.1/${node_port[$1]}") 2>/dev/null; }
