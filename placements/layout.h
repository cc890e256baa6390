/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind an interned layout, and its arithmetic on plain integers. */
#ifndef DTI_LAYOUT_H
#define DTI_LAYOUT_H

#include <dtensor/placements.h>

#include "base/error.h"

/* Normalised: axis >= 0, unit and replicas >= 1 for Shard, unused fields of a kind 0. A dim of one
 * rank, and a Shard whose replicas are all ranks of the dim, keep the placement they were given but
 * cut nothing. */
struct dt_layout {
    int n_dims;
    int n_axes;
    int dim_size[DT_MAX_DIMS];
    dt_placement place[DT_MAX_DIMS];
    int order[DT_MAX_DIMS]; /* mesh dims in the order their cuts apply; canonical, see layout.c */
    uint32_t shard_dims;    /* bit m: mesh dim m cuts (Shard into more than one part) */
    uint32_t partial_dims;  /* bit m: Partial and more than one rank */
    bool default_order;
    uint64_t hash;
    struct dt_layout *next; /* of the intern table's bucket */
};

/* The intern table of a runtime, without a mesh: planning needs only the sizes of the dims. */
typedef struct dti_layouts dti_layouts;

dt_status dti_layouts_create(dti_layouts **out) DT_MUST_USE;
void dti_layouts_destroy(dti_layouts *table);
dt_status dti_layouts_of(dt_runtime *rt, dti_layouts **out) DT_MUST_USE; /* DTI_SLOT_LAYOUTS */

/* As dt_layout_get() for a grid of n_dims sizes. No malloc when the layout exists. */
dt_status dti_layout_intern(dti_layouts *table, int n_dims, const int *dim_size, int n_axes,
                            const dt_placement *place, const int *order,
                            const dt_layout **out) DT_MUST_USE;

/* The piece of one axis of `extent` rows at mesh coordinates `coord`. Arguments are valid. */
void dti_layout_axis_range(const dt_layout *layout, int axis, int64_t extent, const int *coord,
                           int64_t *begin, int64_t *end);

/* The part of [0, extent) that coordinate `coord` of a mesh dim of `size` ranks holds. */
void dti_shard_range(const dt_placement *place, int64_t extent, int size, int coord, int64_t *begin,
                     int64_t *end);

/* True if both layouts cut axis `a_axis` of a and `b_axis` of b at the same rows on every rank,
 * whatever the extent: same mesh dims in the same order with the same units and replicas. */
bool dti_layout_same_cuts(const dt_layout *a, int a_axis, const dt_layout *b, int b_axis);

/* True if every rank holds the same piece under both layouts of one grid, whatever the shape: they
 * differ at most on dims that cut nothing. Says nothing of Partial. */
bool dti_layout_same_pieces(const dt_layout *a, const dt_layout *b);

/* The mesh dims that cut `axis`, in the order their cuts apply. Returns how many. */
int dti_layout_cuts(const dt_layout *layout, int axis, int dims[DT_MAX_DIMS]);

/* How many leading cuts of axis `a_axis` of a and `b_axis` of b are the same. */
int dti_layout_common_cuts(const dt_layout *a, int a_axis, const dt_layout *b, int b_axis);

/* "sum", "avg", ...; "?" for a value that is no reduction. */
const char *dti_reduce_name(dt_reduce reduce);

/* "Shard(1)", "Shard(0, unit=4, replicas=2)", "Replicate", "Partial(sum)": for messages. The text
 * lives in `text`, which any placement fits into. */
enum { DTI_PLACEMENT_BYTES = 80 };
const char *dti_placement_words(const dt_placement *place, char text[DTI_PLACEMENT_BYTES]);

/* Reads one placement: what dt_placement_print() writes, and the words "replicate", "shard(0)",
 * "partial(sum)" in any case; "P" and "partial" alone mean sum. */
dt_status dti_placement_parse(const char *text, dt_placement *out) DT_MUST_USE;

/* Reads what dt_layout_print() writes: n_dims placements one after the other, with the places of
 * cuts in their axis' order where that is not the default ("S(0)[1]S(0)[0]"). */
dt_status dti_layout_parse(const char *text, int n_dims, dt_placement *place,
                           int *order) DT_MUST_USE;

#endif
