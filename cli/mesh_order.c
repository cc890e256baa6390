/* SPDX-License-Identifier: Apache-2.0
 *
 * Dims of --mesh in any order: ranks that lie side by side, in caches, NUMA nodes, processes and
 * hosts, are to be those that say most to each other. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/option_table.h"

/* What is said over dims of these names grows from left to right: a stage hands one activation on,
 * data parallel ranks add gradients once in a step, or gather parameters in each pass; tokens go to
 * experts, and activations are added, in every block. */
static const char *const by_bytes[] = { "pp", "dp_replicate", "dp", "dp_shard", "ep", "tp" };

static size_t place_of(const char *name)
{
    size_t i = 0;

    while (i < DT_COUNT(by_bytes) && strcmp(by_bytes[i], name) != 0) i++;
    return i;
}

void cli_order_mesh(cli_args *args)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims, n_ranks;
    size_t used = 0;

    if (args->mesh == NULL) return;
    if (dt_mesh_parse(args->mesh, &n_dims, names, sizes, &n_ranks) != DT_OK) {
        dti_error_clear(); /* it is refused with the option's name, later */
        return;
    }
    for (int d = 0; d < n_dims; d++)
        if (place_of(names[d]) == DT_COUNT(by_bytes)) return; /* who names dims also orders them */
    for (size_t i = 0; i < DT_COUNT(by_bytes); i++)
        for (int d = 0; d < n_dims; d++)
            if (place_of(names[d]) == i)
                used += (size_t)snprintf(args->mesh_text + used, sizeof args->mesh_text - used,
                                         "%s%s=%d", used > 0 ? "," : "", names[d], sizes[d]);
    args->mesh = args->mesh_text;
}
