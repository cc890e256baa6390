/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ranks of a model reach at most on this machine, for times of the model to stand beside.
 * On cores: reading its weights and nothing else, one large product and nothing else, multiply-adds
 * in registers and nothing else. On a GPU: copying as many bytes as there are weights to read
 * (bytes read and bytes written together), and one large product. Ranks that measure at the same
 * time share what they share in a run. */
#ifndef DT_LIMITS_H
#define DT_LIMITS_H

#include <dtensor/models.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's. */
typedef struct dt_limits dt_limits;

/**
 * Makes what is measured with: a product of n_prompt rows by a matrix of 2048 by 2048 in the
 * model's dtype; on a GPU of two square matrices that are large enough to fill it.
 *
 *   folder    whose config.json says how many experts a token has
 *   n_prompt  tokens of the prompts that are measured
 *
 * Collective  over the model's mesh.
 * Ownership   *out is released with dt_limits_close(), before the model.
 * Errors      DT_ERR_ARG, DT_ERR_IO, DT_ERR_FORMAT (config.json), DT_ERR_MEMORY, DT_ERR_DEVICE,
 *             DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_limits_open(dt_model *model, const char *folder, int64_t n_prompt,
                                            dt_limits **out);
DT_API void dt_limits_close(dt_limits **limits); /* accepts NULL */

/**
 * What work there is at the least, of all ranks together.
 *
 *   bytes     of weights that one token reads: all, of experts those that are chosen, of an
 *             embedding none
 *   products  operations of one dt_limits_multiply()
 *   flops     operations that reading a prompt of n_prompt tokens needs, copies on other ranks not
 *             counted
 *
 * Collective  over the model's mesh.
 * Errors      DT_ERR_ARG, DT_ERR_MEMORY, DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_limits_count(dt_limits *limits, int64_t n_prompt, double *bytes,
                                             double *products, double *flops);

/** Weights that one token is multiplied with, each once: of experts those that are chosen, of an
 * embedding none. What training needs follows: two operations each forward, four backward. Not
 * collective. Errors: DT_ERR_SHAPE, none that occurs. */
DT_API DT_MUST_USE dt_status dt_limits_weights(const dt_limits *limits, double *weights);

/** Reads the bytes of weights that one token needs of this rank, with all its threads, or copies as
 * many on its GPU; returns when that is done. Not collective. Errors: DT_ERR_DEVICE. */
DT_API DT_MUST_USE dt_status dt_limits_read(dt_limits *limits);

/** Multiplies once, on this rank; returns when that is done. Not collective. Errors:
 * DT_ERR_DEVICE, DT_ERR_MEMORY. */
DT_API DT_MUST_USE dt_status dt_limits_multiply(dt_limits *limits);

/** Multiplies and adds for some milliseconds, on this rank with all its threads, by the instruction
 * that products of the model's dtype end up in; on its GPU one dt_limits_multiply(). *operations is
 * what all ranks do if each of them calls, a multiply-add counting as two. Not collective. Errors:
 * DT_ERR_DEVICE. */
DT_API DT_MUST_USE dt_status dt_limits_peak(dt_limits *limits, double *operations);

/** What dt_limits_read() does, in words: "reading the weights alone". Not collective. Errors:
 * none. */
DT_API const char *dt_limits_of_bytes(const dt_limits *limits);

#ifdef __cplusplus
}
#endif
#endif
