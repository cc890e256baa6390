/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of a mesh: sub-meshes and stages, and the communicators over any of its dims. */
#include <string.h>

#include "base/memory.h"
#include "base/writer.h"
#include "mesh/mesh_internal.h"
#include "mesh/runtime_internal.h"

void dti_mesh_dims_text(const dt_mesh *mesh, uint32_t dims, const char *separator, char *text,
                        size_t text_bytes)
{
    dti_writer w = { text, text_bytes, 0 };

    text[0] = '\0';
    for (int d = 0; d < mesh->n_dims; d++)
        if (dims >> d & 1u) dti_put(&w, "%s%s", w.used > 0 ? separator : "", mesh->grid.names[d]);
}

dt_status dti_mesh_find_dims(const dt_mesh *mesh, const char *const *names, int n_names,
                             uint32_t *dims)
{
    char known[DT_MAX_DIMS * DT_DIM_NAME_BYTES];
    int last = -1;

    *dims = 0;
    dti_mesh_dims_text(mesh, ~0u, ",", known, sizeof known);
    for (int i = 0; i < n_names; i++) {
        const int dim = dt_mesh_find_dim(mesh, names[i]);
        DT_CHECK(names[i] != NULL, DT_ERR_ARG, "name %d of %d is NULL", i, n_names);
        DT_CHECK(dim >= 0, DT_ERR_ARG, "the mesh has no dim \"%s\"; it has \"%s\"", names[i],
                 known);
        DT_CHECK(dim != last, DT_ERR_ARG, "dim \"%s\" is named twice", names[i]);
        DT_CHECK(dim > last, DT_ERR_ARG,
                 "dim \"%s\" comes before \"%s\" in the mesh; name dims from the outermost on",
                 names[i], mesh->grid.names[last]);
        *dims |= 1u << dim;
        last = dim;
    }
    return DT_OK;
}

/* The grid of the named dims through this rank; through coordinates 0 for outsiders. */
static void slice_grid(const dt_mesh *mesh, uint32_t dims, dti_grid *grid)
{
    int coord[DT_MAX_DIMS] = { 0 };

    *grid = (dti_grid){ .roster = mesh->grid.roster };
    for (int d = 0; d < mesh->n_dims; d++) {
        if (dims >> d & 1u)
            dti_grid_add(grid, mesh, d);
        else if (mesh->place >= 0)
            coord[d] = mesh->coord[d];
    }
    grid->origin = dti_grid_place(&mesh->grid, coord);
}

dt_status dt_mesh_slice(dt_mesh *mesh, const char *const *names, int n_names, dt_mesh **out)
{
    dti_grid grid;
    uint32_t dims;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && names != NULL, DT_ERR_ARG, "mesh or names is NULL");
    DT_CHECK(n_names >= 1, DT_ERR_ARG, "a slice needs the name of a dim");
    DT_TRY(dti_mesh_find_dims(mesh, names, n_names, &dims));
    if (n_names == mesh->n_dims) {
        *out = dt_mesh_retain(mesh);
        return DT_OK;
    }
    slice_grid(mesh, dims, &grid);
    DT_TRY(dti_mesh_make_grid(mesh->rt, &grid, mesh, out));
    for (int d = 0, at = 0; d < mesh->n_dims; d++)
        if (dims >> d & 1u) dti_mesh_inherit(*out, at++, mesh, 1u << d);
    return DT_OK;
}

dt_status dt_mesh_stage(dt_mesh *mesh, const char *name, int i, dt_mesh **out)
{
    int coord[DT_MAX_DIMS] = { 0 };
    uint32_t dims;
    dti_grid grid;
    int dim;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && name != NULL, DT_ERR_ARG, "mesh or name is NULL");
    DT_TRY(dti_mesh_find_dims(mesh, &name, 1, &dims));
    dim = dt_mesh_find_dim(mesh, name);
    DT_CHECK(i >= 0 && i < mesh->size[dim], DT_ERR_ARG,
             "stage %d along dim \"%s\", which has stages 0..%d", i, name, mesh->size[dim] - 1);
    if (mesh->size[dim] == 1) {
        *out = dt_mesh_retain(mesh);
        return DT_OK;
    }
    coord[dim] = i;
    grid = mesh->grid;
    grid.origin = dti_grid_place(&mesh->grid, coord);
    grid.span[dim] = (dti_span){ 0 };
    DT_TRY(dti_mesh_make_grid(mesh->rt, &grid, mesh, out));
    for (int d = 0; d < mesh->n_dims; d++) dti_mesh_inherit(*out, d, mesh, 1u << d);
    return DT_OK;
}

/* A new one, or one that another mesh of this rank has made. */
static dt_status find_comm(dt_mesh *mesh, uint32_t dims, const int *along, dti_comm **out)
{
    dt_status st = DT_OK;
    uint32_t named = 0;
    int *ranks = NULL;
    char name[48];
    int n;

    for (int d = 0; d < mesh->n_dims; d++) /* dims of one rank have no part in it */
        if ((dims >> d & 1u) != 0 && along[d] > 1) named |= 1u << d;
    dti_mesh_dims_text(mesh, named != 0 ? named : dims, ",", name, sizeof name);
    DT_CHECK(mesh->place >= 0, DT_ERR_ARG,
             "rank %d is not a member of the mesh and cannot communicate on \"%s\"",
             dt_runtime_rank(mesh->rt), name);
    DT_TRY(dti_alloc_array((size_t)mesh->n_ranks, sizeof *ranks, (void **)&ranks));
    n = dti_mesh_block(mesh, dims, along, mesh->coord, ranks);
    DT_TRY_TO(done, st, dti_runtime_comm(mesh->rt, ranks, n, name, out));
done:
    dti_free(ranks);
    return st;
}

dt_status dti_mesh_comm(dt_mesh *mesh, uint32_t dims, dti_comm **out)
{
    *out = NULL;
    DT_CHECK(!dti_runtime_has_ended(mesh->rt), DT_ERR_ARG,
             "the run that this mesh belongs to has ended");
    DT_CHECK(dims < 1u << mesh->n_dims, DT_ERR_ARG, "dims 0x%x of a mesh that has %d", dims,
             mesh->n_dims);
    if (mesh->comms[dims] == NULL) DT_TRY(find_comm(mesh, dims, mesh->size, &mesh->comms[dims]));
    *out = mesh->comms[dims];
    (*out)->timeout_ms = mesh->timeout_ms; /* equal groups of other meshes may have set theirs */
    return DT_OK;
}

static bool is_part(const dti_mesh_part *p, const dt_mesh *mesh, uint32_t dims, const int *along)
{
    bool same = p->dims == dims;

    for (int d = 0; d < mesh->n_dims && same; d++)
        same = (dims >> d & 1u) == 0 || p->along[d] == along[d];
    return same;
}

static dt_status add_part(dt_mesh *mesh, uint32_t dims, const int *along, dti_mesh_part **out)
{
    dti_mesh_part *part;
    dt_status st;

    DT_TRY(dti_new(sizeof *part, &part));
    part->dims = dims;
    memcpy(part->along, along, (size_t)mesh->n_dims * sizeof *along);
    st = find_comm(mesh, dims, along, &part->comm);
    if (st != DT_OK) {
        dti_free(part);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    part->next = mesh->parts;
    mesh->parts = *out = part;
    return DT_OK;
}

dt_status dti_mesh_comm_along(dt_mesh *mesh, uint32_t dims, const int *along, dti_comm **out)
{
    dti_mesh_part *part = mesh->parts;
    bool whole = true;

    *out = NULL;
    for (int d = 0; d < mesh->n_dims; d++)
        whole = whole && ((dims >> d & 1u) == 0 || along[d] == mesh->size[d]);
    if (whole) return dti_mesh_comm(mesh, dims, out);
    DT_CHECK(!dti_runtime_has_ended(mesh->rt), DT_ERR_ARG,
             "the run that this mesh belongs to has ended");
    while (part != NULL && !is_part(part, mesh, dims, along)) part = part->next;
    if (part == NULL) DT_TRY(add_part(mesh, dims, along, &part));
    *out = part->comm;
    (*out)->timeout_ms = mesh->timeout_ms;
    return DT_OK;
}
