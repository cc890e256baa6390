#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What tools/pages.sh has to find, and what it writes: a small tree with pages of its own.
#
#   faults.sh SCRIPT
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tools" "$work/bin"
cp "$1" "$work/tools/pages.sh"
cd "$work" || exit 1

printf 'int f(void)\n{\n    return 1;\n}\n\nint last;\n' >code.c
printf '#!/bin/sh\necho one\necho two\necho three\n' >bin/count
chmod +x bin/count

fail() {
    echo "$*"
    exit 1
}

# finds WORDS PAGE: the page is refused with these words.
finds() {
    printf "$2\n" >page.md
    tools/pages.sh >log 2>&1 && fail "taken: $2"
    grep -qF -- "$1" log || fail "\"$1\" was expected: $(cat log)"
}

# takes PAGE
takes() {
    printf "$1\n" >page.md
    tools/pages.sh >log 2>&1 || fail "refused: $1: $(cat log)"
}

finds 'name the language' '```\nx\n```'
finds 'code without origin' '```c\nint x;\n```'
finds 'fence code' 'Type\n\n    make\n'
finds 'leads nowhere' 'See [it](nothing.md#part).'
finds 'there is no file none.c' 'See `none.c`.'
finds 'there is no file room/none.h' 'See `../room/none.h`.'
finds 'is not there' '<!-- from none.c -->\n```c\nint x;\n```'
finds 'code.c has no "int g"' '<!-- from code.c /int g/,/^}/ -->\n```c\nint g;\n```'
finds 'has no "^]" after "int f"' '<!-- from code.c /int f/,/^]/ -->\n```c\nint f;\n```'
finds 'is no address' '<!-- from code.c int f -->\n```c\nint f;\n```'
finds 'is not what' '<!-- from code.c /int last/ -->\n```c\nint first;\n```'
finds 'has to follow' '<!-- from code.c /int last/ -->\n\n```c\nint last;\n```'
finds 'is not built' '<!-- from page.md -->\n```c\nint last;\n```'
finds 'without end' '```sh\nmake'

takes 'See [it](page.md#part), [there](https://example.org).\n\n```sh\nmake\n```'
takes '<!-- from code.c /return/ /^int/ -->\n```c\nreturn 1;\n\nint last;\n```'
takes '<!-- from code.c /int last/,$ -->\n```c\nint last;\n```'

takes 'See `code.c`, `./code.c`, `*.c`, `x.json`.'
mkdir room other
echo 'int far;' >room/far.c
echo 'int near;' >other/near.c
echo 'See `near.c` and `far.c`.' >room/README.md
finds 'there is no file near.c for room/' 'See `room/far.c` and `far.c`.'
echo 'See `../other/near.c`, `other/near.c` and `far.c`.' >room/README.md
takes 'See `far.c`.'
rm -r room other

mkdir docs
echo '[a](a.md)' >docs/README.md
echo '[pages](docs/README.md)' >README.md
echo 'a' >docs/a.md
takes 'The list of pages is whole.'
echo 'b' >docs/b.md
finds 'docs/README.md does not lead there' 'One is missing in it.'
echo '[pages](docs)' >README.md
rm docs/b.md
finds 'docs/README.md: README.md does not lead there' 'One is missing in it.'
rm -r docs README.md

# Quotes are written anew, and nothing else is touched.
printf 'a\n\n<!-- from code.c /int f/,/^}/ -->\n```c\nold\n```\nb\n' >page.md
tools/pages.sh --update >log 2>&1 || fail "$(cat log)"
printf 'a\n\n<!-- from code.c /int f/,/^}/ -->\n```c\nint f(void)\n{\n    return 1;\n}\n```\nb\n' |
    cmp -s - page.md || fail "the quote became $(cat page.md)"

# Commands are run where the page says so.
for shown in 'one\ntwo\nthree' '...\nthree' 'one\n...' 'one\n...\nthree'; do
    printf '<!-- run -->\n```console\n$ count\n'"$shown"'\n```\n' >page.md
    tools/pages.sh --run "$work/bin" >log 2>&1 || fail "refused: $shown: $(cat log)"
done
for shown in 'one\ntwo' 'one\nthree' 'one\n...\nfour' 'one\ntwo\nthree\nfour'; do
    printf '<!-- run -->\n```console\n$ count\n'"$shown"'\n```\n' >page.md
    tools/pages.sh --run "$work/bin" >log 2>&1 && fail "taken: $shown"
done
echo "faults of pages are found"
