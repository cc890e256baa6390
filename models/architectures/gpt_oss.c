/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt-oss: Llama's block (decoder_block.c) with norms that round once, windows in every second
 * layer, a score for each head that takes attention's weight and gives nothing, and a mixture of
 * experts whose gate and up have biases and limits, and lie by turns in files that hold them
 * [in, out]. D model width, N experts, F width of one, H heads. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

/* --- attention -------------------------------------------------------------------------------- */

static dt_tensor *as_it_is(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    (void)t, (void)layer;
    return x;
}

/* Every rank has all, of which attention takes those of its heads. */
const dt_layer_kind dti_sinks_kind = {
    .name = "point_with_sinks",
    .words = "a point with a score of each head",
    .like = &dt_point_kind,
    .params = { { "sinks", "h", .begins = DT_BEGINS_ZEROS } },
    .forward = as_it_is,
};

/* --- experts ---------------------------------------------------------------------------------- */

dt_status dti_clamped_add_layers(const dti_decoder *m, const char *name, dt_builder *builder,
                                 dti_block *b)
{
    const dti_moe *c = &m->moe;
    const dt_extent D = { m->info.hidden_size, DT_UNIT_ROW, "hidden_size" }, none = { 0 };
    const dt_extent N = { c->n_experts, DT_UNIT_ROW, c->key };
    const dt_extent F = { c->ff, DT_UNIT_ROW, c->ff_key };
    const dt_extent G = { 2 * c->ff, DT_UNIT_ROW, c->both_key };
    static const char *const pairs[] = { "mlp.experts.gate_up_proj",
                                         "mlp.experts.gate_up_proj_bias" };
    static const char *const weights[] = { "mlp.experts.gate_up_proj", "mlp.experts.down_proj" };

    /* clang-format off */
    const dt_layer_row rows[] = {
/*      field                    name in the checkpoint           kind                   out   in    bias   style on "tp"     tied to */
        { DTI_BLOCK(router),       "mlp.router",                    &dt_linear_kind,       N,    D,    true,  "replicate",      NULL },
        { DTI_BLOCK(experts),      "mlp.experts",                   &dt_point_kind,        none, none, false, "moe_tp_experts", NULL },
        { DTI_BLOCK(gate_up),      "mlp.experts.gate_up_proj",      &dt_experts_kind,      G,    D,    false, "colwise",        NULL },
        { DTI_BLOCK(gate_up_bias), "mlp.experts.gate_up_proj_bias", &dt_experts_bias_kind, G,    N,    false, "colwise",        NULL },
        { DTI_BLOCK(experts_down), "mlp.experts.down_proj",         &dt_experts_kind,      D,    F,    false, "rowwise",        NULL },
        { DTI_BLOCK(down_bias),    "mlp.experts.down_proj_bias",    &dt_experts_bias_kind, D,    N,    false, "replicate",      NULL },
    };
    /* clang-format on */

    DT_TRY(dt_builder_add(builder, name, rows, (int)DT_COUNT(rows), b));
    for (size_t i = 0; i < DT_COUNT(pairs); i++) dt_builder_spec(builder, pairs[i])->step[0] = 2;
    for (size_t i = 0; i < DT_COUNT(weights); i++) {
        dt_layer_spec *spec = dt_builder_spec(builder, weights[i]);
        spec->axis[2].extent = c->n_experts;
        spec->reversed = true;
    }
    return DT_OK;
}

/* A softmax over the chosen experts alone is one over all, divided by their sum. */
dt_tensor *dti_clamped_forward(const dti_decoder *m, const dti_block *b, dt_tape *t, dt_tensor *n)
{
    const dt_clamped_experts experts = { b->gate_up,   b->experts_down, b->gate_up_bias,
                                         b->down_bias, m->moe.limit,    m->moe.alpha };
    dt_tensor *logits = dt_layer_forward(t, b->router, n);
    dt_tensor *ids = dt_route_ids(t, logits, m->moe.n_chosen);

    return dt_layer_experts_clamped(t, b->experts, &experts, n, ids,
                                    dt_route_weights(t, logits, ids, true));
}

/* --- configuration ---------------------------------------------------------------------------- */

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = { .theta_key = "rope_theta", .theta = 150000.0 };
    static const dti_windows windows = { .fallback = 128, .typed = true, .needed = true };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 201088,
                                                               .hidden = 2880,
                                                               .layers = 36,
                                                               .heads = 64,
                                                               .kv_heads = 8,
                                                               .head_dim = 64,
                                                               .positions = 131072 },
                                                   .ff = 2880,
                                                   .eps = 1e-5,
                                                   .rope = &rope };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dt_config_bool(config, "attention_bias", true, &m->qkv_bias));
    m->out_bias = m->qkv_bias;
    m->norm_kind = &dt_rms_norm_once_kind;
    m->sinks = true;
    DT_TRY(dti_moe_read(&m->moe, config, "num_local_experts", 128, 4));
    m->moe.ff = m->ff;
    m->moe.ff_key = "intermediate_size";
    m->moe.both_key = "2 * intermediate_size";
    DT_TRY(dt_config_number(config, "swiglu_limit", 7.0, 1e-3, 1e6, &m->moe.limit));
    DT_TRY(dt_config_number(config, "swiglu_alpha", 1.702, 1e-3, 1e3, &m->moe.alpha));
    for (int64_t i = 0; i < info->n_layers; i++) {
        m->blocks[i].sparse = true;
        m->blocks[i].slides = i % 2 == 0;
    }
    return dti_decoder_windows(m, config, &windows);
}

const dt_arch dti_arch_gpt_oss =
    DTI_DECODER_ARCH("gpt_oss", "GptOssForCausalLM", "GptOssDecoderLayer", read_config, DTI_PLAIN);
