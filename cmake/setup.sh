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
  [ -x /usr/sbin/ip ] || [ -x /sbin/ip ] || missing="$missing iproute2"  # networks of their own
  [ -x /usr/sbin/slurmctld ] && [ -x /usr/sbin/slurmd ] && [ -x /usr/sbin/munged ] || missing="$missing slurm-wlm"
  missing=${missing# }
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    stage "no servers or networks for tests here (Debian: $missing): not all of the shared store is tested"
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

# make_venv [PYTHON FOLDER]: the project's own environment, or the same one for another Python.
make_venv() {
  python=${1:-/usr/bin/python3}
  venv=${2:-.venv}
  # Made again when the requirements, the place or Python itself changed, or when it was cut short.
  stamp=$( (cat requirements.txt && pwd && "$python" --version) | sha256sum | cut -d ' ' -f 1)
  [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ] || return 0
  stage "making $venv"
  logged venv "$python" -m venv --clear "$venv"
  # Without --no-compile pip would compile thousands of files that are never imported.
  logged venv "$venv/bin/pip" install --disable-pip-version-check --no-compile -r requirements.txt
  printf '%s\n' "$stamp" >"$venv/stamp"
}

# make_venv_beside NAME SIZES WHAT: .venv-NAME has the packages of requirements-NAME.txt and those of .venv.
make_venv_beside() {
  made=.venv-$1
  make_venv
  stamp=$(cat "requirements-$1.txt" .venv/stamp | sha256sum | cut -d ' ' -f 1)
  [ "$(cat "$made/stamp" 2>/dev/null)" != "$stamp" ] || return 0
  stage "making $made: $2 there:"
  sed 's/#.*//; /^ *$/d' "requirements-$1.txt"
  logged "$1" .venv/bin/python -m venv --clear --without-pip "$made"
  # Not the path alone: packages beside it may have .pth files of their own.
  packages="import sysconfig; print(sysconfig.get_path('purelib'))"
  echo "import site; site.addsitedir('$(.venv/bin/python -c "$packages")')" \
    >"$("$made/bin/python" -c "$packages")/beside.pth"
  (logged "$1" .venv/bin/python -m pip --python "$made/bin/python" --disable-pip-version-check \
    install -r "requirements-$1.txt") ||
    fail "$3 could not be had: let pip reach a package index, then try again"
  printf '%s\n' "$stamp" >"$made/stamp"
}

# JAX's compilers for devices that are not here.
make_device_venv() {
  make_venv_beside devices "470 MB are downloaded and take 1.4 GB" "the compilers for devices"
}

# Ray, for hosts that are namespaces of this machine.
make_fleet_venv() {
  make_venv_beside fleet "80 MB are downloaded and take 258 MB" Ray
}

# need COMMAND PACKAGE: for what is done by hand, so that not everybody has to have the package.
need() {
  ! command -v "$1" >/dev/null || return 0
  [ "$(id -u)" = 0 ] || fail "$1 is missing and only root can install it. Run this, then try again:
  sudo apt-get install -y --no-install-recommends $2"
  stage "installing $2"
  export DEBIAN_FRONTEND=noninteractive
  logged "$2" apt-get update
  logged "$2" apt-get install -y --no-install-recommends "$2"
}

# Sphinx, for the site of docs/.
make_docs_venv() {
  stamp=$( (cat docs/requirements.txt && pwd && /usr/bin/python3 --version) | sha256sum | cut -d ' ' -f 1)
  [ "$(cat .venv-docs/stamp 2>/dev/null)" != "$stamp" ] || return 0
  stage "making .venv-docs"
  logged venv-docs /usr/bin/python3 -m venv --clear .venv-docs
  logged venv-docs .venv-docs/bin/pip install --disable-pip-version-check -r docs/requirements.txt
  printf '%s\n' "$stamp" >.venv-docs/stamp
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

# with_tested_library COMMAND...: builds the Python package with the library of the dev preset, which ccache knows
# already if the compiler's name is the same.
with_tested_library() {
  CXX=c++ "$@" --config-settings cmake.args=--preset=dev --config-settings cmake.build-type=Debug
}

install_python_for_tests() {
  with_tested_library install_python
}

can_build_for() {
  "$1" -c 'import os, sys, sysconfig, venv
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null
}

# python_to_build_for VERSION: where one is, in PATH or among those of pyenv, whose command in PATH is a shim that fails
# unless that version is selected.
python_to_build_for() {
  for found in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/"python$1"; do
    ! can_build_for "$found" || { command -v "$found" && return; }
  done
  return 1
}

# build_wheels FOLDER [PIP OPTION...]: one for each supported Python that is found here with its headers.
build_wheels() {
  into=$1
  shift
  mkdir -p "$into"
  rm -f "$into"/*.whl
  make_venv
  for version in 3.11 3.12 3.13; do
    python=.venv/bin/python
    if [ "$($python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" != $version ]; then
      if ! interpreter=$(python_to_build_for $version); then
        stage "no wheel for Python $version: python$version with its headers and venv is neither in PATH nor one of pyenv's"
        continue
      fi
      make_venv "$interpreter" .venv-$version
      python=.venv-$version/bin/python
    fi
    stage "building the wheel for Python $version"
    made=build/wheel-$version/wheels
    rm -rf "$made"
    CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) logged wheel $python -m pip wheel --disable-pip-version-check \
      --no-build-isolation --no-deps --config-settings build-dir=build/wheel-$version -w "$made" "$@" .
    # Gives it a copy of Highway's library, and the name of the oldest Linux that it runs on.
    PATH="$PWD/${python%/*}:$PATH" logged auditwheel $python -m auditwheel repair -w "$into" "$made"/*.whl
  done
  ls "$into"/*.whl >/dev/null 2>&1 || fail "no supported Python is here: 3.11, 3.12 and 3.13 are"
}

# build_debs PRESET FOLDER: the Debian packages, compiled as that preset compiles.
build_debs() {
  need dpkg-shlibdeps dpkg-dev
  stage "building the Debian packages"
  mkdir -p "$2"
  rm -f "$2"/*.deb
  logged debian cmake --preset "$1" -B "build/debian-$1" -D BUILD_SHARED_LIBS=ON -D CMAKE_INSTALL_PREFIX=/usr \
    -D EJK_BUILD_TESTS=OFF -D EJK_BUILD_EXAMPLES=OFF -D EJK_BUILD_BENCH=OFF
  logged debian cmake --build "build/debian-$1" --parallel "$(nproc)"
  logged debian cpack --config "build/debian-$1/CPackConfig.cmake" -B "build/debian-$1/packages"
  cp "build/debian-$1"/packages/*.deb "$2"
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
