/* SPDX-License-Identifier: Apache-2.0
 *
 * How large a machine in hwloc's words would be. hwloc makes each of its cpus, and compares a new
 * one with those below the same object: ten thousand in a row take minutes. Its sets of cpus have a
 * bit for every number up to the largest one. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "mesh/topology_internal.h"

enum { MAX_CPUS = 8192, MAX_BELOW = 1024, MAX_INDEX = 16383 };

/* Behind the bracket that closes the one at `text`. */
static const char *skip_group(const char *text)
{
    const char *end = strchr(text, *text == '[' ? ']' : ')');

    return end != NULL ? end + 1 : text + strlen(text);
}

/* The level at *text, "core:8(size=1)" or "8", which moves behind it: how many there are below each
 * object above; 1 where that is no number, which hwloc refuses. */
static long long read_level(const char **text)
{
    const size_t n = strcspn(*text, " ([");
    const char *number = *text, *colon = memchr(*text, ':', n);
    long long count;

    if (colon != NULL) number = colon + 1;
    count = strtoll(number, NULL, 0); /* hwloc understands 0x10 */
    *text += n;
    return count > 0 ? count : 1;
}

/* The numbers that a level gives its cpus or nodes: "(indexes=0,2,1,3)". */
static dt_status check_indexes(const char *machine)
{
    static const char key[] = "indexes=";
    const size_t n = sizeof key - 1;

    for (const char *at = machine; *at != '\0'; at++) {
        if (strncasecmp(at, key, n) != 0) continue;
        for (at += n; *at != '\0' && *at != ' ' && *at != ')';) {
            char *end = NULL;
            if (!isdigit((unsigned char)*at)) {
                at++;
                continue;
            }
            DT_CHECK(strtoull(at, &end, 10) <= MAX_INDEX, DT_ERR_ARG,
                     "\"%s\" has an index of more than %d, the largest that can be drawn", machine,
                     MAX_INDEX);
            at = end;
        }
        if (*at == '\0') break;
    }
    return DT_OK;
}

dt_status dti_synthetic_check(const char *machine)
{
    long long cpus = 1;

    DT_TRY(check_indexes(machine));
    for (const char *at = machine; *at != '\0';) {
        long long below;

        if (*at == ' ' || *at == '(' || *at == '[') {
            at = *at == ' ' ? at + 1 : skip_group(at);
            continue;
        }
        below = read_level(&at);
        DT_CHECK(below <= MAX_BELOW, DT_ERR_ARG,
                 "\"%s\" has more than %d of a kind side by side, which cannot be drawn; put them "
                 "into packages: \"pack:64 core:64 pu:1\"",
                 machine, MAX_BELOW);
        cpus *= below;
        DT_CHECK(cpus <= MAX_CPUS, DT_ERR_ARG,
                 "\"%s\" has %lld cpus or more, at most %d can be drawn", machine, cpus, MAX_CPUS);
    }
    return DT_OK;
}
