/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of a mesh: sub-meshes, and the communicators over any of its dims. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "mesh/mesh_internal.h"
#include "mesh/runtime_internal.h"

int dti_mesh_fiber(const dt_mesh *mesh, uint32_t dims, const int *coord, int *world_ranks)
{
    int stride[DT_MAX_DIMS];
    int at[DT_MAX_DIMS] = { 0 };
    int n = 0, place = 0;

    dti_mesh_strides(mesh, stride);
    for (int d = 0; d < mesh->n_dims; d++)
        if ((dims >> d & 1u) == 0) place += coord[d] * stride[d];
    for (;;) {
        int d = mesh->n_dims - 1;
        world_ranks[n++] = mesh->ranks[place];
        for (; d >= 0; d--) {
            if ((dims >> d & 1u) == 0) continue;
            place += stride[d];
            if (++at[d] < mesh->size[d]) break;
            place -= mesh->size[d] * stride[d];
            at[d] = 0;
        }
        if (d < 0) return n;
    }
}

/* "dp,tp": what errors call the communicator. Cut off if it is long. */
static void name_of(const dt_mesh *mesh, uint32_t dims, char *name, size_t bytes)
{
    size_t used = 0;

    name[0] = '\0';
    for (int d = 0; d < mesh->n_dims && used < bytes; d++) {
        int n;
        if ((dims >> d & 1u) == 0) continue;
        n = snprintf(name + used, bytes - used, "%s%s", used ? "," : "", mesh->names[d]);
        used += n > 0 ? (size_t)n : 0;
    }
}

/* Names to bits; they have to be distinct and in mesh order. */
static dt_status find_dims(const dt_mesh *mesh, const char *const *names, int n_names,
                           uint32_t *dims)
{
    char known[DT_MAX_DIMS * DT_DIM_NAME_BYTES];
    int last = -1;

    *dims = 0;
    name_of(mesh, ~0u, known, sizeof known);
    for (int i = 0; i < n_names; i++) {
        const int dim = dt_mesh_find_dim(mesh, names[i]);
        DT_CHECK(dim >= 0, DT_ERR_ARG, "the mesh has no dim \"%s\"; it has \"%s\"",
                 names[i] ? names[i] : "(null)", known);
        DT_CHECK(dim != last, DT_ERR_ARG, "dim \"%s\" is named twice", names[i]);
        DT_CHECK(dim > last, DT_ERR_ARG,
                 "dim \"%s\" comes before \"%s\" in the mesh; name dims from the outermost on",
                 names[i], mesh->names[last]);
        *dims |= 1u << dim;
        last = dim;
    }
    return DT_OK;
}

static dt_status make_slice(dt_mesh *mesh, uint32_t dims, dt_mesh **out)
{
    static const int origin[DT_MAX_DIMS] = { 0 };
    dt_status st = DT_OK;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS];
    int n_dims = 0;
    int *ranks = NULL;

    for (int d = 0; d < mesh->n_dims; d++) {
        if ((dims >> d & 1u) == 0) continue;
        memcpy(names[n_dims], mesh->names[d], DT_DIM_NAME_BYTES);
        sizes[n_dims++] = mesh->size[d];
    }
    DT_TRY(dti_alloc_array((size_t)mesh->n_ranks, sizeof *ranks, (void **)&ranks));
    (void)dti_mesh_fiber(mesh, dims, mesh->place < 0 ? origin : mesh->coord, ranks);
    DT_TRY_TO(done, st, dti_mesh_make(mesh->rt, n_dims, names, sizes, ranks, out));
    (*out)->timeout_ms = mesh->timeout_ms;
done:
    dti_free(ranks);
    return st;
}

dt_status dt_mesh_slice(dt_mesh *mesh, const char *const *names, int n_names, dt_mesh **out)
{
    uint32_t dims;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && names != NULL, DT_ERR_ARG, "mesh or names is NULL");
    DT_CHECK(n_names >= 1, DT_ERR_ARG, "a slice needs the name of a dim");
    DT_TRY(find_dims(mesh, names, n_names, &dims));
    if (n_names == mesh->n_dims)
        *out = dt_mesh_retain(mesh);
    else
        DT_TRY(make_slice(mesh, dims, out));
    return DT_OK;
}

/* A new one, or one that another mesh of this rank has made. */
static dt_status find_comm(dt_mesh *mesh, uint32_t dims, dti_comm **out)
{
    dt_status st = DT_OK;
    int *ranks = NULL;
    char name[48];
    int n;

    name_of(mesh, dims, name, sizeof name);
    DT_CHECK(mesh->place >= 0, DT_ERR_ARG,
             "rank %d is not a member of the mesh and cannot communicate on \"%s\"",
             dt_runtime_rank(mesh->rt), name);
    DT_TRY(dti_alloc_array((size_t)mesh->n_ranks, sizeof *ranks, (void **)&ranks));
    n = dti_mesh_fiber(mesh, dims, mesh->coord, ranks);
    DT_TRY_TO(done, st, dti_runtime_comm(mesh->rt, ranks, n, name, out));
    mesh->comms[dims] = *out;
done:
    dti_free(ranks);
    return st;
}

dt_status dti_mesh_comm(dt_mesh *mesh, uint32_t dims, dti_comm **out)
{
    *out = NULL;
    DT_CHECK(dims < 1u << mesh->n_dims, DT_ERR_ARG, "dims 0x%x of a mesh that has %d", dims,
             mesh->n_dims);
    if (mesh->comms[dims] == NULL) DT_TRY(find_comm(mesh, dims, out));
    *out = mesh->comms[dims];
    (*out)->timeout_ms = mesh->timeout_ms; /* equal groups of other meshes may have set theirs */
    return DT_OK;
}
