#!/usr/bin/env bash
# Installs what is missing and nothing else: Debian packages, then the virtual environment build/venv.
#
#   PYTHON      interpreter the environment is made from, 3.11 or newer (python3)
#   TORCH_ARGS  extra arguments of the `pip install` of torch, e.g. another index or a folder of wheels
#   SKIP_APT=1  do not look at Debian packages: they, or their equivalents, are already there
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
TORCH_ARGS=${TORCH_ARGS:-}
readonly VENV=build/venv
readonly LOGS=build/logs
readonly VENV_GIB=4

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# entries FILE: its lines without comments.
entries() { grep -v '^[[:space:]]*\(#\|$\)' "$1"; }

# last_words LOG: the last line that names an error, for the sentence the user reads.
last_words() { grep -iE '^(E:|ERROR|error|fatal)' "$1" | tail -n 1 || true; }

missing_debian_packages() {
  # shellcheck disable=SC2046
  comm -13 <(dpkg-query -W -f='${Package} ${db:Status-Status}\n' $(entries scripts/debian-packages.txt) 2>/dev/null |
    awk '$2 == "installed" { print $1 }' | sort) <(entries scripts/debian-packages.txt | sort) | tr '\n' ' '
}

install_debian_packages() {
  [ -x "$(command -v dpkg-query)" ] || die "this is not a Debian system (no dpkg-query); install the equivalents of scripts/debian-packages.txt and run make again with SKIP_APT=1"
  local missing log=$LOGS/apt.log
  local as_root=()
  missing=$(missing_debian_packages)
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      die "Debian packages are missing and there is no sudo; as root run: apt-get install ${missing% }"
    as_root=(sudo)
  fi
  say "installing Debian packages: ${missing% } (log: $log)"
  # The path-include keeps the handbook's text on images whose dpkg leaves out documentation.
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300
    -o 'Dpkg::Options::=--path-include=/usr/share/doc/debian-handbook/*')
  "${apt[@]}" update >"$log" 2>&1 || say "apt-get update failed; going on with the package lists that are there"
  # shellcheck disable=SC2086
  "${apt[@]}" install --no-install-recommends $missing >>"$log" 2>&1 ||
    die "apt-get could not install: ${missing% } ($(last_words "$log")); is there a network, and free disk space? See $log"
}

check_python() {
  command -v "$PYTHON" >/dev/null || die "there is no '$PYTHON'; name a Python 3.11 or newer with PYTHON=..."
  local version
  version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    die "'$PYTHON' does not run; name a Python 3.11 or newer with PYTHON=..."
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "'$PYTHON' is Python $version; 3.11 or newer is needed, name one with PYTHON=..."
}

check_disk() {
  local free_kib
  free_kib=$(df -Pk build | awk 'NR == 2 { print $4 }')
  [ "$free_kib" -ge $((VENV_GIB * 1024 * 1024)) ] ||
    die "the disk of $PWD/build has $((free_kib / 1024)) MiB free; the virtual environment needs $VENV_GIB GiB"
}

# What the environment is made from: when this text changes, it is brought up to date.
venv_key() {
  { "$PYTHON" -c 'import sys; print(sys.version, sys.base_prefix)'; printf '%s\n' "$TORCH_ARGS"; cat python/requirements*.txt; } |
    sha256sum | cut -d' ' -f1
}

# pip_install WHAT ARGS...: quiet, logged, one sentence on failure.
pip_install() {
  local what=$1 log=$LOGS/pip.log
  shift
  "$VENV/bin/python" -m pip --disable-pip-version-check --no-input install "$@" >>"$log" 2>&1 ||
    die "pip could not install $what ($(last_words "$log")); is there a network, and free disk space? See $log"
}

make_venv() {
  local key stamp=$VENV/.requirements
  key=$(venv_key)
  if [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && "$VENV/bin/python" -c '' 2>/dev/null; then return 0; fi
  check_disk
  : >"$LOGS/pip.log"
  local ours theirs
  ours=$("$PYTHON" -c 'import sys; print(sys.version)')
  theirs=$("$VENV/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null || true)
  if [ "$ours" != "$theirs" ] || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    say "creating the virtual environment $VENV"
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV" >>"$LOGS/pip.log" 2>&1 ||
      die "'$PYTHON -m venv' failed; is its venv module installed? See $LOGS/pip.log"
  fi
  say "installing Python packages into $VENV, a few minutes (log: $LOGS/pip.log)"
  # torch first, so that TORCH_ARGS decides which build of it comes and the others find it there.
  # shellcheck disable=SC2086
  pip_install torch "$(entries python/requirements.txt | grep '^torch==')" $TORCH_ARGS
  pip_install "the packages of python/requirements*.txt" -r python/requirements.txt -r python/requirements-test.txt
  pip_install "the packages of python/requirements-no-deps.txt" --no-deps -r python/requirements-no-deps.txt
  printf '%s\n' "$key" >"$stamp"
}

mkdir -p "$LOGS" 2>/dev/null || die "cannot write to $PWD/build; is the disk full or the folder read-only?"
exec 9>build/.setup.lock
command -v flock >/dev/null && { flock 9 || die "cannot lock build/.setup.lock"; }
[ "${SKIP_APT:-0}" = 1 ] || install_debian_packages
check_python
make_venv
