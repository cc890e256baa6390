/* SPDX-License-Identifier: Apache-2.0
 *
 * The tensor parallel plans of NeMo Automodel's optimized_tp_plans, as of 2025, in its own words:
 * names of modules, PyTorch's styles and their arguments. What they name no rule for is whole. A
 * test holds them against tests/golden/plans/nemo.json. */
#include "models/architectures/named_plans.h"

/* clang-format off */
static const dt_plan_rule decoder_tp[] = {
    { "model.embed_tokens",              "RowwiseParallel(input_layouts=Replicate)" },
    { "model.layers.*.self_attn.q_proj", "ColwiseParallel" },
    { "model.layers.*.self_attn.k_proj", "ColwiseParallel" },
    { "model.layers.*.self_attn.v_proj", "ColwiseParallel" },
    { "model.layers.*.self_attn.o_proj", "RowwiseParallel" },
    { "model.layers.*.mlp.up_proj",      "ColwiseParallel" },
    { "model.layers.*.mlp.gate_proj",    "ColwiseParallel" },
    { "model.layers.*.mlp.down_proj",    "RowwiseParallel" },
    { "lm_head",                         "ColwiseParallel(output_layouts=Shard(-1), use_local_output=false)" },
};

static const dt_plan_rule llama_tp_sp[] = {
    { "model.embed_tokens",                      "RowwiseParallel(input_layouts=Replicate, output_layouts=Shard(1))" },
    { "model.layers.*.self_attn.q_proj",         "ColwiseParallel" },
    { "model.layers.*.self_attn.k_proj",         "ColwiseParallel" },
    { "model.layers.*.self_attn.v_proj",         "ColwiseParallel" },
    { "model.layers.*.self_attn.o_proj",         "RowwiseParallel(output_layouts=Shard(1))" },
    { "model.layers.*.mlp.up_proj",              "ColwiseParallel" },
    { "model.layers.*.mlp.gate_proj",            "ColwiseParallel" },
    { "model.layers.*.mlp.down_proj",            "RowwiseParallel(output_layouts=Shard(1))" },
    { "lm_head",
      "ColwiseParallel("
      "input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=false)" },
    { "model.norm",                              "SequenceParallel" },
    { "model.layers.*.input_layernorm",          "SequenceParallel" },
    { "model.layers.*.post_attention_layernorm", "SequenceParallel" },
};

static const dt_plan_rule qwen_tp_sp[] = {
    { "lm_head",
      "ColwiseParallel("
      "input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=false)" },
    { "model.embed_tokens",                      "RowwiseParallel(input_layouts=Replicate, output_layouts=Shard(1))" },
    { "model.rotary_emb",                        "RotaryEmbedParallel" },
    { "model.norm",                              "SequenceParallel" },
    { "model.layers.*.input_layernorm",          "SequenceParallel" },
    { "model.layers.*.self_attn.q_proj",         "ColwiseParallel(use_local_output=false)" },
    { "model.layers.*.self_attn.k_proj",         "ColwiseParallel(use_local_output=false)" },
    { "model.layers.*.self_attn.v_proj",         "ColwiseParallel(use_local_output=false)" },
    { "model.layers.*.self_attn.o_proj",         "RowwiseParallel(output_layouts=Shard(1))" },
    { "model.layers.*.self_attn.q_norm",         "Qwen3QKNorm" },
    { "model.layers.*.self_attn.k_norm",         "Qwen3QKNorm" },
    { "model.layers.*.post_attention_layernorm", "SequenceParallel" },
    { "model.layers.*.mlp.up_proj",              "ColwiseParallel" },
    { "model.layers.*.mlp.gate_proj",            "ColwiseParallel" },
    { "model.layers.*.mlp.down_proj",            "RowwiseParallel(output_layouts=Shard(1))" },
};

/* Of the text alone, and of the text within a model that sees images. */
#define GEMMA3_TP(model)                                                      \
    { model ".layers.*.self_attn.q_proj", "ColwiseParallel" },                \
    { model ".layers.*.self_attn.k_proj", "ColwiseParallel" },                \
    { model ".layers.*.self_attn.v_proj", "ColwiseParallel" },                \
    { model ".layers.*.self_attn.o_proj", "RowwiseParallel" },                \
    { model ".layers.*.mlp.up_proj",      "ColwiseParallel" },                \
    { model ".layers.*.mlp.gate_proj",    "ColwiseParallel" },                \
    { model ".layers.*.mlp.down_proj",    "RowwiseParallel" },
#define GEMMA3_TP_SP(model)                                                                                \
    { model ".layers.*.self_attn.q_proj",           "ColwiseParallel" },                                   \
    { model ".layers.*.self_attn.k_proj",           "ColwiseParallel" },                                   \
    { model ".layers.*.self_attn.v_proj",           "ColwiseParallel" },                                   \
    { model ".layers.*.self_attn.o_proj",           "RowwiseParallel(output_layouts=Shard(1))" },          \
    { model ".layers.*.mlp.up_proj",                "ColwiseParallel" },                                   \
    { model ".layers.*.mlp.gate_proj",              "ColwiseParallel" },                                   \
    { model ".layers.*.mlp.down_proj",              "RowwiseParallel(output_layouts=Shard(1))" },          \
    { model ".embed_tokens",                        "PrepareModuleOutput(output_layouts=Replicate, "       \
                                                    "desired_output_layouts=Shard(1), "                    \
                                                    "use_local_output=false)" },                           \
    { model ".rotary_emb",                          "RotaryEmbedParallel(use_local_output=true)" },        \
    { model ".rotary_emb_local",                    "RotaryEmbedParallel(use_local_output=true)" },        \
    { model ".layers.*.input_layernorm",            "SequenceParallel" },                                  \
    { model ".layers.*.post_attention_layernorm",   "SequenceParallel" },                                  \
    { model ".layers.*.pre_feedforward_layernorm",  "SequenceParallel" },                                  \
    { model ".layers.*.post_feedforward_layernorm", "SequenceParallel" },                                  \
    { model ".norm",                                "SequenceParallel" },                                  \
    { model ".lm_head",                             "PrepareModuleInput(input_layouts=[Shard(1)], "        \
                                                    "desired_input_layouts=[Replicate], "                  \
                                                    "use_local_output=true)" },

static const dt_plan_rule gemma3_text_tp[] = { GEMMA3_TP("model") };
static const dt_plan_rule gemma3_text_tp_sp[] = { GEMMA3_TP_SP("model") };
static const dt_plan_rule gemma3_tp[] = { GEMMA3_TP("language_model") };
static const dt_plan_rule gemma3_tp_sp[] = { GEMMA3_TP_SP("language_model") };
/* clang-format on */

#define RULES(list) .rules = (list), .n_rules = (int)DT_COUNT(list)
#define NEMO(tp, tp_sp)                                                             \
    {                                                                               \
        { "nemo",                                                                   \
          "as NeMo Automodel cuts layers",                                          \
          { RULES(tp), .manual = true, .source = "the plan \"nemo\"" } },           \
            { "nemo+sp",                                                            \
              "the same with tokens cut between blocks",                            \
              { RULES(tp_sp), .manual = true, .source = "the plan \"nemo+sp\"" } }, \
        {                                                                           \
            NULL, NULL,                                                             \
            {                                                                       \
                .rules = NULL                                                       \
            }                                                                       \
        }                                                                           \
    }

const dt_named_plan dti_nemo_llama[] = NEMO(decoder_tp, llama_tp_sp);
const dt_named_plan dti_nemo_qwen[] = NEMO(decoder_tp, qwen_tp_sp);
const dt_named_plan dti_nemo_gemma3_text[] = NEMO(gemma3_text_tp, gemma3_text_tp_sp);
const dt_named_plan dti_nemo_gemma3[] = NEMO(gemma3_tp, gemma3_tp_sp);
