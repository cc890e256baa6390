/* SPDX-License-Identifier: Apache-2.0
 *
 * The decision cache of a rank: for (operator, attributes, layouts and dtypes of operands) what the
 * rules said. A decision does not depend on extents; shapes are remembered beside it, because the
 * same few come again at every step. */
#ifndef DTI_OP_CACHE_H
#define DTI_OP_CACHE_H

#include "dtensor/ops/op_rules.h"

enum { DTI_MEMO_EXTENTS = 32, DTI_N_MEMOS = 4 };

typedef struct dti_op_key {
    const dt_op *op;
    int32_t n_out;
    uint32_t spread; /* as in dti_op_call */
    int64_t place;   /* of this rank in the mesh: with the layouts' grid it says the coordinates */
    const dt_layout *in[DT_OP_MAX_IN];
    uint64_t dtypes; /* 7 bits per operand, all ones for none */
    uint64_t attr[DT_OP_MAX_ATTR_BYTES / 8];
} dti_op_key;

/* Input extents that were seen, and what the call costs with them. */
typedef struct dti_op_memo {
    int n_extents; /* 0: empty */
    int64_t extents[DTI_MEMO_EXTENTS];
    dt_op_work work;
    double seconds; /* of a dry device with a meter */
} dti_op_memo;

/* The shape of a result that belongs to a memo. */
typedef struct dti_op_made {
    int64_t shape[DT_MAX_AXES];
    dt_local local;
} dti_op_made;

typedef struct dti_decision {
    dti_op_key key;
    uint64_t hash;
    const dti_row *row;
    const dt_layout *in_want[DT_OP_MAX_IN]; /* NULL: as it is */
    const dt_layout *out_layout[DT_OP_MAX_OUT];
    dt_dtype out_dtype[DT_OP_MAX_OUT];
    int out_axes[DT_OP_MAX_OUT];
    bool wants_moves; /* some in_want is set */
    int next_memo;
    dti_op_memo memo[DTI_N_MEMOS];
    dti_op_made made[]; /* n_out of each memo */
} dti_decision;

typedef struct dti_op_cache {
    uint64_t calls;
    uint64_t misses;
    size_t n_entries;
    size_t n_slots; /* power of two */
    dti_decision **slots;
    dti_row *rows; /* list of those that were read */
} dti_op_cache;

dt_status dti_op_cache_of(dt_runtime *rt, dti_op_cache **out) DT_MUST_USE;

uint64_t dti_op_key_hash(const dti_op_key *key, int n);

/* The decision for `key`, or NULL. */
dti_decision *dti_op_cache_find(dti_op_cache *cache, const dti_op_key *key, uint64_t hash);

/* Makes room for one more decision, before it is made: a full cache starts anew. */
dt_status dti_op_cache_room(dti_op_cache *cache) DT_MUST_USE;

/* Adds a decision made on the heap, for which there is room; the cache owns it from then on. */
void dti_op_cache_add(dti_op_cache *cache, dti_decision *decision);

/* An operator's row, read and checked once. */
dt_status dti_op_row(dti_op_cache *cache, const dt_op *op, const dti_row **out) DT_MUST_USE;

/* A call as extents functions see it, n_out results still without extents. */
void dti_op_shapes_of(const dti_op_key *key, dt_tensor *const *in, int n, dt_op_shapes *out);

/* Asks the rules (decide.c). */
dt_status dti_op_decide(dti_op_cache *cache, const dti_op_key *key, dt_moves moves,
                        dt_tensor *const *in, int n, dti_decision **out) DT_MUST_USE;

#endif
