#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The rules of the pages (*.md): code is quoted from files that are built and run by tests, links lead
# somewhere, files that are named are there, docs/README.md leads to every page
# and README.md to every room. A block's language says what it is: sh is typed, console is typed and answered, text is
# printed; anything else is code and has a line before it that says where it is from:
#
#     <!-- from examples/02_own_style.c /static dt_status my_input/,/^}/ -->
#
# The addresses are as sed's, but plain strings ("^" is the beginning of a line, "$" alone the last
# line): the first line that has the one up to the next that has the other, or one line; several are
# put one after the other, with an empty line between. Without addresses it is the whole file.
#
#   tools/pages.sh            checks
#   tools/pages.sh --update   writes the quotes anew (make pages)
#   tools/pages.sh --run BIN  runs what stands in console blocks after <!-- run -->, with the programs in
#                             folders BIN, and compares; "..." stands for any lines, DIR for no folder
#
# Exit status: 0 clean, 1 something was found.
set -u
cd "$(dirname "$0")/.." || exit 1

pages() { find . -name '*.md' -not -path './build*' -not -path './.git/*' | sed 's|^\./||' | sort; }

# What `awk` does with each page; `update` says whether to print it with its quotes as they should be.
quotes='
function complain(words) { print page ":" NR ": " words > "/dev/stderr"; bad = 1 }

function has(line, words) {
    return substr(words, 1, 1) == "^" ? index(line, substr(words, 2)) == 1 : index(line, words) > 0
}

# Lines a to b of the origin, without the indentation that they share.
function piece(a, b,    i, indent, least, text) {
    least = 1000
    for (i = a; i <= b; i++)
        if (match(origin[i], /[^ ]/) && RSTART - 1 < least) least = RSTART - 1
    for (i = a; i <= b; i++) text = text substr(origin[i], least + 1) "\n"
    return text
}

# What the marker names: a file and addresses. Nothing, with a complaint, where it names nothing.
function quote(marker,    file, n, line, at, first, second, from, to, text) {
    file = marker
    sub(/ .*/, "", file)
    marker = substr(marker, length(file) + 2)
    if (file ~ /\.md$/) { complain("a page is not built: quote a file that is"); return "" }
    while ((getline line < file) > 0) origin[++n] = line
    close(file)
    if (n == 0) { complain(file " is not there"); return "" }
    if (marker == "") return piece(1, n)
    while (match(marker, /^\/[^\/]*\/(,(\/[^\/]*\/|\$))?/)) {
        first = substr(marker, RSTART, RLENGTH)
        marker = substr(marker, RSTART + RLENGTH)
        sub(/^ +/, "", marker)
        second = ""
        if (match(first, /,(\/[^\/]*\/|\$)$/)) {
            second = substr(first, RSTART + 1)
            first = substr(first, 1, RSTART - 1)
        }
        first = substr(first, 2, length(first) - 2)
        for (from = at + 1; from <= n && !has(origin[from], first); from++) { }
        if (from > n) { complain(file " has no \"" first "\"" (at ? " after line " at : "")); return "" }
        to = second == "$" ? n : from
        if (second ~ /^\//) {
            second = substr(second, 2, length(second) - 2)
            while (to <= n && !has(origin[to], second)) to++
            if (to > n) { complain(file " has no \"" second "\" after \"" first "\""); return "" }
        }
        text = text (text == "" ? "" : "\n") piece(from, to)
        at = to
    }
    if (marker != "") complain("\"" marker "\" is no address: write /first line/,/last line/")
    return text
}

# Files that a line of prose names are there: in the README of a room those of the room, of the public
# headers or of the tests.
function check_names(line,    name, n, i, home, homes) {
    while (match(line, /`[A-Za-z0-9_][A-Za-z0-9_.\/-]*\.(c|h|cu|sh|py|cmake)`|`(\.\.\/)+[A-Za-z0-9_.\/-]*\.[ch]`/)) {
        name = substr(line, RSTART + 1, RLENGTH - 2)
        line = substr(line, RSTART + RLENGTH)
        while (sub(/^\.\.\//, "", name)) { }
        if (name ~ /^_/ || index(" " owners["/" name], " = ")) continue
        found = 0
        n = split(owners["/" name], homes, " ")
        for (i = 1; i <= n; i++)
            if (folder == "" || folder ~ /^(docs|tests|examples)\// || homes[i] "/" == folder ||
                homes[i] == "include" || homes[i] == "tests") found = 1
        if (!found) complain("there is no file " name (folder == "" ? "" : " for " folder))
    }
}

# Links of a line of prose lead to files.
function check_links(line,    target, path) {
    gsub(/`[^`]*`/, "", line)
    while (match(line, /\]\([^)]*\)/)) {
        target = substr(line, RSTART + 2, RLENGTH - 3)
        line = substr(line, RSTART + RLENGTH)
        sub(/#.*/, "", target)
        if (target == "" || target ~ /^[a-z]+:/) continue
        path = folder target
        if (system("test -e " path) != 0) complain("the link to " target " leads nowhere")
    }
}

# Of each file: for every end of its path the room it is in, "=" for the whole path.
BEGIN {
    folder = page
    if (!sub(/[^\/]*$/, "", folder)) folder = ""
    while ((getline path < files) > 0) {
        room = path
        sub(/\/.*/, "", room)
        end = "/" path
        owners[end] = owners[end] " = "
        while (end != "") {
            owners[end] = owners[end] " " room
            if (!sub(/^\/[^\/]*/, "", end)) break
        }
    }
}

# Inside a block that is quoted: what stands there is collected and compared at its end.
inside && !/^```/ { block = block $0 "\n"; next }
inside {
    inside = 0
    if (marker != "" && block != wanted && wanted != "" && !update)
        complain("the block above is not what " marker " has now: make pages")
    printf "%s%s\n", (marker != "" && wanted != "" ? wanted : block), $0
    marker = ""
    next
}
/^```/ {
    inside = NR
    language = substr($0, 4)
    block = wanted = ""
    if (language == "") complain("name the language of the block: sh, console, text, c, ...")
    if (language ~ /^(sh|console|text)$/) {
        if (marker != "" && marker != "run") complain("a block of " language " is quoted from nowhere")
        marker = ""
    } else if (marker == "")
        complain("code without origin: <!-- from FILE /first line/,/last line/ --> goes before it")
    else wanted = quote(marker)
    print
    next
}
marker != "" { complain("a block has to follow the line \"" marker "\"") ; marker = "" }
/^<!-- from .* -->$/ { marker = substr($0, 11, length($0) - 14) }
/^<!-- run -->$/ { marker = "run" }
/^    [^ ]/ && before ~ /^$/ && !list { complain("fence code: ```sh for what is typed, ```text for what is printed") }
/^([-*]|[0-9]+\.) / { list = 1 }
/^[^ ]/ && !/^([-*]|[0-9]+\.) / { list = 0 }
{ check_links($0); check_names($0); before = $0; print }
END {
    if (inside) complain("a block without end")
    exit bad
}'

new=$(mktemp)
trap 'rm -f "$new" "$new".*' EXIT

check() {
    status=0
    find . -type f -not -path './build*' -not -path './.git/*' | sed 's|^\./||' >"$new.files"
    for page in $(pages); do
        awk -v page="$page" -v files="$new.files" -v update="$1" "$quotes" "$page" >"$new" || status=1
        [ "$1" -eq 0 ] || cmp -s "$new" "$page" || { cat "$new" >"$page" && echo "pages: $page is new"; }
    done
    # Who looks for a room or a page finds it in the list of all.
    for page in */README.md; do
        [ ! -f README.md ] || grep -qF "]($page)" README.md || {
            echo "$page: README.md does not lead there" >&2
            status=1
        }
    done
    for page in docs/*.md; do
        [ ! -f docs/README.md ] || grep -qF "](${page#docs/})" docs/README.md || [ "$page" = docs/README.md ] || {
            echo "$page: docs/README.md does not lead there" >&2
            status=1
        }
    done
    return $status
}

# Console blocks that say <!-- run -->: "$ command" (with "\" at the end it goes on), then its output.
run() {
    status=0
    for page in $(pages); do
        awk -v base="$new" '
            /^<!-- run -->$/ { want = 1; next }
            want && /^```console$/ { inside = 1; want = 0; n++; command = 1; printf "" >(base ".out." n); next }
            inside && /^```$/ { inside = 0; next }
            inside && command { sub(/^\$ /, ""); command = /\\$/; print >(base ".cmd." n); next }
            inside { print >(base ".out." n) }' "$page"
        for command in "$new".cmd.*; do
            [ -f "$command" ] || continue
            wanted=$new.out.${command##*.}
            PATH="$1:$PATH" sh "$command" >"$new.got" 2>&1
            # Each line of the page has to come, in order; after "..." lines may be left out.
            if ! awk -v wanted="$wanted" '
                    function next_wanted() {
                        loose = 0
                        while ((more = (getline line <wanted) > 0) && line ~ /^ *\.\.\.$/) loose = 1
                    }
                    BEGIN { next_wanted() }
                    more && $0 == line { next_wanted(); next }
                    !loose { exit failed = 1 }
                    END { exit failed || more }' "$new.got"; then
                echo "$page: \"$(head -1 "$command")\" now prints:" >&2
                cat "$new.got" >&2
                status=1
            fi
            ran=$((${ran:-0} + 1))
        done
        rm -f "$new".cmd.* "$new".out.*
    done
    echo "pages: ${ran:-0} commands ran"
    [ "${ran:-0}" -gt 0 ] && return $status
}

case ${1:-} in
--update) check 1 ;;
--run) run "$2" ;;
*) check 0 && echo "pages: clean, $(pages | wc -l) pages" ;;
esac
