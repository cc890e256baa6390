#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The rules of this house that a script can check.
#
#   tools/lint.sh [ARCHIVE]   all checks; those on symbols only with build/<preset>/lib/libdtensor.a
#   tools/lint.sh --files     the files that the rules hold for
#   tools/lint.sh --tidy DIR  clang-tidy on what differs from the main branch (on all files if
#                             nothing does), with the compile commands of build folder DIR
#
# Exit status: 0 clean, 1 something was found, 77 a tool is missing.
set -u
cd "$(dirname "$0")/.." || exit 1

ROOMS="base files text mesh placements dtensor parallel_styles weights training models planner service cli"

c_files() {
    for folder in include $ROOMS tests examples bench; do
        [ ! -d "$folder" ] || find "$folder" -type f \( -name '*.c' -o -name '*.h' \)
    done | sort
}

# Kernels of GPUs and the device that the tests simulate, which C++ compilers read.
kernel_files() {
    find dtensor/kernels/cuda tests/cuda_sim -type f \
        \( -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) | sort
}

if [ "${1:-}" = "--files" ]; then
    c_files
    kernel_files
    exit 0
fi
if [ "${1:-}" = "--tidy" ]; then
    changed=$({ git diff --name-only main; git ls-files --others --exclude-standard; } 2>/dev/null)
    [ -n "$changed" ] || changed=$(c_files)
    echo "$changed" | grep '\.c$' | grep -v -e '\.inc\.c$' -e ^tests/install/ |
        xargs -P 2 -n 4 clang-tidy --quiet -p "$2"
    exit
fi
archive=${1:-}

for tool in awk find grep sort; do
    command -v $tool >/dev/null 2>&1 || { echo "lint: $tool is missing, skipped"; exit 77; }
done

lint_tmp=$(mktemp -d)
readonly lint_tmp
trap 'rm -rf "$lint_tmp"' EXIT
report=$lint_tmp/report

# Rule of looking: a file includes its own room and earlier ones; siblings do not know each other.
check_includes() {
    { c_files; kernel_files; } | grep -v -e ^tests/ -e ^examples/ -e ^bench/ | xargs awk -v rooms="$ROOMS" '
        BEGIN {
            n = split(rooms, name, " ")
            for (i = 1; i <= n; i++) order[name[i]] = i
            order["include"] = 0
            split("base mesh placements parallel_styles models", same, " ")
            for (i in same) face["dtensor/" same[i] ".h"] = same[i]
            split("tensor op_rows ops ops_general ops_backward ops_loss gradients factories inspect devices async channels collectives dlpack " \
                  "half", own, " ")
            for (i in own) face["dtensor/" own[i] ".h"] = "dtensor"
            face["dtensor/layers.h"] = face["dtensor/expert_loads.h"] = face["dtensor/kinds.h"] = "parallel_styles"
            face["dtensor/tokenizer.h"] = face["dtensor/chat.h"] = "text"
            face["dtensor/plans.h"] = face["dtensor/model_training.h"] = "models"
            face["dtensor/timeline.h"] = face["dtensor/modules.h"] = face["dtensor/topology.h"] = face["dtensor/surroundings.h"] = "mesh"
            face["dtensor/weights.h"] = "weights"
            face["dtensor/optimizers.h"] = face["dtensor/training_data.h"] = face["dtensor/token_files.h"] = "training"
            face["dtensor/training_checkpoints.h"] = face["dtensor/pipeline.h"] = "training"
            face["dtensor/pipeline_training.h"] = "training"
            face["dtensor/config.h"] = face["dtensor/hub.h"] = "files"
            face["dtensor/policy.h"] = face["dtensor/architectures.h"] = "models"
            face["dtensor/parallelize.h"] = "models"
            face["dtensor/engine.h"] = face["dtensor/generation.h"] = face["dtensor/limits.h"] = "models"
            face["dtensor/checkpoints.h"] = face["dtensor/predict.h"] = "models"
            face["dtensor/planner.h"] = face["dtensor/calibrate.h"] = "planner"
            face["dtensor/service.h"] = face["dtensor/serve.h"] = "service"
        }
        # The folder below kernels/ or comm/ that a path lies in, or nothing.
        function wing(path) {
            return match(path, /^(dtensor\/kernels|mesh\/comm)\/[^\/]+\//) \
                ? substr(path, 1, RLENGTH) : ""
        }
        function room_of(path) { return substr(path, 1, index(path, "/") - 1) }
        /^#[ \t]*include/ {
            if (!match($0, /["<][^">]+[">]/)) next
            target = substr($0, RSTART + 1, RLENGTH - 2)
            public = substr($0, RSTART, 1) == "<"
            here = room_of(FILENAME)
            if (here == "include") {
                if (FILENAME == "include/dtensor.h") next
                here = face[substr(FILENAME, 9)]
                if (here == "") { print FILENAME ": name its room in tools/lint.sh"; nextfile }
            }
            if (public && target == "dtensor.h" && here != "cli")
                print FILENAME ":" FNR ": the umbrella <dtensor.h> is for users"
            if (public && target in face) there = face[target]
            else if (!public && room_of(target) in order) there = room_of(target)
            else if (!public && target !~ /\//) {
                print FILENAME ":" FNR ": include \"" target "\" by its path from the root"
                next
            } else next
            if (order[there] > order[here])
                print FILENAME ":" FNR ": room " here " may not look at " there " (" target ")"
            if (target ~ /_internal\.h$/ && there != here)
                print FILENAME ":" FNR ": " target " belongs to room " there " alone"
            if (!public && wing(target) != "" && wing(FILENAME) != "" && wing(target) != wing(FILENAME))
                print FILENAME ":" FNR ": sibling " target " may not be included"
        }'
}

# Files of 600 lines, functions of 80 lines and of 7 parameters, lines of 100 columns (190 in
# tables, where clang-format is off), public headers of 400 lines; one SPDX line near the top.
check_sizes() {
    { c_files; kernel_files; } | xargs awk '
        function close_file() {
            if (file == "") return
            limit = file ~ /^include\// ? 400 : 600
            if (lines > limit && file !~ /\/table\.c$/)
                print file ": " lines " lines, the limit is " limit
            if (!spdx) print file ": no SPDX line"
        }
        FNR == 1 { close_file(); file = FILENAME; spdx = 0; wide = 0; begin = 0; head = "" }
        { lines = FNR }
        FNR <= 3 && /SPDX-License-Identifier: Apache-2.0/ { spdx = 1 }
        /clang-format off/ { wide = 1 }
        /clang-format on/ { wide = 0 }
        length($0) > (wide ? 190 : 100) && !/https?:/ { print FILENAME ":" FNR ": " length($0) " columns" }
        /^\{/ {
            begin = FNR
            signature = head
            gsub(/"[^"]*"/, "", signature)
            while (gsub(/\([^()]*\)\(/, "(", signature)) { }
            sub(/^[^(]*\(/, "", signature)
            while (gsub(/<[^<>()]*>/, "", signature)) { }
            while (gsub(/\([^()]*\)/, "", signature)) { }
            commas = gsub(/,/, ",", signature)
            if (commas + 1 > 7 && FILENAME !~ /^(tests\/cuda_sim\/|service\/http\/mhd\.c)/) print FILENAME ":" FNR ": " commas + 1 " parameters, the limit is 7"
        }
        /^\}/ {
            if (begin && FNR - begin - 1 > 80)
                print FILENAME ":" begin ": function of " FNR - begin - 1 " lines, the limit is 80"
            begin = 0
        }
        /^[^ \t#\/*{}].*\(/ && !/;$/ { head = $0; next }
        /^[ \t]/ && !begin { head = head " " $0; next }
        { if (!/^\{/) head = "" }
        END { close_file() }'
}

# Every public function says whether it is collective and how it fails. Consecutive declarations
# may share a comment, a comment may refer to that of another function ("As dt_x()"), or the head of
# the file may say it for all. Retain and release are alike everywhere.
check_doc_comments() {
    find include/dtensor -name '*.h' | sort | xargs awk '
        FNR == 1 { head = comment = ""; inside = 0 }
        /^[ \t]*\/\*/ { comment = ""; inside = 1 }
        inside {
            comment = comment " " tolower($0)
            if (!/\*\//) next
            inside = 0
            if (head == "") head = comment
            next
        }
        /^[ \t]*$/ { comment = ""; next }
        /^DT_API/ && !/_(retain|release)\(/ {
            said = comment
            if (head ~ /collective/ && head ~ /errors/) said = said head
            refers = comment ~ /dt_[a-z_]+\(\)/
            if (said !~ /collective/ && !refers)
                print FILENAME ":" FNR ": the comment lacks \"Collective\""
            if (said !~ /error/ && !refers) print FILENAME ":" FNR ": the comment lacks \"Errors\""
        }'
}

# Users include the headers in C++14 and C++17, which know no designated initializers.
check_initializers() {
    grep -nE '[{,][[:space:]]*\.[a-z_]+ *=|^[[:space:]]*\.[a-z_]+ *=' include/*.h include/dtensor/*.h |
        awk '{ print $0 "   (a designated initializer needs C++20)" }'
}

# The room dtensor/ and the include folder share a name: a private header called like a public one
# would be found by the order of search folders alone.
check_header_names() {
    for header in include/dtensor/*.h; do
        find $ROOMS -name "$(basename "$header")" 2>/dev/null |
            awk -v public="$header" '{ print $0 ": is called like " public }'
    done
}

# One word, one thing: a guard that two headers share hides one of them, and a dti_ struct that two
# rooms define is read for the wrong one.
check_words() {
    find include $ROOMS -name '*.h' 2>/dev/null | sort | xargs awk '
        FNR == 1 { guard = "" }
        guard == "" && /^#ifndef / { word = guard = $2 }
        /^(typedef )?(struct|union|enum) dti_[a-z0-9_]+ \{/ { word = $0; sub(/ \{.*/, "", word); sub(/^typedef /, "", word) }
        word != "" {
            if (word in first) print FILENAME ": " word " is in " first[word] " as well"
            first[word] = FILENAME
            word = ""
        }'
}

# Names that a shell takes as they are: others are what a pattern or a quote that went wrong leaves.
check_file_names() {
    git ls-files 2>/dev/null | grep '[^A-Za-z0-9._/-]' |
        awk '{ print $0 ": a file is named with letters, digits, \".\", \"_\" and \"-\"" }'
}

# Nobody prints, exits or reads the environment inside the library; how a run was launched is asked
# in mesh/run.c and mesh/launch.c. Modules that join processes are not in it. A worker process of a
# service is the library's own: it sets its variables, and is gone when its program is. So is the child
# that reads a recorded machine; hwloc's variable names one.
check_calls() {
    for room in $ROOMS; do
        [ "$room" != cli ] || continue
        find "$room" -name '*.c' -exec grep -nE \
            '(^|[^_a-zA-Z0-9>.])(printf|puts|putchar|abort|exit|_exit|getenv|setenv)\(' {} + |
            grep -v -E '^mesh/((run|launch|gpu|topology_hwloc)\.c|comm/sockets_[a-z]+\.c):.*getenv' |
            grep -v -E '^(mesh/launch\.c:.*setenv|(service/worker|mesh/topology_hwloc)\.c:.*_exit)' |
            awk '{ print $0 "   (not in the library)" }'
    done
}

# What the public headers declare with DT_API, by name.
declared() {
    cat include/dtensor/*.h | awk '
        /^DT_API/ { text = ""; open = 1 }
        open { text = text " " $0 }
        open && /;/ {
            open = 0
            sub(/;.*/, "", text)
            sub(/\(.*/, "", text)
            sub(/\[.*/, "", text)
            n = split(text, word, /[ *]+/)
            print word[n]
        }' | sort -u
}

# Architectures are written as a user's would be: with public headers and those of their own folder,
# which what they share has (keys, rotary positions, rows).
check_architectures() {
    grep -nE '^#include "|dti_json' models/architectures/*.[ch] |
        grep -v -e '"models/architectures/' -e '/\(config_keys\|rotary\|rotary_config\|builder\|registry\|named_plans\)\.[ch]:' |
        awk '{ print $0 "   (an architecture needs public headers only)" }'
}

# The command is written as a user's program: with public headers, and five of the floor that a
# program has its own of. Public they would be silly: errors that get a prefix ("--mesh: ..."),
# what a failed call to the system comes to, memory that is asked for with a status, texts for a
# terminal, a hash.
check_command() {
    grep -nE '^#include "' cli/*.[ch] | grep -v -E '"(cli/[a-z_]+|base/(error|io_status|memory|text|numbers))\.h"' |
        awk '{ print $0 "   (the command needs public headers only)" }'
}

# No mutable globals: sections of the objects, not letters of nm. Thread locals are .tbss.
# Shared names begin with dt_ or dti_, and dt_ are those of the public headers.
check_archive() {
    [ -n "$archive" ] && [ -f "$archive" ] || return
    cache=$(dirname "$archive")/../CMakeCache.txt
    # Sanitizers add data of their own; a build of fewer rooms lacks functions.
    if grep -q 'DT_SANITIZE:.*=.' "$cache" || ! grep -q 'DT_ROOMS:.*models' "$cache"; then
        return
    fi
    readelf -SW "$archive" | awk '
        /^File: / { file = $2 }
        match($0, /\] \.(data|bss|sdata|sbss)[^ ]*/) {
            section = substr($0, RSTART + 2, RLENGTH - 2)
            if (section ~ /^\.data\.rel\.ro/) next
            rest = substr($0, RSTART + RLENGTH)
            split(rest, column, " ")
            if (column[4] !~ /^0+$/) print file ": mutable globals in section " section
        }'
    nm -g --defined-only "$archive" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u >"$lint_tmp/symbols"
    grep -v -E '^(dt_|dti_)' "$lint_tmp/symbols" | awk '{ print "symbol " $1 " lacks the prefix dt_ or dti_" }'
    declared >"$lint_tmp/public"
    grep '^dt_' "$lint_tmp/symbols" | comm -13 "$lint_tmp/public" - |
        awk '{ print "symbol " $1 " is called like a public one, but no public header declares it" }'
    comm -23 "$lint_tmp/public" "$lint_tmp/symbols" | awk '{ print $1 " is declared in a public header but not defined" }'
}

# Code in pages is quoted from files that are built, links lead somewhere.
check_pages() { tools/pages.sh 2>&1 | grep -v '^pages: clean'; }

check_format() {
    command -v clang-format >/dev/null 2>&1 || return
    case $(clang-format --version) in
    *"version 14."*) ;;
    *) return ;; # other versions break lines in other places
    esac
    { c_files; kernel_files; } | xargs clang-format --dry-run 2>&1 | grep 'warning:' |
        awk -F: '!seen[$1]++ { print $1 ":" $2 ": not as clang-format 14 writes it (make format)" }'
}

{
    check_includes
    check_sizes
    check_doc_comments
    check_initializers
    check_header_names
    check_words
    check_file_names
    check_calls
    check_architectures
    check_command
    check_archive
    check_pages
    check_format
} >"$report" 2>&1

if [ -s "$report" ]; then
    cat "$report"
    echo "lint: $(wc -l <"$report") findings"
    exit 1
fi
echo "lint: clean, $({ c_files; kernel_files; } | wc -l) files"
