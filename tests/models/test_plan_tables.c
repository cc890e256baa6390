/* SPDX-License-Identifier: Apache-2.0
 *
 * The built-in plans, written down once more: those of NeMo Automodel for Llama, Qwen and Gemma 3
 * in our words, and ours for GPT-Neo, GPT-2 and Falcon. The same plan as a table of the program and
 * as a file gives the same model. */
#include <dtensor/models.h>
#include <dtensor/plans.h>
#include <stdio.h>
#include <string.h>

#include "parallel_styles/layer_rules.h"
#include "tests/support/dt_test.h"
#include "tests/support/plan_files.h"
#include "tests/support/tensors.h"

/* NeMo's ColwiseParallel with output Shard(-1) is "colwise", RowwiseParallel on an embedding is
 * "embedding_rowwise", with output Shard(1) "rowwise_reduce_scatter" or "vocab_reduce_scatter", and
 * SequenceParallel is "activation". Where NeMo gathers behind a norm
 * (SequenceParallelAllGatherActivation) the point behind the norm gathers here, once for all that
 * read it. Norms of heads see whole heads and are none of its tokens ("replicated_..."); the tables
 * of rotations come from whole positions, so rotary_emb needs no style. */
typedef struct table_row {
    const char *pattern;
    const char *whole; /* tokens whole */
    const char *cut;   /* tokens cut */
} table_row;

#define L        "model.layers.*."
#define PER_HEAD "replicated_with_grad_allreduce"
#define NORM(n)                      \
    {                                \
        n, "replicate", "activation" \
    }

/* clang-format off */
static const table_row llama[] = {
    { "model.embed_tokens",  "embedding_rowwise", "vocab_reduce_scatter" },
    { L "self_attn",         "replicate",         "module_allgather" },
    { L "self_attn.q_proj",  "colwise",           "colwise" },
    { L "self_attn.k_proj",  "colwise",           "colwise" },
    { L "self_attn.v_proj",  "colwise",           "colwise" },
    { L "self_attn.o_proj",  "rowwise",           "rowwise_reduce_scatter" },
    { L "mlp",               "replicate",         "module_allgather" },
    { L "mlp.gate_proj",     "colwise",           "colwise" },
    { L "mlp.up_proj",       "colwise",           "colwise" },
    { L "mlp.down_proj",     "rowwise",           "rowwise_reduce_scatter" },
    { "lm_head",             "colwise",           "colwise" },
    NORM("model.norm"), NORM(L "input_layernorm"), NORM(L "post_attention_layernorm"),
    { NULL, NULL, NULL }
};
static const table_row head_norms[] = {
    { L "self_attn.q_norm",  PER_HEAD,            PER_HEAD },
    { L "self_attn.k_norm",  PER_HEAD,            PER_HEAD },
    { NULL, NULL, NULL }
};
static const table_row shared_experts[] = { /* the same, of which the first layer has none */
    { "model.embed_tokens",  "embedding_rowwise", "vocab_reduce_scatter" },
    { L "self_attn",         "replicate",         "module_allgather" },
    { L "self_attn.q_proj",  "colwise",           "colwise" },
    { L "self_attn.k_proj",  "colwise",           "colwise" },
    { L "self_attn.v_proj",  "colwise",           "colwise" },
    { L "self_attn.o_proj",  "rowwise",           "rowwise_reduce_scatter" },
    { "model.layers.0.mlp",  "replicate",         "module_allgather" },
    { "model.layers.1.mlp",  "gather",            "gather_reduce_scatter" },
    { "model.layers.2.mlp",  "gather",            "gather_reduce_scatter" },
    { L "mlp.gate_proj",     "colwise",           "colwise" },
    { L "mlp.up_proj",       "colwise",           "colwise" },
    { L "mlp.down_proj",     "rowwise",           "rowwise_reduce_scatter" },
    { L "mlp.gate",          "replicate",         "replicate" },
    { L "mlp.shared_experts.gate_proj", "colwise", "colwise" },
    { L "mlp.shared_experts.up_proj", "colwise",  "colwise" },
    { L "mlp.shared_experts.down_proj", "local_rowwise", "local_rowwise" },
    { L "mlp.experts",       "local",             "local" },
    { L "mlp.experts.gate_up_proj", "packed_colwise", "packed_colwise" },
    { L "mlp.experts.down_proj", "rowwise",       "rowwise" },
    { "lm_head",             "colwise",           "colwise" },
    NORM("model.norm"), NORM(L "input_layernorm"), NORM(L "post_attention_layernorm"),
    { NULL, NULL, NULL }
};
static const table_row latent[] = { /* heads are cut, what keys and values are made of is whole */
    { "model.embed_tokens",  "embedding_rowwise", "vocab_reduce_scatter" },
    { L "self_attn",         "replicate",         "module_allgather" },
    { L "self_attn.q_proj",  "colwise",           "colwise" },
    { L "self_attn.kv_a_proj_with_mqa", "replicate", "replicate" },
    { L "self_attn.kv_a_layernorm", "local",      "local" },
    { L "self_attn.kv_b_proj", "colwise",         "colwise" },
    { L "self_attn.o_proj",  "rowwise",           "rowwise_reduce_scatter" },
    { "model.layers.0.mlp",  "replicate",         "module_allgather" },
    { "model.layers.1.mlp",  "gather",            "gather_reduce_scatter" },
    { L "mlp.gate_proj",     "colwise",           "colwise" },
    { L "mlp.up_proj",       "colwise",           "colwise" },
    { L "mlp.down_proj",     "rowwise",           "rowwise_reduce_scatter" },
    { L "mlp.gate",          "replicate",         "replicate" },
    { L "mlp.shared_experts.gate_proj", "colwise", "colwise" },
    { L "mlp.shared_experts.up_proj", "colwise",  "colwise" },
    { L "mlp.shared_experts.down_proj", "local_rowwise", "local_rowwise" },
    { L "mlp.experts",       "local",             "local" },
    { L "mlp.experts.gate_up_proj", "packed_colwise", "packed_colwise" },
    { L "mlp.experts.down_proj", "rowwise",       "rowwise" },
    { "lm_head",             "colwise",           "colwise" },
    NORM("model.norm"), NORM(L "input_layernorm"), NORM(L "post_attention_layernorm"),
    { NULL, NULL, NULL }
};
static const table_row linear[] = { /* key heads are cut; what is small and of all of them is whole */
    { "model.embed_tokens",  "embedding_rowwise", "vocab_reduce_scatter" },
    { L "linear_attn",       "replicate",         "module_allgather" },
    { L "linear_attn.in_proj_qkvz", "colwise",    "colwise" },
    { L "linear_attn.in_proj_ba", "colwise",      "colwise" },
    { L "linear_attn.conv1d", "replicate",        "replicate" },
    { L "linear_attn.norm",  PER_HEAD,              PER_HEAD },
    { L "linear_attn.out_proj", "rowwise",        "rowwise_reduce_scatter" },
    { L "self_attn",         "replicate",         "module_allgather" },
    { L "self_attn.q_proj",  "colwise",           "colwise" },
    { L "self_attn.k_proj",  "colwise",           "colwise" },
    { L "self_attn.v_proj",  "colwise",           "colwise" },
    { L "self_attn.o_proj",  "rowwise",           "rowwise_reduce_scatter" },
    { L "self_attn.q_norm",  PER_HEAD,              PER_HEAD },
    { L "self_attn.k_norm",  PER_HEAD,              PER_HEAD },
    { "model.layers.1.mlp",  "replicate",         "module_allgather" },
    { "model.layers.0.mlp",  "gather",            "gather_reduce_scatter" },
    { "model.layers.2.mlp",  "gather",            "gather_reduce_scatter" },
    { L "mlp.gate_proj",     "colwise",           "colwise" },
    { L "mlp.up_proj",       "colwise",           "colwise" },
    { L "mlp.down_proj",     "rowwise",           "rowwise_reduce_scatter" },
    { L "mlp.gate",          "replicate",         "replicate" },
    { L "mlp.shared_expert_gate", "replicate",    "replicate" },
    { L "mlp.shared_expert.gate_proj", "colwise", "colwise" },
    { L "mlp.shared_expert.up_proj", "colwise",   "colwise" },
    { L "mlp.shared_expert.down_proj", "local_rowwise", "local_rowwise" },
    { L "mlp.experts",       "local",             "local" },
    { L "mlp.experts.gate_up_proj", "packed_colwise", "packed_colwise" },
    { L "mlp.experts.down_proj", "rowwise",       "rowwise" },
    { "lm_head",             "colwise",           "colwise" },
    NORM("model.norm"), NORM(L "input_layernorm"), NORM(L "post_attention_layernorm"),
    { NULL, NULL, NULL }
};
static const table_row row_norms[] = { /* of pieces: a number per row is reduced */
    { "model.embed_tokens",  "embedding_rowwise", "vocab_reduce_scatter" },
    { L "self_attn",         "replicate",         "module_allgather" },
    { L "self_attn.q_proj",  "colwise",           "colwise" },
    { L "self_attn.k_proj",  "colwise",           "colwise" },
    { L "self_attn.v_proj",  "colwise",           "colwise" },
    { L "self_attn.q_norm",  PER_HEAD,            PER_HEAD },
    { L "self_attn.k_norm",  PER_HEAD,            PER_HEAD },
    { L "self_attn.o_proj",  "rowwise",           "rowwise_reduce_scatter" },
    { L "mlp",               "replicate",         "module_allgather" },
    { L "mlp.gate_proj",     "colwise",           "colwise" },
    { L "mlp.up_proj",       "colwise",           "colwise" },
    { L "mlp.down_proj",     "rowwise",           "rowwise_reduce_scatter" },
    { "lm_head",             "colwise",           "colwise" },
    NORM("model.norm"), NORM(L "post_attention_layernorm"), NORM(L "post_feedforward_layernorm"),
    { NULL, NULL, NULL }
};
static const table_row experts[] = {
    { L "self_attn.q_norm",  PER_HEAD,            PER_HEAD },
    { L "self_attn.k_norm",  PER_HEAD,            PER_HEAD },
    { L "mlp.gate",          "replicate",         "replicate" },
    { L "mlp.experts",       "moe_tp_experts",    "moe_reduce_scatter" },
    { L "mlp.experts.gate_up_proj", "packed_colwise", "packed_colwise" },
    { L "mlp.experts.down_proj", "rowwise",       "rowwise" },
    { NULL, NULL, NULL }
};
static const table_row gemma_norms[] = {
    { L "self_attn.q_norm",  PER_HEAD,            PER_HEAD },
    { L "self_attn.k_norm",  PER_HEAD,            PER_HEAD },
    NORM(L "pre_feedforward_layernorm"), NORM(L "post_feedforward_layernorm"),
    { NULL, NULL, NULL }
};
static const table_row phi3[] = { /* NeMo has its heads whole on every rank; packed styles cut them */
    { "model.embed_tokens",  "embedding_rowwise", "vocab_reduce_scatter" },
    { L "self_attn",         "replicate",         "module_allgather" },
    { L "self_attn.qkv_proj", "packed_colwise",   "packed_colwise" },
    { L "self_attn.o_proj",  "rowwise",           "rowwise_reduce_scatter" },
    { L "mlp",               "replicate",         "module_allgather" },
    { L "mlp.gate_up_proj",  "packed_colwise",    "packed_colwise" },
    { L "mlp.down_proj",     "rowwise",           "rowwise_reduce_scatter" },
    { "lm_head",             "colwise",           "colwise" },
    NORM("model.norm"), NORM(L "input_layernorm"), NORM(L "post_attention_layernorm"),
    { NULL, NULL, NULL }
};
#define H "transformer.h.*."
static const table_row gpt_neo[] = {
    { "transformer.wte",              "embedding_rowwise", "vocab_reduce_scatter" },
    { "transformer.wpe",              "replicate",         "sequence_parallel" },
    { H "attn",                       "replicate",         "module_allgather" },
    { H "attn.attention.q_proj",      "colwise",           "colwise" },
    { H "attn.attention.k_proj",      "colwise",           "colwise" },
    { H "attn.attention.v_proj",      "colwise",           "colwise" },
    { H "attn.attention.out_proj",    "rowwise",           "rowwise_reduce_scatter" },
    { H "mlp",                        "replicate",         "module_allgather" },
    { H "mlp.c_fc",                   "colwise",           "colwise" },
    { H "mlp.c_proj",                 "rowwise",           "rowwise_reduce_scatter" },
    { "lm_head",                      "colwise",           "colwise" },
    NORM("transformer.ln_f"), NORM(H "ln_1"), NORM(H "ln_2"),
    { NULL, NULL, NULL }
};
static const table_row gpt2[] = {
    { "transformer.wte",              "embedding_rowwise", "vocab_reduce_scatter" },
    { "transformer.wpe",              "replicate",         "sequence_parallel" },
    { H "attn",                       "replicate",         "module_allgather" },
    { H "attn.c_attn",                "packed_colwise",    "packed_colwise" },
    { H "attn.c_proj",                "rowwise",           "rowwise_reduce_scatter" },
    { H "mlp",                        "replicate",         "module_allgather" },
    { H "mlp.c_fc",                   "colwise",           "colwise" },
    { H "mlp.c_proj",                 "rowwise",           "rowwise_reduce_scatter" },
    { "lm_head",                      "colwise",           "colwise" },
    NORM("transformer.ln_f"), NORM(H "ln_1"), NORM(H "ln_2"),
    { NULL, NULL, NULL }
};
static const table_row falcon[] = { /* one sum for a block, one gather where tokens are cut */
    { "transformer.word_embeddings",  "embedding_rowwise", "vocab_reduce_scatter" },
    { H "branches",                   "gather",            "gather_reduce_scatter" },
    { H "ln_attn",                    "local",             "local" },
    { H "ln_mlp",                     "local",             "local" },
    { H "self_attention",             "local",             "local" },
    { H "self_attention.query_key_value", "colwise",       "colwise" },
    { H "self_attention.dense",       "local_rowwise",     "local_rowwise" },
    { H "mlp",                        "local",             "local" },
    { H "mlp.dense_h_to_4h",          "colwise",           "colwise" },
    { H "mlp.dense_4h_to_h",          "local_rowwise",     "local_rowwise" },
    { "lm_head",                      "colwise",           "colwise" },
    NORM("transformer.ln_f"),
    { NULL, NULL, NULL }
};
static const table_row shared_expert[] = { /* summed with the others, once */
    { "model.embed_tokens",  "embedding_rowwise", "vocab_reduce_scatter" },
    { L "self_attn",         "replicate",         "module_allgather" },
    { L "self_attn.q_proj",  "colwise",           "colwise" },
    { L "self_attn.k_proj",  "colwise",           "colwise" },
    { L "self_attn.v_proj",  "colwise",           "colwise" },
    { L "self_attn.o_proj",  "rowwise",           "rowwise_reduce_scatter" },
    { L "mlp",               "gather",            "gather_reduce_scatter" },
    { L "mlp.gate",          "replicate",         "replicate" },
    { L "mlp.shared_expert_gate", "replicate",    "replicate" },
    { L "mlp.shared_expert.gate_proj", "colwise", "colwise" },
    { L "mlp.shared_expert.up_proj", "colwise",   "colwise" },
    { L "mlp.shared_expert.down_proj", "local_rowwise", "local_rowwise" },
    { L "mlp.experts",       "local",             "local" },
    { L "mlp.experts.gate_up_proj", "packed_colwise", "packed_colwise" },
    { L "mlp.experts.down_proj", "rowwise",       "rowwise" },
    { "lm_head",             "colwise",           "colwise" },
    NORM("model.norm"), NORM(L "input_layernorm"), NORM(L "post_attention_layernorm"),
    { NULL, NULL, NULL }
};
/* clang-format on */

enum { MAX_RULES = 40, TEXT_BYTES = 4096 };

static const struct model_table {
    const char *fixture;
    const table_row *rows[2];
} tables[] = {
    { "llama/uneven", { llama, NULL } },        { "llama/tied", { llama, NULL } },
    { "llama/biases", { llama, NULL } },        { "qwen2/base", { llama, NULL } },
    { "qwen3/uneven", { llama, head_norms } },  { "gemma3/base", { llama, gemma_norms } },
    { "gpt_neo/uneven", { gpt_neo, NULL } },    { "phi3/uneven", { phi3, NULL } },
    { "qwen3_moe/uneven", { llama, experts } }, { "smollm3/uneven", { llama, NULL } },
    { "granite/uneven", { llama, NULL } },      { "gpt2/base", { gpt2, NULL } },
    { "falcon/base", { falcon, NULL } },        { "qwen2_moe/base", { shared_expert, NULL } },
    { "olmo2/base", { row_norms, NULL } },      { "glm4_moe/uneven", { shared_experts, NULL } },
    { "deepseek_v3/uneven", { latent, NULL } }, { "qwen3_next/base", { linear, NULL } },
};

typedef struct table_case {
    const struct model_table *table;
    bool cut; /* tokens */
} table_case;

/* The table as rules. A tied head follows the embedding: a rule for each would be one too many only
 * if they disagreed, which these do not. */
static int rules_of(const table_case *c, dt_plan_rule rules[MAX_RULES])
{
    int n = 0;

    for (int k = 0; k < 2; k++)
        for (const table_row *r = c->table->rows[k]; r != NULL && r->pattern != NULL; r++)
            rules[n++] = (dt_plan_rule){ r->pattern, c->cut ? r->cut : r->whole };
    return n;
}

static const char *path_of(const char *fixture, char path[DT_TEST_PATH_BYTES])
{
    return dt_test_source_path(path, "tests/golden/%s", fixture);
}

/* --- the same styles -------------------------------------------------------------------------- */

static dt_status expect_table(const table_case *c, dt_layers *layers)
{
    dt_plan_rule rules[MAX_RULES];
    const int n = rules_of(c, rules);
    int n_found = 0;

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int k = 0; k < n; k++) {
            if (dti_plan_match(rules[k].pattern, dt_layer_name(layer)) < 0) continue;
            n_found++;
            DT_EXPECT(strcmp(dt_layer_style(layer)->name, rules[k].style) == 0,
                      "%s, tokens %s: %s is %s, not %s", c->table->fixture,
                      c->cut ? "cut" : "whole", dt_layer_name(layer), dt_layer_style(layer)->name,
                      rules[k].style);
        }
    }
    DT_EXPECT(n_found == dt_layers_count(layers), "%s: %d layers, %d in the table",
              c->table->fixture, dt_layers_count(layers), n_found);
    return DT_OK;
}

static dt_status same_styles(dt_mesh *mesh, const void *arg)
{
    const table_case *c = arg;
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    dt_model *m = NULL;
    dt_status st;

    o.sequence_parallel = c->cut;
    DT_TRY(dt_model_load(mesh, path_of(c->table->fixture, path), &o, &m));
    st = expect_table(c, dt_model_layers(m));
    dt_model_release(&m);
    return st;
}

DT_TEST(plan_tables, built_in_plans_are_those_of_the_page)
{
    for (size_t i = 0; i < DT_COUNT(tables); i++)
        for (int cut = 0; cut < 2; cut++)
            dt_test_on_ranks("tp=2", same_styles, &(table_case){ &tables[i], cut == 1 });
}

/* --- the same logits -------------------------------------------------------------------------- */

static dt_status logits_of(dt_mesh *mesh, const char *fixture, const dt_load_options *o,
                           dt_tensor **out)
{
    const int32_t ids[] = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7 };
    char path[DT_TEST_PATH_BYTES];
    DT_HELD(model) *m = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(state) *s = NULL;
    dt_tensor *y;

    DT_TRY(dt_model_load(mesh, path_of(fixture, path), o, &m));
    DT_TRY(dt_state_create(m, 2, 8, &s));
    (void)dt_model_forward(t, m, s, ids, 6, DT_LOGITS_ALL);
    y = dt_model_forward(t, m, s, ids + 12, 1, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(y, out));
    return DT_OK;
}

/* The rules as {"pattern": "style", ..., "mode": "manual"}. */
static dt_status read_as_file(const dt_plan_rule *rules, int n, dt_plan **out)
{
    char text[TEXT_BYTES];
    size_t used = (size_t)snprintf(text, sizeof text, "{\"mode\": \"manual\"");

    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, ",\n \"%s\": \"%s\"",
                                 rules[i].pattern, rules[i].style);
    (void)snprintf(text + used, sizeof text - used, "}");
    return dt_test_read_plan(text, out);
}

static dt_status same_logits(dt_mesh *mesh, const void *arg)
{
    const table_case *c = arg;
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    DT_HELD(tensor) *built_in = NULL, *table = NULL, *file = NULL;
    DT_HELD(plan) *read = NULL;
    dt_plan_rule rules[MAX_RULES];
    const int n = rules_of(c, rules);
    const dt_plan plan = { .rules = rules, .n_rules = n, .strict = true, .manual = true };

    o.sequence_parallel = c->cut;
    DT_TRY(logits_of(mesh, c->table->fixture, &o, &built_in));
    o.sequence_parallel = false;
    o.plan = &plan;
    DT_TRY(logits_of(mesh, c->table->fixture, &o, &table));
    DT_TRY(dt_test_expect_same(built_in, table, "a table"));
    DT_TRY(read_as_file(rules, n, &read));
    o.plan = read;
    DT_TRY(logits_of(mesh, c->table->fixture, &o, &file));
    DT_TRY(dt_test_expect_same(built_in, file, "a file"));
    return DT_OK;
}

DT_TEST(plan_tables, a_table_and_a_file_give_the_model_of_the_built_in_plan)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (size_t i = 0; i < DT_COUNT(tables); i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            for (int cut = 0; cut < 2; cut++)
                dt_test_on_ranks(meshes[m], same_logits, &(table_case){ &tables[i], cut == 1 });
}

/* --- PyTorch's words -------------------------------------------------------------------------- */

/* NeMo Automodel's plan of Llama with sequence parallelism, in the words of PyTorch. Its norms hand
 * on what they gathered. */
static const char nemo_llama[] =
    "{\"model.embed_tokens\": {\"style\": \"RowwiseParallel\", \"input_layouts\": \"Replicate()\","
    "                         \"output_layouts\": \"Shard(1)\"},"
    " \"model.layers.*.input_layernorm\": {\"style\": \"SequenceParallel\", \"output\": \"R\"},"
    " \"model.layers.*.self_attn.q_proj\": \"ColwiseParallel\","
    " \"model.layers.*.self_attn.k_proj\": \"ColwiseParallel\","
    " \"model.layers.*.self_attn.v_proj\": \"ColwiseParallel\","
    " \"model.layers.*.self_attn.o_proj\": {\"style\": \"RowwiseParallel\","
    "                                     \"output_layouts\": \"Shard(1)\"},"
    " \"model.layers.*.post_attention_layernorm\": {\"style\": \"SequenceParallel\","
    "                                              \"output\": \"R\"},"
    " \"model.layers.*.mlp.gate_proj\": \"ColwiseParallel\","
    " \"model.layers.*.mlp.up_proj\": \"ColwiseParallel\","
    " \"model.layers.*.mlp.down_proj\": {\"style\": \"RowwiseParallel\","
    "                                  \"output_layouts\": \"Shard(1)\"},"
    " \"model.norm\": \"SequenceParallel\","
    " \"lm_head\": {\"style\": \"ColwiseParallel\", \"input_layouts\": \"Shard(1)\","
    "             \"output_layouts\": \"Shard(-1)\"},"
    " \"mode\": \"manual\"}";

static dt_status in_the_words_of_pytorch(dt_mesh *mesh, const void *arg)
{
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    DT_HELD(tensor) *built_in = NULL, *nemo = NULL;

    o.sequence_parallel = true;
    DT_TRY(logits_of(mesh, "llama/uneven", &o, &built_in));
    o.sequence_parallel = false;
    o.plan = arg;
    DT_TRY(logits_of(mesh, "llama/uneven", &o, &nemo));
    DT_TRY(dt_test_expect_same(built_in, nemo, "NeMo's plan"));
    return DT_OK;
}

DT_TEST(plan_tables, the_plan_of_nemo_in_the_words_of_pytorch)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };
    DT_HELD(plan) *plan = NULL;

    DT_ASSERT_OK(dt_test_read_plan(nemo_llama, &plan));
    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        dt_test_on_ranks(meshes[m], in_the_words_of_pytorch, plan);
}

/* --- a checkpoint's own plan ------------------------------------------------------------------ */

/* A folder with the fixture's config.json and `more` members behind its first brace. */
static void config_with(const char *fixture, const char *more, char folder[DT_TEST_PATH_BYTES])
{
    char path[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 16];
    static char text[1 << 15], all[1 << 16];
    char *version;
    size_t n;
    FILE *f;

    (void)snprintf(file, sizeof file, "%s/config.json", path_of(fixture, path));
    f = fopen(file, "rb");
    DT_ASSERT(f != NULL);
    n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[n] = '\0';
    version = strstr(text, "transformers_version");
    if (version != NULL) *version = 'T'; /* `more` may have another */
    (void)snprintf(all, sizeof all, "{%s,%s", more, strchr(text, '{') + 1);
    dt_test_write_file(dt_test_temp_dir(folder), "config.json", all, strlen(all));
}

typedef struct own_case {
    const char *more; /* in config.json */
    const dt_plan *plan;
    bool cut;
    dt_status code;
    const char *message;
    dt_plan_rule expect[6]; /* a layer and its style */
} own_case;

static dt_status load_dry(const own_case *c, const char *folder)
{
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(model) *m = NULL;

    o.plan = c->plan;
    o.sequence_parallel = c->cut;
    run.n_ranks = 2;
    DT_TRY(dt_runtime_create_dry(&run, 0, NULL, &rt));
    DT_TRY(dt_mesh_create(rt, "tp=2", &mesh));
    DT_TRY(dt_model_check(mesh, folder, &o));
    DT_TRY(dt_model_load(mesh, folder, &o, &m));
    for (int i = 0; i < 6 && c->expect[i].pattern != NULL; i++)
        DT_EXPECT(
            strcmp(dt_layer_style(dt_layers_find(dt_model_layers(m), c->expect[i].pattern))->name,
                   c->expect[i].style) == 0,
            "%s is not %s", c->expect[i].pattern, c->expect[i].style);
    return DT_OK;
}

#define UP   "model.layers.1.mlp.up_proj"
#define DOWN "model.layers.1.mlp.down_proj"

DT_TEST(plan_tables, the_plan_of_a_checkpoint_stands_between_the_callers_and_the_built_in_one)
{
    static const char own[] = "\"base_model_tp_plan\": {\"layers.*.mlp.up_proj\": \"colwise_rep\","
                              " \"layers.*.mlp.down_proj\": \"rowwise_rep\", \"norm\": null},"
                              " \"tp_plan\": {\"lm_head\": \"colwise_rep\","
                              " \"model.layers.*.input_layernorm\": \"sequence_parallel\"},"
                              " \"transformers_version\": \"4.56.1\"";
    static const dt_plan none = { .source = "nothing" };
    static const dt_plan_rule rule = { UP, "replicate" };
    static const dt_plan mine = { .rules = &rule, .n_rules = 1, .strict = true };
    static const own_case cases[] = {
        { own,
          NULL,
          false,
          DT_OK,
          NULL,
          { { UP, "colwise_gather_output" },
            { DOWN, "rowwise_split_input" },
            { "lm_head", "colwise_gather_output" },
            { "model.layers.0.self_attn.q_proj", "colwise" },
            { "model.layers.0.input_layernorm", "sequence_parallel@v4.56" } } },
        { own, &none, false, DT_OK, NULL, { { UP, "colwise" }, { "lm_head", "colwise" } } },
        { own, &mine, false, DT_OK, NULL, { { UP, "replicate" }, { "lm_head", "colwise" } } },
        { own, NULL, true, DT_OK, NULL, { { UP, "colwise" }, { DOWN, "rowwise_reduce_scatter" } } },
        { "\"tp_plan\": {\"lm_head\": \"colwize\"}",
          NULL,
          false,
          DT_ERR_ARG,
          "/config.json, rule \"lm_head\": \"colwize\": lm_head: unknown style",
          { { NULL, NULL } } },
        { "\"base_model_tp_plan\": {\"layers.*.self_attn.q_proj\": \"replicate\"}",
          NULL,
          false,
          DT_ERR_LAYOUT,
          "the checkpoint's own plan (one without rules in its place",
          { { NULL, NULL } } },
        { "\"tp_plan\": [1]",
          NULL,
          false,
          DT_ERR_FORMAT,
          "config.json: tp_plan is",
          { { NULL, NULL } } },
        { "\"tp_plan\": {\"lm_head\": 1}",
          NULL,
          false,
          DT_ERR_FORMAT,
          "tp_plan.lm_head is 1",
          { { NULL, NULL } } },
        { "\"tp_plan\": {\"nobody.*\": \"colwise\"}",
          NULL,
          false,
          DT_OK,
          NULL,
          { { "lm_head", "colwise" } } }, /* a warning */
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        char folder[DT_TEST_PATH_BYTES];
        config_with("llama/uneven", cases[i].more, folder);
        if (cases[i].code == DT_OK)
            DT_ASSERT_OK(load_dry(&cases[i], folder));
        else
            DT_ASSERT_STATUS(load_dry(&cases[i], folder), cases[i].code, cases[i].message);
    }
}
