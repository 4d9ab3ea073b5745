# Two rooms with networks of their own, a and b, and a wire between them that can be cut. A room is
# a network namespace, the wire a pair of virtual cards; they need root and `ip`, of iproute2.
# shellcheck shell=bash
#
#   rooms_possible       ends the drill with 77, and says why, where there can be none
#   rooms_make           both rooms and the wire
#   inside ROOM CMD…     run a command in a room
#   wire_cut, wire_mend  nothing comes through, without a word to anybody; all comes through again
#   rooms_empty          kill whatever runs in the rooms
#   rooms_away           the same, and remove them
#   address[a], address[b]

declare -A room=() address=([a]=10.99.0.1 [b]=10.99.0.2) card=([a]=wire-a [b]=wire-b)
# Nobody has this one: what is sent to it is lost on the wire. Taking a card down would tell both
# kernels at once, which a real partition does not.
nobody=02:00:00:00:00:01

rooms_possible() {
  local probe=ql-probe-$$
  [ "$(id -u)" = 0 ] || cannot "network namespaces need root; nothing was tried"
  command -v ip >/dev/null || cannot "there is no \`ip\`: apt-get install iproute2"
  ip netns add "$probe" 2>/dev/null || cannot "the kernel gives no network namespaces to us"
  if ! ip -n "$probe" link add "${card[a]}" type veth peer name "${card[b]}" 2>/dev/null; then
    ip netns del "$probe"
    cannot "the kernel has no virtual network cards (veth)"
  fi
  ip netns del "$probe"
}

rooms_make() {
  local one
  for one in a b; do
    room[$one]=ql-$one-$$
    ip netns add "${room[$one]}"
    ip -n "${room[$one]}" link set lo up
  done
  ip link add "${card[a]}" netns "${room[a]}" type veth peer name "${card[b]}" netns "${room[b]}"
  for one in a b; do
    ip -n "${room[$one]}" address add "${address[$one]}/24" dev "${card[$one]}"
    ip -n "${room[$one]}" link set "${card[$one]}" up
  done
}

inside() { ip netns exec "${room[$1]}" "${@:2}"; }

wire_cut() {
  step ip -n "${room[a]}" neighbor replace "${address[b]}" dev "${card[a]}" \
    lladdr $nobody nud permanent
  step ip -n "${room[b]}" neighbor replace "${address[a]}" dev "${card[b]}" \
    lladdr $nobody nud permanent
}

wire_mend() {
  step ip -n "${room[a]}" neighbor delete "${address[b]}" dev "${card[a]}"
  step ip -n "${room[b]}" neighbor delete "${address[a]}" dev "${card[b]}"
}

rooms_empty() {
  local one pids _
  for _ in {1..50}; do
    pids=''
    for one in "${room[@]}"; do pids+=" $(ip netns pids "$one" 2>/dev/null | tr '\n' ' ')"; done
    [ -n "${pids// /}" ] || return 0
    # shellcheck disable=SC2086
    kill -KILL $pids 2>/dev/null || true
    sleep 0.1
  done
  return 1
}

rooms_away() {
  local one
  rooms_empty 2>/dev/null || true  # the shell would tell of each child that was killed
  for one in "${!room[@]}"; do ip netns del "${room[$one]}" 2>/dev/null || true; done
  room=()
}
