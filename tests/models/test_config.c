/* SPDX-License-Identifier: Apache-2.0
 *
 * Spellings of config.json: what Transformers reads we read the same, what contradicts itself or
 * asks for what is not built is refused by key. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"
#include "models/describe/describe.h"
#include "tests/support/dt_test.h"

typedef struct arch_case {
    const dt_arch *arch;
    const char *text;
    const char *refused; /* NULL: accepted */
} arch_case;

#define NEO "{\"hidden_size\": 8, \"num_heads\": 2, \"num_layers\": 2, "
#define QWEN                                                                        \
    "{\"hidden_size\": 8, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, " \
    "\"num_hidden_layers\": 2, "

#define PHI3                                                                       \
    "{\"hidden_size\": 16, \"num_attention_heads\": 2, \"num_hidden_layers\": 2, " \
    "\"max_position_embeddings\": 64, "

#define GPT2 "{\"n_embd\": 8, \"n_head\": 2, \"n_layer\": 2, "
#define NEOX "{\"hidden_size\": 32, \"num_attention_heads\": 2, \"num_hidden_layers\": 2, "

#define GEMMA                                                                       \
    "{\"hidden_size\": 8, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, " \
    "\"head_dim\": 4, \"num_hidden_layers\": 2, "

static const arch_case archs[] = {
    { &dti_arch_gpt_neo, NEO "\"attention_layers\": [\"local\", \"local\"]}", NULL },
    { &dti_arch_gpt_neo, NEO "\"attention_layers\": [\"local\"]}", "attention_layers" },
    { &dti_arch_gpt_neo,
      "{\"hidden_size\": 8, \"num_attention_heads\": 2, \"num_hidden_layers\": 2, "
      "\"attention_types\": [[[\"global\", \"local\"], 1]]}",
      NULL },
    { &dti_arch_gpt_neo,
      "{\"hidden_size\": 8, \"num_attention_heads\": 3, \"num_hidden_layers\": 2}",
      "num_attention_heads" },
    { &dti_arch_gpt_neo, NEO "\"attention_layers\": [\"local\", \"x\"]}", "attention_layers[1]" },
    { &dti_arch_gpt_neo, NEO "\"attention_types\": [[[\"global\", \"local\"], 1]]}", NULL },
    { &dti_arch_gpt_neo, NEO "\"attention_types\": [[[\"global\", \"local\"], 2]]}", "names more" },
    { &dti_arch_gpt_neo, NEO "\"attention_types\": [[[\"global\"], 1]]}", "names 1" },
    { &dti_arch_gpt_neo, NEO "\"window_size\": 4}", "attention_types" },
    { &dti_arch_gpt_neo,
      NEO "\"num_key_value_heads\": 3, \"head_dim\": 3, \"attention_types\": [[[\"global\"], 2]]}",
      NULL },
    { &dti_arch_qwen3, QWEN "\"use_sliding_window\": true, \"sliding_window\": 0}",
      "sliding_window" },
    { &dti_arch_qwen3, QWEN "\"layer_types\": [\"full_attention\", \"full_attention\"]}", NULL },
    { &dti_arch_qwen3, QWEN "\"layer_types\": [\"full_attention\"]}", "layer_types" },
    { &dti_arch_qwen3, QWEN "\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
      "layer_types[1] is the string \"sliding_attention\", must be \"full_attention\"" },
    { &dti_arch_qwen2,
      QWEN "\"use_sliding_window\": true, \"layer_types\": [\"chunked_attention\", \"x\"]}",
      "layer_types[0]" },
    { &dti_arch_qwen2,
      QWEN "\"use_sliding_window\": true, \"sliding_window\": null, \"layer_types\": "
           "[\"full_attention\", \"sliding_attention\"]}",
      "there is no window" },
    { &dti_arch_qwen3, QWEN "\"head_dim\": 7}", "head_dim" },
    { &dti_arch_gemma3_text, GEMMA "\"layer_types\": [\"full_attention\"]}", "layer_types" },
    { &dti_arch_gemma3_text, GEMMA "\"sliding_window\": null}", "layer 0 is local" },
    { &dti_arch_gemma3_text, GEMMA "\"sliding_window\": null, \"sliding_window_pattern\": 1}",
      NULL },
    { &dti_arch_gemma3_text, GEMMA "\"use_bidirectional_attention\": true}",
      "use_bidirectional_attention" },
    { &dti_arch_gemma3_text, GEMMA "\"final_logit_softcapping\": 0}", "final_logit_softcapping" },
    { &dti_arch_gemma3_text, GEMMA "\"hidden_activation\": \"prelu\"}", "hidden_activation" },
    { &dti_arch_gemma3_text, GEMMA "\"rope_parameters\": {\"rope_theta\": 5}}", "full_attention" },
    { &dti_arch_gemma3_text,
      GEMMA "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}, "
            "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5}}}",
      "both say the same thing" },
    { &dti_arch_gemma3_text, GEMMA "\"rope_local_base_freq\": 0}", "rope_local_base_freq" },
    { &dti_arch_gemma2, GEMMA "\"sliding_window\": null}", "layer 0 is local" },
    { &dti_arch_gemma2, GEMMA "\"attn_logit_softcapping\": 0}", "attn_logit_softcapping" },
    { &dti_arch_gemma, GEMMA "\"use_bidirectional_attention\": true}",
      "use_bidirectional_attention" },
    { &dti_arch_mistral, QWEN "\"sliding_window\": 0}", "sliding_window" },
    { &dti_arch_mistral, QWEN "\"rope_parameters\": {\"sliding_attention\": {\"rope_theta\": 7}}}",
      "rope_parameters.sliding_attention" },
    { &dti_arch_ministral,
      QWEN "\"sliding_window\": null, \"layer_types\": [\"full_attention\", "
           "\"sliding_attention\"]}",
      "there is no window without a sliding_window" },
    { &dti_arch_mistral3, QWEN "\"model_type\": \"qwen2\"}",
      "\"mistral\", \"ministral\" or \"ministral3\"" },
    { &dti_arch_mistral3, QWEN "\"model_type\": \"ministral3\"}", "llama_4_scaling_beta" },
    { &dti_arch_ministral3, QWEN "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2}}",
      "llama_4_scaling_beta" },
    { &dti_arch_qwen3_next, QWEN "\"linear_num_value_heads\": 48}", NULL },
    { &dti_arch_qwen3_next, QWEN "\"linear_num_value_heads\": 24}",
      "a multiple of linear_num_key_heads, 16" },
    { &dti_arch_qwen3_next, QWEN "\"linear_conv_kernel_dim\": 1}", "linear_conv_kernel_dim" },
    { &dti_arch_qwen3_next, QWEN "\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
      "linear_attention" },
    { &dti_arch_qwen3_next, QWEN "\"full_attention_interval\": 0}", "full_attention_interval" },
    { &dti_arch_deepseek_v3, QWEN "\"q_lora_rank\": null}", NULL },
    { &dti_arch_deepseek_v3, QWEN "\"q_lora_rank\": 0}", "q_lora_rank" },
    { &dti_arch_deepseek_v3, QWEN "\"kv_lora_rank\": null}", "kv_lora_rank" },
    { &dti_arch_deepseek_v3, QWEN "\"qk_rope_head_dim\": 7}", "even" },
    { &dti_arch_deepseek_v3, "{\"num_attention_heads\": 4, \"num_key_value_heads\": 2}",
      "num_attention_heads: each" },
    { &dti_arch_deepseek_v3, QWEN "\"n_group\": 6}", "a divisor of n_routed_experts, 256" },
    { &dti_arch_glm4_moe, QWEN "\"n_group\": 3}", "a divisor of n_routed_experts, 128" },
    { &dti_arch_glm4_moe, QWEN "\"n_group\": 2, \"topk_group\": 3}", "at most n_group, 2" },
    { &dti_arch_glm4_moe, QWEN "\"n_group\": 32}", "so many that 8 experts are in them" },
    { &dti_arch_glm4_moe, QWEN "\"scoring_func\": \"softmax\"}", "scoring_func" },
    { &dti_arch_glm4_moe, QWEN "\"moe_layer_freq\": 2}", "moe_layer_freq" },
    { &dti_arch_glm4_moe, QWEN "\"num_experts_per_tok\": 129}", "at most n_routed_experts, 128" },
    { &dti_arch_glm4_moe, QWEN "\"routed_scaling_factor\": 0}", "routed_scaling_factor" },
    { &dti_arch_glm4_moe, QWEN "\"n_shared_experts\": 0}", NULL },
    { &dti_arch_mixtral, QWEN "\"num_local_experts\": 2, \"num_experts_per_tok\": 3}",
      "at most num_local_experts, 2" },
    { &dti_arch_mixtral, QWEN "\"hidden_act\": \"gelu\"}", "hidden_act" },
    { &dti_arch_smollm3, QWEN "\"no_rope_layers\": [1]}", "no_rope_layers" },
    { &dti_arch_smollm3, QWEN "\"no_rope_layers\": [1, 2]}", "no_rope_layers[1]" },
    { &dti_arch_granite, QWEN "\"logits_scaling\": 0}", "logits_scaling" },
    { &dti_arch_exaone4, QWEN "\"sliding_window_pattern\": \"LLLG\"}", "sliding_window_pattern" },
    { &dti_arch_cwm, QWEN "\"sliding_window\": 3}", "rope_parameters" },
    { &dti_arch_phi3, PHI3 "\"partial_rotary_factor\": 0.5, \"sliding_window\": 3}", NULL },
    { &dti_arch_phi3, PHI3 "\"sliding_window\": null}", NULL },
    { &dti_arch_phi3, PHI3 "\"sliding_window\": 0}", "sliding_window" },
    { &dti_arch_phi3, PHI3 "\"num_key_value_heads\": 3}", "num_key_value_heads" },
    { &dti_arch_phi3,
      PHI3
      "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [1]}}",
      "of 4 numbers, one per two of the 8 columns" },
    { &dti_arch_gpt2, GPT2 "\"n_inner\": null, \"reorder_and_upcast_attn\": true}", NULL },
    { &dti_arch_gpt2, "{\"n_embd\": 8, \"n_head\": 3}", "n_embd" },
    { &dti_arch_gpt2, GPT2 "\"n_positions\": 0}", "n_positions" },
    { &dti_arch_gpt2, GPT2 "\"add_cross_attention\": true}", "add_cross_attention" },
    { &dti_arch_gpt_bigcode, GPT2 "\"multi_query\": 1}", "multi_query" },
    { &dti_arch_gpt_neox, NEOX "\"rotary_pct\": 0.01}", "rotary_pct" },
    { &dti_arch_gpt_neox, NEOX "\"rotary_emb_base\": 0}", "rotary_emb_base" },
    { &dti_arch_gpt_neox, NEOX "\"rotary_emb_base\": 7, \"rope_scaling\": {\"rope_theta\": 8}}",
      "equal to rotary_emb_base at the root, 7" },
    { &dti_arch_falcon, NEOX "\"alibi\": true}", "alibi" },
    { &dti_arch_falcon, NEOX "\"num_kv_heads\": 3, \"new_decoder_architecture\": true}",
      "num_kv_heads" },
    { &dti_arch_falcon, NEOX "\"parallel_attn\": false, \"new_decoder_architecture\": true}",
      "parallel_attn" },
    { &dti_arch_falcon, NEOX "\"num_ln_in_parallel_attn\": 2}", "num_ln_in_parallel_attn" },
    { &dti_arch_falcon, NEOX "\"num_kv_heads\": 3, \"ffn_hidden_size\": null}", NULL },
    { &dti_arch_falcon, NEOX "\"partial_rotary_factor\": 0.5}",
      "heads of this architecture rotate" },
    { &dti_arch_starcoder2, NEOX "\"num_key_value_heads\": 1, \"sliding_window\": 0}",
      "sliding_window" },
    { &dti_arch_stablelm, QWEN "\"qk_layernorm\": true}", "qk_layernorm" },
    { &dti_arch_gptj, GPT2 "\"rotary_dim\": 5}", "rotary_dim" },
    { &dti_arch_gptj, GPT2 "\"rotary_dim\": null}", "rotary_dim" },
    { &dti_arch_cohere, QWEN "\"use_qk_norm\": true}", "use_qk_norm" },
    { &dti_arch_cohere2, QWEN "\"logit_scale\": 0}", "logit_scale" },
    { &dti_arch_ernie4_5, QWEN "\"use_bias\": null, \"head_dim\": 7}", "head_dim" },
    { &dti_arch_olmo2, QWEN "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 7}}}",
      "rope_parameters.full_attention" },
    { &dti_arch_olmo3, QWEN "\"sliding_window\": null}", "layer 0 is local" },
    { &dti_arch_olmo3, QWEN "\"rope_parameters\": {\"rope_theta\": 7}}",
      "made of \"full_attention\" and \"sliding_attention\"" },
    { &dti_arch_glm4, QWEN "\"head_dim\": 4, \"attention_bias\": null}", "attention_bias" },
    { &dti_arch_qwen2_moe, QWEN "\"shared_expert_intermediate_size\": 0}",
      "shared_expert_intermediate_size" },
    { &dti_arch_llama, "{\"quantization_config\": {}}", "quantised checkpoints are not" },
    { &dti_arch_llama, "{\"quantization_config\": {\"quant_method\": \"hqq\", \"bits\": 4}}",
      "quantised checkpoints (here by \"hqq\") are not" },
    { &dti_arch_phi3, "{\"quantization_config\": {\"quant_method\": 4}}", "quantised" },
    { &dti_arch_llama, "{\"hidden_act\": \"prelu\"}", "hidden_act" },
};

/* Reads a config: refused with that part in the message, or taken. */
static void read_text(const dt_arch *arch, const char *text, const char *refused,
                      dt_model_info *out)
{
    dt_model_info info = { .n_eos = 0 };
    DT_ENDS(dti_json_free) dti_json_doc doc;
    DT_FREED void *self = NULL;
    dt_status st;

    DT_ASSERT_OK(dti_json_parse("config.json", text, strlen(text), &doc));
    DT_ASSERT_OK(dti_alloc(arch->self_bytes, &self));
    st = arch->read_config(self, &doc.root, &info);
    if (refused != NULL)
        DT_ASSERT_STATUS(st, st == DT_ERR_UNSUPPORTED ? st : DT_ERR_FORMAT, refused);
    else
        DT_ASSERT_OK(st);
    if (out != NULL) *out = info;
    arch->release(self);
}

DT_TEST(config, architectures_refuse_what_they_cannot_run)
{
    for (size_t i = 0; i < DT_COUNT(archs); i++)
        read_text(archs[i].arch, archs[i].text, archs[i].refused, NULL);
}

/* Windows of Qwen's layers, as use_sliding_window, max_window_layers and layer_types say them. */
DT_TEST(config, windows_follow_three_keys)
{
    static const struct {
        const char *text;
        int64_t windows[2];
    } rows[] = {
        { QWEN "\"sliding_window\": 3, \"max_window_layers\": 0}", { 0, 0 } },
        { QWEN "\"use_sliding_window\": true, \"sliding_window\": 3}", { 0, 0 } },
        { QWEN "\"use_sliding_window\": true, \"sliding_window\": 3, \"max_window_layers\": 1}",
          { 0, 3 } },
        { QWEN "\"use_sliding_window\": true, \"max_window_layers\": 0}", { 4096, 4096 } },
        { QWEN "\"use_sliding_window\": true, \"sliding_window\": null, \"max_window_layers\": 0}",
          { 0, 0 } },
        { QWEN "\"use_sliding_window\": true, \"sliding_window\": 5, \"max_window_layers\": 2, "
               "\"layer_types\": [\"sliding_attention\", \"full_attention\"]}",
          { 5, 0 } },
    };
    static const dt_arch *const both[] = { &dti_arch_qwen2, &dti_arch_qwen3 };

    for (size_t i = 0; i < DT_COUNT(rows); i++)
        for (size_t a = 0; a < DT_COUNT(both); a++) {
            dt_model_info info = { .n_eos = 0 };
            dti_decoder m = { 0 };
            dti_json_doc doc;
            DT_ASSERT_OK(dti_json_parse("config.json", rows[i].text, strlen(rows[i].text), &doc));
            DT_ASSERT_OK(both[a]->read_config(&m, &doc.root, &info));
            for (int l = 0; l < 2; l++)
                DT_ASSERT_EQ_INT(m.blocks[l].attention.window, rows[i].windows[l]);
            DT_ASSERT(m.qkv_bias == (a == 0) && !m.out_bias);
            both[a]->release(&m);
            dti_json_free(&doc);
        }
}

/* Of two layers: the windows, and by which rotation they turn, -1 for none. */
DT_TEST(config, layers_have_the_windows_and_positions_of_their_architecture)
{
    static const struct {
        const dt_arch *arch;
        const char *text;
        int64_t windows[2];
        int ropes[2];
    } rows[] = {
        { &dti_arch_mistral, QWEN "\"vocab_size\": 9}", { 4096, 4096 }, { 0, 0 } },
        { &dti_arch_mistral, QWEN "\"sliding_window\": null}", { 0, 0 }, { 0, 0 } },
        { &dti_arch_mixtral, QWEN "\"vocab_size\": 9}", { 0, 0 }, { 0, 0 } },
        { &dti_arch_mixtral, QWEN "\"sliding_window\": 3}", { 3, 3 }, { 0, 0 } },
        { &dti_arch_ministral,
          QWEN "\"sliding_window\": 3, \"layer_types\": [\"full_attention\", "
               "\"sliding_attention\"]}",
          { 0, 3 },
          { 0, 0 } },
        { &dti_arch_ministral, QWEN "\"sliding_window\": 3}", { 3, 3 }, { 0, 0 } },
        { &dti_arch_mistral3,
          QWEN "\"model_type\": \"ministral\", \"sliding_window\": 3}",
          { 3, 3 },
          { 0, 0 } },
        { &dti_arch_smollm3, QWEN "\"no_rope_layer_interval\": 2}", { 0, 0 }, { 0, -1 } },
        { &dti_arch_smollm3,
          QWEN "\"no_rope_layers\": [0, 1], \"use_sliding_window\": true, \"sliding_window\": 5}",
          { 5, 0 },
          { -1, 0 } },
        { &dti_arch_exaone4, QWEN "\"sliding_window_pattern\": 2}", { 4096, 0 }, { 0, -1 } },
        { &dti_arch_exaone4, QWEN "\"sliding_window\": null}", { 0, 0 }, { 0, 0 } },
        { &dti_arch_exaone4,
          QWEN "\"sliding_window_pattern\": \"LLLG\", \"layer_types\": [\"full_attention\", "
               "\"sliding_attention\"]}",
          { 0, 4096 },
          { -1, 0 } },
        { &dti_arch_cohere2, QWEN "\"sliding_window_pattern\": 2}", { 4096, 0 }, { 0, -1 } },
        { &dti_arch_cohere, QWEN "\"sliding_window\": 3}", { 0, 0 }, { 0, 0 } },
        { &dti_arch_qwen2_moe,
          QWEN "\"use_sliding_window\": true, \"sliding_window\": 3}",
          { 3, 0 },
          { 0, 0 } },
        { &dti_arch_qwen2_moe, QWEN "\"sliding_window\": 3}", { 0, 0 }, { 0, 0 } },
        { &dti_arch_olmo3, QWEN "\"sliding_window\": 3}", { 3, 3 }, { 1, 1 } },
        { &dti_arch_olmo3,
          QWEN "\"layer_types\": [\"sliding_attention\", \"full_attention\"]}",
          { 4096, 0 },
          { 1, 0 } },
        { &dti_arch_olmo2, QWEN "\"sliding_window\": 3}", { 0, 0 }, { 0, 0 } },
        { &dti_arch_cwm, QWEN "\"rope_parameters\": {\"rope_theta\": 5}}", { 0, 8192 }, { 0, 0 } },
        { &dti_arch_gemma, GEMMA "\"vocab_size\": 9}", { 0, 0 }, { 0, 0 } },
        { &dti_arch_gemma2, GEMMA "\"sliding_window\": 3}", { 3, 0 }, { 0, 0 } },
        { &dti_arch_gemma3_text,
          GEMMA "\"sliding_window\": 3, \"sliding_window_pattern\": 2}",
          { 3, 0 },
          { 1, 0 } },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        dt_model_info info = { .n_eos = 0 };
        DT_ENDS(dti_json_free) dti_json_doc doc;
        dti_decoder m = { 0 };
        DT_ASSERT_OK(dti_json_parse("config.json", rows[i].text, strlen(rows[i].text), &doc));
        DT_ASSERT_OK(rows[i].arch->read_config(&m, &doc.root, &info));
        for (int l = 0; l < 2; l++) {
            DT_ASSERT_EQ_INT(m.blocks[l].attention.window, rows[i].windows[l]);
            DT_ASSERT_EQ_INT(m.blocks[l].rope, rows[i].ropes[l]);
        }
        rows[i].arch->release(&m);
    }
}

/* DeepSeek-V3 as its own files spell it: what is remembered is one key head, and scores grow by
 * YaRN's factor, (0.1 ln 40 + 1)^2 / sqrt(128 + 64). */
DT_TEST(config, latent_attention_is_read_as_files_have_it)
{
    static const char text[] =
        "{\"hidden_size\": 7168, \"num_attention_heads\": 128, \"num_key_value_heads\": 128, "
        "\"num_hidden_layers\": 4, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, "
        "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, "
        "\"scoring_func\": \"sigmoid\", \"topk_method\": \"noaux_tc\", \"moe_layer_freq\": 1, "
        "\"num_nextn_predict_layers\": 1, \"max_position_embeddings\": 163840, "
        "\"rope_theta\": 10000, \"rope_scaling\": {\"beta_fast\": 32, \"beta_slow\": 1, "
        "\"factor\": 40, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, "
        "\"original_max_position_embeddings\": 4096, \"type\": \"yarn\"}}";
    dt_model_info info = { .n_eos = 0 };
    DT_ENDS(dti_json_free) dti_json_doc doc;
    dti_decoder m = { 0 };

    DT_ASSERT_OK(dti_json_parse("config.json", text, strlen(text), &doc));
    DT_ASSERT_OK(dti_arch_deepseek_v3.read_config(&m, &doc.root, &info));
    DT_ASSERT_EQ_INT(info.n_kv_heads, 1);
    DT_ASSERT_EQ_INT(info.head_dim, 576);
    DT_ASSERT_EQ_INT(m.rope[0].dim, 64);
    DT_ASSERT(fabs((double)m.blocks[3].attention.scale - 0.1352337788) < 1e-7);
    DT_ASSERT(fabs(m.rope[0].attention_factor - 1.0) < 1e-12);
    DT_ASSERT(!m.blocks[2].sparse && m.blocks[3].sparse && m.moe.shared == 2048);
    DT_ASSERT(m.moe.routing.n_groups == 8 && m.moe.routing.n_chosen_groups == 4);
    dti_arch_deepseek_v3.release(&m);
}

/* Both spellings of Gemma's rotations and kinds of layers. */
DT_TEST(config, gemma_has_two_rotations_and_kinds_of_layers)
{
    static const char *const texts[] = {
        GEMMA "\"sliding_window\": 3, \"sliding_window_pattern\": 2, \"rope_theta\": 5e5, "
              "\"rope_local_base_freq\": 700, \"rope_scaling\": {\"rope_type\": \"linear\", "
              "\"factor\": 8}, \"query_pre_attn_scalar\": 16}",
        GEMMA "\"sliding_window\": 3, \"layer_types\": [\"sliding_attention\", "
              "\"full_attention\"], \"query_pre_attn_scalar\": 16.0, \"rope_parameters\": "
              "{\"full_attention\": {\"rope_theta\": 5e5, \"rope_type\": \"linear\", "
              "\"factor\": 8}, \"sliding_attention\": {\"rope_theta\": 700}}}",
    };

    for (size_t i = 0; i < DT_COUNT(texts); i++) {
        dt_model_info info = { .n_eos = 0 };
        dti_decoder m = { 0 };
        dti_json_doc doc;
        DT_ASSERT_OK(dti_json_parse("config.json", texts[i], strlen(texts[i]), &doc));
        DT_ASSERT_OK(dti_arch_gemma3_text.read_config(&m, &doc.root, &info));
        DT_ASSERT(m.blocks[0].slides && m.blocks[0].attention.window == 3);
        DT_ASSERT(!m.blocks[1].slides && m.blocks[1].attention.window == 0);
        DT_ASSERT_CLOSE(m.blocks[0].attention.scale, 0.25, 0);
        DT_ASSERT(m.rope[0].type == DTI_ROPE_LINEAR && m.rope[1].type == DTI_ROPE_DEFAULT);
        DT_ASSERT_CLOSE(m.rope[0].theta, 5e5, 0);
        DT_ASSERT_CLOSE(m.rope[1].theta, 700, 0);
        DT_ASSERT(info.tied && info.bos == 2 && info.n_eos == 1 && info.eos[0] == 1);
        dti_arch_gemma3_text.release(&m);
        dti_json_free(&doc);
    }
}

/* What Transformers 5.23 makes of null, key by key. */
DT_TEST(config, null_is_refused_where_it_says_nothing)
{
    static const struct {
        const dt_arch *arch;
        const char *refused[20], *taken[16];
    } rows[] = {
        { &dti_arch_llama,
          { "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "max_position_embeddings", "rms_norm_eps", "hidden_act",
            "attention_bias", "mlp_bias", "tie_word_embeddings", "rope_theta" },
          { "num_key_value_heads", "head_dim", "bos_token_id", "eos_token_id", "rope_scaling",
            "rope_parameters", "partial_rotary_factor", "dtype", "torch_dtype",
            "original_max_position_embeddings", "quantization_config" } },
        { &dti_arch_qwen3,
          { "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
            "hidden_act", "attention_bias", "tie_word_embeddings", "use_sliding_window",
            "max_window_layers", "rope_theta" },
          { "num_key_value_heads", "bos_token_id", "eos_token_id", "layer_types" } },
        { &dti_arch_qwen2,
          { "vocab_size", "hidden_size", "rms_norm_eps", "hidden_act", "use_sliding_window",
            "max_window_layers", "tie_word_embeddings" },
          { "num_key_value_heads", "sliding_window", "layer_types" } },
        { &dti_arch_gemma3_text,
          { "vocab_size", "head_dim", "hidden_activation", "query_pre_attn_scalar",
            "tie_word_embeddings", "rope_theta", "rope_local_base_freq" },
          { "final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention",
            "layer_types", "rope_parameters", "rope_scaling" } },
        { &dti_arch_gpt_neo,
          { "vocab_size", "hidden_size", "num_layers", "num_heads", "max_position_embeddings",
            "layer_norm_epsilon", "activation_function", "tie_word_embeddings", "window_size",
            "attention_layers" },
          { "intermediate_size", "bos_token_id", "eos_token_id", "attention_types" } },
    };
    char text[96];

    for (size_t a = 0; a < DT_COUNT(rows); a++) {
        for (int k = 0; k < 20 && rows[a].refused[k] != NULL; k++) {
            (void)snprintf(text, sizeof text, "{\"%s\": null}", rows[a].refused[k]);
            read_text(rows[a].arch, text, rows[a].refused[k], NULL);
        }
        for (int k = 0; k < 16 && rows[a].taken[k] != NULL; k++) {
            (void)snprintf(text, sizeof text, "{\"%s\": null}", rows[a].taken[k]);
            read_text(rows[a].arch, text, NULL, NULL);
        }
    }
}

DT_TEST(config, null_and_absent_heads_differ)
{
    dt_model_info info;

    read_text(&dti_arch_qwen3, "{\"num_attention_heads\": 64}", NULL, &info);
    DT_ASSERT_EQ_INT(info.n_kv_heads, 32);
    read_text(&dti_arch_qwen3, "{\"num_attention_heads\": 64, \"num_key_value_heads\": null}", NULL,
              &info);
    DT_ASSERT_EQ_INT(info.n_kv_heads, 64);
    read_text(&dti_arch_llama, "{\"num_attention_heads\": 64, \"head_dim\": null}", NULL, &info);
    DT_ASSERT_EQ_INT(info.n_kv_heads, 64);
    DT_ASSERT_EQ_INT(info.head_dim, 64);
    read_text(&dti_arch_llama, "{\"head_dim\": 0}", "head_dim is 0", NULL);
}

/* Default and spelling as in Transformers; ids count from the end as in PyTorch. */
DT_TEST(config, padding_is_an_id_of_the_vocabulary_or_none)
{
    static const struct {
        const dt_arch *arch;
        const char *text;
        int64_t padding; /* of a spec; -1: refused */
    } rows[] = {
        { &dti_arch_llama, "{}", 0 },
        { &dti_arch_llama, "{\"pad_token_id\": null}", 0 },
        { &dti_arch_llama, "{\"pad_token_id\": 0}", 1 },
        { &dti_arch_llama, "{\"pad_token_id\": 7}", 8 },
        { &dti_arch_qwen2, "{\"vocab_size\": 10, \"pad_token_id\": 9}", 10 },
        { &dti_arch_qwen3, "{\"vocab_size\": 10, \"pad_token_id\": 10}", 0 },
        { &dti_arch_qwen3_moe, "{\"vocab_size\": 10, \"pad_token_id\": -1}", 10 },
        { &dti_arch_llama, "{\"vocab_size\": 10, \"pad_token_id\": -10}", 1 },
        { &dti_arch_llama, "{\"vocab_size\": 10, \"pad_token_id\": -11}", 0 },
        { &dti_arch_llama, "{\"pad_token_id\": \"0\"}", -1 },
        { &dti_arch_llama, "{\"pad_token_id\": [0]}", -1 },
        { &dti_arch_phi3, "{}", 32001 },
        { &dti_arch_phi3, "{\"pad_token_id\": null}", 0 },
        { &dti_arch_phi3, "{\"vocab_size\": 32000}", 0 },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        dt_model_info info = { .n_eos = 0 };
        DT_ENDS(dti_json_free) dti_json_doc doc;
        dti_decoder m = { 0 };
        const char *text = rows[i].text;
        dt_status st;
        DT_ASSERT_OK(dti_json_parse("config.json", text, strlen(text), &doc));
        st = rows[i].arch->read_config(&m, &doc.root, &info);
        if (rows[i].padding < 0)
            DT_ASSERT_STATUS(st, DT_ERR_FORMAT, "pad_token_id");
        else
            DT_ASSERT_EQ_INT(m.padding, rows[i].padding);
        rows[i].arch->release(&m);
    }
}

DT_TEST(config, padding_of_gemma3_is_the_first_id_where_nothing_is_said)
{
    static const char *const texts[] = { GEMMA "\"vocab_size\": 9}",
                                         GEMMA "\"pad_token_id\": null}",
                                         GEMMA "\"pad_token_id\": 3}" };
    static const int64_t padding[] = { 1, 0, 4 };

    for (size_t i = 0; i < DT_COUNT(texts); i++) {
        dt_model_info info = { .n_eos = 0 };
        DT_ENDS(dti_json_free) dti_json_doc doc;
        dti_decoder m = { 0 };
        DT_ASSERT_OK(dti_json_parse("config.json", texts[i], strlen(texts[i]), &doc));
        DT_ASSERT_OK(dti_arch_gemma3_text.read_config(&m, &doc.root, &info));
        DT_ASSERT_EQ_INT(m.padding, padding[i]);
        dti_arch_gemma3_text.release(&m);
    }
}

/* generation_config.json wins where it exists, even if it names nothing. */
DT_TEST(config, what_ends_a_text_is_said_by_one_file)
{
    static const struct {
        const char *file; /* NULL: none */
        int n;            /* -1: an error */
        int32_t first;
    } rows[] = {
        { NULL, 1, 7 },
        { "{}", 0, 0 },
        { "{\"eos_token_id\": null}", 0, 0 },
        { "{\"eos_token_id\": 5}", 1, 5 },
        { "{\"eos_token_id\": [6, 5]}", 2, 6 },
        { "{\"eos_token_id\": \"5\"}", -1, 0 },
        { "{", -1, 0 },
        { "", -1, 0 },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        dt_model_info info = { .n_eos = 1, .eos = { 7 } };
        char folder[DT_TEST_PATH_BYTES];
        dt_status st;

        (void)dt_test_temp_dir(folder);
        if (rows[i].file != NULL)
            dt_test_write_file(folder, "generation_config.json", rows[i].file,
                               strlen(rows[i].file));
        st = dt_model_inspect_generation(folder, &info);
        DT_ASSERT_EQ_INT(st, rows[i].n < 0 ? DT_ERR_FORMAT : DT_OK);
        if (st != DT_OK) continue;
        DT_ASSERT_EQ_INT(info.n_eos, rows[i].n);
        if (info.n_eos > 0) DT_ASSERT_EQ_INT(info.eos[0], rows[i].first);
    }
}

/* --- what training leaves out ----------------------------------------------------------------- */

typedef struct heard {
    char text[4096];
    int n;
} heard;

static void hear(void *arg, const char *text)
{
    heard *h = arg;
    const size_t used = strlen(h->text);

    (void)snprintf(h->text + used, sizeof h->text - used, "%s\n", text);
    h->n++;
}

static heard remarks_of(const char *config)
{
    char dir[DT_TEST_PATH_BYTES];
    heard h = { "", 0 };

    dt_test_write_file(dt_test_temp_dir(dir), "config.json", config, strlen(config));
    DT_ASSERT_OK(dt_checkpoint_training_remarks(dir, hear, &h));
    return h;
}

DT_TEST(config, what_training_leaves_out_is_said)
{
    heard h = remarks_of("{\"attention_dropout\": 0.5, \"resid_pdrop\": 0, \"embd_pdrop\": null, "
                         "\"router_aux_loss_coef\": 0.001, \"router_jitter_noise\": 0.3}");

    DT_ASSERT_EQ_INT(h.n, 2);
    DT_ASSERT(strstr(h.text, "config.json: attention_dropout is 0.5; training here drops") != NULL);
    DT_ASSERT(strstr(h.text, "router_jitter_noise is 0.3; training here adds no noise") != NULL);
    h = remarks_of("{\"text_config\": {\"hidden_dropout\": 1, \"output_router_logits\": true, "
                   "\"router_aux_loss_coef\": 0.001}}");
    DT_ASSERT_EQ_INT(h.n, 2);
    DT_ASSERT(strstr(h.text, "text_config.hidden_dropout is 1;") != NULL);
    DT_ASSERT(strstr(h.text, "text_config.router_aux_loss_coef is 0.001; training here adds no "
                             "loss") != NULL);
    h = remarks_of("{\"attention_dropout\": 0.0, \"output_router_logits\": false, "
                   "\"router_aux_loss_coef\": 0.001, \"dropout\": \"much\"}");
    DT_ASSERT_EQ_INT(h.n, 0);
    DT_ASSERT_STATUS(dt_checkpoint_training_remarks(NULL, hear, &h), DT_ERR_ARG, "dir");
}
