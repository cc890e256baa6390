#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Starts processes of this machine as torchrun does: each knows its RANK, the WORLD_SIZE and where
# to meet. When one fails or is killed, the others are ended.
#
#   torchrun.sh -n N PROGRAM [ARGUMENT]...
set -u
n=$2
shift 2
export WORLD_SIZE=$n LOCAL_WORLD_SIZE=$n MASTER_ADDR=localhost MASTER_PORT=$$
pids=
rank=0
while [ $rank -lt "$n" ]; do
    RANK=$rank LOCAL_RANK=$rank "$@" &
    pids="$pids $!"
    rank=$((rank + 1))
done
trap 'kill $pids 2>/dev/null' TERM INT

code=0
while [ -n "$pids" ]; do
    left=
    for pid in $pids; do
        if kill -0 "$pid" 2>/dev/null; then
            left="$left $pid"
        else
            wait "$pid" || {
                failed=$?
                [ $code -ne 0 ] || code=$failed # the others are ended because of it
                kill $pids 2>/dev/null
            }
        fi
    done
    pids=$left
    [ -z "$pids" ] || sleep 0.05
done
exit $code
