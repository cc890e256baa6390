/* SPDX-License-Identifier: Apache-2.0
 *
 * How large a machine in hwloc's words would be. hwloc makes each of its cpus, and compares a new
 * one with those below the same object: ten thousand in a row take minutes. */
#include <stdlib.h>
#include <string.h>

#include "mesh/topology_internal.h"

enum { MAX_CPUS = 8192, MAX_BELOW = 1024 };

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
    count = strtoll(number, NULL, 10);
    *text += n;
    return count > 0 ? count : 1;
}

dt_status dti_synthetic_check(const char *machine)
{
    long long cpus = 1;

    for (const char *at = machine; *at != '\0';) {
        long long below;

        if (*at == ' ' || *at == '(' || *at == '[') {
            at = *at == ' ' ? at + 1 : skip_group(at);
            continue;
        }
        below = read_level(&at);
        DT_CHECK(below <= MAX_BELOW, DT_ERR_ARG,
                 "\"%s\" has %lld of a kind side by side, at most %d can be drawn; put them into "
                 "packages: \"pack:64 core:64\"",
                 machine, below, MAX_BELOW);
        cpus *= below;
        DT_CHECK(cpus <= MAX_CPUS, DT_ERR_ARG,
                 "\"%s\" has %lld cpus or more, at most %d can be drawn", machine, cpus, MAX_CPUS);
    }
    return DT_OK;
}
