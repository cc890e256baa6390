#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# spills.sh FOLDER ARCHITECTURES KERNEL.cu...   no kernel keeps registers in memory. Reads what ptxas
# said when the build compiled each file (FOLDER/KERNEL.cu.ptxas, by cmake/ptxas_log.sh);
# ARCHITECTURES is DT_CUDA_ARCHITECTURES with commas, of which the real ones are looked at.
#
# Exit status: 0 none, 1 spills or a log that lacks kernels, 77 there is no CUDA module.
set -u
if [ $# -lt 3 ]; then
    echo "skipped: this build has no module for CUDA"
    exit 77
fi
folder=$1
architectures=$2
shift 2

find_spills() {
    for source in "$@"; do
        name=$(basename "$source")
        awk -v file="$name" -v wanted="$architectures" -v quote="'" '
            BEGIN {
                n = split(wanted, word, ",")
                for (i = 1; i <= n; i++) {
                    if (word[i] !~ /-virtual$/) {
                        sub(/-real$/, "", word[i])
                        lacks["sm_" word[i]] = 1
                        n_real++
                    }
                }
            }
            / bytes gmem/ { n_said++ } # once for each architecture, kernels or not
            /Compiling entry function/ {
                split($0, part, quote)
                kernel = part[2]
                sm = part[4]
            }
            /bytes spill stores/ && kernel != "" {
                delete lacks[sm]
                kernels++
                match($0, /[0-9]+ bytes spill stores/)
                stores = substr($0, RSTART, RLENGTH) + 0
                match($0, /[0-9]+ bytes spill loads/)
                loads = substr($0, RSTART, RLENGTH) + 0
                if (stores + loads > 0)
                    print file ": " kernel " on " sm " spills: " stores " bytes stored, " loads \
                        " loaded"
            }
            END {
                for (sm in lacks)
                    if (kernels > 0 || n_said < n_real) print file ": ptxas said nothing of " sm
                print kernels + 0 >"/dev/stderr"
            }' "$folder/$name.ptxas"
    done
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
find_spills "$@" >"$log" 2>"$log.count"
if [ -s "$log" ] || grep -q '[^0-9]' "$log.count"; then
    cat "$log"
    grep '[^0-9]' "$log.count"
    rm -f "$log.count"
    ! grep -q ' spills: ' "$log" ||
        echo "fewer values at once, or a smaller __launch_bounds__, keep them in registers"
    exit 1
fi
awk -v on="$architectures" '{ n += $1 } END { print n " kernels for " on ", none spills" }' "$log.count"
rm -f "$log.count"
