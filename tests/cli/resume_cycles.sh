#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A run of `dtensor train` that is stopped and resumed many times, at random moments, by SIGINT, SIGTERM
# and SIGKILL, comes to the bits of one that never was: parameters, optimizer's state, every loss and
# norm.
#
#     tests/cli/resume_cycles.sh DTENSOR [CYCLES] [SEED] [-- OPTION...]     default 200, 1, dp=2 ZeRO-1
set -euo pipefail
dtensor=$1
cycles=${2:-200}
RANDOM=${3:-1}
shift $(($# < 3 ? $# : 3))
[ "${1:-}" != "--" ] || shift
[ $# -gt 0 ] || set -- --mesh dp=2 --zero 1

work=$(mktemp -d)
child=
trap '[ -z "$child" ] || kill -KILL "$child" 2>/dev/null; rm -rf "$work"' EXIT
fail() { echo "resume_cycles: $*" >&2; exit 1; }

# nanoGPT's kind of token file: two bytes each
for ((i = 0; i < 4001; i++)); do printf '\\x%02x\\x00' $(((i * i * 3 + i * 7) % 120)); done >"$work/text"
# shellcheck disable=SC2059
printf "$(cat "$work/text")" >"$work/data.bin"

train() { # RUN STEPS OPTION...
    local run=$1 steps=$2
    shift 2
    exec "$dtensor" train --model tests/golden/llama/tied --data "$work/data.bin" --output "$run" \
        --steps "$steps" --batch 4 --sequence 8 --microbatches 2 --dtype f32 --lr 1e-3 --save-every 3 \
        --threads 1 -q "$@"
}

# A moment of the run: while it begins, one time in four, or around its next steps. It is steps that are
# counted and not time, so that on a busy machine a cycle is as short as on another.
await_moment() { # STEPS
    local metrics=$work/run/metrics.jsonl want=$(($1 + RANDOM % 6))
    if [ $((RANDOM % 4)) -gt 0 ]; then
        # what is older than this run is not its own
        until [ "$metrics" -nt "$work/begun" ] && [ "$(wc -l <"$metrics")" -ge "$want" ]; do
            kill -0 "$child" 2>/dev/null || return 0
            sleep 0.02
        done
        sleep "0.0$((RANDOM % 80 + 10))"
    else
        sleep "0.$((RANDOM % 400 + 100))"
    fi
}

declare -A ends=([INT]=0 [TERM]=0 [KILL]=0)
signals=(INT TERM KILL)
for ((cycle = 1; cycle <= cycles; cycle++)); do
    resume=() saved=0
    if [ -e "$work/run/latest" ]; then
        resume=(--resume) last=$(cat "$work/run/latest")
        saved=$((10#${last#step-}))
    fi
    # Killed before its first checkpoint, a run begins anew.
    [ ${#resume[@]} -gt 0 ] || rm -rf "$work/run"
    signal=${signals[RANDOM % 3]}
    [ "$cycle" -lt "$cycles" ] || signal=INT
    touch "$work/begun"
    train "$work/run" 1000000 "$@" "${resume[@]}" >"$work/log" 2>&1 &
    child=$!
    await_moment "$saved"
    # Before it listens a signal ends it as it does any program.
    kill -"$signal" "$child" || fail "cycle $cycle: it had ended: $(cat "$work/log")"
    status=0
    wait "$child" 2>/dev/null || status=$?
    child=
    case $signal:$status in
    INT:0 | TERM:0 | INT:130 | TERM:143 | KILL:137) ;;
    *) fail "cycle $cycle: SIG$signal, status $status: $(cat "$work/log")" ;;
    esac
    ends[$signal]=$((ends[$signal] + 1))
done

last=$(cat "$work/run/latest")
steps=$((10#${last#step-}))
[ "$steps" -gt "$((cycles / 4))" ] || fail "only $steps steps were made in $cycles cycles"
(train "$work/whole" "$steps" "$@") >"$work/log" 2>&1 || fail "the run without a stop: $(cat "$work/log")"
n=0
for file in "$work/whole/$last"/*.safetensors; do
    cmp "$file" "$work/run/$last/$(basename "$file")" || fail "$(basename "$file") differs"
    n=$((n + 1))
done
[ "$n" -ge 2 ] || fail "$last holds $n files"

# Each line of each step, also those that were made again, has the digits of the run without a stop.
digits() { sed -E 's/.*"step": *([0-9]+).*"loss": *([^,}]+).*"grad_norm": *([^,}]+).*/\1 \2 \3/' "$1" | sort -u; }
digits "$work/whole/metrics.jsonl" >"$work/expected"
digits "$work/run/metrics.jsonl" | awk -v most="$steps" '$1 <= most' >"$work/found"
[ "$(wc -l <"$work/expected")" -ge "$steps" ] || fail "metrics.jsonl has too few steps"
diff "$work/expected" "$work/found" >"$work/diff" || fail "metrics differ: $(head -4 "$work/diff")"
echo "$cycles stops (${ends[INT]} INT, ${ends[TERM]} TERM, ${ends[KILL]} KILL), $steps steps: the same bits"
