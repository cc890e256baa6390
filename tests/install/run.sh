#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs a build into a fresh folder and builds tests/install/main.c against it: by CMake, by
# pkg-config, and the headers as C++ where there is a C++ compiler.
#
#   run.sh CMAKE BUILD_FOLDER CC
set -eu
cmake=$1
build=$2
cc=$3
here=$(cd "$(dirname "$0")" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

"$cmake" --install "$build" --prefix "$prefix" >"$work/log"

"$cmake" -S "$here" -B "$work/by_cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" >"$work/log"
"$cmake" --build "$work/by_cmake" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/by_cmake/consumer"

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name dtensor.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # a list of flags
"$cc" -std=c11 -Wall -Wextra -Werror "$here/main.c" -o "$work/by_pkg_config" \
    $(pkg-config --cflags --libs dtensor)
LD_LIBRARY_PATH=$(pkg-config --variable=libdir dtensor) "$work/by_pkg_config"

if command -v c++ >/dev/null 2>&1; then
    echo '#include <dtensor.h>' >"$work/headers.cc"
    # shellcheck disable=SC2046
    c++ -std=c++14 -Wall -fsyntax-only $(pkg-config --cflags dtensor) "$work/headers.cc"
fi

if [ -x "$prefix/bin/dtensor" ]; then
    "$prefix/bin/dtensor" --help >"$work/log" || { cat "$work/log"; exit 1; }
fi
echo "installed package works"
