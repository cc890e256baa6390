#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A process of a job is killed. The launcher ends the job soon, with a code other than 0; and where
# the launcher lets them, the others say who is missing. The launcher is killed: its processes end. A
# process does not come: the job ends at once, with its words and its code.
#
#   killed.sh openmpi|mpich MPIRUN LOOP
set -u
mpi=$1 mpirun=$2 loop=$3
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

n=0

fail() {
    echo "FAIL $*"
    sed 's/^/    /' "$folder/out" "$folder/err"
    exit 1
}

pass() {
    n=$((n + 1))
    echo "pass  $*"
}

# Starts a job of three processes and waits until all have begun.
start() {
    : >"$folder/out"
    "$mpirun" "$@" -n 3 "$loop" 60 </dev/null >"$folder/out" 2>"$folder/err" &
    job=$!
    tries=0
    while [ "$(grep -c '^rank ' "$folder/out")" -lt 3 ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] && kill -0 "$job" 2>/dev/null || fail "the job does not begin"
        sleep 0.1
    done
}

pid_of_rank() { sed -n "s/^rank $1 of .* pid //p" "$folder/out"; }
# A process that has ended is a zombie until its parent asks for its exit code; orphans wait for
# process 1, which may take seconds.
is_alive() {
    state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null)
    [ -n "$state" ] && [ "$state" != Z ] && [ "$state" != X ]
}

# gone TENTHS PID...: all have ended by then
gone() {
    tenths=$1
    shift
    for pid in "$@"; do
        while is_alive "$pid"; do
            [ "$tenths" -gt 0 ] || return 1
            tenths=$((tenths - 1))
            sleep 0.1
        done
    done
}

start
kill -9 "$(pid_of_rank 1)"
gone 20 "$(pid_of_rank 0)" "$(pid_of_rank 2)" || fail "the job lives on after 2 s"
wait "$job" && fail "the launcher's exit code is 0"
pass "a killed process ends the job"

launcher_is_killed() {
    kill -9 "$job"
    gone 20 "$(pid_of_rank 0)" "$(pid_of_rank 1)" "$(pid_of_rank 2)" ||
        fail "processes live on 2 s after their launcher"
    wait "$job" 2>/dev/null
}

start
launcher_is_killed
pass "a killed launcher ends its processes"

begin=$(date +%s)
"$mpirun" -n 3 "$loop" away </dev/null >"$folder/out" 2>"$folder/err"
code=$?
[ $code -eq 7 ] || [ "$mpi" = sockets ] || fail "exit code $code, not that of who did not come"
[ $code -ne 0 ] && [ $(($(date +%s) - begin)) -lt 20 ] || fail "the others wait for who does not come"
grep -q "process 2.*: no file here" "$folder/out" "$folder/err" || fail "what it said is lost"
pass "a process that does not come ends the job"

# What has the number of the launcher's descriptor is not the launcher.
not_told() {
    code=$?
    [ $code -eq 7 ] || fail "exit code $code where PMI_FD is $1"
    [ "$(cat "$folder/other")" = "" ] || fail "$1 is written into"
}
if [ "$mpi" = mpich ]; then
    export PMI_SIZE=2 PMI_RANK=1 PMI_FD=9
    : >"$folder/other"
    "$loop" away >"$folder/out" 2>"$folder/err" 9>"$folder/other"
    not_told "a file"
    "$loop" away >"$folder/out" 2>"$folder/err" 9>&-
    not_told "closed"
    for fd in -1 9x 99999999999 ''; do
        PMI_FD=$fd "$loop" away >"$folder/out" 2>"$folder/err"
        not_told "\"$fd\""
    done
    unset PMI_SIZE PMI_RANK PMI_FD
    pass "nobody else is told"
fi

if [ "$mpi" = sockets ]; then # on one core they go on in turns, and none waits for long
    real=$mpirun mpirun=taskset
    start -c "$(taskset -pc $$ | sed 's/.*: //; s/[,-].*//')" "$real"
    launcher_is_killed
    pass "a killed launcher ends processes that never wait for long"
fi
if [ "$mpi" = openmpi ]; then
    start --enable-recovery
    victim=$(pid_of_rank 1)
    kill -9 "$victim"
    gone 20 "$(pid_of_rank 0)" "$(pid_of_rank 2)" || fail "ranks still wait for the killed one"
    wait "$job" # its code is Open MPI's affair: it has been told to recover
    for r in 0 2; do
        grep -q "^rank $r: .* was cut short by rank 1: its process $victim has ended" \
            "$folder/err" || fail "rank $r does not name rank 1"
    done
    pass "the others name the killed process"
fi
echo "$n passed, 0 failed"
