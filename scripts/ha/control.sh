# The product in a drill: its program, its control processes, and the switchable endpoints in front
# of the nodes. After node.sh.
# shellcheck shell=bash disable=SC2154,SC2034
#
#   product ARGS…                qinglong-sql, with QINGLONG_DSN from the caller
#   relay_start NAME NODE        a switchable endpoint that leads to NODE; sql NAME … goes through it
#   point NAME NODE|nowhere|silent   switch it; whoever is connected is cut off. Nowhere refuses,
#                                silent never answers, as a host without power. Every switch is
#                                on the timeline
#   led_only NAME NODE…          whether it has never led to anything else
#   control_start NAME…          qinglong-sql control by way of the relay `endpoint`, pages on a port
#                                of its own, log in control-NAME.log
#   control_again NAME…          the same process again, as its supervisor starts it
#   control_stop NAME…           TERM, and wait
#   page PORT PATH               the status of a page: 200, 503, or 000 when nobody answers
#   both QUESTION [NODE] A B     whether it is so for both
#   controls_ready A B           waits until both are ready; says their last words when not
#   control_ready NAME · control_waits NAME (lives, is not ready) · control_withdrawn NAME (ended or
#   503; its exit in control_ended[NAME]) · control_backends NODE NAME   questions

declare -A control_port=() control_ended=()
declare -A led=()  # relay: all that it was pointed at, in order

product() { "$product" "$@"; }

# --- endpoints

relay_start() {
  local name=$1
  free_port
  node_at "$name" 127.0.0.1 "$REPLY"
  point "$name" "$2"
  spawn "relay-$name" "$python" "$here/relay.py" "$REPLY" "$scratch/$name.target"
  must 20 "$name listens" listens "$REPLY"
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

point() {
  local to=''
  case $2 in
    nowhere) ;;
    silent) to=silent ;;
    *) to="${node_host[$2]} ${node_port[$2]}" ;;
  esac
  shown "echo '$to' >$1.target  # $1 leads to $2"
  led[$1]+="${led[$1]:+ }$2"
  event "point:$1" "$2"
  printf '%s\n' "$to" >"$scratch/$1.target.new"
  mv -f "$scratch/$1.target.new" "$scratch/$1.target"
}

led_only() {
  local one
  [ -n "${led[$1]:-}" ] || return 1
  for one in ${led[$1]}; do [[ " ${*:2} " = *" $one "* ]] || return 1; done
}

# --- control processes

control_start() {
  local name
  for name; do
    free_port
    control_port[$name]=$REPLY
    shown "qinglong-sql control --listen 127.0.0.1:$REPLY  # $name"
    control_spawn "$name"
  done
}

control_again() {
  local name
  for name; do
    [ -z "${child[control-$name]:-}" ] || ! control_withdrawn "$name" || continue
    shown "qinglong-sql control --listen 127.0.0.1:${control_port[$name]}  # $name again"
    control_spawn "$name"
  done
}

control_spawn() {
  local dsn
  dsn=$(dsn_of 127.0.0.1 "${node_port[endpoint]}" drill_control)
  # whoever is late by a failover has not missed an occurrence
  QINGLONG_CONTROL_DSN="$dsn?application_name=$1" spawn "control-$1" "$product" control \
    --listen "127.0.0.1:${control_port[$1]}" --grace-ms 300000
}

control_stop() {
  local name REPLY
  for name; do kill_child "control-$name" TERM; done
  for name; do
    [ -z "${child[control-$name]:-}" ] || reaped "control-$name" 30 || die "$name does not stop"
  done
}

page() {
  local status
  if command -v curl >/dev/null; then
    curl -s -o /dev/null -m 10 --noproxy '*' -w '%{http_code}\n' "http://127.0.0.1:$1$2" || true
    return
  fi
  exec 4<>"/dev/tcp/127.0.0.1/$1" || { echo 000; return; }
  printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$2" >&4
  read -r -t 10 _ status _ <&4 || true
  exec 4>&-
  echo "${status:-000}"
} 2>/dev/null

both() {
  local question=$1 node=()
  shift
  if [ $# = 3 ]; then node=("$1") && shift; fi
  "$question" "${node[@]}" "$1" && "$question" "${node[@]}" "$2"
}

control_ready() { [ "$(page "${control_port[$1]}" /readyz)" = 200 ]; }

controls_ready() {  # NAME NAME: waits until both are, or one has ended
  until_true 60 "$1 and $2 are ready" ready_or_ended "$1" "$2" && both control_ready "$1" "$2" &&
    return
  say "$(tail -n 3 "$scratch/control-$1.log" "$scratch/control-$2.log")"
  return 1
}

ready_or_ended() { gone "control-$1" || gone "control-$2" || both control_ready "$1" "$2"; }

control_waits() {
  [ "$(page "${control_port[$1]}" /livez)$(page "${control_port[$1]}" /readyz)" = 200503 ]
}

control_withdrawn() {
  local REPLY
  alive "control-$1" && return 1
  [ -n "${child[control-$1]:-}" ] || return 0
  reaped "control-$1" 5
  control_ended[$1]=$REPLY
}

control_backends() {
  asked "$1" "select count(*) > 0 from pg_stat_activity where application_name = '$2'" t
}
