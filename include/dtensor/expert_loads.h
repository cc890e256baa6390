/* SPDX-License-Identifier: Apache-2.0
 *
 * How tokens spread over the experts of a model: how many chose each, in passes of any kind, those
 * of training included. */
#ifndef DT_EXPERT_LOADS_H
#define DT_EXPERT_LOADS_H

#include <dtensor/layers.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of one mixture of experts. Texts and numbers live as long as the layers, numbers until the next
 * sum. */
typedef struct dt_expert_load {
    const char *layer; /* the point around its experts */
    int64_t n_experts;
    const int64_t *tokens; /* [n_experts] that chose each */
    int64_t most;          /* of these, the largest */
    int64_t unused;        /* experts that no token chose */
    double imbalance;      /* most over the mean: 1 where all are chosen alike; 0: no tokens */
} dt_expert_load;

/**
 * Lets dt_layer_experts() count from now on which experts tokens choose; false: no more, and what
 * was counted is forgotten. Parts of a forward pass that gradients run again are not counted again.
 * On a GPU each pass then waits for every router, and steps of one token are not recorded.
 *
 * Collective  no; every rank says the same.
 * Errors      DT_ERR_ARG     NULL, or layers without experts
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_layers_count_experts(dt_layers *layers, bool on);

/**
 * Sums over all ranks what was counted since the last sum, each token once, on however many ranks
 * it was; counting begins anew. dt_layers_expert_load() then has it.
 *
 * Collective  over the mesh of the layers; one all-reduce, which no tape counts.
 * Errors      DT_ERR_ARG     NULL, or nothing is counted
 *             DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_layers_sum_experts(dt_layers *layers);

/** What the last sum has of the i-th mixture of experts, in the order of layers; false: there are
 * not so many, or nothing is counted. Not collective. Errors: none. */
DT_API bool dt_layers_expert_load(const dt_layers *layers, int i, dt_expert_load *out);

#ifdef __cplusplus
}
#endif
#endif
