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

typedef enum dt_place_kind {
    DT_PLACE_REPLICATE = 0,
    DT_PLACE_SHARD,
    DT_PLACE_PARTIAL
} dt_place_kind;

/* One placement: what one mesh dim of p ranks does to a tensor. A value; all zeros is Replicate.
 *
 * Shard cuts what it is given into parts = p / replicas parts, and the rank at coordinate r of the
 * mesh dim holds part r / replicas:
 *
 *   chunks   (default) torch.chunk in units: with n = rows / unit (rounded up), part k owns units
 *            [k c, (k+1) c) with c = ceil(n / parts). A cut never splits a unit.
 *   offsets  part k owns rows [offsets[k], offsets[k+1]): any split, parts without rows too.
 *            parts + 1 numbers, ascending, the first 0, the last the number of rows.
 *   blocks   the rows are blocks one after the other (gate | up, q | k | v), and each block is cut
 *            into chunks on its own: a rank holds its part of every block, one after the other.
 *            Blocks may have units of their own (`units`): query heads go by whole groups of kv
 *            heads, keys and values by head.
 *
 * Several mesh dims may cut one axis: the first cuts the rows, the next what that leaves. Outer
 * mesh dims cut first, unless the placements of all these dims name their places (`order`).
 *
 * Neighbours with `terms` hold terms of a sum: the value of their part is the sum over all of them.
 * So lies the gradient of a value that they hold copies of. Whoever refuses Partial refuses terms,
 * and a move reduces them among the neighbours alone; towards terms, the first neighbour keeps the
 * value and the others have zeros. With one holder terms say nothing; terms on all ranks of a mesh
 * dim are Partial(sum).
 *
 * offsets, blocks and units are read while a call lasts; placements handed out by a layout point
 * into the layout. */
typedef struct dt_placement {
    dt_place_kind kind;
    int axis;         /* Shard: tensor axis; negative counts from the end */
    dt_reduce reduce; /* Partial: how the terms combine */
    int replicas;     /* Shard: neighbours that hold the same part; 0 is 1; must divide p */
    int64_t unit;     /* Shard: rows that stay together; 0 is 1 */
    int order;        /* Shard: 1 + its place among the cuts of its axis; 0: outer dims first */
    int n_offsets;
    int n_blocks;
    const int64_t *offsets; /* [n_offsets] or NULL */
    const int64_t *blocks;  /* [n_blocks] rows of each block, or NULL */
    const int64_t *units;   /* [n_blocks] unit of each block, or NULL: `unit` is that of all */
    bool terms;             /* Shard: replicas are terms of a sum, not copies */
} dt_placement;

/* kind, axis, reduce, replicas, unit, order; by position, so that C++ before C++20 takes them as
 * well. */
#ifdef __cplusplus
#define DT_PLACEMENT(k, a, op, r, u, o) \
    (dt_placement{ (k), (a), (op), (r), (u), (o), 0, 0, NULL, NULL, NULL, false })
#else
#define DT_PLACEMENT(k, a, op, r, u, o) \
    ((dt_placement){ (k), (a), (op), (r), (u), (o), 0, 0, NULL, NULL, NULL, false })
#endif
#define DT_REPLICATE         DT_PLACEMENT(DT_PLACE_REPLICATE, 0, DT_SUM, 0, 0, 0)
#define DT_SHARD(a)          DT_SHARD_UNITS(a, 1)
#define DT_SHARD_UNITS(a, u) DT_PLACEMENT(DT_PLACE_SHARD, (a), DT_SUM, 1, (u), 0)
#define DT_PARTIAL(op)       DT_PLACEMENT(DT_PLACE_PARTIAL, 0, (op), 0, 0, 0)

/* DT_SHARD_NTH(0, 1): the second cut of axis 0, "S(0)[1]". */
#define DT_SHARD_NTH(a, place_) DT_PLACEMENT(DT_PLACE_SHARD, (a), DT_SUM, 1, 1, (place_) + 1)

/* DT_SHARD_OFFSETS(0, 0, 3, 3, 10): rows 0-2, none, 3-9. DT_SHARD_PACKED(0, 64, 16, 16): q | k | v
 * of 64, 16 and 16 rows, each cut on its own. The numbers live as long as the block in which this
 * is written; the functions below take arrays (and serve C++, which has no such literals). */
#ifndef __cplusplus
#define DT_SHARD_OFFSETS(a, ...)                                                       \
    dt_shard_offsets((a), (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), \
                     (const int64_t[]){ __VA_ARGS__ })
#define DT_SHARD_PACKED(a, ...)                                                       \
    dt_shard_packed((a), (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), \
                    (const int64_t[]){ __VA_ARGS__ })
#endif

/** Shard at given boundaries, and Shard of n blocks, from arrays that the caller keeps until the
 * placement was used. Checked where a layout is made of them. Not collective. Errors: none. */
DT_API dt_placement dt_shard_offsets(int axis, int n_offsets, const int64_t *offsets);
DT_API dt_placement dt_shard_packed(int axis, int n_blocks, const int64_t *blocks);

/** Shard in units whose `replicas` neighbours hold terms of a sum: the gradient of key and value
 * heads that ranks share. Of any other Shard with replicas set `terms`. Not collective. Errors:
 * none. */
DT_API dt_placement dt_shard_terms(int axis, int64_t unit, int replicas);

/* Placements on every dim of a mesh, interned: equal layouts of one runtime are the same pointer,
 * so comparing is one compare. Knows the sizes of the mesh dims and the number of tensor axes, not
 * the extents. Immutable; lives as long as its runtime. */
typedef struct dt_layout dt_layout;

/**
 * The layout of tensors with n_axes axes on `mesh`, one placement per mesh dim.
 *
 *   order  NULL, or a permutation of the mesh dims: cuts of one tensor axis by several mesh dims
 *          are applied in this order, whatever `order` the placements name
 *
 * Collective  no.
 * Ownership   *out belongs to the mesh's runtime; offsets, blocks and units are copied.
 *             It lives as long as the runtime, as do those of steps of moves: a program that makes
 *             ever new offsets or blocks keeps all of them.
 * Errors      DT_ERR_ARG     NULL, n_axes outside 0..8, order no permutation
 *             DT_ERR_LAYOUT  axis outside [-n, n), unit or replicas below 1, replicas that do not
 *                            divide the mesh dim, offsets that do not ascend from 0 or are not
 *                            parts + 1, negative blocks or more than 32 on an axis, units of
 *                            blocks below 1 or without blocks, places in the
 *                            order of cuts that are given twice or for some cuts only, different
 *                            reductions that cannot be mixed
 */
DT_API DT_MUST_USE dt_status dt_layout_get(dt_mesh *mesh, int n_axes, const dt_placement *place,
                                           const int *order, const dt_layout **out);

/**
 * As dt_layout_get(), from what dt_layout_print() writes:
 *
 *   layout     one placement per mesh dim, nothing between them
 *   placement  R | P(sum) | S(axis) | S(axis,unit=4,replicas=2) | S(axis,replicas=2,sum), whose
 *              replicas are terms | S(axis,offsets=0:3:3:10) |
 *              S(axis,blocks=64:16:16) | S(axis,blocks=64:16:16,units=32:8:8); each S(...) may be
 *              followed by [place], its place among the cuts of its axis, which is printed where
 *              several mesh dims cut one axis
 *   words      "replicate", "shard(0)", "partial(sum)" in any case are read too; P alone is P(sum)
 *
 * Not collective. Ownership as dt_layout_get().
 * Errors      those of dt_layout_get(); DT_ERR_ARG for text that is no layout, with the place
 */
DT_API DT_MUST_USE dt_status dt_layout_parse(dt_mesh *mesh, int n_axes, const char *text,
                                             const dt_layout **out);

/* Layouts of a grid of mesh dims without ranks, for planning: "dp=16,tp=64" may be any size. */
typedef struct dt_layouts dt_layouts;

/** An empty set of layouts. Not collective. *out is released with dt_layouts_release(), which frees
 * its layouts. Errors: DT_ERR_ARG, DT_ERR_MEMORY. */
DT_API DT_MUST_USE dt_status dt_layouts_create(dt_layouts **out);
DT_API void dt_layouts_release(dt_layouts **layouts); /* accepts NULL; sets *layouts to NULL */

/** As dt_layout_parse() for the mesh "dp=16,tp=64" that need not exist; *out belongs to `layouts`.
 * Not collective. Errors: those of dt_mesh_parse() and dt_layout_parse(). */
DT_API DT_MUST_USE dt_status dt_layouts_parse(dt_layouts *layouts, const char *mesh, int n_axes,
                                              const char *text, const dt_layout **out);

/* Queries. Not collective. Errors: none; an index out of range or NULL gives -1, Replicate or
 * false. A placement's axis is not negative; "replicated" looks at dims of more than one rank. */
DT_API int dt_layout_n_dims(const dt_layout *layout);
DT_API int dt_layout_n_axes(const dt_layout *layout);
DT_API dt_placement dt_layout_placement(const dt_layout *layout, int dim);
DT_API bool dt_layout_is_replicated(const dt_layout *layout);

/** All placements, one per mesh dim, as the array that a call takes, with the order of cuts.
 * Returns their number, dt_layout_n_dims(), or -1 for NULL. place has room for DT_MAX_DIMS. Not
 * collective. Errors: none. */
DT_API int dt_layout_placements(const dt_layout *layout, dt_placement *place);

/* Rows [begin, end) of a global axis. */
typedef struct dt_rows {
    int64_t begin;
    int64_t end;
} dt_rows;
enum { DT_MAX_RUNS = 32 };

/**
 * The piece [begin[a], end[a]) of every axis that the rank at mesh coordinates `coord` holds, of a
 * tensor with global shape `shape`. Empty pieces have begin == end.
 *
 * Not collective.
 * Errors      DT_ERR_ARG     NULL, a negative extent or a coordinate outside the mesh
 *             DT_ERR_SHAPE   offsets or blocks of the layout do not end where the axis does
 *             DT_ERR_LAYOUT  the piece has several runs, being packed: see dt_layout_runs()
 */
DT_API DT_MUST_USE dt_status dt_layout_range(const dt_layout *layout, const int64_t *shape,
                                             const int *coord, int64_t *begin, int64_t *end);

/**
 * The rows of one axis that the rank at `coord` holds, ascending, one run after the other in its
 * piece: one run or none, unless the layout is packed.
 *
 *   runs  room for DT_MAX_RUNS
 *
 * Not collective. Errors: as dt_layout_range(); DT_ERR_ARG for an axis that does not exist.
 */
DT_API DT_MUST_USE dt_status dt_layout_runs(const dt_layout *layout, const int64_t *shape, int axis,
                                            const int *coord, dt_rows *runs, int *n_runs);

/** Extents of the piece at `coord`. Not collective. Errors: as dt_layout_range(), but packed pieces
 * have extents too. */
DT_API DT_MUST_USE dt_status dt_layout_local_shape(const dt_layout *layout, const int64_t *shape,
                                                   const int *coord, int64_t *local);

/** Bytes of the piece at `coord`. Not collective. Errors: as dt_layout_local_shape(); DT_ERR_ARG
 * for an unknown dtype, DT_ERR_SHAPE for more than 2^63 bytes. */
DT_API DT_MUST_USE dt_status dt_layout_bytes(const dt_layout *layout, const int64_t *shape,
                                             const int *coord, dt_dtype dtype, int64_t *bytes);

/**
 * Which ranks hold the element at global `index`: *n_owners of them, the first one (row-major) at
 * `coord`. With Partial, and with terms, every owner holds a term.
 *
 * Not collective. Errors: as dt_layout_range(); DT_ERR_ARG for an index outside the tensor.
 */
DT_API DT_MUST_USE dt_status dt_layout_owner(const dt_layout *layout, const int64_t *shape,
                                             const int64_t *index, int *coord, int *n_owners);

/**
 * Writes the placements in PyTorch's trace grammar ("S(0)RP(sum)", "S(0)[1]S(0)[0]" where several
 * mesh dims cut one axis) and returns the length needed, like snprintf. dt_layout_parse() reads it.
 *
 * Not collective. Errors: none.
 */
DT_API int dt_layout_print(const dt_layout *layout, char *text, size_t text_bytes);

/** "S(0)", "R", "P(sum)": one placement, like snprintf. Not collective. Errors: none. */
DT_API int dt_placement_print(const dt_placement *place, char *text, size_t text_bytes);

/* --- Planning moves -------------------------------------------------------------------------- */

/* A move to plan, without ranks: layouts of one mesh or dt_layouts. */
typedef struct dt_move_query {
    size_t size; /* sizeof(dt_move_query) */
    const dt_layout *from;
    const dt_layout *to;
    const int64_t *shape; /* global */
    dt_dtype dtype;
    const dt_link *links; /* one per mesh dim; NULL: DT_DEFAULT_LATENCY_NS and ..._BYTES_PER_NS */
    int64_t memory_bytes; /* most that a rank may hold of the tensor at a time; 0: any */
} dt_move_query;

/* One step, as the rank sees it that was asked for. */
typedef struct dt_route_step {
    const char
        *name;     /* local_slice, all_gather, all_to_all, reduce_scatter, all_reduce, keep_one */
    uint32_t dims; /* bit m: runs over mesh dim m, where terms of a Shard are reduced over their
                       * holders; several are one flattened group */
    const dt_layout *from;
    const dt_layout *to;
    int64_t sent_bytes;
    int64_t received_bytes;
    int64_t peak_bytes; /* held of the tensor during the step, the piece before the move included */
    double ns;          /* by the links, of the busiest rank */
} dt_route_step;

enum { DT_MAX_ROUTE_STEPS = 18 };
typedef struct dt_route {
    int n_steps; /* 0: the layouts are one */
    dt_route_step step[DT_MAX_ROUTE_STEPS];
} dt_route;

/**
 * The steps that dt_redistribute() would take, and what they cost the rank at `coord`. Takes the
 * cheapest plan by the links: reductions alone or of several mesh dims together, slices and
 * exchanges between them; without reductions and with equal links it is one exchange of the boxes
 * that differ, than which nothing moves less.
 *
 * Cost        exact for meshes of up to 64 ranks; on larger ones plans are compared at corner and
 *             middle ranks. Bytes are exact for any rank.
 * Collective  no.
 * Ownership   route->step[].from and .to belong to the owner of query->from.
 * Errors      DT_ERR_ARG     NULL, an unknown dtype, a coordinate outside the mesh, layouts of
 *                            different meshes or numbers of axes
 *             DT_ERR_SHAPE   a negative extent; a tensor of 2^60 bytes or more; offsets or blocks
 *                            that end elsewhere than the axis
 *             DT_ERR_LAYOUT  Partial is wanted where the value is not Partial of that reduction; no
 *                            plan stays within memory_bytes
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_redistribute_plan(const dt_move_query *query, const int *coord,
                                                  dt_route *route);

/**
 * Writes the states of a plan in PyTorch's trace grammar, "S(0)[0]S(0)[1]->S(0)R->RR" ("-->" over
 * several mesh dims), and a line per step with the rank's bytes, and returns the length needed in
 * *length (may be NULL), like snprintf.
 *
 * Not collective. Errors: as dt_redistribute_plan().
 */
DT_API DT_MUST_USE dt_status dt_redistribute_plan_print(const dt_move_query *query,
                                                        const int *coord, char *text,
                                                        size_t text_bytes, int *length);

#ifdef __cplusplus
}
#endif
#endif
