#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Writes the overview page dtensor(3), as roff: what each public header says of itself, and the
# functions it declares. So it cannot say anything else than the headers.
#
#   manual.sh INCLUDE_FOLDER
set -eu
include=$1
headers=$(sed -n 's/^#include <\(dtensor\/.*\)>$/\1/p' "$include/dtensor.h")

version=$(awk '/^#define DT_VERSION_/ { v = v (v == "" ? "" : ".") $3 } END { print v }' \
    "$include/dtensor/base.h")
cat <<END
.TH DTENSOR 3 "" "dtensor $version" "Library Functions"
.SH NAME
dtensor \\- distributed tensors, parallel styles and language models for C
.SH SYNOPSIS
.nf
.B #include <dtensor.h>
.PP
cc program.c \$(pkg\\-config \\-\\-cflags \\-\\-libs dtensor)
.fi
.SH DESCRIPTION
Each public function is described where it is declared, with shapes, units, errors and whether all
ranks have to call it. A header is a room; later ones build on earlier ones.
END

for header in $headers; do
    printf '.SS <%s>\n' "$header"
    awk '
        # Writes the paragraph read so far; one that is a list or a table keeps its lines.
        function paragraph() {
            if (lines == "") return
            print ".PP"
            if (table) print ".nf"
            printf "%s", lines
            if (table) print ".fi"
            lines = ""
            table = 0
        }
        # The comment that opens the file, less its first line.
        FNR <= 2 { next }
        !said {
            line = $0
            sub(/^ \* ?/, "", line)
            if (line ~ /\*\/$/) { sub(/ *\*\/$/, "", line); said = 1 }
            if (line ~ /   |^ /) table = 1
            gsub(/\\/, "\\e", line)
            gsub(/-/, "\\-", line)
            if (line ~ /^[.]/) line = "\\&" line
            if (line == "") paragraph()
            else lines = lines line "\n"
            if (said) paragraph()
            next
        }
        /^DT_API/ { text = ""; open = 1 }
        open { text = text " " $0 }
        open && /;/ {
            open = 0
            sub(/;.*/, "", text)
            sub(/\(.*/, "", text)
            n = split(text, word, /[ *]+/)
            names = names (names == "" ? "" : ",\n") ".BR " word[n] " ()"
        }
        END {
            if (names != "") print ".PP\n" names
        }' "$include/$header"
done

cat <<'END'
.SH SEE ALSO
.BR dtensor (1),
.BR pkg\-config (1)
END
