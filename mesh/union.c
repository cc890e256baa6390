/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of two meshes together. */
#include "base/memory.h"
#include "mesh/mesh_internal.h"
#include "mesh/runtime_internal.h"

/* World ranks of both, ascending, each once; `seen` has room for the world. */
static int collect(const dt_mesh *a, const dt_mesh *b, bool *seen, int *ranks)
{
    int n = 0;

    for (int i = 0; i < a->n_ranks; i++) seen[dt_mesh_rank_at(a, i)] = true;
    for (int i = 0; i < b->n_ranks; i++) seen[dt_mesh_rank_at(b, i)] = true;
    for (int r = 0; r < a->rt->size; r++)
        if (seen[r]) ranks[n++] = r;
    return n;
}

/* name NULL: the communicator that both meshes share with all others of these ranks. */
static dt_status union_of(const dt_mesh *a, const dt_mesh *b, const char *name, dti_comm **out)
{
    dt_runtime *rt = a->rt;
    dt_status st = DT_OK;
    bool *seen = NULL;
    int *ranks = NULL;

    *out = NULL;
    if (a->place < 0 && b->place < 0) return DT_OK;
    DT_TRY(dti_alloc_array((size_t)rt->size, sizeof *seen, (void **)&seen));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)rt->size, sizeof *ranks, (void **)&ranks));
    const int n = collect(a, b, seen, ranks);
    if (name != NULL)
        DT_TRY_TO(done, st, dti_comm_group(rt->world, ranks, n, name, out));
    else
        DT_TRY_TO(done, st, dti_runtime_comm(rt, ranks, n, "two meshes", out));
    (*out)->timeout_ms = a->timeout_ms > b->timeout_ms ? a->timeout_ms : b->timeout_ms;
done:
    dti_free(seen);
    dti_free(ranks);
    return st;
}

dt_status dti_mesh_union_comm(const dt_mesh *a, const dt_mesh *b, dti_comm **out)
{
    DT_TRY(union_of(a, b, NULL, out));
    return DT_OK;
}

dt_status dti_mesh_union_group(const dt_mesh *a, const dt_mesh *b, const char *name, dti_comm **out)
{
    DT_TRY(union_of(a, b, name, out));
    return DT_OK;
}
