/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step of a plan costs: time by the links of the mesh dims it runs over, and memory. */
#ifndef DTI_COST_H
#define DTI_COST_H

#include "placements/move.h"

/* What a planner is asked: sizes and links. The two layouts stand beside it. */
typedef struct dti_cost_model {
    const int64_t *shape; /* global */
    size_t element_bytes;
    int64_t memory_bytes;  /* most that a rank may hold at a time; 0: any */
    const dt_layout *held; /* of a tensor that ranks hold besides, or NULL */
    size_t held_bytes;     /* of its elements */
    dt_link link[DT_MAX_DIMS];
} dti_cost_model;

/* The ranks at which costs are looked at: all of a mesh of up to 64, corners and middles of a
 * larger one. */
enum { DTI_MAX_PROBES = 81 };
typedef struct dti_probes {
    int n;
    bool all; /* no rank is left out */
    int coord[DTI_MAX_PROBES][DT_MAX_DIMS];
} dti_probes;

void dti_probes_of(const dt_layout *grid, dti_probes *out);

/* Are all links of dims with more than one rank alike? */
bool dti_links_equal(const dti_cost_model *model, const dt_layout *grid);

/* Nanoseconds of one step: the longest at any probe of
 *
 *   latency of the slowest dim + sum over its dims of (rounds * latency + bytes / bandwidth)
 *
 * with ceil(log2 size) rounds per dim, and each byte counted on the slowest dim in which its sender
 * and receiver differ. */
double dti_step_ns(const dti_cost_model *model, const dti_move_step *step,
                   const dti_probes *probes);

/* Least time in which each rank receives every element of its piece of `to` once: no plan that has
 * to reduce is faster. */
double dti_least_ns(const dti_cost_model *model, const dt_layout *to, const dti_probes *probes);

/* Bytes that a rank holds while the step runs, beside what it held before the plan began: the
 * piece before it (unless that is the caller's, `first`), the piece after it, and what is packed in
 * between; or, where it widens or narrows, the piece before or after it in both widths. */
int64_t dti_step_memory(const dti_move_step *step, const int64_t *shape, size_t element_bytes,
                        const int *me, bool first);

/* dti_step_memory() plus the pieces of `source` and model->held, which the caller keeps; the most
 * at any rank. Where
 * probes leave ranks out and offsets cut an axis, the largest pieces of all layouts together: an
 * upper bound. Without offsets the first rank, always a probe, has all of them. */
int64_t dti_step_peak(const dti_cost_model *model, const dti_move_step *step,
                      const dt_layout *source, bool first, const dti_probes *probes);

#endif
