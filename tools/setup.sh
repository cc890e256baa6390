#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Makes sure that what the build needs is there. On Debian and its relatives missing packages are
# installed when that needs no question (root, or sudo without a password); otherwise the line to
# run is printed. With everything in place this takes a few milliseconds and says nothing.
#
#   setup.sh [deb]   with deb: what `make deb` needs as well
set -eu

goal=${1:-}
cc=${CC:-cc}
missing=

has_tool() { command -v "$1" >/dev/null 2>&1; }
has_module() { pkg-config --exists "$1" 2>/dev/null; }
has_header() { echo "#include <$1>" | $cc -E -o /dev/null - 2>/dev/null; }

# need <Debian package> <test that it is there>
need() {
    package=$1
    shift
    "$@" || missing="$missing $package"
}

find_missing() {
    missing=
    need gcc has_tool "$cc"
    need libc6-dev has_header stdio.h
    need g++ has_tool "${CXX:-c++}" # for the simulated GPU of the tests
    need cmake has_tool cmake
    need ninja-build has_tool ninja
    need pkg-config has_tool pkg-config
    need libhwloc-dev has_module hwloc
    need libcriterion-dev has_module criterion
    need libdnnl-dev has_header oneapi/dnnl/dnnl.h
    need libjansson-dev has_module jansson
    need libpcre2-dev has_module libpcre2-8
    need libutf8proc-dev has_module libutf8proc
    need libmicrohttpd-dev has_module libmicrohttpd
    [ "$goal" = deb ] || return 0
    need dpkg-dev has_tool dpkg-shlibdeps
    need file has_tool file
}

find_missing
[ -n "$missing" ] || exit 0

if ! has_tool apt-get; then
    echo "setup: missing:$missing" >&2
    echo "setup: these are Debian's names; install their likes with this system's package manager." >&2
    exit 1
fi

install_line="apt-get update && apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" -eq 0 ]; then
    as_root=
elif has_tool sudo && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    echo "setup: missing:$missing" >&2
    echo "setup: please run this line, then try again:" >&2
    echo "    sudo sh -c '$install_line'" >&2
    exit 1
fi

echo "setup: installing$missing"
apt() {
    $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" </dev/null
}
apt update || echo "setup: apt-get update failed, going on with the lists at hand" >&2
# shellcheck disable=SC2086 # a list of words
if ! apt install -y --no-install-recommends $missing >/dev/null; then
    echo "setup: that failed; the line was: $install_line" >&2
    exit 1
fi

find_missing
if [ -n "$missing" ]; then
    echo "setup: still missing after installing:$missing" >&2
    exit 1
fi
