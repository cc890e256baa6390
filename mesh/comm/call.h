/* SPDX-License-Identifier: Apache-2.0
 *
 * One call on its own: is it well formed, and what does it do on a communicator of one rank. */
#ifndef DTI_CALL_H
#define DTI_CALL_H

#include "base/pool.h"
#include "mesh/comm/comm.h"

/* Mistakes that the caller can see alone. Nothing was sent when it fails. */
dt_status dti_call_check(const dti_comm *c, const dti_comm_call *call) DT_MUST_USE;

/* Serves a checked call of the only rank. */
void dti_call_alone(const dti_comm_call *call);

/* What a rank contributes, in elements: for comparison and records. 0 where it differs by peer. */
int64_t dti_call_count(const dti_comm *c, const dti_comm_call *call);

enum { DTI_CALL_TEXT_BYTES = 64 };

/* "all_reduce of 8 f32", "exchange of f32" whose counts are each rank's own, "barrier". */
const char *dti_call_text(dti_comm_op op, int64_t n, dt_dtype dtype,
                          char text[DTI_CALL_TEXT_BYTES]);

/* The note of an operation that has its number, with what the caller says of it, if anything. */
void dti_note_make(const dti_comm *c, const dti_comm_request *r, dti_comm_note *out);

/* Element i of a buffer. */
static inline void *dti_element(const void *base, int64_t i, size_t bytes)
{
    return (char *)base + i * (int64_t)bytes;
}

/* Where the block of `member` begins, in elements: blocks without displacements are back to back.
 */
static inline int64_t dti_block_at(const int64_t *counts, const int64_t *displs, int member)
{
    int64_t at = 0;

    if (displs != NULL) return displs[member];
    for (int m = 0; m < member; m++) at += counts[m];
    return at;
}

/* dti_box_copy() by all threads of a pool (NULL: one) and past the caches, if the box is large. */
void dti_box_copy_shared(dti_pool *pool, void *to, const dti_box *to_box, const void *from,
                         const dti_box *from_box, size_t element_bytes);

bool dti_box_same_extents(const dti_box *a, const dti_box *b);

/* A box of the same extents whose elements lie side by side. */
dti_box dti_box_packed(const dti_box *box);

/* The same elements in the same order with as few axes as can be, at least one: axes of extent 1
 * go, axes that continue each other become one. False if the box is empty. */
bool dti_box_merge(const dti_box *box, dti_box *out);

/* Elements [first, first + n) of a box in row-major order, to or from a place where they lie side
 * by side: for back ends that send a box in pieces. */
void dti_box_pack(void *to, const void *from, const dti_box *box, int64_t first, int64_t n,
                  size_t element_bytes);
void dti_box_unpack(void *to, const dti_box *box, const void *from, int64_t first, int64_t n,
                    size_t element_bytes);

#endif
