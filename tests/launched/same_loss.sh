#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# 20 steps of training on two and on four processes have the losses, norms and parameters of as many
# ranks that are threads, bit by bit: every row of docs/same_loss.md.
#
#   same_loss.sh MPIRUN PROGRAM
set -u
mpirun=$1 program=$2
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
passed=0

# train FOLDER [LAUNCHER...]
train() {
    mkdir "$folder/$1" || exit 1
    export DTENSOR_SAME_LOSS="$folder/$1"
    shift
    "$@" "$program" --filter "same_loss/is_written*" </dev/null >"$folder/out" 2>&1 && return
    echo "FAIL $*"
    sed 's/^/    /' "$folder/out"
    exit 1
}

train threads
for n in 2 4; do
    train $n "$mpirun" -n $n
    for file in "$folder/$n"/*; do
        cmp "$file" "$folder/threads/${file##*/}" || {
            echo "FAIL other bits on $n processes: ${file##*/}"
            exit 1
        }
        passed=$((passed + 1))
    done
done
echo "$passed passed, 0 failed"
