#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# 256 processes join and make a sum, in less time of processors than two of them have in 20 seconds:
# how many others want them is not what is asked.
#
#   hundreds.sh MPIRUN LOOP
set -u
mpirun=$1 loop=$2 n=256 most=40
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

fail() {
    echo "FAIL $*"
    sed 's/^/    /' "$folder/out" "$folder/err"
    exit 1
}

"$mpirun" -n $n "$loop" 0 </dev/null >"$folder/out" 2>"$folder/err" || fail "exit code $?"
[ "$(grep -c "^rank .* of $n pid" "$folder/out")" -eq $n ] || fail "not all have begun"
grep -q "^sum $((n * (n - 1) / 2))\$" "$folder/out" || fail "another sum"
times >"$folder/times"
seconds=$(tail -n 1 "$folder/times" | tr 'ms' '  ' | awk '{ print int($1 * 60 + $2 + $3 * 60 + $4) }')
[ "$seconds" -lt $most ] || fail "$seconds s of processors"
echo "pass  $n processes, $seconds s of processors"
echo "1 passed, 0 failed"
