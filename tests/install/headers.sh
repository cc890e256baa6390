#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Every public header compiles alone, and twice, as C11 and inside C++ (14 as CUDA needs it, 17),
# without a warning.
#
#   headers.sh CC INCLUDE_FOLDER
set -eu
cc=$1
include=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

strict="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -fsyntax-only -I$include"
cxx=$(command -v c++ || true)
[ -n "$cxx" ] || echo "no C++ compiler: headers are checked as C only"

for header in "$include"/dtensor.h "$include"/dtensor/*.h; do
    name=${header#"$include"/}
    printf '#include <%s>\n#include <%s>\nint dt_not_empty;\n' "$name" "$name" >"$work/alone.c"
    # shellcheck disable=SC2086 # a list of flags
    "$cc" -std=c11 -Wstrict-prototypes $strict "$work/alone.c" || { echo "$name as C11"; exit 1; }
    [ -n "$cxx" ] || continue
    cp "$work/alone.c" "$work/alone.cc"
    for standard in 14 17; do
        # shellcheck disable=SC2086
        "$cxx" -std=c++$standard $strict "$work/alone.cc" || { echo "$name as C++$standard"; exit 1; }
    done
done
echo "headers compile alone"
