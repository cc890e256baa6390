/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rows of tokens which ranks read: those of tokens that chose one of their experts. Rows are
 * those of a frame, what this rank's piece of a value is where mesh dim `dim` cuts nothing; the
 * part of rank r is its piece, [outer, part, inner] rows of [outer, length, inner]. */
#ifndef DTI_DISPATCH_H
#define DTI_DISPATCH_H

#include "dtensor/tensor_internal.h"
#include "mesh/comm/comm.h"

typedef struct dti_readers {
    const dt_tensor *x, *ids, *experts; /* as they were given; of experts a weight */
    int dim;

    dti_comm *comm;
    int p, me;
    int64_t n_rows, k, n_experts;
    int64_t outer, length, inner;
    int64_t *begin, *end;   /* [p] of each rank's part, in `length` */
    int64_t *first, *held;  /* [p] experts of each rank */
    int32_t *owner;         /* [n_experts] */
    int64_t *out, *in, *at; /* [p] rows for each rank, rows from it, and begins */
    const int32_t *chosen;  /* [n_rows, k] */
} dti_readers;

/* Does mesh dim `dim` cut experts, axis 0 of a weight, as a whole? The same of a layout of one. */
bool dti_dispatch_cuts(const dt_tensor *experts, int dim);
bool dti_dispatch_cuts_layout(const dt_layout *experts, int dim);

/* Who reads rows of w->x whose parts are those of `cut` on mesh dim w->dim, and whose frame is that
 * of `frame`: fills the second half of w. Arrays are the device's own, until its next move. *fits:
 * parts make up a frame, and ids are of its rows; otherwise nothing else counts. */
dt_status dti_readers_find(dti_readers *w, const dt_layout *frame, const dt_layout *cut,
                           bool *fits) DT_MUST_USE;

/* Rows of rank r's part; the n-th of them in the frame. */
static inline int64_t dti_readers_part(const dti_readers *w, int r)
{
    return w->outer * (w->end[r] - w->begin[r]) * w->inner;
}

static inline int64_t dti_readers_row(const dti_readers *w, int r, int64_t n)
{
    const int64_t part = (w->end[r] - w->begin[r]) * w->inner;

    return n / part * w->length * w->inner + w->begin[r] * w->inner + n % part;
}

/* Whether rank r reads a row. Who reads it by its slot s; -1: so does a slot before. */
static inline bool dti_readers_reads(const dti_readers *w, int64_t row, int r)
{
    for (int64_t s = 0; s < w->k; s++)
        if (w->owner[w->chosen[row * w->k + s]] == r) return true;
    return false;
}

static inline int dti_readers_by(const dti_readers *w, int64_t row, int64_t s)
{
    const int32_t *ids = w->chosen + row * w->k;

    for (int64_t i = 0; i < s; i++)
        if (w->owner[ids[i]] == w->owner[ids[s]]) return -1;
    return w->owner[ids[s]];
}

/* Rows that this rank receives on the way there and on the way back if each token chooses any k
 * experts alike: on the average. */
double dti_readers_there(const dti_readers *w);
double dti_readers_back(const dti_readers *w);

/* At most, whatever they choose. What is sent at most on one way is received on the other. */
int64_t dti_readers_most_there(const dti_readers *w);
int64_t dti_readers_most_back(const dti_readers *w);

/* The way back of either move, of gradients w->x that lie otherwise than `to` on w->dim alone, of
 * which the rows that nobody reads are zeros, or need not be there: a new reference, counted as
 * `name`. *dx NULL: they lie so that all rows go. Collective over the mesh dim. */
dt_status dti_dispatch_back(dt_tape *t, const dti_readers *w, const dt_layout *to, const char *name,
                            dt_tensor **dx) DT_MUST_USE;

/* The longest axis of y but the last that no mesh dim cuts; -1: none. */
int dti_dispatch_axis(const dt_tensor *y);

/* Of y [..., d], terms on mesh dim `dim` that are to be whole values of `dtype`: whether the rank
 * that receives most receives fewer bytes by dt_combine() along `axis` and a gather than by one
 * all-reduce, if each token chooses any k experts alike. */
bool dti_dispatch_pays(const dt_tensor *y, int64_t k, const dt_tensor *experts, int dim, int axis,
                       dt_dtype dtype);

#endif
