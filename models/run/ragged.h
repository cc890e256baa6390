/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass over single tokens of several sequences: some are a sequence's next one, others a part of
 * a prompt. Keys and values lie in blocks of a pool, and a table says which blocks a sequence has,
 * so that sequences grow, share what they have in common and go without being moved. What layers of
 * linear attention carry of a sequence lies in a slot of the pool: it is what all tokens that were
 * read have made of it, so beginnings cannot be shared, and a sequence is read from its first token
 * on, one after the other.
 *
 * What a row gives depends on the tokens of its sequence alone: not on the other rows, on how a
 * prompt was cut into passes or on the numbers of blocks. On CPUs its logits are, bit for bit,
 * those of dt_model_forward() of the sequence by itself. */
#ifndef DTI_RAGGED_H
#define DTI_RAGGED_H

#include "models/run/state.h"

enum { DTI_BLOCK_TOKENS = 128 }; /* a block has keys and values of as many tokens */

/* Whether the model can run such passes. DT_ERR_UNSUPPORTED says what it has that cannot: layers of
 * a kind whose states have no slots (dt_kind_state), positions that rotate otherwise beyond a
 * length. Not collective. */
dt_status dti_ragged_check(const dt_model *m) DT_MUST_USE;

/* How often the model is there, each replica for rows of its own: the ranks of its batch dims.
 * Replica r has rows, tables and blocks of its own, which no other sees. */
int64_t dti_ragged_replicas(const dt_model *m);

/* --- The pool ------------------------------------------------------------------------------- */

typedef struct dti_kv_pool dti_kv_pool;

/* A pool of n_blocks blocks in each replica, laid out as the model's keys are: it runs a pass over
 * a row of padding to see how. A dry model gets one without bytes. Its memory counts as caches.
 *
 * Collective over the model's mesh.
 * Errors: those of dti_ragged_check() and of a pass; DT_ERR_ARG n_blocks below 1;
 * DT_ERR_UNSUPPORTED a plan that cuts the tokens of caches, or sequences where the model does not
 * cut batches; DT_ERR_MEMORY. */
dt_status dti_kv_pool_create(dt_model *m, int64_t n_blocks, dti_kv_pool **out) DT_MUST_USE;
void dti_kv_pool_release(dti_kv_pool **pool); /* accepts NULL */

/* As many blocks from now on, all of them empty: who sizes a pool by memory makes one of one block,
 * and asks what that is. After an error the pool has no blocks. Collective. */
dt_status dti_kv_pool_resize(dti_kv_pool *pool, int64_t n_blocks) DT_MUST_USE;

int64_t dti_kv_pool_n_blocks(const dti_kv_pool *pool);

/* Keys that a token sees at most, itself included, in the layers of this rank: the largest of their
 * windows, INT64_MAX where one has none; 0 without attention. Blocks before it need not be kept. */
int64_t dti_kv_pool_sees(const dti_kv_pool *pool);

/* Bytes of a block on this rank: keys and values of the layers that it has. */
int64_t dti_kv_pool_block_bytes(const dti_kv_pool *pool);

/* Block `to` becomes a copy of block `from`, both of `replica`; a rank of another does nothing. In
 * the order of passes. Errors: DT_ERR_ARG no such block or replica. Collective. */
dt_status dti_kv_pool_copy_block(dti_kv_pool *pool, int64_t replica, int64_t from,
                                 int64_t to) DT_MUST_USE;

/* Whether layers of the model carry state, on whatever rank. */
bool dti_kv_pool_carries(const dti_kv_pool *pool);

/* So many slots in each replica from now on, all empty; a pool begins with one. Nothing where
 * layers carry no state. After an error the pool is to be released. Collective.
 * Errors: DT_ERR_ARG n_slots below 1; DT_ERR_MEMORY. */
dt_status dti_kv_pool_set_slots(dti_kv_pool *pool, int64_t n_slots) DT_MUST_USE;

/* Slots in a pool of so many bytes, of which they take no more than half: at most `most`. */
int64_t dti_kv_pool_slots_in(int64_t bytes, int64_t slot_bytes, int64_t most);

/* Bytes of a slot on this rank: states of the layers that it has. */
int64_t dti_kv_pool_slot_bytes(const dti_kv_pool *pool);

/* As dti_kv_pool_copy_block(), of slots: the sequence of `to` goes on from where that of `from` is.
 * Nothing where layers carry no state. */
dt_status dti_kv_pool_copy_slot(dti_kv_pool *pool, int64_t replica, int64_t from,
                                int64_t to) DT_MUST_USE;

/* --- A pass --------------------------------------------------------------------------------- */

/* Every replica has as many rows, sequences and wanted rows; what it does not need is padding. All
 * arrays are in the order of replicas, borrowed for the call and the same on every rank. */
typedef struct dti_ragged {
    int64_t n_rows;
    const int32_t *ids;       /* [replicas, n_rows]; of padding 0 */
    const int32_t *positions; /* [replicas, n_rows] in the row's sequence; of padding 0 */
    const int32_t *sequence;  /* [replicas, n_rows] row of the replica's table; -1: padding, which
                               * writes and reads nothing */
    int64_t n_sequences, max_blocks;
    const int32_t *table; /* [replicas, n_sequences, max_blocks]: block of positions 128 i .. 128 i
                           * + 127; -1: none of them is written or seen by this pass, because they
                           * are not read yet or no window reaches them any more */
    const int32_t *slots; /* [replicas, n_sequences]: the slot of each; -1: this pass has no row of
                           * it. NULL where layers carry no state */
    int64_t n_out;
    const int32_t *out_rows; /* [replicas, n_out]: rows of which logits are wanted, by number in the
                              * replica; -1: padding, of which nobody reads the logits. n_out 0: of
                              * none */
    dt_progress_fn progress; /* told of layers done; or NULL */
    void *progress_arg;
    dt_go_on_fn
        go_on; /* see dt_model_pass; a pass that is broken off may have written its rows, and
                        * then its sequences that have slots begin anew */
    void *go_on_arg;
} dti_ragged;

/* Writes keys and values of all rows into their blocks and attends from each row to all positions
 * of its sequence up to its own. Rows of one sequence come in order of their positions, each once;
 * all positions before them were written by earlier passes, or lie in blocks that others wrote.
 * Rows that follow each other in a sequence run fastest side by side. Where layers carry state each
 * position is read once, behind the one before it; position 0 begins, whatever the slot held.
 *
 * Returns logits [replicas * n_out, 1, vocab_size], cut as those of dt_model_forward(), borrowed
 * from the tape; NULL where none are wanted and after an error.
 *
 * Collective over the model's mesh, with the same rows on all ranks.
 * Errors: latched. DT_ERR_ARG ids outside of the vocabulary, positions outside of the model's
 * context or of the table, sequences or blocks that there are not, rows of a sequence out of order,
 * a block written by one sequence that another has too, a slot of two sequences or of one that has
 * not read what comes before: nothing is written then. */
dt_tensor *dti_ragged_pass(dt_tape *t, dt_model *m, dti_kv_pool *pool, const dti_ragged *rows);

#endif
