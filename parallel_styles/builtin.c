/* SPDX-License-Identifier: Apache-2.0
 *
 * The vocabulary: one row per style. For a weight [out, in] and x [..., in] over one mesh dim of p
 * ranks: what is cut, what the layer asks of x, what it leaves in y. Names follow Hugging Face
 * Transformers and PyTorch. */
#include "parallel_styles/layers_internal.h"

#define STYLE(n, k, c, i, o, s)                                                                 \
    {                                                                                           \
        .size = sizeof(dt_style), .name = (n), .kinds = (k), .summary = (s), .cut = DT_CUT_##c, \
        .in = DT_LAID(DT_LAY_##i), .out = DT_LAID(DT_LAY_##o)                                   \
    }

/* A style that cuts tokens, and the one that stands for it in steps of one token. */
#define TOKENS(n, k, c, i, o, t, s)                                                             \
    {                                                                                           \
        .size = sizeof(dt_style), .name = (n), .kinds = (k), .summary = (s), .cut = DT_CUT_##c, \
        .in = DT_LAID(DT_LAY_##i), .out = DT_LAID(DT_LAY_##o), .twin = (t)                      \
    }

/* Layers that a style fits. */
#define LINEAR "linear"
#define LOOKUP "embedding"
#define BOTH   "linear embedding"
#define EXPERT "experts"
#define POINT  "point"
#define MATRIX "linear experts"
#define WEIGHT "linear embedding experts"
#define ANY    NULL

/* clang-format off */
const dt_style dti_builtin_styles[] = {
/*          name                         layers  cut      x           y                                                 */
    STYLE("colwise",                     WEIGHT,  COLUMNS, REPLICATE,  KEEP,       "outputs cut; y stays cut on its last axis; moves nothing"),
    STYLE("colwise_gather_output",       BOTH,   COLUMNS, REPLICATE,  REPLICATE,  "outputs cut; y is gathered: one all-gather"),
    STYLE("rowwise",                     WEIGHT, ROWS,    LAST,       REPLICATE,  "inputs cut; y is summed: one all-reduce, then the bias"),
    STYLE("rowwise_split_input",         BOTH,   ROWS,    LAST,       REPLICATE,  "rowwise on a whole x, sliced: one all-reduce"),
    STYLE("embedding_rowwise",           LOOKUP, ROWS,    REPLICATE,  REPLICATE,  "vocabulary cut, zeros elsewhere: one all-reduce"),
    STYLE("packed_colwise",              MATRIX, PACKED_COLUMNS, REPLICATE, KEEP,   "each block of the outputs cut (q | k | v); moves nothing"),
    STYLE("packed_rowwise",              LINEAR, PACKED_ROWS, LAST,   REPLICATE, "each block of the inputs cut: one all-reduce"),
    STYLE("replicate",                   ANY,    NONE,    REPLICATE,  KEEP,       "parameters whole; x is made whole, all compute all"),
    STYLE("replicated_with_grad_allreduce",
                                         ANY,    NONE,    KEEP,       KEEP,       "parameters whole; x stays as it lies (q_norm)"),
    STYLE("embedding_colwise",           LOOKUP, COLUMNS, REPLICATE,  REPLICATE,  "columns cut, y is gathered: one all-gather"),
    STYLE("mla_kv_a_proj",               LINEAR, NONE,    REPLICATE,  KEEP,       "replicate; sums its rope columns' gradients"),
    /* a block's layers without moves, and the point around them that moves once */
    STYLE("local_colwise",               BOTH,   COLUMNS, KEEP,       KEEP,       "outputs cut; x and y stay as they lie"),
    STYLE("local_rowwise",               BOTH,   ROWS,    KEEP,       KEEP,       "inputs cut; y is left as terms of the sum"),
    STYLE("local",                       ANY,    NONE,    KEEP,       KEEP,       "parameters whole; x and y stay as they lie"),
    STYLE("gather",                      ANY,    NONE,    KEEP,       REPLICATE,  "y is made whole: terms are summed, pieces gathered"),
    STYLE("all_reduce",                  ANY,    NONE,    KEEP,       REPLICATE,  "gather by another name"),
    /* mixtures of experts: weights, router, and the point around them that sums */
    STYLE("grouped_gemm",                EXPERT, EXPERTS, KEEP,       KEEP,       "whole experts cut; what the point around them does to tokens is its own style"),
    STYLE("ep_router",                   LINEAR, NONE,    REPLICATE,  KEEP,       "weights whole; every rank routes all tokens"),
    STYLE("moe_tp_experts",              POINT,  NONE,    REPLICATE,  REPLICATE,  "each rank's experts for all tokens: one all-reduce"),
    { .size = sizeof(dt_style), .name = "ep_dispatch_experts", .cut = DT_CUT_NONE, .kinds = POINT,
      .summary = "tokens go to the ranks of their experts and come back, or as moe_tp_experts where that is less",
      .prepare_input = dti_dispatch_input, .prepare_output = dti_dispatch_output },
    { .size = sizeof(dt_style), .name = "moe_identity_expert", .cut = DT_CUT_NONE, .kinds = POINT,
      .summary = "x whole; y joins a sum once", .in = DT_LAID(DT_LAY_REPLICATE), .prepare_output = dti_output_as_term },
    /* tokens cut between blocks */
    TOKENS("sequence_parallel",          ANY,    NONE,    SEQUENCE,   KEEP,       "replicate",
           "parameters whole; each rank has its tokens; moves nothing"),
    TOKENS("activation",                 ANY,    NONE,    SEQUENCE,   KEEP,       "replicate",
           "sequence_parallel by another name"),
    STYLE("activation_seq_dim_2",        ANY,    NONE,    KEEP,       KEEP,       "norm of each head; heads stay as they are cut"),
    STYLE("module_allgather",            ANY,    NONE,    REPLICATE,  KEEP,       "x is made whole: one all-gather"),
    TOKENS("module_allgather_split",     ANY,    NONE,    REPLICATE,  SEQUENCE,   "replicate",
           "x is gathered, each rank keeps its tokens of y"),
    TOKENS("vocab_reduce_scatter",       LOOKUP, ROWS,    REPLICATE,  SEQUENCE,   "embedding_rowwise",
           "vocabulary cut; one reduce-scatter over tokens"),
    TOKENS("rowwise_reduce_scatter",     LINEAR, ROWS,    LAST,       SEQUENCE,   "rowwise",
           "inputs cut; one reduce-scatter over tokens"),
    TOKENS("packed_rowwise_reduce_scatter",
                                         LINEAR, PACKED_ROWS, LAST,   SEQUENCE,   "packed_rowwise",
           "each block of the inputs cut; one reduce-scatter over tokens"),
    TOKENS("gather_reduce_scatter",      POINT,  NONE,    REPLICATE,  SEQUENCE,   "moe_tp_experts",
           "x is gathered; terms of y: one reduce-scatter over tokens"),
    TOKENS("moe_reduce_scatter",         POINT,  NONE,    REPLICATE,  SEQUENCE,   "moe_tp_experts",
           "each rank's experts for all tokens: one reduce-scatter over tokens"),
    STYLE("colwise_loss_parallel",       LINEAR, COLUMNS, REPLICATE,  KEEP,       "head: x is gathered if it is cut, logits stay cut"),
    /* parameters cut over ranks that compute with them whole */
    { .size = sizeof(dt_style), .name = "fully_shard", .cut = DT_CUT_COPIES, .prepare_param = dti_gather_param,
      .summary = "parameters cut, gathered while they are used; values pass as they lie" },
    /* Transformers v4.56, where its meaning was another */
    TOKENS("sequence_parallel@v4.56",    ANY,    NONE,    SEQUENCE,   REPLICATE,  "replicate",
           "each rank has its tokens, y is gathered"),
};

const dti_style_alias dti_style_aliases[] = {
    { "colwise_rep",                    NULL,    "colwise_gather_output" }, /* Transformers up to 5.0 */
    { "rowwise_rep",                    NULL,    "rowwise_split_input" },
    { "colwise_allgather",              NULL,    "colwise_gather_output" }, /* the sequence-parallel line */
    { "rowwise_allreduce",              NULL,    "rowwise" },
    { "vocab_allreduce",                NULL,    "rowwise_split_input" },
    { "module_allgather_hidden_states", NULL,    "module_allgather" },
    { "sequence_parallel",              "v4.56", "sequence_parallel@v4.56" },
    { "local_packed_rowwise",           NULL,    "packed_rowwise" },
    { "ColwiseParallel",                NULL,    "colwise" }, /* PyTorch */
    { "RowwiseParallel",                NULL,    "rowwise" },
    { "SequenceParallel",               NULL,    "sequence_parallel" },
    { "RotaryEmbedParallel",            NULL,    "local" }, /* NeMo */
    { "Qwen3QKNorm",                    NULL,    "activation_seq_dim_2" },
    { "PrepareModuleInput",             NULL,    "local" },
    { "PrepareModuleOutput",            NULL,    "local" },
    { "PrepareModuleInputOutput",       NULL,    "local" },
    { "moe_experts_allreduce",          NULL,    "moe_tp_experts" },
    { "moe_tp_gate_up_colwise",         NULL,    "packed_colwise" }, /* of experts */
    { "moe_tp_down_rowwise",            NULL,    "rowwise" },
    { "megamoe_experts",                NULL,    "moe_tp_experts" },
    { "megamoe_router",                 NULL,    "ep_router" },
};
/* clang-format on */

const int dti_n_builtin_styles = (int)DT_COUNT(dti_builtin_styles);
const int dti_n_style_aliases = (int)DT_COUNT(dti_style_aliases);
