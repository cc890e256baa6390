/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of ranks, and the grids that choose places of them. */
#include <string.h>

#include "base/memory.h"
#include "mesh/mesh_internal.h"

dt_status dti_roster_make(const int *ranks, int n, dti_roster **out)
{
    dti_roster *roster;

    DT_TRY(dti_new(sizeof *roster + (size_t)n * sizeof *ranks, &roster));
    atomic_init(&roster->refs, 1);
    roster->n = n;
    memcpy(roster->ranks, ranks, (size_t)n * sizeof *ranks);
    *out = roster;
    return DT_OK;
}

void dti_roster_release(dti_roster *roster)
{
    if (roster != NULL && atomic_fetch_sub_explicit(&roster->refs, 1, memory_order_acq_rel) == 1)
        dti_free(roster);
}

int dti_roster_find(const dti_roster *roster, int world_rank)
{
    if (roster == NULL) return world_rank;
    for (int i = 0; i < roster->n; i++)
        if (roster->ranks[i] == world_rank) return i;
    return -1;
}

void dti_grid_add(dti_grid *grid, const dt_mesh *mesh, int from)
{
    memcpy(grid->names[grid->n_dims], mesh->grid.names[from], DT_DIM_NAME_BYTES);
    grid->span[grid->n_dims++] = mesh->grid.span[from];
}

int dti_grid_place(const dti_grid *grid, const int *coord)
{
    int place = grid->origin;

    for (int d = 0; d < grid->n_dims; d++) place += dti_span_place(&grid->span[d], coord[d]);
    return place;
}

bool dti_grid_find(const dti_grid *grid, int place, int *coord)
{
    dti_span all = { 0 };
    int index;

    for (int d = 0; d < grid->n_dims; d++) dti_span_join(&all, &grid->span[d]);
    if (!dti_span_find(&all, place - grid->origin, &index)) return false;
    for (int d = grid->n_dims - 1; d >= 0; d--) {
        const int size = dti_span_count(&grid->span[d]);
        coord[d] = index % size;
        index /= size;
    }
    return true;
}

int dti_grid_rank(const dti_grid *grid, int place)
{
    return grid->roster != NULL ? grid->roster->ranks[place] : place;
}
