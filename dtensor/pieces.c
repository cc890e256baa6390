/* SPDX-License-Identifier: Apache-2.0
 *
 * A tensor from pieces whose sizes the ranks know and the caller does not: its global shape is what
 * the pieces add up to. */
#include <dtensor/inspect.h>

#include <stdio.h>

#include "base/memory.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

/* What a rank tells the others. */
typedef struct piece {
    int64_t status; /* of its own arguments */
    int64_t dtype;
    int64_t layout; /* hash of the placements as passed */
    int64_t n_axes;
    int64_t extent[DT_MAX_AXES];
    char why[DTI_CLAIM_WHY_BYTES];
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
    for (int k = 0; k < size; k++) {
        const int64_t rows = a->pieces[k * stride].extent[axis];
        DT_CHECK(rows <= INT64_MAX - offsets[k], DT_ERR_SHAPE,
                 "the pieces of axis %d have more rows together than 64 bits count", axis);
        offsets[k + 1] = offsets[k] + rows;
    }
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

/* Collective over the world, so that ranks outside the mesh know the tensor too: what all ranks
 * pass, by rank. */
static dt_status gather(dt_runtime *rt, const piece *mine, piece *all)
{
    dti_comm *world = dti_runtime_world(rt);
    int64_t *counts = NULL;
    dt_status st = DT_OK;

    DT_TRY(dti_alloc_array((size_t)world->size, sizeof *counts, (void **)&counts));
    for (int r = 0; r < world->size; r++) counts[r] = PIECE_WORDS;
    st = dti_all_gather(world, mine, all, counts, NULL, DT_I64);
    dti_free(counts);
    return st;
}

/* One answer on every rank that was itself right. */
static dt_status compare_ranks(const piece *all, int n)
{
    for (int r = 0; r < n; r++)
        DT_CHECK(all[r].status == DT_OK, DT_ERR_ARG, "what rank %d passes is invalid: %s", r,
                 all[r].why);
    for (int r = 1; r < n; r++) {
        DT_CHECK(all[r].n_axes == all[0].n_axes, DT_ERR_SHAPE,
                 "rank 0 passes a piece of %lld axes and rank %d one of %lld",
                 (long long)all[0].n_axes, r, (long long)all[r].n_axes);
        DT_CHECK(all[r].dtype == all[0].dtype, DT_ERR_SHAPE, "rank 0 passes %s and rank %d %s",
                 dt_dtype_name((dt_dtype)all[0].dtype), r, dt_dtype_name((dt_dtype)all[r].dtype));
        DT_CHECK(all[r].layout == all[0].layout, DT_ERR_LAYOUT,
                 "ranks 0 and %d pass different placements", r);
    }
    return DT_OK;
}

/* Global shape and offsets. `by_rank` has room for as many pieces again, of the mesh by place. */
static dt_status assemble(assembly *a, piece *by_rank, int n_world)
{
    piece *pieces = by_rank + n_world;
    int64_t *offsets = a->offsets;
    int dim;

    DT_TRY(compare_ranks(by_rank, n_world));
    for (int p = 0; p < dt_mesh_n_ranks(a->mesh); p++)
        pieces[p] = by_rank[dt_mesh_rank_at(a->mesh, p)];
    a->pieces = pieces;
    for (int axis = 0; axis < a->n_axes; axis++) {
        DT_TRY(assemble_axis(a, axis, offsets));
        DT_TRY(cut_of(a, axis, &dim));
        offsets += dim >= 0 ? dt_mesh_dim_size(a->mesh, dim) + 1 : 0;
    }
    return DT_OK;
}

static dt_status check_pieces(assembly *a, const dt_placement *place, dt_dtype dtype,
                              const int64_t *local_shape, const void *data, piece *mine)
{
    const bool member = dt_mesh_is_member(a->mesh);
    const dt_layout *layout;
    bool empty = !member;
    int dim;

    DT_CHECK(place != NULL, DT_ERR_ARG, "place is NULL");
    DT_CHECK(dt_dtype_size(dtype) > 0, DT_ERR_ARG, "%d is no dtype", (int)dtype);
    DT_CHECK(a->n_axes >= 0 && a->n_axes <= DT_MAX_AXES, DT_ERR_ARG,
             "%d axes: 0 to %d are possible", a->n_axes, DT_MAX_AXES);
    DT_CHECK(local_shape != NULL || a->n_axes == 0 || !member, DT_ERR_ARG, "local_shape is NULL");
    for (int axis = 0; axis < a->n_axes && member; axis++) {
        DT_CHECK(local_shape[axis] >= 0, DT_ERR_SHAPE, "axis %d has extent %lld", axis,
                 (long long)local_shape[axis]);
        mine->extent[axis] = local_shape[axis];
        empty = empty || local_shape[axis] == 0;
    }
    DT_CHECK(data != NULL || empty, DT_ERR_ARG, "data is NULL");
    DT_TRY(dt_layout_get(a->mesh, a->n_axes, place, NULL, &layout));
    mine->layout = (int64_t)layout->hash;
    DT_TRY(check_places(a, place));
    for (int axis = 0; axis < a->n_axes; axis++) DT_TRY(cut_of(a, axis, &dim));
    return DT_OK;
}

/* Every rank hears of every other's arguments before any returns, so none waits for one that left.
 * Own mistakes keep their own message. */
static dt_status join(assembly *a, piece *mine, dt_status own, piece *by_rank)
{
    dt_runtime *rt = dt_mesh_runtime(a->mesh);
    const dt_error error = *dt_last_error();

    mine->status = own;
    if (own != DT_OK)
        (void)snprintf(mine->why, sizeof mine->why, "%.*s", (int)sizeof mine->why - 1,
                       error.message);
    DT_TRY(gather(rt, mine, by_rank));
    if (own == DT_OK) DT_TRY(assemble(a, by_rank, dti_runtime_world(rt)->size));
    if (own != DT_OK) dti_error_restore(&error);
    return own;
}

dt_status dt_from_pieces(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                         const int64_t *local_shape, const void *data, dt_tensor **out)
{
    assembly a = { .mesh = mesh, .n_axes = n_axes };
    piece mine = { .n_axes = n_axes, .dtype = dtype }, *by_rank = NULL;
    size_t n_offsets = 2, n_world;
    dt_status st = DT_OK, own;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    DT_CHECK(!dt_runtime_is_dry(dt_mesh_runtime(mesh)), DT_ERR_UNSUPPORTED,
             "a dry mesh has no ranks that could say how large their pieces are; use "
             "dt_from_local() with the global shape");
    n_world = (size_t)dti_runtime_world(dt_mesh_runtime(mesh))->size;
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++)
        n_offsets += (size_t)dt_mesh_dim_size(mesh, m) + 1;
    DT_TRY_TO(done, st, dti_alloc_array(n_offsets, sizeof(int64_t), (void **)&a.offsets));
    DT_TRY_TO(done, st, dti_alloc_array(2 * n_world, sizeof *by_rank, (void **)&by_rank));
    own = check_pieces(&a, place, dtype, local_shape, data, &mine);
    DT_TRY_TO(done, st, join(&a, &mine, own, by_rank));
    DT_TRY_TO(done, st, dt_from_local(mesh, a.place, dtype, n_axes, a.shape, data, out));
done:
    if (st != DT_OK) st = dti_runtime_alone(dt_mesh_runtime(mesh), st);
    dti_free(by_rank);
    dti_free(a.offsets);
    return st;
}
