#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Makes Debian packages of a build folder and looks at what is in them: each file that is installed is
# in one package, in the one where it belongs, and packages ask for what they need.
#
#   packages.sh CPACK CMAKE BUILD_FOLDER
set -eu
cpack=$1
cmake=$2
build=$3
for tool in dpkg-deb dpkg-shlibdeps file tar; do
    command -v $tool >/dev/null 2>&1 || { echo "packages: $tool is missing, skipped"; exit 77; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$*"
    exit 1
}

(cd "$build" && "$cpack" -G DEB -B "$work/packages" >"$work/log" 2>&1) || fail "$(cat "$work/log")"
rm -rf "$work/packages/_CPack_Packages"

# field PACKAGE FIELD; files PACKAGE: paths below the prefix, which Debian calls /usr.
field() { dpkg-deb -f "$work"/packages/"$1"_*.deb "$2"; }
files() { dpkg-deb --fsys-tarfile "$work"/packages/"$1"_*.deb | tar t | grep -v '/$' | sed 's|^\./||'; }

packages=$(for p in "$work"/packages/*.deb; do basename "$p" | sed 's/_.*//'; done)
library=$(echo "$packages" | grep '^libdtensor[0-9]')
version=$(field dtensor Version)

# Where a file belongs.
home_of() {
    case $1 in
    */lib*/libdtensor.so.* | */dtensor/dtensor_sockets.so | */dtensor/dtensor_worker) echo "$library" ;;
    */dtensor/dtensor_openmpi.so) echo dtensor-openmpi ;;
    */dtensor/dtensor_mpich.so) echo dtensor-mpich ;;
    */bin/dtensor | */man1/dtensor.1 | */completions/dtensor) echo dtensor ;;
    */include/* | */libdtensor.a | */libdtensor.so | */cmake/dtensor/* | */dtensor.pc | */dtensor.3)
        echo libdtensor-dev ;;
    */doc/dtensor/LICENSE | */doc/dtensor/*.md | */doc/dtensor/examples/*) echo dtensor-doc ;;
    esac
}

: >"$work/packed"
for package in $packages; do
    files "$package" >"$work/files"
    grep -q "/doc/$package/copyright$" "$work/files" || fail "$package has no copyright"
    grep -v "/doc/$package/copyright$" "$work/files" >"$work/rest"
    while read -r file; do
        home=$(home_of "$file")
        [ "$home" = "$package" ] || fail "$file is in $package, not in ${home:-any that was expected}"
    done <"$work/rest"
    cat "$work/rest" >>"$work/packed"
    [ "$(field "$package" Version)" = "$version" ] || fail "$package has another version"
done

# Nothing is left out or packed twice; the module for GPUs is in no package.
DESTDIR=$work/root "$cmake" --install "$build" --prefix /usr >"$work/log"
(cd "$work/root" && find . ! -type d | sed 's|^\./||' | grep -v dtensor_cuda.so | sort) >"$work/installed"
sort "$work/packed" | diff "$work/installed" - >"$work/log" ||
    fail "installed (<) and packed (>) differ: $(cat "$work/log")"
for wanted in include/dtensor.h docs/architecture.md examples/01_redistribute.c \
    examples/checkpoint/model.safetensors man3/dtensor.3; do
    grep -q "/$wanted$" "$work/installed" || fail "$wanted is in no package"
done

# needs PACKAGE WORDS...: it depends on them.
needs() {
    package=$1
    shift
    for word in "$@"; do
        field "$package" Depends | grep -qF -- "$word" ||
            fail "$package does not depend on $word: $(field "$package" Depends)"
    done
}
needs "$library" libc6 libhwloc libjansson libpcre2 libutf8proc libdnnl
needs dtensor "$library (= $version)" libc6
needs libdtensor-dev "$library (= $version)" pkg-config libhwloc-dev libdnnl-dev
[ "$(field dtensor-doc Architecture)" = all ] || fail "dtensor-doc is for one architecture"

dpkg-deb -x "$work"/packages/dtensor_*.deb "$work/unpacked"
"$(find "$work/unpacked" -path '*/bin/dtensor')" --version | grep -q "^dtensor ${version%-*}" ||
    fail "the packed command is of another version"
echo "$(echo "$packages" | wc -l) packages, $(wc -l <"$work/packed") files"
