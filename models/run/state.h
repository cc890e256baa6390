/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a batch of sequences: what each has read, and the caches of its keys and values. A
 * token's row in a cache is its position, padding or not. */
#ifndef DTI_STATE_H
#define DTI_STATE_H

#include "models/model.h"

/* Keys and values that one block has seen. Made when the block first runs, laid out as its keys
 * are, so that every plan and every head rule gets the cache that fits it. */
typedef struct dti_kv {
    dt_tensor *k; /* [batch, capacity, kv heads, head_dim]; NULL before the first pass */
    dt_tensor *v;
    int64_t capacity;
} dti_kv;

/* A pass of a state between dt_model_forward_begin() and dt_model_forward_end(). */
typedef struct dti_entered {
    dt_tape *tape; /* NULL: there is none */
    dt_tensor *logits;
    struct dt_parcel *parcel; /* or what brings them */
} dti_entered;

struct dt_state {
    dt_model *model;
    int64_t batch;
    int64_t together; /* sequences side by side that one rank has: texts of a prompt, 1 before */
    int64_t capacity;
    int64_t length;   /* of the longest sequence */
    int64_t n_kept;   /* batch; 1 in a dry runtime, whose sequences are all as the longest is */
    int64_t *lengths; /* [n_kept] tokens that each has seen */
    int64_t *pads;    /* [n_kept] of the next pass, see dt_state_pad() */
    int32_t *ids;     /* [batch, capacity] those tokens; not kept in a dry runtime */
    dti_kv *kv;       /* [n_layers] */
    dt_carry *carry;  /* what layers carry from pass to pass; NULL: no kind of them does */
    struct dti_step_pass *step; /* step.h; NULL: nothing is recorded */
    bool unrecorded;            /* passes are neither recorded nor played, for benches */
    int turned; /* 1: keys rotate as in sequences longer than arch->turn(); 0: as in shorter
                       * ones; -1: some so, some so, after a pass that failed */
    dt_progress_fn progress; /* told of layers done in passes of several tokens; or NULL */
    void *progress_arg;
    dt_go_on_fn go_on; /* see dt_model_pass */
    void *go_on_arg;
    dt_hidden_fn see; /* see dt_state_set_hidden(); or NULL */
    void *see_arg;
    dti_entered entered;
    int64_t room; /* positions that the caches have by now: capacity, or less where they grow */
};

/* The position of token j of the next pass of n_tokens, of sequence b: real tokens follow what is
 * there. Padding lies behind them, where no real token looks; the tokens that will have these
 * positions write over it. */
static inline int64_t dti_state_position(const dt_state *s, int64_t b, int64_t n_tokens, int64_t j)
{
    const int64_t pads = s->pads[b];

    return s->lengths[b] + (j >= pads ? j - pads : n_tokens - pads + j);
}

/* The next pass's tokens have been read; n_tokens of each sequence have not, after all. */
void dti_state_advance(dt_state *s, const int32_t *ids, int64_t n_tokens);
void dti_state_retreat(dt_state *s, int64_t n_tokens);

/* Makes room for n_tokens more. Errors: DT_ERR_MEMORY, DT_ERR_UNSUPPORTED a plan that cuts tokens
 * of caches; the state stays as it was. */
dt_status dti_state_make_room(dt_state *s, int64_t n_tokens) DT_MUST_USE;

/* Every sequence `times` times, side by side: [a, b] becomes [a, a, b, b]. */
dt_status dti_state_expand(dt_state *s, int64_t times) DT_MUST_USE;

/* Sequence i becomes what sequence from[i] was; all have the same length. Copies no more than where
 * the two differ. */
dt_status dti_state_reorder(dt_state *s, const int64_t *from) DT_MUST_USE;

#endif
