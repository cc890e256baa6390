/* SPDX-License-Identifier: Apache-2.0
 *
 * A tensor from pieces whose sizes the ranks know and the caller does not: its global shape is what
 * the pieces add up to. */
#include <dtensor/inspect.h>

#include "base/memory.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

/* What a rank tells the others. */
typedef struct piece {
    int64_t n_axes;
    int64_t extent[DT_MAX_AXES];
} piece;
enum { PIECE_WORDS = sizeof(piece) / sizeof(int64_t) };

typedef struct assembly {
    dt_mesh *mesh;
    int n_axes;
    const piece *pieces;             /* [n_ranks] by place */
    dt_placement place[DT_MAX_DIMS]; /* normal axes; offsets where chunks do not fit */
    int64_t *offsets;                /* [sum of dim sizes + n_dims] */
    int64_t shape[DT_MAX_AXES];
} assembly;

/* The mesh dim that cuts `axis`, -1 for none. */
static dt_status cut_of(const assembly *a, int axis, int *dim)
{
    *dim = -1;
    for (int m = 0; m < dt_mesh_n_dims(a->mesh); m++) {
        if (a->place[m].kind != DT_PLACE_SHARD || a->place[m].axis != axis) continue;
        DT_CHECK(*dim < 0, DT_ERR_UNSUPPORTED,
                 "mesh dims \"%s\" and \"%s\" both cut axis %d: use dt_from_local() with the "
                 "global shape",
                 dt_mesh_dim_name(a->mesh, *dim), dt_mesh_dim_name(a->mesh, m), axis);
        *dim = m;
    }
    return DT_OK;
}

/* How many places one step along `dim` is, and how long the dim; all ranks at once for none. */
static void steps_along(const dt_mesh *mesh, int dim, int *stride, int *size)
{
    *stride = 1;
    for (int m = dt_mesh_n_dims(mesh) - 1; m > dim; m--) *stride *= dt_mesh_dim_size(mesh, m);
    *size = dim < 0 ? 1 : dt_mesh_dim_size(mesh, dim);
}

/* Pieces of one axis: ranks of one coordinate of the dim that cuts it have the same rows, those of
 * the next coordinate the rows that follow. */
static dt_status assemble_axis(assembly *a, int axis, int64_t *offsets)
{
    int dim, stride, size;
    bool chunks = true;

    DT_TRY(cut_of(a, axis, &dim));
    steps_along(a->mesh, dim, &stride, &size);
    for (int p = 0; p < dt_mesh_n_ranks(a->mesh); p++) {
        const int first = p / stride % size * stride; /* the first place of p's coordinate */
        DT_CHECK(a->pieces[p].extent[axis] == a->pieces[first].extent[axis], DT_ERR_SHAPE,
                 "rank %d has %lld elements of axis %d and rank %d has %lld, but they are not cut "
                 "from each other",
                 dt_mesh_rank_at(a->mesh, first), (long long)a->pieces[first].extent[axis], axis,
                 dt_mesh_rank_at(a->mesh, p), (long long)a->pieces[p].extent[axis]);
    }
    offsets[0] = 0;
    for (int k = 0; k < size; k++) offsets[k + 1] = offsets[k] + a->pieces[k * stride].extent[axis];
    a->shape[axis] = offsets[size];
    if (dim < 0) return DT_OK;
    for (int k = 0; k < size; k++) {
        int64_t begin, end;
        dti_shard_range(&a->place[dim], a->shape[axis], size, k, &begin, &end);
        chunks = chunks && end - begin == offsets[k + 1] - offsets[k];
    }
    if (!chunks) a->place[dim] = dt_shard_offsets(axis, size + 1, offsets);
    return DT_OK;
}

static dt_status check_places(assembly *a, const dt_placement *place)
{
    for (int m = 0; m < dt_mesh_n_dims(a->mesh); m++) {
        const dt_placement *p = &place[m];
        a->place[m] = *p;
        if (p->kind != DT_PLACE_SHARD) continue;
        DT_CHECK(p->n_offsets == 0 && p->n_blocks == 0 && p->replicas <= 1, DT_ERR_UNSUPPORTED,
                 "mesh dim \"%s\": pieces say where offsets are; use a plain Shard, or "
                 "dt_from_local() with the global shape",
                 dt_mesh_dim_name(a->mesh, m));
        if (p->axis < 0) a->place[m].axis += a->n_axes;
        if (a->place[m].unit < 1) a->place[m].unit = 1;
        a->place[m].replicas = 1;
    }
    return DT_OK;
}

/* Collective: all pieces, by place. */
static dt_status gather(dt_mesh *mesh, const piece *mine, piece *all)
{
    dt_status st = DT_OK;
    int64_t *counts = NULL;
    dti_comm *comm;

    DT_TRY(dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, &comm));
    DT_TRY(dti_alloc_array((size_t)comm->size, sizeof *counts, (void **)&counts));
    for (int r = 0; r < comm->size; r++) counts[r] = PIECE_WORDS;
    st = dti_all_gather(comm, mine, all, counts, NULL, DT_I64);
    dti_free(counts);
    return st;
}

static dt_status assemble(assembly *a, const piece *mine, piece *all)
{
    const int n_ranks = dt_mesh_n_ranks(a->mesh);
    int64_t *offsets = a->offsets;
    int dim;

    DT_TRY(gather(a->mesh, mine, all));
    a->pieces = all;
    for (int p = 1; p < n_ranks; p++)
        DT_CHECK(all[p].n_axes == all[0].n_axes, DT_ERR_SHAPE,
                 "rank %d passes a piece of %lld axes and rank %d one of %lld",
                 dt_mesh_rank_at(a->mesh, 0), (long long)all[0].n_axes, dt_mesh_rank_at(a->mesh, p),
                 (long long)all[p].n_axes);
    for (int axis = 0; axis < a->n_axes; axis++) {
        DT_TRY(assemble_axis(a, axis, offsets));
        DT_TRY(cut_of(a, axis, &dim));
        offsets += dim >= 0 ? dt_mesh_dim_size(a->mesh, dim) + 1 : 0;
    }
    return DT_OK;
}

static dt_status check_pieces(dt_mesh *mesh, const dt_placement *place, int n_axes,
                              const int64_t *local_shape)
{
    const dt_layout *layout;

    DT_CHECK(!dt_runtime_is_dry(dt_mesh_runtime(mesh)), DT_ERR_UNSUPPORTED,
             "a dry mesh has no ranks that could say how large their pieces are; use "
             "dt_from_local() with the global shape");
    DT_CHECK(place != NULL, DT_ERR_ARG, "place is NULL");
    DT_CHECK(n_axes >= 0 && n_axes <= DT_MAX_AXES, DT_ERR_ARG, "%d axes: 0 to %d are possible",
             n_axes, DT_MAX_AXES);
    DT_CHECK(local_shape != NULL || n_axes == 0 || !dt_mesh_is_member(mesh), DT_ERR_ARG,
             "local_shape is NULL");
    for (int axis = 0; axis < n_axes && local_shape != NULL; axis++)
        DT_CHECK(local_shape[axis] >= 0, DT_ERR_SHAPE, "axis %d has extent %lld", axis,
                 (long long)local_shape[axis]);
    DT_TRY(dt_layout_get(mesh, n_axes, place, NULL, &layout));
    return DT_OK;
}

dt_status dt_from_pieces(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                         const int64_t *local_shape, const void *data, dt_tensor **out)
{
    assembly a = { .mesh = mesh, .n_axes = n_axes };
    size_t n_offsets = 2;
    dt_status st = DT_OK;
    piece mine = { .n_axes = n_axes }, *all = NULL;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    DT_TRY_TO(done, st, check_pieces(mesh, place, n_axes, local_shape));
    DT_TRY_TO(done, st, check_places(&a, place));
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++)
        n_offsets += (size_t)dt_mesh_dim_size(mesh, m) + 1;
    DT_TRY_TO(done, st, dti_alloc_array(n_offsets, sizeof(int64_t), (void **)&a.offsets));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)dt_mesh_n_ranks(mesh), sizeof *all, (void **)&all));
    if (dt_mesh_is_member(mesh)) {
        for (int axis = 0; axis < n_axes; axis++) mine.extent[axis] = local_shape[axis];
        DT_TRY_TO(done, st, assemble(&a, &mine, all));
    }
    DT_TRY_TO(done, st, dt_from_local(mesh, a.place, dtype, n_axes, a.shape, data, out));
done:
    if (st != DT_OK) st = dti_runtime_alone(dt_mesh_runtime(mesh), st);
    dti_free(all);
    dti_free(a.offsets);
    return st;
}
