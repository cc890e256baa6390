/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients that are reduced while backward goes on. As a leaf's gradient becomes whole it joins a
 * bucket; a full bucket sets out, in the order in which they fill, which follows from the program
 * alone and is so the same on all ranks. Where it goes is a layout for each leaf: whole for data
 * parallel training, cut like the optimizer's state for ZeRO. Bits and bytes do not depend on the
 * size of buckets.
 *
 *   dti_buckets_open(r);
 *   dt_backward(...);           dti_buckets_take(r, tape, leaf) from dt_backward_options.ready
 *   dti_buckets_close(r, tape);
 *   ...                         the next microbatch, say
 *   dti_buckets_finish(r, tape);      gradients lie as they should */
#ifndef DTI_BUCKETS_H
#define DTI_BUCKETS_H

#include <dtensor/gradients.h>

#include "base/error.h"

typedef struct dti_buckets dti_buckets;

/* Of the first n leaves of a collection, which outlives these: want[i] of leaf i.
 * bucket_bytes: at least 1; a bucket sets out when it has so many, as the largest piece of a rank
 * counts. */
dt_status dti_buckets_create(dt_gradients *gradients, int64_t n, const dt_layout *const *want,
                             int64_t bucket_bytes, dti_buckets **out) DT_MUST_USE;

/* What is under way is dropped. Accepts NULL. */
void dti_buckets_free(dti_buckets **buckets);

/* Before a pass whose gradients travel: what a pass that failed has left is forgotten. Those of an
 * earlier pass may be under way still. */
void dti_buckets_open(dti_buckets *r);

/* Nothing is added to the leaf's gradient any more in this pass. Collective where it fills a
 * bucket; counted on the tape as "gradients". */
dt_status dti_buckets_take(dti_buckets *r, dt_tape *tape, int64_t leaf) DT_MUST_USE;

/* After the pass: what is left sets out. Collective. */
dt_status dti_buckets_close(dti_buckets *r, dt_tape *tape) DT_MUST_USE;

/* Waits for what is under way; gradients that have set out are in the collection again, in one part
 * each; `tape` counts the work of adding, or is NULL. */
dt_status dti_buckets_finish(dti_buckets *r, dt_tape *tape) DT_MUST_USE;

#endif
