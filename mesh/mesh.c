/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/mesh.h>

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "mesh/mesh_internal.h"
#include "mesh/runtime_internal.h"

void dti_mesh_strides(const dt_mesh *mesh, int *stride)
{
    int product = 1;

    for (int d = mesh->n_dims - 1; d >= 0; d--) {
        stride[d] = product;
        product *= mesh->size[d];
    }
}

static void find_myself(dt_mesh *mesh)
{
    const int me = dt_runtime_rank(mesh->rt);
    int stride[DT_MAX_DIMS];

    mesh->place = -1;
    for (int i = 0; i < mesh->n_ranks; i++)
        if (mesh->ranks[i] == me) mesh->place = i;
    dti_mesh_strides(mesh, stride);
    for (int d = 0; d < mesh->n_dims; d++)
        mesh->coord[d] = mesh->place < 0 ? -1 : mesh->place / stride[d] % mesh->size[d];
}

dt_status dti_mesh_make(dt_runtime *rt, int n_dims, char names[][DT_DIM_NAME_BYTES],
                        const int *sizes, const int *ranks, dt_mesh **out)
{
    dt_status st = DT_OK;
    dt_mesh *mesh = NULL;

    *out = NULL;
    DT_TRY(dti_new(sizeof *mesh, &mesh));
    atomic_init(&mesh->refs, 1);
    mesh->rt = rt;
    mesh->timeout_ms = rt->world->timeout_ms;
    mesh->n_dims = n_dims;
    mesh->n_ranks = 1;
    dti_runtime_count(rt, 1);
    for (int d = 0; d < n_dims; d++) {
        mesh->size[d] = sizes[d];
        mesh->n_ranks *= sizes[d];
        memcpy(mesh->names[d], names[d], DT_DIM_NAME_BYTES);
    }
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)mesh->n_ranks, sizeof(int), (void **)&mesh->ranks));
    DT_TRY_TO(fail, st,
              dti_alloc_array((size_t)1 << n_dims, sizeof(dti_comm *), (void **)&mesh->comms));
    memcpy(mesh->ranks, ranks, (size_t)mesh->n_ranks * sizeof(int));
    find_myself(mesh);
    *out = mesh;
    return DT_OK;

fail:
    dt_mesh_release(&mesh);
    return st;
}

/* Error records of this rank say where it is on the mesh that was made last. */
static void tell_where(const dt_mesh *mesh)
{
    char where[DT_ERROR_WHERE_BYTES] = "";
    size_t used = 0;

    if (!dt_mesh_is_member(mesh) || mesh->rt->dry) return;
    for (int d = 0; d < mesh->n_dims && used < sizeof where; d++) {
        const int n = snprintf(where + used, sizeof where - used, "%s%s=%d", d ? "," : "",
                               mesh->names[d], mesh->coord[d]);
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
    dt_status st = DT_OK;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES] = { { 0 } };
    int sizes[DT_MAX_DIMS];
    int n_dims, n_ranks;
    int *identity = NULL;

    DT_TRY(dt_mesh_parse(spec, &n_dims, names, sizes, &n_ranks));
    DT_CHECK(n_ranks <= rt->size, DT_ERR_ARG,
             "mesh \"%s\" needs %d ranks but the run has %d; start it with n_ranks = %d or make "
             "the mesh smaller",
             spec, n_ranks, rt->size, n_ranks);
    if (ranks == NULL) {
        DT_TRY(dti_alloc_array((size_t)n_ranks, sizeof *identity, (void **)&identity));
        for (int i = 0; i < n_ranks; i++) identity[i] = i;
        ranks = identity;
    }
    DT_TRY_TO(done, st, check_ranks(spec, ranks, n_ranks, rt->size));
    DT_TRY_TO(done, st, dti_mesh_make(rt, n_dims, names, sizes, ranks, out));
    tell_where(*out);
done:
    dti_free(identity);
    return st;
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
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];

    memcpy(names, mesh->names, sizeof names);
    DT_TRY(dti_mesh_make(rt, mesh->n_dims, names, mesh->size, mesh->ranks, out));
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
    dti_runtime_count(m->rt, -1);
    dti_free((void *)m->comms);
    dti_free(m->ranks);
    dti_free(m);
}

dt_runtime *dt_mesh_runtime(const dt_mesh *mesh)
{
    return mesh->rt;
}

int dt_mesh_n_dims(const dt_mesh *mesh)
{
    return mesh->n_dims;
}

int dt_mesh_n_ranks(const dt_mesh *mesh)
{
    return mesh->n_ranks;
}

static bool has_dim(const dt_mesh *mesh, int dim)
{
    return dim >= 0 && dim < mesh->n_dims;
}

int dt_mesh_dim_size(const dt_mesh *mesh, int dim)
{
    return has_dim(mesh, dim) ? mesh->size[dim] : -1;
}

const char *dt_mesh_dim_name(const dt_mesh *mesh, int dim)
{
    return has_dim(mesh, dim) ? mesh->names[dim] : NULL;
}

int dt_mesh_find_dim(const dt_mesh *mesh, const char *name)
{
    for (int d = 0; name != NULL && d < mesh->n_dims; d++)
        if (strcmp(mesh->names[d], name) == 0) return d;
    return -1;
}

bool dt_mesh_is_member(const dt_mesh *mesh)
{
    return mesh->place >= 0;
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
    return place >= 0 && place < mesh->n_ranks ? mesh->ranks[place] : -1;
}

bool dt_mesh_equal(const dt_mesh *a, const dt_mesh *b)
{
    if (a == b) return true;
    if (a == NULL || b == NULL || a->n_dims != b->n_dims) return false;
    for (int d = 0; d < a->n_dims; d++)
        if (a->size[d] != b->size[d] || strcmp(a->names[d], b->names[d]) != 0) return false;
    return memcmp(a->ranks, b->ranks, (size_t)a->n_ranks * sizeof(int)) == 0;
}
