/* SPDX-License-Identifier: Apache-2.0
 *
 * How a value lies on a mesh. For every mesh dim a tensor is cut along one of its axes (Shard),
 * held whole by each rank (Replicate), or held as terms that still have to be reduced (Partial).
 *
 * This room is pure: no memory of tensors, no communication. */
#ifndef DT_PLACEMENTS_H
#define DT_PLACEMENTS_H

#include <dtensor/mesh.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_MAX_AXES = 8 };

typedef enum dt_place_kind {
    DT_PLACE_REPLICATE = 0,
    DT_PLACE_SHARD,
    DT_PLACE_PARTIAL
} dt_place_kind;

/* One placement: what one mesh dim of p ranks does to a tensor. A value; all zeros is Replicate.
 *
 * Shard follows torch.chunk in units: with n = extent / unit (rounded up) and parts = p / replicas,
 * part k owns units [k c, (k+1) c) with c = ceil(n / parts), and the rank at coordinate r holds
 * part r / replicas. unit and replicas are 1 (or 0, the same) unless a model's heads ask for more:
 * a cut never splits a unit, and `replicas` neighbours hold the same part (replicas must divide p).
 */
typedef struct dt_placement {
    dt_place_kind kind;
    int axis;         /* Shard: tensor axis; negative counts from the end */
    dt_reduce reduce; /* Partial: how the terms combine */
    int replicas;     /* Shard: ranks that hold the same part */
    int64_t unit;     /* Shard: rows that stay together */
} dt_placement;

/* kind, axis, reduce, replicas, unit; by position, so that C++ before C++20 takes them as well. */
#ifdef __cplusplus
#define DT_PLACEMENT(k, a, op, r, u) (dt_placement{ (k), (a), (op), (r), (u) })
#else
#define DT_PLACEMENT(k, a, op, r, u) ((dt_placement){ (k), (a), (op), (r), (u) })
#endif
#define DT_REPLICATE         DT_PLACEMENT(DT_PLACE_REPLICATE, 0, DT_SUM, 0, 0)
#define DT_SHARD(a)          DT_SHARD_UNITS(a, 1)
#define DT_SHARD_UNITS(a, u) DT_PLACEMENT(DT_PLACE_SHARD, (a), DT_SUM, 1, (u))
#define DT_PARTIAL(op)       DT_PLACEMENT(DT_PLACE_PARTIAL, 0, (op), 0, 0)

/* Placements on every dim of a mesh, interned: equal layouts of one runtime are the same pointer,
 * so comparing is one compare. Knows the sizes of the mesh dims and the number of tensor axes, not
 * the extents. Immutable; lives as long as its runtime. */
typedef struct dt_layout dt_layout;

/**
 * The layout of tensors with n_axes axes on `mesh`, one placement per mesh dim.
 *
 *   order  NULL, or a permutation of the mesh dims: cuts of one tensor axis by several mesh dims
 *          are applied in this order. Default: outer mesh dims first.
 *
 * Collective  no.
 * Ownership   *out belongs to the mesh's runtime.
 * Errors      DT_ERR_ARG     NULL, n_axes outside 0..8, order no permutation
 *             DT_ERR_LAYOUT  axis outside [-n, n), unit or replicas below 1, replicas that do not
 *                            divide the mesh dim, different reductions that cannot be mixed
 */
DT_API DT_MUST_USE dt_status dt_layout_get(dt_mesh *mesh, int n_axes, const dt_placement *place,
                                           const int *order, const dt_layout **out);

/* Queries. Not collective. Errors: none; an index out of range or NULL gives -1, Replicate or
 * false. A placement's axis is not negative; "replicated" looks at dims of more than one rank. */
DT_API int dt_layout_n_dims(const dt_layout *layout);
DT_API int dt_layout_n_axes(const dt_layout *layout);
DT_API dt_placement dt_layout_placement(const dt_layout *layout, int dim);
DT_API bool dt_layout_is_replicated(const dt_layout *layout);

/**
 * The piece [begin[a], end[a]) of every axis that the rank at mesh coordinates `coord` holds, of a
 * tensor with global shape `shape`. Empty pieces have begin == end.
 *
 * Not collective. Errors: DT_ERR_ARG for NULL or a coordinate outside the mesh.
 */
DT_API DT_MUST_USE dt_status dt_layout_range(const dt_layout *layout, const int64_t *shape,
                                             const int *coord, int64_t *begin, int64_t *end);

/**
 * Writes the placements in PyTorch's trace grammar ("S(0)RP(sum)", "S(0)[1]S(0)[0]" where the order
 * of cuts is not the default) and returns the length needed, like snprintf.
 *
 * Not collective. Errors: none.
 */
DT_API int dt_layout_print(const dt_layout *layout, char *text, size_t text_bytes);

/** "S(0)", "R", "P(sum)": one placement, like snprintf. Not collective. Errors: none. */
DT_API int dt_placement_print(const dt_placement *place, char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
