/* SPDX-License-Identifier: Apache-2.0
 *
 * The pure half of redistribute: which collectives bring a value from one layout to another, who
 * sends what to whom, and how many bytes that is. No memory, no communication: a plan is a value.
 *
 * A plan reduces first, because that shrinks the data, and then moves once:
 *
 *   local_slice     (if a reduction follows) cut what the target cuts anyway and nobody else needs
 *   reduce_scatter  one mesh dim each: Partial -> Shard appended as the last cut of its axis
 *   all_reduce      what is still Partial and shall not be, over all those dims at once
 *   exchange        everything that is left in one move of boxes, or local_slice where every rank
 *                   holds its target piece already
 *   keep_one        where the target wants terms that are not the tensor's: the first of those that
 *                   hold a part keeps it, the others have zeros
 *
 * Terms of a Shard are reduced by the neighbours that hold them, not by all of their mesh dim.
 *
 * Each step leads from one interned layout to the next, so steps are executed and counted alone. */
#ifndef DTI_MOVE_H
#define DTI_MOVE_H

#include "placements/overlap.h"

typedef enum dti_move_kind {
    DTI_MOVE_LOCAL_SLICE,
    DTI_MOVE_REDUCE_SCATTER,
    DTI_MOVE_ALL_REDUCE,
    DTI_MOVE_EXCHANGE,
    DTI_MOVE_KEEP_ONE
} dti_move_kind;

typedef struct dti_move_step {
    dti_move_kind kind;
    uint32_t dims; /* bit m: mesh dim m takes part; the group is these dims flattened row-major, of
                    * each all ranks or, where terms of a Shard are reduced, those that hold them */
    dt_reduce reduce; /* of the two reductions; DT_SUM elsewhere */
    int64_t divisor;  /* of a sum that is an average in part or by steps: divide by this, or 1 */
    bool wide;        /* terms of bf16 and f16 are f32: this is not the only step that reduces */
    bool widens;      /* the first wide step: they become f32 before it */
    bool narrows;     /* the last wide step: the sum is rounded after it, once */
    bool same_piece;  /* local_slice: the piece stays as it is, so its bytes can be shared */
    bool gathers;     /* exchange: axes are made whole and no more, an all-gather */
    int64_t most;     /* of a dry exchange whose bytes are an average: at most; else 0 */
    const dt_layout *from;
    const dt_layout *to;
} dti_move_step;

/* n_steps == 0: from and to are one layout. */
enum { DTI_MOVE_MAX_STEPS = 2 * DT_MAX_DIMS + 2 };
typedef struct dti_move {
    int n_steps;
    dti_move_step step[DTI_MOVE_MAX_STEPS];
} dti_move;

/* Plans the way between two layouts of `table` with the same grid and axes. No malloc when the
 * layouts in between exist already.
 *   Errors  DT_ERR_ARG     the layouts have different grids or numbers of axes
 *           DT_ERR_LAYOUT  Partial is wanted where the value is whole, cut, or Partial of another
 *                          reduction
 *           DT_ERR_MEMORY */
dt_status dti_move_plan(dti_layouts *table, const dt_layout *from, const dt_layout *to,
                        dti_move *out) DT_MUST_USE;

/* `to` with copies in place of the terms that are not those of `from`: what there is before
 * keep_one, which dti_move_keep() appends to a plan if the two differ. */
dt_status dti_move_before_terms(const dt_layout *from, const dt_layout *to,
                                const dt_layout **out) DT_MUST_USE;
void dti_move_keep(dti_move *plan, const dt_layout *copies, const dt_layout *to);

/* Does the rank keep its piece in a keep_one? */
bool dti_move_keeps(const dti_move_step *step, const int *me);

/* True if a plan from one to the other would communicate nothing. For legal moves only. */
bool dti_move_is_local(const dt_layout *from, const dt_layout *to);

/* May a tensor of layout `from` move to `to`? The errors of dti_move_plan(), without memory. */
dt_status dti_move_check(const dt_layout *from, const dt_layout *to) DT_MUST_USE;

/* The mesh dims that ranks have to read over to get their pieces of `to`, bit m for dim m: per axis
 * those cuts of `from` that follow after the common start. */
uint32_t dti_move_exchange_dims(const dt_layout *from, const dt_layout *to);

/* True if every rank's piece of `to` lies within its piece of `from`: terms of one are reduced to
 * the other by those that hold them. */
bool dti_move_nests(const dt_layout *from, const dt_layout *to, const int64_t *shape);

/* True if an exchange over `dims` makes axes whole and does nothing else to them. */
bool dti_move_is_gather(const dt_layout *from, const dt_layout *to, uint32_t dims);

/* Sets the reduction and divisor of a step that reduces step->dims of step->from together. */
void dti_move_set_reduction(dti_move_step *step);

/* Sets the width of a step of a plan from `source` to `target`. A sum of half floats is rounded
 * once, whatever way the plan takes: with several steps its terms are f32 in between. */
void dti_move_set_width(dti_move_step *step, const dt_layout *source, const dt_layout *target);

/* Sets the widths of all steps; averages of several steps are sums that the last step divides. */
void dti_move_settle(dti_move *plan);

/* Bytes of an element during the step, for a tensor of elements of `element_bytes`. Dtypes of two
 * bytes are bf16 and f16. */
size_t dti_move_element_bytes(const dti_move_step *step, size_t element_bytes);

/* True if the rank at coordinate `peer` of a mesh dim is the one from which the rank at `me` reads
 * what `peer` holds under `place`: me for my own part, otherwise the first of its holders on the
 * way. */
bool dti_move_is_nearest(const dt_placement *place, int me, int peer);

/* How many ranks of mesh dim m, one of step->dims, take part in a step together: all, or the
 * neighbours that hold terms. They follow each other, the first at a multiple of their number. */
int dti_move_along(const dti_move_step *step, int m);

/* Ranks that take part in a step together: the product over step->dims. */
int dti_move_group_size(const dti_move_step *step);

/* The coordinates of member i of the group of the rank at coordinates `me`: the order of members is
 * that of dti_mesh_comm_along(mesh, step->dims, those numbers). */
void dti_move_member(const dti_move_step *step, const int *me, int i, int *coord);

/* What the rank at `peer` sends to the rank at `me` in this step, for a tensor of global `shape`:
 * parts of the sender's piece of step->from and of the receiver's piece of step->to. Returns false,
 * and no boxes, for nothing.
 *
 *   exchange, local_slice  every element of my target piece comes from exactly one peer, myself
 *                          wherever I hold it; where `replicas` ranks hold the same part, from
 *                          the nearest of them along that mesh dim
 *   reduce_scatter         every member sends me its term of my whole target piece
 *   all_reduce             every member sends me its whole piece
 */
bool dti_move_overlap(const dti_move_step *step, const int64_t *shape, const int *me,
                      const int *peer, dti_overlap *out);

/* Bytes that the rank at `me` receives in this step, of a tensor whose elements have
 * `element_bytes` before and after the plan. Executors count by this function, so that
 * prediction and counter agree; p is the size of the group.
 *
 *   exchange        what other ranks send: exactly the sum of their boxes
 *   reduce_scatter  (p-1) times the bytes of my target piece: a term from every other member
 *   all_reduce      2 (p-1)/p N, rounded down, N the bytes of my piece: reduce-scatter, then gather
 *   local_slice     0, as keep_one */
int64_t dti_move_bytes(const dti_move_step *step, const int64_t *shape, size_t element_bytes,
                       const int *me);

/* Bytes that it sends, by the same formulas: in an exchange its boxes for others, in a
 * reduce-scatter its terms of their pieces. Walks over the group. */
int64_t dti_move_bytes_sent(const dti_move_step *step, const int64_t *shape, size_t element_bytes,
                            const int *me);

/* reduce_scatter: may the terms for a member lie in several boxes of my piece? Then they are packed
 * first; a single box is reduced from where it lies. */
bool dti_move_packs_terms(const dti_move_step *step);

/* That box: where the terms for `member` lie in the piece of the rank at `me`. */
void dti_move_term_box(const dti_move_step *step, const int64_t *shape, const int *me,
                       const int *member, dti_box *out);

/* "local_slice", "reduce_scatter", "all_reduce", "all_gather", "all_to_all", "keep_one". */
const char *dti_move_name(const dti_move_step *step);

/* Appends the states of a plan joined by arrows, "P(sum)S(0)->RS(0)->RR"; nothing if it has no
 * steps. */
void dti_put_move(dti_writer *w, const dti_move *plan);

#endif
