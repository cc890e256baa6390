/* SPDX-License-Identifier: Apache-2.0
 *
 * What passes through a model cost at the least: bytes that a token reads, operations of a prompt.
 * Benches hold times against them. */
#ifndef DTI_WORK_H
#define DTI_WORK_H

#include <dtensor/models.h>
#include <dtensor/op_rows.h>

#include "base/error.h"

/* `chosen`: experts of a token, "num_experts_per_tok" of the folder's config.json; 0: none. */
dt_status dti_work_experts(const char *folder, int64_t *chosen) DT_MUST_USE;

/* Bytes of a parameter that one token reads on this rank: all, of experts as many as are chosen, of
 * an embedding none, because a row is little. A head that is tied to it is a layer by itself. */
int64_t dti_work_param_bytes(const dt_layer *layer, int param, int64_t chosen);

/* The same of all parameters. */
int64_t dti_work_token_bytes(dt_model *model, int64_t chosen);

/* Operations that n tokens need, by what the rows cost, copies on other ranks not counted: products
 * of all layers, the head's of n_logits tokens, and causal attention. */
dt_status dti_work_prompt(dt_model *model, int64_t n, int64_t n_logits, int64_t chosen,
                          double *flops) DT_MUST_USE;
dt_status dti_work_attention(const dt_model_info *info, int64_t n, double *flops) DT_MUST_USE;

#endif
