#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Packages on a clean system: a minimal Debian in a folder (debootstrap, some minutes, from the mirror
# that apt uses here), where apt installs them with what they need, the command runs, and an example is
# compiled by the package's own means and runs. Root and debootstrap are needed; skipped otherwise.
#
#   clean_system.sh PACKAGES_FOLDER     build/deb/packages, after make deb
set -eu
packages=$1
skip() {
    echo "clean_system: $*, skipped"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "not root"
command -v debootstrap >/dev/null 2>&1 || skip "debootstrap is missing"
ls "$packages"/*.deb >/dev/null 2>&1 || skip "no packages in $packages (make deb)"
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$suite" ] || skip "this system has no code name"

root=$(mktemp -d)
trap 'umount "$root/sys" "$root/proc" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
chmod 755 "$root"
debootstrap --variant=minbase "$suite" "$root" >"$root.log" 2>&1 || {
    rm -f "$root.log"
    skip "debootstrap failed (no mirror?)"
}
rm -f "$root.log"
mount --bind /sys "$root/sys" && mount --bind /proc "$root/proc" || echo "clean_system: without /sys and /proc"
mkdir "$root/packages"
cp "$packages"/*.deb "$root/packages"

inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
inside apt-get -qq update
inside sh -c 'apt-get -qq install -y --no-install-recommends /packages/*.deb gcc libc6-dev cmake make \
    >/dev/null 2>/tmp/log || { cat /tmp/log; exit 1; }'

inside sh -euc '
cd /usr/share/doc/dtensor
dtensor --version
dtensor generate -q --model examples/checkpoint --prompt "ROMEO:" --mesh tp=2 -n 20 --greedy
cc examples/00_first.c -o /tmp/first $(pkg-config --cflags --libs dtensor)
/tmp/first 2
cmake -S examples -B /tmp/build >/dev/null
cmake --build /tmp/build --target 00_first >/dev/null
/tmp/build/00_first 3
dpkg -r dtensor-doc libdtensor-dev dtensor libdtensor0.1 >/dev/null
[ ! -e /usr/lib/*/libdtensor.so.0.1 ]
'
echo "packages install on a clean $suite, work, and go"
