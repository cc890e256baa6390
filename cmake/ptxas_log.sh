#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ptxas_log.sh LOG COMMAND...   runs nvcc with -Xptxas -v and keeps what it says of each kernel
# (registers, spills) in LOG, for tests/cuda/spills.sh. Everything else is passed on.
set -u
log=$1
shift
"$@" 2>"$log.part"
code=$?
grep -v -e '^ptxas info ' -e '^ *[0-9]* bytes stack frame, ' "$log.part" >&2
if [ "$code" -eq 0 ]; then
    mv -f "$log.part" "$log"
else
    rm -f "$log.part"
fi
exit "$code"
