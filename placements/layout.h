/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind an interned layout, and its arithmetic on plain integers. */
#ifndef DTI_LAYOUT_H
#define DTI_LAYOUT_H

#include <dtensor/placements.h>

#include "base/error.h"
#include "base/numbers.h"
#include "base/writer.h"

/* The intern table of a runtime, without a mesh: planning needs only the sizes of the dims. */
typedef struct dt_layouts dti_layouts;

/* Normalised: axis >= 0, unit and replicas >= 1 for Shard, unused fields of a kind 0,
 * places only where the order of an axis' cuts is not the default, terms only of several replicas.
 * A dim of one rank, and a Shard whose replicas are all ranks of the dim, keep the placement they
 * were given but cut nothing; if those are terms, they are Partial(sum). */
struct dt_layout {
    int n_dims;
    int n_axes;
    int dim_size[DT_MAX_DIMS];
    dt_placement place[DT_MAX_DIMS];
    int order[DT_MAX_DIMS]; /* mesh dims in the order their cuts apply; canonical, see normal.c */
    uint32_t shard_dims;    /* bit m: mesh dim m cuts (Shard into more than one part) */
    uint32_t partial_dims;  /* bit m: Partial and more than one rank, or a Shard with terms */
    uint32_t table_axes;    /* bit a: offsets or blocks cut axis a, so its extent is known */
    uint32_t packed_axes;   /* bit a: blocks cut axis a, so a piece may be several runs */
    bool default_order;
    uint64_t hash;
    dti_layouts *table;     /* where it is interned */
    struct dt_layout *next; /* of the intern table's bucket */
};

dt_status dti_layouts_create(dti_layouts **out) DT_MUST_USE;
void dti_layouts_destroy(dti_layouts *table);
dt_status dti_layouts_of(dt_runtime *rt, dti_layouts **out) DT_MUST_USE;

/* As dt_layout_get() for a grid of n_dims sizes. No malloc when the layout exists. */
dt_status dti_layout_intern(dti_layouts *table, int n_dims, const int *dim_size, int n_axes,
                            const dt_placement *place, const int *order,
                            const dt_layout **out) DT_MUST_USE;

/* Brings key->place (as given; n_dims, n_axes and dim_size are set) into normal form and fills the
 * fields that follow from it, all but hash. offsets and blocks still point to the caller's. */
dt_status dti_layout_normalise(dt_layout *key, const int *order) DT_MUST_USE;

/* Interns a layout in normal form. */
dt_status dti_layout_intern_key(dti_layouts *table, dt_layout *key,
                                const dt_layout **out) DT_MUST_USE;

/* `base` with mesh dim `dim` as in `want`, in normal form; the order of the other cuts stays. A cut
 * that names its place goes there; one that does not goes before the first cut of an inner mesh
 * dim, which keeps a default order, or last. */
dt_status dti_layout_replace(const dt_layout *base, int dim, const dt_placement *want,
                             dt_layout *out) DT_MUST_USE;

/* The same, interned beside `base`. */
dt_status dti_layout_with(const dt_layout *base, int dim, const dt_placement *want,
                          const dt_layout **out) DT_MUST_USE;

/* True if both cut alike what they are given, on whatever axis and at whatever place. */
bool dti_placement_same_cut(const dt_placement *a, const dt_placement *b);
bool dti_placement_equal(const dt_placement *a, const dt_placement *b); /* in normal form */

/* What is left when the terms are reduced where they lie: Replicate of Partial, copies of terms. */
dt_placement dti_placement_reduced(const dt_placement *place);

/* Bit m: mesh dim m cuts, and the holders of a part hold terms of it. */
static inline uint32_t dti_layout_terms(const dt_layout *layout)
{
    return layout->shard_dims & layout->partial_dims;
}
bool dti_layout_equal(const dt_layout *a, const dt_layout *b); /* hashes are set */
uint64_t dti_layout_hash(const dt_layout *key);

/* --- pieces ----------------------------------------------------------------------------------- */

/* The rows of an axis that a rank holds: ascending, apart from each other, none empty. `begin` is
 * that of the first run; a piece without rows stands at the end of what it was cut from. */
typedef struct dti_runs {
    int n;
    int64_t begin;
    int64_t total;
    dt_rows run[DT_MAX_RUNS];
} dti_runs;

/* Arguments are valid, the extent fits the layout's offsets and blocks. */
void dti_layout_axis_runs(const dt_layout *layout, int axis, int64_t extent, const int *coord,
                          dti_runs *out);

/* The same for an axis that is not packed: one run, or begin == end. */
void dti_layout_axis_range(const dt_layout *layout, int axis, int64_t extent, const int *coord,
                           int64_t *begin, int64_t *end);

/* How many rows of an axis the piece has, and where the first lies. */
void dti_layout_axis_extent(const dt_layout *layout, int axis, int64_t extent, const int *coord,
                            int64_t *begin, int64_t *count);

/* The part of [0, extent) that coordinate `coord` of a mesh dim of `size` ranks holds; not packed.
 */
void dti_shard_range(const dt_placement *place, int64_t extent, int size, int coord, int64_t *begin,
                     int64_t *end);

/* Do the extents fit the offsets and blocks? Errors name mesh dim, axis and numbers. */
dt_status dti_layout_check_shape(const dt_layout *layout, const int64_t *shape) DT_MUST_USE;
bool dti_layout_fits(const dt_layout *layout, const int64_t *shape); /* without a message */

/* True if both layouts cut axis `a_axis` of a and `b_axis` of b at the same rows on every rank,
 * whatever the extent: same mesh dims in the same order with the same cuts. */
bool dti_layout_same_cuts(const dt_layout *a, int a_axis, const dt_layout *b, int b_axis);

/* True if every rank holds the same piece under both layouts of one grid, whatever the shape: they
 * differ at most on dims that cut nothing. Says nothing of Partial. */
bool dti_layout_same_pieces(const dt_layout *a, const dt_layout *b);

/* The mesh dims that cut `axis`, in the order their cuts apply. Returns how many. */
int dti_layout_cuts(const dt_layout *layout, int axis, int dims[DT_MAX_DIMS]);

/* How many leading cuts of axis `a_axis` of a and `b_axis` of b are the same. */
int dti_layout_common_cuts(const dt_layout *a, int a_axis, const dt_layout *b, int b_axis);

/* --- text ------------------------------------------------------------------------------------- */

/* "sum", "avg", ...; "?" for a value that is no reduction. */
const char *dti_reduce_name(dt_reduce reduce);

/* "Shard(1)", "Shard(0, unit=4, replicas=2)", "Replicate", "Partial(sum)": for messages. The text
 * lives in `text`; long lists of offsets and blocks are cut. */
enum { DTI_PLACEMENT_BYTES = 80 };
const char *dti_placement_words(const dt_placement *place, char text[DTI_PLACEMENT_BYTES]);

/* Appends what dt_layout_print() writes. */
void dti_put_layout(dti_writer *w, const dt_layout *layout);

/* Placements read from text, with the numbers that their offsets and blocks point to. */
enum { DTI_MAX_NUMBERS = 1024 };
typedef struct dti_parsed {
    dt_placement place[DT_MAX_DIMS];
    int n_numbers;
    int64_t numbers[DTI_MAX_NUMBERS];
} dti_parsed;

/* n_dims placements one after the other; the grammar is that of dt_layout_parse(). */
dt_status dti_placements_parse(const char *text, int n_dims, dti_parsed *out) DT_MUST_USE;

#endif
