#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs a build into a fresh folder and builds against it, outside the tree: the installed examples
# as the project that they are; main.c and the examples that add to the library from outside by CMake
# with both libraries and by pkg-config; main.cc where there is a C++ compiler. All of them run. Looks
# at what else was installed: library, version, manual, pages.
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
project=$work/project

fail() {
    echo "$*"
    exit 1
}

"$cmake" --install "$build" --prefix "$prefix" >"$work/log"
doc=$prefix/share/doc/dtensor
for page in README.md docs/architecture.md docs/benchmarks/README.md; do
    [ -s "$doc/$page" ] || fail "$page is not installed"
done

mkdir "$project"
cp "$here/CMakeLists.txt" "$here/main.c" "$doc"/examples/*_own_*.c "$project"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name dtensor.pc)")
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir dtensor)

# Where the demo checkpoint is, as after reading the manual.
runs() { (cd "$doc" && LD_LIBRARY_PATH=$libdir "$1" >"$work/log" 2>&1) || fail "$1: $(cat "$work/log")"; }

"$cmake" -S "$doc/examples" -B "$work/examples" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" >"$work/log"
"$cmake" --build "$work/examples" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
for source in "$doc"/examples/*.c; do runs "$work/examples/$(basename "$source" .c)"; done
(cd "$doc" && LD_LIBRARY_PATH=$libdir DTENSOR_MODULES=$libdir/dtensor \
    "$work/examples/24_service" examples/checkpoint 2 >"$work/log" 2>&1) || fail "workers: $(cat "$work/log")"

"$cmake" -S "$project" -B "$work/by_cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" >"$work/log"
"$cmake" --build "$work/by_cmake" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
for source in "$project"/*.c; do
    name=$(basename "$source" .c)
    for program in "$work/by_cmake/$name" "$work/by_cmake/${name}_shared"; do
        [ ! -x "$program" ] || runs "$program"
    done
    # shellcheck disable=SC2046 # a list of flags
    "$cc" -std=gnu11 -Wall -Wextra -Werror "$source" -o "$work/by_pkg_config" \
        $(pkg-config --cflags --libs dtensor) -lm
    runs "$work/by_pkg_config"
done
for example in 02_own_style 10_own_architecture; do
    [ -x "$work/by_cmake/$example" ] || fail "$example was not built"
done

# What the library was built with is its own affair: a user's compiler gets one include path.
case $(pkg-config --cflags dtensor) in
*-D*) fail "pkg-config hands on definitions: $(pkg-config --cflags dtensor)" ;;
esac

if command -v c++ >/dev/null 2>&1; then
    # shellcheck disable=SC2046
    c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror "$here/main.cc" -o "$work/by_cxx" \
        $(pkg-config --cflags --libs dtensor)
    LD_LIBRARY_PATH=$libdir "$work/by_cxx" || fail "main.cc: the defaults in C++ are not those of C"
fi

# One version, said by the header (main.c compares), the library and the package; until 1.0 its
# first two numbers are the name under which programs look for the library.
version=$("$work/by_cmake/main" | sed -n 's/^dtensor //p')
[ "$version" = "$(pkg-config --modversion dtensor)" ] ||
    fail "dtensor.pc says version $(pkg-config --modversion dtensor), the library says $version"

shared=$libdir/libdtensor.so
if [ -f "$shared" ]; then
    case $version in
    0.*) soname=libdtensor.so.${version%.*} ;;
    *) soname=libdtensor.so.${version%%.*} ;;
    esac
    readelf -d "$shared" | grep -q "SONAME.*\[$soname\]" || fail "$shared is not $soname"
    [ "$(readlink -f "$libdir/$soname")" = "$(readlink -f "$libdir/libdtensor.so.$version")" ] ||
        fail "$soname does not lead to libdtensor.so.$version"
    # Names of the library that begin otherwise are hidden.
    leaks=$(nm -D --defined-only "$shared" | awk '$3 !~ /^dt_/ { print $3 }')
    [ -z "$leaks" ] || fail "$shared exports $leaks"
    nm -D --defined-only "$shared" | grep -q ' dt_run$' || fail "$shared does not export dt_run"
fi

if [ -x "$prefix/bin/dtensor" ]; then
    "$prefix/bin/dtensor" --help >"$work/log" || fail "$(cat "$work/log")"
    "$prefix/bin/dtensor" --manual | cmp -s - "$prefix/share/man/man1/dtensor.1" ||
        fail "the installed dtensor(1) is not what the installed command says"
    "$prefix/bin/dtensor" --completion |
        cmp -s - "$prefix/share/bash-completion/completions/dtensor" ||
        fail "the installed completion is not what the installed command prints"
fi
for page in man1/dtensor.1 man3/dtensor.3; do
    page=$prefix/share/man/$page
    [ ! -x "$prefix/bin/dtensor" ] || [ -s "$page" ] || fail "$page is missing"
    if [ -s "$page" ] && command -v groff >/dev/null 2>&1; then
        groff -man -ww -Tutf8 "$page" 2>&1 >/dev/null | grep . && fail "groff finds fault with $page"
    fi
done
grep -q 'dt_redistribute' "$prefix/share/man/man3/dtensor.3" || fail "dtensor(3) lacks functions"
echo "installed package works"
