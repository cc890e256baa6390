/* SPDX-License-Identifier: Apache-2.0
 *
 * What planners think of a mesh: its links and how much memory a move may take. Given, or measured
 * by collectives of a small and a large message along each dim. */
#include <math.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/sync.h"
#include "mesh/mesh_internal.h"
#include "mesh/runtime_internal.h"

enum { SMALL_BYTES = 64, LARGE_BYTES = 4 << 20, ROUNDS = 9 };

static void number(dti_mesh_costs *costs)
{
    costs->id = 0;
    costs->id = dti_hash_bytes(1, costs->link, sizeof costs->link);
    costs->id = dti_hash_bytes(costs->id, &costs->memory_bytes, sizeof costs->memory_bytes);
}

void dti_mesh_default_costs(dti_mesh_costs *costs)
{
    costs->memory_bytes = 0;
    for (int d = 0; d < DT_MAX_DIMS; d++)
        costs->link[d] = (dt_link){ DT_DEFAULT_LATENCY_NS, DT_DEFAULT_BYTES_PER_NS };
    number(costs);
}

/* Of dims that are walked together: no hop is slower. Dims of one rank have none. */
static dt_link slowest_link(const dt_mesh *mesh, uint32_t dims)
{
    dt_link slowest = { DT_DEFAULT_LATENCY_NS, DT_DEFAULT_BYTES_PER_NS };
    bool found = false;

    for (int pass = 0; pass < 2 && !found; pass++) /* the second one takes dims of one rank, too */
        for (int d = 0; d < mesh->n_dims; d++) {
            const dt_link *l = &mesh->costs.link[d];
            if ((dims >> d & 1u) == 0 || (mesh->size[d] == 1 && pass == 0)) continue;
            if (!found) slowest = *l;
            found = true;
            slowest.latency_ns = fmax(slowest.latency_ns, l->latency_ns);
            slowest.bytes_per_ns = fmin(slowest.bytes_per_ns, l->bytes_per_ns);
        }
    return slowest;
}

void dti_mesh_inherit(dt_mesh *to, int dim, const dt_mesh *from, uint32_t dims)
{
    const int64_t bound = from->costs.memory_bytes;
    dti_mesh_costs *costs = &to->costs;
    int ranks = 1, n = 0;

    for (int d = 0; d < from->n_dims; d++) {
        if ((dims >> d & 1u) == 0) continue;
        ranks *= from->size[d];
        n++;
    }
    costs->link[dim] = slowest_link(from, dims);
    costs->measured = (dim == 0 || costs->measured) && from->costs.measured && n == 1 &&
                      (ranks == to->size[dim] || to->size[dim] == 1);
    if (bound > 0 && (costs->memory_bytes == 0 || bound < costs->memory_bytes))
        costs->memory_bytes = bound;
    number(costs);
}

const dti_mesh_costs *dti_mesh_costs_of(const dt_mesh *mesh)
{
    return &mesh->costs;
}

dt_link dt_mesh_link(const dt_mesh *mesh, int dim)
{
    const bool known = mesh != NULL && dim >= 0 && dim < mesh->n_dims;

    return known ? mesh->costs.link[dim] : (dt_link){ 0, 0 };
}

dt_status dt_mesh_set_links(dt_mesh *mesh, const dt_link *links)
{
    DT_CHECK(mesh != NULL && links != NULL, DT_ERR_ARG, "mesh or links is NULL");
    for (int d = 0; d < mesh->n_dims; d++)
        DT_CHECK(isfinite(links[d].latency_ns) && links[d].latency_ns >= 0 &&
                     isfinite(links[d].bytes_per_ns) && links[d].bytes_per_ns > 0,
                 DT_ERR_ARG,
                 "mesh dim \"%s\": a link of %g ns latency and %g bytes per ns; times must not be "
                 "negative, bandwidths must be positive",
                 dt_mesh_dim_name(mesh, d), links[d].latency_ns, links[d].bytes_per_ns);
    for (int d = 0; d < mesh->n_dims; d++) /* + 0.0: no negative zero, as bits are compared */
        mesh->costs.link[d] = (dt_link){ links[d].latency_ns + 0.0, links[d].bytes_per_ns };
    number(&mesh->costs);
    return DT_OK;
}

dt_status dt_mesh_set_move_memory(dt_mesh *mesh, int64_t bytes)
{
    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    DT_CHECK(bytes >= 0, DT_ERR_ARG, "moves may take %lld bytes: 0 (any) or more is needed",
             (long long)bytes);
    mesh->costs.memory_bytes = bytes;
    number(&mesh->costs);
    return DT_OK;
}

/* --- measuring -------------------------------------------------------------------------------- */

/* The median time of gathering `bytes` from each rank of the group. */
static dt_status time_gather(dti_comm *c, int64_t bytes, char *send, char *recv, double *ns)
{
    double times[ROUNDS];
    dt_status st = DT_OK;
    int64_t *counts;

    DT_TRY(dti_alloc_array((size_t)c->size, sizeof *counts, (void **)&counts));
    for (int r = 0; r < c->size; r++) counts[r] = bytes;
    for (int i = -2; i < ROUNDS; i++) {
        DT_TRY_TO(done, st, dti_barrier(c));
        const int64_t begin = dti_now_ns();
        DT_TRY_TO(done, st, dti_all_gather(c, send, recv, counts, NULL, DT_U8));
        const double t = (double)(dti_now_ns() - begin);
        int at = i;
        for (; at > 0 && times[at - 1] > t; at--) times[at] = times[at - 1];
        if (i >= 0) times[at] = t;
    }
    *ns = times[ROUNDS / 2];
done:
    dti_free(counts);
    return st;
}

/* What a rank finds on one dim; the slowest rank's counts. */
static dt_status measure_dim(dt_mesh *mesh, int dim, dt_link *link)
{
    const int p = mesh->size[dim];
    dt_status st = DT_OK;
    double small, large, rounds = 1;
    char *memory = NULL;
    dti_comm *c;

    DT_TRY(dti_mesh_comm(mesh, 1u << dim, &c));
    DT_TRY(dti_alloc((size_t)(p + 1) * LARGE_BYTES, (void **)&memory));
    DT_TRY_TO(done, st, time_gather(c, SMALL_BYTES, memory, memory + LARGE_BYTES, &small));
    DT_TRY_TO(done, st, time_gather(c, LARGE_BYTES, memory, memory + LARGE_BYTES, &large));
    for (int reach = 1; reach < p; reach *= 2) rounds++;
    link->latency_ns = small / rounds;
    link->bytes_per_ns = (p - 1.0) * LARGE_BYTES / fmax(large - small, 1);
done:
    dti_free(memory);
    return st;
}

/* The next power of two: plans and thereby the order of sums follow from links, so small changes
 * between two measurements should not matter. */
static double coarse(double x)
{
    return exp2(round(log2(x)));
}

dt_status dt_mesh_measure_links(dt_mesh *mesh)
{
    dt_link links[DT_MAX_DIMS];
    double slowest[2 * DT_MAX_DIMS]; /* latencies, and nanoseconds per byte */
    dti_comm *all;

    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    if (mesh->place < 0 || mesh->rt->dry || mesh->costs.measured) return DT_OK;
    for (int d = 0; d < mesh->n_dims; d++) {
        links[d] = mesh->costs.link[d];
        if (mesh->size[d] > 1) DT_TRY(dti_runtime_alone(mesh->rt, measure_dim(mesh, d, &links[d])));
        slowest[2 * d] = links[d].latency_ns;
        slowest[2 * d + 1] = 1 / links[d].bytes_per_ns;
    }
    DT_TRY(dti_mesh_comm(mesh, (1u << mesh->n_dims) - 1, &all));
    DT_TRY(dti_all_reduce(all, slowest, slowest, 2 * mesh->n_dims, DT_F64, DT_MAX));
    for (int d = 0; d < mesh->n_dims; d++)
        links[d] = (dt_link){ coarse(fmax(slowest[2 * d], 1)), coarse(1 / slowest[2 * d + 1]) };
    DT_TRY(dt_mesh_set_links(mesh, links));
    mesh->costs.measured = true;
    return DT_OK;
}
