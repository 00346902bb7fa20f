#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: tests/under_load.sh TIMES COMMAND...
# Runs COMMAND so often beside four busy loops and one that streams through memory, and says how often it passed.
# The output of those that failed is kept: build/under_load.N.log
set -eu
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { sed -n '3,5s/^# //p' "$0" >&2; exit 2; }
times=$1
shift
mkdir -p build

load=
for loop in 1 2 3 4; do
  sh -c 'while :; do :; done' "load $loop" &
  load="$load $!"
done
dd if=/dev/zero of=/dev/null bs=64M status=none &
load="$load $!"
# shellcheck disable=SC2064,SC2086  # the loops that run now, one word each
trap "kill $load" EXIT
trap 'exit 130' INT TERM  # dash runs what is set for EXIT only then

passed=0
for i in $(seq "$times"); do
  log=build/under_load.$i.log
  if "$@" >"$log" 2>&1 </dev/null; then
    passed=$((passed + 1))
    rm "$log"
  else
    echo "failed: $log"
  fi
done
echo "$passed of $times passed: $*"
[ "$passed" = "$times" ]
