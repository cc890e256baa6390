#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs a build into a fresh folder and builds tests/install/main.c against it: by CMake, by
# pkg-config, and main.cc where there is a C++ compiler.
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

# What the library was built with is its own affair: a user's compiler gets one include path.
case $(pkg-config --cflags dtensor) in
*-D*) echo "pkg-config hands on definitions: $(pkg-config --cflags dtensor)"; exit 1 ;;
esac

if command -v c++ >/dev/null 2>&1; then
    # shellcheck disable=SC2046
    c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror "$here/main.cc" -o "$work/by_cxx" \
        $(pkg-config --cflags --libs dtensor)
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir dtensor) "$work/by_cxx"
fi

if [ -x "$prefix/bin/dtensor" ]; then
    "$prefix/bin/dtensor" --help >"$work/log" || { cat "$work/log"; exit 1; }
fi
echo "installed package works"
