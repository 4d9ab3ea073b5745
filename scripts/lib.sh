# What scripts/test, scripts/demo and .ci/run share: a Python, and a virtual environment of our own.
# shellcheck shell=bash

# The tests start hundreds of interpreters; each would compile all that it imports anew.
unset PYTHONDONTWRITEBYTECODE

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# The first Python from 3.11 on that can make virtual environments.
find_python() {
  local name path lacking=
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    path=$(command -v "$name" 2>/dev/null) || continue
    "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    if "$path" -c 'import ensurepip, venv' 2>/dev/null; then
      # never the python of a virtual environment, which may be the one that we make anew
      "$path" -c 'import os, sys; print(os.path.realpath(sys._base_executable))'
      return
    fi
    lacking=$path
  done
  [ -z "$lacking" ] || die "$lacking cannot make virtual environments: install its venv module" \
    "(Debian, Ubuntu: apt-get install python3-venv)."
  die "Python 3.11 or newer is needed and not on PATH; found $(python3 -V 2>&1 || true)."
}

# environment NAME EXTRAS: sets $venv to an up-to-date virtual environment with the package in it,
# `.venv…` of the checkout, or one below the cache folder when the checkout is not ours to write.
environment() {
  local name=$1 extras=$2 python wish base
  python=$(find_python)
  venv=$root/$name
  if ! mkdir -p "$venv" 2>/dev/null || [ ! -w "$venv" ]; then
    base=$(cache_folder)
    export UV_CACHE_DIR=$base/uv PIP_CACHE_DIR=$base/pip
    venv=$base/${name#.}-$(printf '%s' "$root" | sha256sum | cut -c1-12)
    mkdir -p "$venv" || die "Neither $root nor $base can be written: set XDG_CACHE_HOME."
  fi
  if command -v flock >/dev/null; then  # two calls at once: the second waits (.lock is uv's own)
    exec 9>"$venv/.one-at-a-time"
    flock 9
  fi
  wish=$({ "$python" -VV; echo "$python $venv $extras"; cat "$root/pyproject.toml"; } | sha256sum)
  if [ "$(cat "$venv/.made-from" 2>/dev/null)" != "$wish" ]; then
    make_environment "$python" "$extras"
    printf '%s\n' "$wish" >"$venv/.made-from"
  fi
  if command -v flock >/dev/null; then exec 9>&-; fi
}

cache_folder() {
  local base=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/qinglong-sql
  if ! mkdir -p "$base" 2>/dev/null || [ ! -w "$base" ]; then
    base=${TMPDIR:-/tmp}/qinglong-sql-$(id -u)  # no home to write to
    mkdir -p -m 700 "$base"
    [ -O "$base" ] || die "$base belongs to someone else: set XDG_CACHE_HOME."
  fi
  printf '%s\n' "$base"
}

make_environment() {
  local python=$1 extras=$2 log=$venv/install.log what=$root
  [ -z "$extras" ] || what="$root[$extras]"
  say "Making an environment first, in $venv ($("$python" -V)) …"
  find "$venv" -mindepth 1 -maxdepth 1 ! -name .one-at-a-time -exec rm -rf {} +
  "$python" -m venv "$venv" >"$log" 2>&1 || die "$(cat "$log")"
  say "Installing qinglong-sql${extras:+[$extras]} …"
  if "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv >>"$log" 2>&1 &&
    UV_PYTHON_DOWNLOADS=never UV_SYSTEM_CERTS=1 VIRTUAL_ENV=$venv \
      "$venv/bin/uv" pip install --quiet --editable "$what" >>"$log" 2>&1; then
    return
  fi
  say "uv could not; trying pip …"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$what" \
    >>"$log" 2>&1 || die "$(tail -n 30 "$log")" "Installing failed; the whole log is $log."
}
