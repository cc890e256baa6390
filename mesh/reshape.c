/* SPDX-License-Identifier: Apache-2.0
 *
 * Meshes made from meshes: dims merged, split and put together. All of it is arithmetic on spans;
 * communicators come when they are first used, and equal groups share one. */
#include <string.h>

#include "base/memory.h"
#include "mesh/mesh_internal.h"

/* --- flatten ---------------------------------------------------------------------------------- */

/* The merged dim's name: the caller's, or those of the dims joined by "_". */
static dt_status flat_name(const dt_mesh *mesh, uint32_t dims, const char *given,
                           char name[DT_DIM_NAME_BYTES])
{
    char text[DT_MAX_DIMS * DT_DIM_NAME_BYTES];
    int same;

    dti_mesh_dims_text(mesh, dims, "_", text, sizeof text);
    if (given == NULL) {
        DT_CHECK(strlen(text) < DT_DIM_NAME_BYTES, DT_ERR_ARG,
                 "the name \"%s\" of the flattened dim has more than %d characters; give it a "
                 "shorter one",
                 text, DT_DIM_NAME_BYTES - 1);
        given = text;
    }
    DT_TRY(dti_mesh_check_name(given));
    same = dt_mesh_find_dim(mesh, given);
    DT_CHECK(same < 0 || dims == 1u << same, DT_ERR_ARG,
             "the flattened dim cannot be called \"%s\": the mesh has a dim of that name", given);
    memcpy(name, given, strlen(given) + 1);
    return DT_OK;
}

dt_status dt_mesh_flatten(dt_mesh *mesh, const char *const *names, int n_names, const char *name,
                          dt_mesh **out)
{
    uint32_t dims;
    dt_status st = DT_OK;
    dt_mesh *part = NULL;
    dti_grid grid;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    DT_CHECK(n_names >= 0 && (n_names == 0 || names != NULL), DT_ERR_ARG,
             "%d names to flatten, and names is %s", n_names, names ? "given" : "NULL");
    dims = (1u << mesh->n_dims) - 1;
    if (n_names > 0) DT_TRY(dti_mesh_find_dims(mesh, names, n_names, &dims));
    grid = (dti_grid){ .n_dims = 1 };
    DT_TRY(flat_name(mesh, dims, name, grid.names[0]));
    if (n_names > 0)
        DT_TRY(dt_mesh_slice(mesh, names, n_names, &part));
    else
        part = dt_mesh_retain(mesh);
    grid.roster = part->grid.roster;
    grid.origin = part->grid.origin;
    for (int d = 0; d < part->n_dims; d++) dti_span_join(&grid.span[0], &part->grid.span[d]);
    st = dti_mesh_make_grid(mesh->rt, &grid, mesh, out);
    dt_mesh_release(&part);
    if (st != DT_OK) return dti_error_frame(st, __func__, __FILE__, __LINE__);
    dti_mesh_inherit(*out, 0, mesh, dims);
    return DT_OK;
}

/* --- unflatten -------------------------------------------------------------------------------- */

/* Parts of a span, row-major. False if the parts would cut through its pairs. */
static bool split_span(const dti_span *span, int n, const int *sizes, dti_span *parts)
{
    int stride = 1;

    for (int i = n - 1; i >= 0; i--) {
        if (!dti_span_pick(span, sizes[i], stride, &parts[i])) return false;
        stride *= sizes[i];
    }
    return true;
}

/* The mesh with dim `dim` replaced by the parts. */
static dt_status split_dim(dt_mesh *mesh, int dim, int n, char names[][DT_DIM_NAME_BYTES],
                           const int *sizes, dt_mesh **out)
{
    dti_grid grid = { .roster = mesh->grid.roster, .origin = mesh->grid.origin };
    dti_span parts[DT_MAX_DIMS];
    int parent[DT_MAX_DIMS];

    if (!split_span(&mesh->grid.span[dim], n, sizes, parts)) return DT_ERR_UNSUPPORTED;
    for (int d = 0; d < mesh->n_dims; d++) {
        if (d != dim) parent[grid.n_dims] = d;
        if (d != dim) dti_grid_add(&grid, mesh, d);
        for (int i = 0; d == dim && i < n; i++) {
            parent[grid.n_dims] = d;
            memcpy(grid.names[grid.n_dims], names[i], DT_DIM_NAME_BYTES);
            grid.span[grid.n_dims++] = parts[i];
        }
    }
    DT_TRY(dti_mesh_make_grid(mesh->rt, &grid, mesh, out));
    for (int d = 0; d < grid.n_dims; d++) dti_mesh_inherit(*out, d, mesh, 1u << parent[d]);
    return DT_OK;
}

/* The same mesh over a list of its own ranks, in which every dim is a single pair. */
static dt_status relist(const dt_mesh *mesh, dt_mesh **out)
{
    dt_status st = DT_OK;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int *ranks = NULL;

    DT_TRY(dti_alloc_array((size_t)mesh->n_ranks, sizeof *ranks, (void **)&ranks));
    for (int i = 0; i < mesh->n_ranks; i++) ranks[i] = dt_mesh_rank_at(mesh, i);
    memcpy(names, mesh->grid.names, sizeof names);
    DT_TRY_TO(done, st, dti_mesh_make(mesh->rt, mesh->n_dims, names, mesh->size, ranks, out));
done:
    dti_free(ranks);
    return st;
}

static dt_status check_parts(const dt_mesh *mesh, int dim, const char *spec, int n,
                             char names[][DT_DIM_NAME_BYTES], int n_ranks)
{
    DT_CHECK(n_ranks == mesh->size[dim], DT_ERR_ARG, "\"%s\" are %d ranks, but dim \"%s\" has %d",
             spec, n_ranks, mesh->grid.names[dim], mesh->size[dim]);
    DT_CHECK(mesh->n_dims - 1 + n <= DT_MAX_DIMS, DT_ERR_ARG,
             "with \"%s\" for dim \"%s\" the mesh has %d dims; %d are possible", spec,
             mesh->grid.names[dim], mesh->n_dims - 1 + n, DT_MAX_DIMS);
    for (int i = 0; i < n; i++) {
        const int same = dt_mesh_find_dim(mesh, names[i]);
        DT_CHECK(same < 0 || same == dim, DT_ERR_ARG,
                 "\"%s\": the mesh has another dim of the name \"%s\"", spec, names[i]);
    }
    return DT_OK;
}

dt_status dt_mesh_unflatten(dt_mesh *mesh, const char *name, const char *spec, dt_mesh **out)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES] = { { 0 } };
    int sizes[DT_MAX_DIMS];
    uint32_t dims;
    int n, n_ranks, dim;
    dt_mesh *listed;
    dt_status st;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && name != NULL && spec != NULL, DT_ERR_ARG,
             "mesh, name or spec is NULL");
    DT_TRY(dti_mesh_find_dims(mesh, &name, 1, &dims));
    dim = dt_mesh_find_dim(mesh, name);
    DT_TRY(dt_mesh_parse(spec, &n, names, sizes, &n_ranks));
    DT_TRY(check_parts(mesh, dim, spec, n, names, n_ranks));
    st = split_dim(mesh, dim, n, names, sizes, out);
    if (st != DT_ERR_UNSUPPORTED) return st;
    DT_TRY(relist(mesh, &listed));
    listed->timeout_ms = mesh->timeout_ms;
    listed->costs = mesh->costs;
    st = split_dim(listed, dim, n, names, sizes, out);
    dt_mesh_release(&listed);
    return st;
}

/* --- concatenate ------------------------------------------------------------------------------ */

static bool same_roster(const dti_roster *a, const dti_roster *b)
{
    if (a == b) return true;
    return a != NULL && b != NULL && a->n == b->n &&
           memcmp(a->ranks, b->ranks, (size_t)a->n * sizeof a->ranks[0]) == 0;
}

/* The dims of all meshes in one grid, whose origin is that of none yet. */
static dt_status gather_dims(dt_mesh *const *meshes, int n, dti_grid *grid)
{
    dti_span all = { 0 };

    *grid = (dti_grid){ .roster = meshes[0]->grid.roster };
    for (int i = 0; i < n; i++) {
        const dt_mesh *m = meshes[i];
        DT_CHECK(m->rt == meshes[0]->rt && same_roster(m->grid.roster, grid->roster), DT_ERR_ARG,
                 "meshes 0 and %d were made from different lists of ranks; join slices of one mesh",
                 i);
        DT_CHECK(grid->n_dims + m->n_dims <= DT_MAX_DIMS, DT_ERR_ARG,
                 "the meshes have more than %d dims together", DT_MAX_DIMS);
        for (int d = 0; d < m->n_dims; d++) {
            for (int k = 0; k < grid->n_dims; k++)
                DT_CHECK(strcmp(grid->names[k], m->grid.names[d]) != 0, DT_ERR_ARG,
                         "dim \"%s\" of mesh %d is there already", m->grid.names[d], i);
            dti_grid_add(grid, m, d);
            if (all.n + m->grid.span[d].n <= DTI_SPAN_MAX) dti_span_join(&all, &m->grid.span[d]);
            DT_CHECK(!dti_span_overlaps(&all), DT_ERR_ARG,
                     "dim \"%s\" of mesh %d runs through ranks of the dims before it; join dims "
                     "that cross in one rank only",
                     m->grid.names[d], i);
        }
    }
    return DT_OK;
}

/* Where all meshes cross: for members this rank, for outsiders of all of them the common origin. */
static dt_status find_origin(dt_mesh *const *meshes, int n, dti_grid *grid)
{
    const dt_mesh *first = meshes[0];
    int origin = first->grid.origin;

    if (first->place >= 0) origin = dti_roster_find(grid->roster, dt_runtime_rank(first->rt));
    for (int i = 0; i < n; i++) {
        const dt_mesh *m = meshes[i];
        DT_CHECK((m->place >= 0) == (first->place >= 0), DT_ERR_ARG,
                 "rank %d is a member of mesh %d but not of mesh %d", dt_runtime_rank(m->rt),
                 m->place >= 0 ? i : 0, m->place >= 0 ? 0 : i);
        DT_CHECK(m->place >= 0 || m->grid.origin == origin, DT_ERR_ARG,
                 "meshes 0 and %d do not begin at the same rank", i);
        if (m->place >= 0) origin -= dti_grid_place(&m->grid, m->coord) - m->grid.origin;
    }
    grid->origin = origin;
    return DT_OK;
}

dt_status dt_mesh_concatenate(dt_mesh *const *meshes, int n_meshes, dt_mesh **out)
{
    dti_grid grid;
    int last[DT_MAX_DIMS], end;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(meshes != NULL && n_meshes >= 1, DT_ERR_ARG, "there is no mesh to concatenate");
    for (int i = 0; i < n_meshes; i++)
        DT_CHECK(meshes[i] != NULL, DT_ERR_ARG, "mesh %d is NULL", i);
    DT_TRY(gather_dims(meshes, n_meshes, &grid));
    DT_TRY(find_origin(meshes, n_meshes, &grid));
    for (int d = 0; d < grid.n_dims; d++) last[d] = dti_span_count(&grid.span[d]) - 1;
    end = dti_grid_place(&grid, last);
    DT_CHECK(
        grid.origin >= 0 && end < (grid.roster ? grid.roster->n : dt_runtime_size(meshes[0]->rt)),
        DT_ERR_ARG, "the meshes do not fit together: place %d of their ranks does not exist", end);
    DT_TRY(dti_mesh_make_grid(meshes[0]->rt, &grid, meshes[0], out));
    for (int i = 0, at = 0; i < n_meshes; i++)
        for (int d = 0; d < meshes[i]->n_dims; d++)
            dti_mesh_inherit(*out, at++, meshes[i], 1u << d);
    return DT_OK;
}
