# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# What ./run and ./test share: Debian packages, the Python environment, building a preset.
# Sourced from the project's directory. Every step looks first and does nothing that is done already.

started=$(date +%s)
stages=

elapsed() {
  echo "$(($(date +%s) - started))"
}

stage() {
  stages="$stages$(elapsed) $*
"
  printf '== [%4d s] %s\n' "$(elapsed)" "$*"
}

stage_times() {
  printf '%s%d\n' "$stages" "$(elapsed)" |
    awk 'NR > 1 { printf "%6d s  %s\n", $1 - began, name } { began = $1; sub(/^[0-9]+ /, ""); name = $0 }'
}

fail() {
  printf '%s\n' "$*" >&2
  exit 1
}

# logged NAME COMMAND...: says nothing if all goes well, else shows the end of the log and stops.
logged() {
  log=build/$1.log
  shift
  mkdir -p build
  if ! "$@" >"$log" 2>&1 </dev/null; then
    grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking)' "$log" | tail -n 60 >&2
    fail "failed: $* (all of its output: $log)"
  fi
}

wanted_packages() {
  sed 's/#.*//' apt.txt | tr -s ' \t\n' '\n' | sed '/^$/d'
}

missing_packages() {
  for package in $(wanted_packages); do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || status=absent
    [ "$status" = installed ] || printf '%s ' "$package"
  done
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    stage "no dpkg here: going on as if all of apt.txt were installed"
    return
  fi
  missing=$(missing_packages)
  missing=${missing% }
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    fail "Debian packages are missing and only root can install them. Run this, then try again:
  sudo apt-get install -y --no-install-recommends $missing"
  fi
  stage "installing $missing"
  export DEBIAN_FRONTEND=noninteractive
  logged apt apt-get update
  # shellcheck disable=SC2086  # one word per package
  logged apt apt-get install -y --no-install-recommends $missing
}

# For the test that looks at the report; it is left out, and says so, where there is no browser.
install_browser() {
  for browser in chromium-headless-shell chromium; do
    ! command -v "$browser" >/dev/null || return 0
  done
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    stage "no Chromium here (Debian: chromium-headless-shell): the report is not tested in a browser"
    return
  fi
  stage "installing chromium-headless-shell"
  mkdir -p build
  { apt-get update && DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends chromium-headless-shell; } >build/browser.log 2>&1 </dev/null ||
    stage "that failed (build/browser.log): the report is not tested in a browser"
}

# For the tests of a shared store, which start servers of their own; they are left out, and say so, where there is none.
install_servers() {
  missing=
  [ -n "$(find /usr/lib/postgresql -name postgres 2>/dev/null)" ] || missing=postgresql
  [ -x /usr/sbin/pgbouncer ] || missing="$missing pgbouncer"
  missing=${missing# }
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    stage "no PostgreSQL or PgBouncer here (Debian: $missing): not all of the shared store is tested"
    return
  fi
  stage "installing $missing"
  mkdir -p build /etc/postgresql-common
  # No cluster is made and nothing is started.
  settings=/etc/postgresql-common/createcluster.conf
  [ -f $settings ] || echo 'create_main_cluster = false' >$settings
  policy=/usr/sbin/policy-rc.d
  if [ -e $policy ]; then policy=; else printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy; fi
  # shellcheck disable=SC2086  # one word per package
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    -o Dpkg::Options::=--force-confold $missing; } >build/servers.log 2>&1 </dev/null ||
    stage "that failed (build/servers.log): not all of the shared store is tested"
  [ -z "$policy" ] || rm -f "$policy"
}

make_venv() {
  # Made again when the requirements, the place or Python itself changed, or when it was cut short.
  stamp=$( (cat requirements.txt && pwd && /usr/bin/python3 --version) | sha256sum | cut -d ' ' -f 1)
  [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ] || return 0
  stage "making .venv"
  logged venv /usr/bin/python3 -m venv --clear .venv
  logged venv .venv/bin/pip install --disable-pip-version-check -r requirements.txt
  printf '%s\n' "$stamp" >.venv/stamp
}

# JAX's compilers for devices that are not here. Everything else there is that of .venv.
make_device_venv() {
  make_venv
  stamp=$(cat requirements-devices.txt .venv/stamp | sha256sum | cut -d ' ' -f 1)
  [ "$(cat .venv-devices/stamp 2>/dev/null)" != "$stamp" ] || return 0
  stage "making .venv-devices: 345 MB are downloaded and take 1.1 GB there:"
  sed 's/#.*//; /^ *$/d' requirements-devices.txt
  logged devices .venv/bin/python -m venv --clear --without-pip .venv-devices
  # Not the path alone: packages beside it may have .pth files of their own.
  packages="import sysconfig; print(sysconfig.get_path('purelib'))"
  echo "import site; site.addsitedir('$(.venv/bin/python -c "$packages")')" \
    >"$(.venv-devices/bin/python -c "$packages")/beside.pth"
  (logged devices .venv/bin/python -m pip --python .venv-devices/bin/python --disable-pip-version-check \
    install -r requirements-devices.txt) ||
    fail "the compilers for devices could not be had: let pip reach a package index, then try again"
  printf '%s\n' "$stamp" >.venv-devices/stamp
}

set_up() {
  install_packages
  make_venv
}

# Another checkout of the same sources finds in ccache what this one compiled.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=true CCACHE_SLOPPINESS=pch_defines,time_macros

# install_python [PIP OPTION...]: the Python package, built in build/python and installed into .venv:
# quick if nothing changed.
install_python() {
  stage "building the Python package"
  CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) \
    logged python .venv/bin/pip install --disable-pip-version-check --no-build-isolation --no-deps \
    --config-settings cmake.define.EJK_PYTHON_WERROR=ON "$@" .
}

# The library in it is that of the dev preset, which ccache knows already if the compiler's name is the same.
install_python_for_tests() {
  CXX=c++ install_python --config-settings cmake.args=--preset=dev --config-settings cmake.build-type=Debug
}

# build PRESET [TARGET...]: the whole preset if no target is named.
build() {
  preset=$1
  shift
  stage "building $preset${*:+: $*}"
  logged "$preset" cmake --preset "$preset"
  [ $# = 0 ] || set -- --target "$@"
  logged "$preset" cmake --build --preset "$preset" --parallel "$(nproc)" "$@"
}
