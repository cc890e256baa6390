/* SPDX-License-Identifier: Apache-2.0
 *
 * What architectures say in rows becomes the specs of layers; and which architectures there are. */
#ifndef DTI_BUILDER_H
#define DTI_BUILDER_H

#include <dtensor/architectures.h>

#include "base/memory.h"

/* Collects rows of all blocks, then makes the layers and points the fields at them. */
typedef struct dti_builder {
    dti_arena arena;
    dt_row_settings settings; /* of the rows to come */
    dt_layer_spec *specs;
    size_t specs_capacity;
    dt_layer ***slots;
    size_t slots_capacity;
    const char *(*keys)[2]; /* of the axes of a spec's weight */
    size_t keys_capacity;
    int n;
} dti_builder;

/* Sequence parallelism: the built-in plan with tokens cut between blocks. */
void dti_builder_cut_tokens(dti_builder *b);

dt_status dti_builder_finish(dti_builder *b, dt_mesh *mesh, const char *dim, const dt_plan *plan,
                             dt_layers **out) DT_MUST_USE;
void dti_builder_free(dti_builder *b);

extern const dt_arch dti_arch_llama, dti_arch_qwen2, dti_arch_qwen3, dti_arch_qwen3_moe,
    dti_arch_gpt_neo, dti_arch_gemma, dti_arch_gemma2, dti_arch_gemma3_text, dti_arch_gemma3,
    dti_arch_phi3, dti_arch_mistral, dti_arch_ministral, dti_arch_mistral3, dti_arch_smollm3,
    dti_arch_granite, dti_arch_seed_oss, dti_arch_cwm, dti_arch_exaone4, dti_arch_mixtral,
    dti_arch_gpt2, dti_arch_gpt_bigcode, dti_arch_gpt_neox, dti_arch_falcon, dti_arch_phi,
    dti_arch_starcoder2, dti_arch_stablelm, dti_arch_qwen2_moe, dti_arch_glm, dti_arch_glm4,
    dti_arch_gptj, dti_arch_cohere, dti_arch_cohere2, dti_arch_ernie4_5, dti_arch_olmo2,
    dti_arch_olmo3, dti_arch_glm4_moe, dti_arch_ministral3, dti_arch_gpt_oss, dti_arch_deepseek_v3,
    dti_arch_qwen3_next;

enum { DTI_ARCH_NAMES = 1024 };

/* The architecture of that model_type: registered in `rt`, or built in; rt may be NULL. NULL: there
 * is none, and `names` lists those there are. */
const dt_arch *dti_arch_find(dt_runtime *rt, const char *model_type, char *names, size_t bytes);

/* Refuses what is no architecture; with `reads` one that cannot read a config.json. */
dt_status dti_arch_check(const dt_arch *arch, bool reads) DT_MUST_USE;

#endif
