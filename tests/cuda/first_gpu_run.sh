#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# first_gpu_run.sh BUILD_FOLDER   tools/first_gpu_run.sh as far as it goes without a GPU: measuring on
# the simulated device, what it skips and why, and its report.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=$1
if [ ! -f "$build/tests/dtensor_cuda_sim.so" ] || ! command -v timeout >/dev/null; then
    echo "skipped: no simulated device, or no program timeout"
    exit 77
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
bad=0

# run STATUS OPTION...: what it prints is in $out/said
run() {
    want=$1
    shift
    tools/first_gpu_run.sh --out "$out" --build "$build" "$@" >"$out/said" 2>&1
    code=$?
    [ $code -eq "$want" ] && return
    echo "$*: status $code, not $want"
    cat "$out/said" "$out"/*.log
    bad=1
}

# has FILE WORDS
has() {
    grep -qF -e "$2" "$out/$1" && return
    echo "$1 lacks \"$2\":"
    cat "$out/$1"
    bad=1
}

run 0 --simulated --only bench_models,bench_command,memcheck,transformers,report
has said "bench_models: ok"
has said "memcheck: skipped: the simulated device has checks of its own"
has report.md "| what | shape | tokens | us | tok/s | GB/s or TFLOP/s | limit | ratio |"
has report.md "| prefill | tiny | 24 |"
has report.md "| unrecorded | tiny | 8 |"
has report.md "| tiny, tp=1 | decode_unrecorded | 4 |"
has report.md "| tiny, tp=2 | prompt | 4 |"
has report.md "| bench_command | ok |"
if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
    run 0 --only tests,racecheck,bench_cuda
    has said "tests: skipped: no device"
    has said "bench_cuda: skipped: no device"
    has report.md "| racecheck | skipped: no device |"
fi
run 0 --minutes 0 --only machine
has said "machine: skipped: the 0 minutes are over"
run 1 --simulated --build /dev/null/no --only build
has said "build: failed with status"
run 2 --only nonsense
has said "--only nonsense: the steps are machine packages"
run 2 --minutes
exit $bad
