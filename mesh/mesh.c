/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/mesh.h>

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "mesh/mesh_internal.h"
#include "mesh/runtime_internal.h"

static void find_myself(dt_mesh *mesh)
{
    const int me = dti_roster_find(mesh->grid.roster, dt_runtime_rank(mesh->rt));

    mesh->place = -1;
    if (me >= 0 && dti_grid_find(&mesh->grid, me, mesh->coord)) {
        mesh->place = 0;
        for (int d = 0; d < mesh->n_dims; d++)
            mesh->place = mesh->place * mesh->size[d] + mesh->coord[d];
        return;
    }
    for (int d = 0; d < mesh->n_dims; d++) mesh->coord[d] = -1;
}

dt_status dti_mesh_make_grid(dt_runtime *rt, const dti_grid *grid, const dt_mesh *like,
                             dt_mesh **out)
{
    dt_status st = DT_OK;
    dt_mesh *mesh = NULL;

    *out = NULL;
    DT_TRY(dti_new(sizeof *mesh, &mesh));
    atomic_init(&mesh->refs, 1);
    mesh->rt = rt;
    mesh->timeout_ms = like != NULL ? like->timeout_ms : rt->world->timeout_ms;
    mesh->n_dims = grid->n_dims;
    mesh->n_ranks = 1;
    mesh->grid = *grid;
    if (grid->roster != NULL)
        (void)atomic_fetch_add_explicit(&grid->roster->refs, 1, memory_order_relaxed);
    dti_runtime_count(rt, NULL, 1);
    for (int d = 0; d < mesh->n_dims; d++) {
        mesh->size[d] = dti_span_count(&grid->span[d]);
        mesh->n_ranks *= mesh->size[d];
    }
    DT_TRY_TO(
        fail, st,
        dti_alloc_array((size_t)1 << mesh->n_dims, sizeof(dti_comm *), (void **)&mesh->comms));
    find_myself(mesh);
    dti_mesh_default_costs(&mesh->costs);
    *out = mesh;
    return DT_OK;

fail:
    dt_mesh_release(&mesh);
    return st;
}

dt_status dti_mesh_make(dt_runtime *rt, int n_dims, char names[][DT_DIM_NAME_BYTES],
                        const int *sizes, const int *ranks, dt_mesh **out)
{
    dti_grid grid = { .n_dims = n_dims };
    dt_status st;
    int n = 1;

    *out = NULL;
    for (int d = n_dims - 1; d >= 0; d--) {
        memcpy(grid.names[d], names[d], DT_DIM_NAME_BYTES);
        dti_span_add(&grid.span[d], sizes[d], n);
        n *= sizes[d];
    }
    if (ranks != NULL) DT_TRY(dti_roster_make(ranks, n, &grid.roster));
    st = dti_mesh_make_grid(rt, &grid, NULL, out);
    dti_roster_release(grid.roster); /* the mesh has its own reference */
    if (st != DT_OK) return dti_error_frame(st, __func__, __FILE__, __LINE__);
    return DT_OK;
}

/* --- creation --------------------------------------------------------------------------------- */

/* Error records of this rank say where it is on the mesh that was made last. */
static void tell_where(const dt_mesh *mesh)
{
    char where[DT_ERROR_WHERE_BYTES] = "";
    size_t used = 0;

    if (!dt_mesh_is_member(mesh) || mesh->rt->dry) return;
    for (int d = 0; d < mesh->n_dims && used < sizeof where; d++) {
        const int n = snprintf(where + used, sizeof where - used, "%s%s=%d", d ? "," : "",
                               mesh->grid.names[d], mesh->coord[d]);
        used += n > 0 ? (size_t)n : 0;
    }
    dti_error_set_where(where);
}

/* Every rank number once, and in the world. */
static dt_status check_ranks(const char *spec, const int *ranks, int n, int world_size)
{
    dt_status st = DT_OK;
    int *place = NULL; /* 1 + the place at which a rank was seen */

    DT_TRY(dti_alloc_array((size_t)world_size, sizeof *place, (void **)&place));
    for (int i = 0; i < n; i++) {
        const int r = ranks[i];
        DT_CHECK_TO(done, st, r >= 0 && r < world_size, DT_ERR_ARG,
                    "mesh \"%s\": rank %d at place %d does not exist; the run has ranks 0..%d",
                    spec, r, i, world_size - 1);
        DT_CHECK_TO(done, st, place[r] == 0, DT_ERR_ARG,
                    "mesh \"%s\": rank %d stands at place %d and at place %d", spec, r,
                    place[r] - 1, i);
        place[r] = i + 1;
    }
done:
    dti_free(place);
    return st;
}

static dt_status create(dt_runtime *rt, const char *spec, const int *ranks, dt_mesh **out)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES] = { { 0 } };
    int sizes[DT_MAX_DIMS];
    int n_dims, n_ranks;

    DT_TRY(dt_mesh_parse(spec, &n_dims, names, sizes, &n_ranks));
    DT_CHECK(n_ranks <= rt->size, DT_ERR_ARG,
             "mesh \"%s\" needs %d ranks but the run has %d; start it with n_ranks = %d or make "
             "the mesh smaller",
             spec, n_ranks, rt->size, n_ranks);
    if (ranks != NULL) DT_TRY(check_ranks(spec, ranks, n_ranks, rt->size));
    DT_TRY(dti_mesh_make(rt, n_dims, names, sizes, ranks, out));
    tell_where(*out);
    return DT_OK;
}

dt_status dt_mesh_create(dt_runtime *rt, const char *spec, dt_mesh **out)
{
    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(rt != NULL && spec != NULL, DT_ERR_ARG, "rt or spec is NULL");
    DT_TRY(create(rt, spec, NULL, out));
    return DT_OK;
}

dt_status dt_mesh_create_ranks(dt_runtime *rt, const char *spec, const int *ranks, dt_mesh **out)
{
    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(rt != NULL && spec != NULL && ranks != NULL, DT_ERR_ARG, "rt, spec or ranks is NULL");
    DT_TRY(create(rt, spec, ranks, out));
    return DT_OK;
}

dt_status dti_mesh_copy(const dt_mesh *mesh, dt_runtime *rt, dt_mesh **out)
{
    DT_TRY(dti_mesh_make_grid(rt, &mesh->grid, NULL, out));
    (*out)->costs = mesh->costs;
    return DT_OK;
}

dt_mesh *dt_mesh_retain(dt_mesh *mesh)
{
    if (mesh != NULL) (void)atomic_fetch_add_explicit(&mesh->refs, 1, memory_order_relaxed);
    return mesh;
}

/* The communicators stay with the runtime: other meshes may use them, and peers count on it. */
void dt_mesh_release(dt_mesh **mesh)
{
    dt_mesh *m = mesh ? *mesh : NULL;

    if (m == NULL) return;
    *mesh = NULL;
    if (atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1) return;
    dti_runtime_count(m->rt, NULL, -1);
    while (m->parts != NULL) {
        dti_mesh_part *next = m->parts->next;
        dti_free(m->parts);
        m->parts = next;
    }
    dti_free((void *)m->comms);
    dti_roster_release(m->grid.roster);
    dti_free(m);
}

/* --- queries ---------------------------------------------------------------------------------- */

dt_runtime *dt_mesh_runtime(const dt_mesh *mesh)
{
    return mesh != NULL ? mesh->rt : NULL;
}

int dt_mesh_n_dims(const dt_mesh *mesh)
{
    return mesh != NULL ? mesh->n_dims : -1;
}

int dt_mesh_n_ranks(const dt_mesh *mesh)
{
    return mesh != NULL ? mesh->n_ranks : -1;
}

static bool has_dim(const dt_mesh *mesh, int dim)
{
    return mesh != NULL && dim >= 0 && dim < mesh->n_dims;
}

int dt_mesh_dim_size(const dt_mesh *mesh, int dim)
{
    return has_dim(mesh, dim) ? mesh->size[dim] : -1;
}

const char *dt_mesh_dim_name(const dt_mesh *mesh, int dim)
{
    return has_dim(mesh, dim) ? mesh->grid.names[dim] : NULL;
}

int dt_mesh_find_dim(const dt_mesh *mesh, const char *name)
{
    for (int d = 0; mesh != NULL && name != NULL && d < mesh->n_dims; d++)
        if (strcmp(mesh->grid.names[d], name) == 0) return d;
    return -1;
}

bool dt_mesh_is_member(const dt_mesh *mesh)
{
    return mesh != NULL && mesh->place >= 0;
}

int dt_mesh_coord(const dt_mesh *mesh, int dim)
{
    return has_dim(mesh, dim) ? mesh->coord[dim] : -1;
}

int dti_mesh_place(const dt_mesh *mesh)
{
    return mesh->place;
}

int dt_mesh_rank_at(const dt_mesh *mesh, int place)
{
    int coord[DT_MAX_DIMS];

    if (mesh == NULL || place < 0 || place >= mesh->n_ranks) return -1;
    for (int d = mesh->n_dims - 1; d >= 0; d--) {
        coord[d] = place % mesh->size[d];
        place /= mesh->size[d];
    }
    return dti_grid_rank(&mesh->grid, dti_grid_place(&mesh->grid, coord));
}

bool dt_mesh_find_rank(const dt_mesh *mesh, int world_rank, int *coord)
{
    const int place = mesh != NULL ? dti_roster_find(mesh->grid.roster, world_rank) : -1;
    int at[DT_MAX_DIMS];

    return place >= 0 && dti_grid_find(&mesh->grid, place, coord != NULL ? coord : at);
}

/* The places of the dims in `dims` (bits), at the coordinates `coord` of the others, row-major. */
int dti_mesh_fiber(const dt_mesh *mesh, uint32_t dims, const int *coord, int *world_ranks)
{
    return dti_mesh_block(mesh, dims, mesh->size, coord, world_ranks);
}

int dti_mesh_block(const dt_mesh *mesh, uint32_t dims, const int *along, const int *coord,
                   int *world_ranks)
{
    int at[DT_MAX_DIMS];
    int n = 0;

    for (int d = 0; d < mesh->n_dims; d++)
        at[d] = coord[d] - (dims >> d & 1u ? coord[d] % along[d] : 0);
    for (;;) {
        int d = mesh->n_dims - 1;
        world_ranks[n++] = dti_grid_rank(&mesh->grid, dti_grid_place(&mesh->grid, at));
        for (; d >= 0; d--) {
            if ((dims >> d & 1u) == 0) continue;
            if (++at[d] % along[d] != 0) break;
            at[d] -= along[d];
        }
        if (d < 0) return n;
    }
}

int dt_mesh_group(const dt_mesh *mesh, int dim, const int *coord, int *ranks)
{
    int at[DT_MAX_DIMS];

    if (ranks == NULL || !has_dim(mesh, dim)) return -1;
    for (int d = 0; d < mesh->n_dims; d++) {
        at[d] = coord != NULL ? coord[d] : mesh->place < 0 ? 0 : mesh->coord[d];
        if (d != dim && (at[d] < 0 || at[d] >= mesh->size[d])) return -1;
    }
    return dti_mesh_fiber(mesh, 1u << dim, at, ranks);
}

static bool same_span(const dti_span *a, const dti_span *b)
{
    const size_t bytes = (size_t)a->n * sizeof a->size[0];

    return a->n == b->n && memcmp(a->size, b->size, bytes) == 0 &&
           memcmp(a->stride, b->stride, bytes) == 0;
}

bool dt_mesh_equal(const dt_mesh *a, const dt_mesh *b)
{
    bool same = true;

    if (a == b) return true;
    if (a == NULL || b == NULL || a->n_dims != b->n_dims) return false;
    for (int d = 0; d < a->n_dims; d++) {
        if (a->size[d] != b->size[d] || strcmp(a->grid.names[d], b->grid.names[d]) != 0)
            return false;
        same = same && same_span(&a->grid.span[d], &b->grid.span[d]);
    }
    if (same && a->grid.roster == b->grid.roster && a->grid.origin == b->grid.origin) return true;
    for (int i = 0; i < a->n_ranks; i++) /* the same ranks, said in another way */
        if (dt_mesh_rank_at(a, i) != dt_mesh_rank_at(b, i)) return false;
    return true;
}
