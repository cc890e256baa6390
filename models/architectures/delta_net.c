/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear attention of Qwen3-Next, a gated delta net. Of a sequence it remembers as much however
 * long it is: the last inputs of a convolution, and what the delta rule (dt_gated_delta()) has made
 * of all tokens so far. Both are carried from pass to pass by the layers that have them.
 *
 *   q | k | v | z, b | a = n W, of each key head side by side;  q, k, v = silu(conv(q, k, v))
 *   y = delta rule of q, k, v with beta = sigmoid(b), decay = -e^A_log softplus(a + dt_bias)
 *   out = (norm(y) silu(z)) W
 *
 * Key heads are alone up to the last product: ranks have heads of projections and of what is
 * remembered, and all of A_log, dt_bias and the convolution, of which they take their heads'. Here
 * everything of a key head lies side by side; files have the convolution's rows as q | k | v.
 *
 * D model width, H key heads of E columns, each with R value heads of V; C = 2 H E + H R V. */
#include <stdio.h>

#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

enum { A_LOG, DT_BIAS };
enum { MEMORY = 0, WINDOW = 0 };

dt_status dti_delta_read(dti_decoder *m, const dt_config *config)
{
    const dt_config values = dt_config_member(config, "linear_num_value_heads");
    const int64_t most = 1 << 16;
    dti_delta *d = &m->delta;
    int64_t n;

    DT_TRY(dt_config_int(config, "linear_num_key_heads", 16, 1, most, &d->heads));
    DT_TRY(dt_config_int(config, "linear_num_value_heads", 32, 1, most, &n));
    DT_TRY(dt_config_int(config, "linear_key_head_dim", 128, 1, 1 << 12, &d->key));
    DT_TRY(dt_config_int(config, "linear_value_head_dim", 128, 1, 1 << 12, &d->value));
    DT_TRY(dt_config_int(config, "linear_conv_kernel_dim", 4, 2, 64, &d->taps));
    if (n % d->heads != 0)
        return dt_config_must_be(&values, DT_ERR_FORMAT, "a multiple of linear_num_key_heads, %lld",
                                 (long long)d->heads);
    d->group = n / d->heads;
    return DT_OK;
}

static dt_tensor *as_it_is(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    (void)t, (void)layer;
    return x;
}

const dt_layer_kind dti_delta_kind = {
    .name = "point_with_memory",
    .words = "a point with a memory of each head",
    .like = &dt_point_kind,
    .axes = "vhrde",
    .params = { { "A_log", "v" }, { "dt_bias", "v", .begins = DT_BEGINS_ONES } },
    .states = { { "memory", "hrde", .slots = true } },
    .cost = "7 hrde",
    .forward = as_it_is,
};

static const dt_layer_kind causal_conv = {
    .name = "causal_conv",
    .words = "a causal convolution",
    .params = { { "weight", "csk" } },
    .states = { { "window", "k-1c", .slots = true } },
    .cost = "2 ck",
    .run_by = "the linear attention around it",
};

dt_extent dti_delta_heads(const dti_decoder *m)
{
    return (dt_extent){ m->delta.heads * m->delta.group, DT_UNIT_ROW, "linear_num_value_heads" };
}

dt_status dti_delta_add_layers(const dti_decoder *m, const char *name, dt_builder *builder,
                               dti_block *b)
{
    const dti_delta *d = &m->delta;
    const int64_t rv = d->group * d->value, qkvz = 2 * d->key + 2 * rv, out = d->heads * rv;
    const int64_t channels = d->heads * (2 * d->key + rv);
    const dt_extent D = { m->info.hidden_size, DT_UNIT_ROW, "hidden_size" }, none = { 0 };
    const dt_extent QKVZ = { d->heads * qkvz, DT_UNIT_HEADS,
                             "2 * linear_num_key_heads * linear_key_head_dim + 2 * "
                             "linear_num_value_heads * linear_value_head_dim" };
    const dt_extent BA = { 2 * d->heads * d->group, DT_UNIT_HEADS, "2 * linear_num_value_heads" };
    const dt_extent C = { channels, DT_UNIT_ROW,
                          "2 * linear_num_key_heads * linear_key_head_dim + "
                          "linear_num_value_heads * linear_value_head_dim" };
    const dt_extent V = { d->value, DT_UNIT_ROW, "linear_value_head_dim" };
    const dt_extent O = { out, DT_UNIT_HEADS, "linear_num_value_heads * linear_value_head_dim" };
    const dt_extent one = { 1, DT_UNIT_ROW, "1" };
    dt_layer_spec *point = dt_builder_spec(builder, "linear_attn");

    /* clang-format off */
#define B(field) DTI_BLOCK(field)
    const struct { int64_t head; dt_layer_row row; } rows[] = {
/*      columns   field           name in the checkpoint         kind               out   in    bias   style on "tp" tied to */
        { qkvz,     { B(qkvz),      "linear_attn.in_proj_qkvz",  &dt_linear_kind,   QKVZ, D,    false, "colwise",    NULL } },
        { 2 * d->group, { B(ba),    "linear_attn.in_proj_ba",    &dt_linear_kind,   BA,   D,    false, "colwise",    NULL } },
        { 0,        { B(conv),      "linear_attn.conv1d",        &causal_conv,      C,    one,  false, "replicate",  NULL } },
        { 0,        { B(y_norm),    "linear_attn.norm",          &dt_rms_norm_kind, V,    none, false, "replicated_with_grad_allreduce", NULL } },
        { rv,       { B(o),         "linear_attn.out_proj",      &dt_linear_kind,   D,    O,    false, "rowwise",    NULL } },
    };
#undef B
    /* clang-format on */

    point->axis[1].extent = d->heads;
    point->axis[2].extent = d->group;
    point->axis[3].extent = d->key;
    point->axis[4].extent = d->value;
    for (size_t k = 0; k < DT_COUNT(rows); k++) {
        dt_layer_spec *spec;
        DT_TRY(dt_builder_add(builder, name, &rows[k].row, 1, b));
        spec = dt_builder_spec(builder, rows[k].row.name);
        if (rows[k].head > 0) spec->heads = (dt_head_counts){ d->heads, d->heads, rows[k].head };
        if (spec->kind == &causal_conv) spec->axis[2].extent = d->taps;
    }
    return DT_OK;
}

/* --- what it computes ------------------------------------------------------------------------- */

/* Columns of x [B, T, H, n] as [B, T, H, R, V], and back as [B, T, H R V]. */
static dt_tensor *value_heads(const dti_delta *d, dt_tape *t, dt_tensor *x, int64_t begin)
{
    int64_t shape[] = { 0, 0, d->heads, d->group, d->value };

    x = dt_slice(t, x, -1, begin, d->group * d->value);
    if (x == NULL) return NULL;
    for (int a = 0; a < 2; a++) shape[a] = dt_tensor_extent(x, a);
    return dt_reshape(t, x, 5, shape);
}

static dt_tensor *joined(const dti_delta *d, dt_tape *t, dt_tensor *y)
{
    if (y == NULL) return NULL;
    return dt_reshape(t, y, 3,
                      (int64_t[]){ dt_tensor_extent(y, 0), dt_tensor_extent(y, 1),
                                   d->heads * d->group * d->value });
}

/* Rows of the convolution's weight [C, 1, K]: `n` of each head, from `begin` on -> [H, n, K]. */
static dt_tensor *of_heads(const dti_delta *d, dt_tape *t, dt_tensor *w, int64_t begin, int64_t n)
{
    w = dt_slice(t, w, 0, begin, d->heads * n);
    return dt_reshape(t, w, 3, (int64_t[]){ d->heads, n, d->taps });
}

/* x [B, T, H, 2 E + R V], the queries, keys and values of all heads, mixed with earlier ones. */
static dt_tensor *mixed(const dti_delta *d, const dti_block *b, dt_tape *t,
                        const dt_model_pass *pass, dt_tensor *x)
{
    const int64_t keys = d->heads * d->key, rv = d->group * d->value, n = 2 * d->key + rv;
    dt_tensor *w = dt_layer_use(t, b->conv, DT_PARAM_WEIGHT);

    w = dt_concat(t, 3,
                  (dt_tensor *[]){ of_heads(d, t, w, 0, d->key), of_heads(d, t, w, keys, d->key),
                                   of_heads(d, t, w, 2 * keys, rv) },
                  1);
    w = dt_reshape(t, w, 2, (int64_t[]){ d->heads * n, d->taps });
    x = dt_unheads(t, x);
    if (dt_tape_status(t) != DT_OK) return NULL;
    x = dt_carried_conv(t, pass, (dt_carried){ b->conv, WINDOW }, x, w);
    return dt_heads(t, dt_silu(t, x), n);
}

/* A parameter of the point [H R] in f32, as [1, 1, H, R]. */
static dt_tensor *of_point(const dti_delta *d, const dti_block *b, dt_tape *t, int param)
{
    dt_tensor *x = dt_cast(t, dt_layer_use(t, b->attn, param), DT_F32);

    return dt_reshape(t, x, 4, (int64_t[]){ 1, 1, d->heads, d->group });
}

/* a [B, T, H, R] -> the logarithm of what remains of a state, in f32. */
static dt_tensor *decay_of(const dti_delta *d, const dti_block *b, dt_tape *t, dt_tensor *a)
{
    a = dt_add(t, dt_cast(t, a, DT_F32), of_point(d, b, t, DT_BIAS));
    return dt_mul(t, dt_softplus(t, a), dt_neg(t, dt_exp(t, of_point(d, b, t, A_LOG))));
}

dt_tensor *dti_delta_attention(const dti_decoder *m, const dt_block_context *at, dt_tape *t,
                               dt_tensor *n)
{
    const dti_delta *d = &m->delta;
    const dti_block *b = &m->blocks[at->i];
    const int64_t rv = d->group * d->value;
    dt_delta rule = { 0 };
    dt_tensor *all, *ba, *x, *y, *z;

    if (at->pass->segments != NULL)
        return dt_tape_fail(t, DT_ERR_UNSUPPORTED,
                            "linear attention goes on from one document to the next: give each "
                            "document a sequence of its own");
    all = dt_heads(t, dt_layer_forward(t, b->qkvz, n), 2 * d->key + 2 * rv);
    ba = dt_heads(t, dt_layer_forward(t, b->ba, n), 2 * d->group);
    x = mixed(d, b, t, at->pass, dt_slice(t, all, -1, 0, 2 * d->key + rv));
    rule.q = dt_slice(t, x, -1, 0, d->key);
    rule.k = dt_slice(t, x, -1, d->key, d->key);
    rule.v = value_heads(d, t, x, 2 * d->key);
    rule.decay = decay_of(d, b, t, dt_slice(t, ba, -1, d->group, d->group));
    rule.beta = dt_sigmoid(t, dt_slice(t, ba, -1, 0, d->group));
    if (dt_tape_status(t) != DT_OK) return NULL;
    y = dt_carried_delta(t, at->pass, (dt_carried){ b->attn, MEMORY }, &rule);
    y = dt_cast(t, dt_layer_forward(t, b->y_norm, y), DT_F32);
    z = dt_cast(t, value_heads(d, t, all, 2 * d->key + rv), DT_F32);
    y = dt_cast(t, dt_silu_mul(t, z, y), m->info.dtype);
    return dt_layer_forward(t, b->o, joined(d, t, y));
}
