/* SPDX-License-Identifier: Apache-2.0
 *
 * Losses over a vocabulary that ranks may share. Logits are [..., v] F, laid in any way but as
 * terms; targets [...] i32 lie as their tokens do, or whole. Everything between is f32.
 *
 * Where v is cut two values for each token travel, before and after the sum of all e^x, and nothing
 * in the gradient: the largest logit, then the sum of e^(x - largest) beside the target's logit. A
 * rank that holds none of v takes part. Both are moves that the tape counts under "cross_entropy",
 * whatever dt_tape_set_moves() says. */
#ifndef DT_OPS_LOSS_H
#define DT_OPS_LOSS_H

#include <dtensor/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dt_reduction {
    DT_MEAN_OF_TOKENS, /* of those that count, over all ranks */
    DT_SUM_OF_TOKENS
} dt_reduction;

/* A token's loss is (1 - s) (lse - x[target]) + s (lse - mean of x) + z lse^2, where lse is the
 * logarithm of the sum of all e^x; 0 of an ignored one. */
typedef struct dt_cross_entropy_options {
    int64_t ignore_index;   /* the target of tokens that do not count */
    double label_smoothing; /* s, 0 to below 1 */
    double z_loss;          /* z, not negative */
    dt_reduction reduction;
    double n_valid; /* of a mean: what the sum is divided by, of a step of several batches the
                     * count of all of them; 0: this call's tokens are counted over all ranks */
    int64_t chunk;  /* of dt_cross_entropy_chunked(): tokens at a time; 0: an eighth of them */
} dt_cross_entropy_options;

/* PyTorch's: -100 is ignored, the mean of the others. NULL says the same. */
#define DT_CROSS_ENTROPY_OPTIONS_INIT             \
    {                                             \
        -100, 0.0, 0.0, DT_MEAN_OF_TOKENS, 0.0, 0 \
    }

/**
 * Cross entropy of logits and targets.
 *
 * Returns [] f32. Where tokens are cut it is Partial(sum) over those mesh dims: reduce it when it
 * is looked at. A mean of no tokens is NaN.
 *
 * Collective  if v is cut, or for a mean whose n_valid is 0: over logits' mesh. Else not.
 * Errors      latched: those of dt_apply() and dt_move(); DT_ERR_ARG for options out of range and
 *             for a target that is neither ignored nor in the vocabulary
 */
DT_API dt_tensor *dt_cross_entropy(dt_tape *tape, dt_tensor *logits, dt_tensor *targets,
                                   const dt_cross_entropy_options *options);

/* What each token loses, its lse, and 1 where it counts, all [...] f32. */
typedef struct dt_token_losses {
    dt_tensor *losses, *lse, *counted;
} dt_token_losses;

/** The parts of dt_cross_entropy(), as it is Collective if v is cut, with its Errors. After an
 * error all are NULL. */
DT_API void dt_cross_entropy_tokens(dt_tape *tape, dt_tensor *logits, dt_tensor *targets,
                                    const dt_cross_entropy_options *options, dt_token_losses *out);

/** The gradient [..., v] F of logits from that of each token's loss, dlosses [...] f32; lse is what
 * dt_cross_entropy_tokens() gave. Not collective. Errors: latched, those of dt_apply(). */
DT_API dt_tensor *dt_cross_entropy_backward(dt_tape *tape, dt_tensor *dlosses, dt_tensor *logits,
                                            dt_tensor *targets, dt_tensor *lse,
                                            const dt_cross_entropy_options *options);

/** How many targets are not ignored: [] f32, Partial(sum) where they are cut. Not collective.
 * Errors: latched, those of dt_apply(). */
DT_API dt_tensor *dt_count_targets(dt_tape *tape, dt_tensor *targets, int64_t ignore_index);

/**
 * dt_cross_entropy() of the logits x w^T, which are made for a chunk of tokens at a time and never
 * are all there: with their gradient, two chunks of logits at most, and for dw its sum so far and
 * one chunk's.
 *
 *   x, w      [..., t, d], [v, d] F
 *   options   as above
 *   *dx, *dw  gradients of the loss, [..., t, d] F (f32 and terms where v is cut) and [v, d] f32;
 *             NULL: not wanted. A reverse pass multiplies them by its gradient of the loss, which
 *             is 1 where the loss is what is minimised.
 *
 * Chunks are rows of the longest axis of tokens that is not cut; there are 64 of them at most. They
 * are added in their order.
 *
 * Collective  if v is cut, for each chunk; or for a mean whose n_valid is 0: over x's mesh.
 * Errors      latched: as dt_cross_entropy(); DT_ERR_LAYOUT if every axis of tokens is cut
 */
DT_API dt_tensor *dt_cross_entropy_chunked(dt_tape *tape, dt_tensor *x, dt_tensor *w,
                                           dt_tensor *targets,
                                           const dt_cross_entropy_options *options, dt_tensor **dx,
                                           dt_tensor **dw);

#ifdef __cplusplus
}
#endif
#endif
