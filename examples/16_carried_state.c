/* SPDX-License-Identifier: Apache-2.0
 *
 * A kind of layer that carries state from pass to pass: a causal convolution over K tokens of each
 * channel and a recurrence h = d h + y behind it, as models with linear attention have them. Its
 * kind declares both states; sequences that are fed in pieces give what they give when they are fed
 * whole, on one rank and with the channels cut over two.
 * B sequences of T tokens, C channels. */
#include <dtensor.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { B = 2, T = 11, C = 5, K = 4 };
enum { WEIGHT, DECAY };
enum { WINDOW, H };

/* --- operators: every rank has its channels of all tokens ------------------------------------- */

/* y[t] = sum over k of w[k] x[t - K + 1 + k]; the window is what stood before x, and stands before
 * what comes next. */
static dt_status conv_kernel(const dt_kargs *args)
{
    const float *x = args->in[0].data, *window = args->in[1].data, *w = args->in[2].data;
    float *y = args->out[0].data, *next = args->out[1].data;
    const int64_t n = args->in[0].shape[1], c = args->in[0].shape[2], k = args->in[2].shape[1];

    for (int64_t b = 0; b < args->in[0].shape[0]; b++)
        for (int64_t i = 0; i < c; i++) {
            for (int64_t t = 0; t < n; t++) {
                float sum = 0;
                for (int64_t j = 0; j < k; j++) {
                    const int64_t at = t - k + 1 + j; /* below 0: in the window */
                    sum += w[i * k + j] * (at >= 0 ? x[(b * n + at) * c + i]
                                                   : window[(b * (k - 1) + at + k - 1) * c + i]);
                }
                y[(b * n + t) * c + i] = sum;
            }
            for (int64_t j = 0; j < k - 1; j++) {
                const int64_t at = n - k + 1 + j;
                next[(b * (k - 1) + j) * c + i] =
                    at >= 0 ? x[(b * n + at) * c + i] : window[(b * (k - 1) + at + k - 1) * c + i];
            }
        }
    return DT_OK;
}

static const dt_op conv = {
    .name = "conv",
    .axes = "b[t]c, b[w]c, c[k] -> b[t]c, b[w]c",
    .types = "fff>ff",
    .cpu = conv_kernel,
};

static dt_status scan_kernel(const dt_kargs *args)
{
    const float *x = args->in[0].data, *h = args->in[1].data, *decay = args->in[2].data;
    float *y = args->out[0].data, *last = args->out[1].data;
    const int64_t n = args->in[0].shape[1], c = args->in[0].shape[2];

    for (int64_t b = 0; b < args->in[0].shape[0]; b++)
        for (int64_t i = 0; i < c; i++) {
            float now = h[b * c + i];
            for (int64_t t = 0; t < n; t++)
                now = y[(b * n + t) * c + i] = decay[i] * now + x[(b * n + t) * c + i];
            last[b * c + i] = now;
        }
    return DT_OK;
}

static const dt_op scan = {
    .name = "scan",
    .axes = "b[t]c, bc, c -> b[t]c, bc",
    .types = "fff>ff",
    .cpu = scan_kernel,
};

/* --- the kind --------------------------------------------------------------------------------- */

static dt_tensor *forward(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *const to_conv[] = { x, dt_layer_state(t, layer, WINDOW, x),
                                   dt_layer_use(t, layer, WEIGHT) };
    dt_tensor *after[2], *y[2];

    dt_apply_n(t, &conv, NULL, 3, to_conv, 2, after);
    dt_tensor *const to_scan[] = { after[0], dt_layer_state(t, layer, H, x),
                                   dt_layer_use(t, layer, DECAY) };
    dt_apply_n(t, &scan, NULL, 3, to_scan, 2, y);
    dt_layer_set_state(t, layer, WINDOW, after[1]);
    dt_layer_set_state(t, layer, H, y[1]);
    return y[0];
}

static const dt_layer_kind mixer = {
    .name = "mixer",
    .words = "a mixer of tokens",
    .params = { { "weight", "ck" }, { "decay", "c" } },
    .states = { { "window", "k-1c" }, { "h", "c" } },
    .values = "...c -> ...c",
    .columns = 'c',
    .forward = forward,
};

/* Every rank has its channels of x, of the parameters and of the states: nothing moves. */
static const dt_style channels = {
    .size = sizeof(dt_style),
    .summary = "channels cut",
    .kinds = "mixer",
    .cut = DT_CUT_COLUMNS,
    .in = DT_LAID(DT_LAY_SHARD, -1),
};

/* --- in pieces as whole ----------------------------------------------------------------------- */

static dt_status set(dt_layer *layer, dt_mesh *mesh, int p, const float *values)
{
    const dt_param_info info = dt_layer_param_info(layer, p);
    dt_placement place[DT_MAX_DIMS];
    int64_t shape[DT_PARAM_MAX_AXES];
    dt_tensor *w = NULL;
    dt_status st;

    for (int a = 0; a < info.n_axes; a++) shape[a] = info.axis[a].extent;
    dt_layout_placements(dt_layer_param_layout(layer, p), place);
    st = dt_distribute(mesh, place, DT_F32, info.n_axes, shape,
                       (dt_source){ values, DT_EQUAL_COPIES }, &w);
    if (st == DT_OK) st = dt_layer_set_param(layer, p, w);
    dt_tensor_release(&w);
    return st;
}

/* Tokens first .. first + n - 1 of all sequences, behind those before; y gets theirs. */
static dt_status feed(dt_layers *layers, dt_carry *carry, const float *x, int first, int n,
                      float *y)
{
    const dt_placement whole[] = { DT_REPLICATE };
    const int64_t shape[] = { B, n, C };
    dt_mesh *mesh = dt_layers_mesh(layers);
    dt_tensor *in = NULL, *full = NULL;
    dt_tape *t = NULL;
    float piece[B * T * C];
    dt_status st;

    for (int b = 0; b < B; b++)
        memcpy(piece + b * n * C, x + (b * T + first) * C, (size_t)(n * C) * sizeof *x);
    st = dt_tape_create(dt_mesh_runtime(mesh), &t);
    if (st == DT_OK)
        st = dt_distribute(mesh, whole, DT_F32, 3, shape, (dt_source){ piece, DT_EQUAL_COPIES },
                           &in);
    if (st == DT_OK) {
        (void)dt_layers_carry(layers, carry);
        dt_tensor *out = dt_layer_forward(t, dt_layers_at(layers, 0), in);
        (void)dt_layers_carry(layers, NULL);
        st = dt_tape_status(t);
        if (st == DT_OK) dt_carry_commit(carry);
        if (st == DT_OK) st = dt_full_tensor(out, &full);
    }
    for (int b = 0; b < B && st == DT_OK; b++)
        memcpy(y + (b * T + first) * C, (const float *)dt_tensor_local(full)->data + b * n * C,
               (size_t)(n * C) * sizeof *y);
    dt_tensor_release(&full);
    dt_tensor_release(&in);
    dt_tape_release(&t);
    return st;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    static const int pieces[] = { 1, 4, 2, 1, 3 }; /* shorter and longer than the window */
    const dt_layer_spec spec = { .name = "mix",
                                 .kind = &mixer,
                                 .axis = { { C, DT_UNIT_ROW }, { K, DT_UNIT_ROW } },
                                 .style = "channels" };
    float x[B * T * C], weight[C * K], decay[C], whole[B * T * C], fed[B * T * C];
    dt_layers *layers = NULL;
    dt_carry *carry = NULL;
    dt_mesh *mesh = NULL;
    dt_status st;

    for (int i = 0; i < B * T * C; i++) x[i] = (float)(i * 7 % 13) / 13.0f - 0.5f;
    for (int i = 0; i < C * K; i++) weight[i] = (float)(i % 5) / 5.0f - 0.3f;
    for (int i = 0; i < C; i++) decay[i] = 0.5f + 0.1f * (float)i;
    st = dt_style_register(rt, "channels", &channels);
    if (st == DT_OK) st = dt_mesh_create(rt, dt_runtime_size(rt) == 1 ? "tp=1" : "tp=2", &mesh);
    if (st == DT_OK) st = dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers);
    if (st == DT_OK) st = set(dt_layers_at(layers, 0), mesh, WEIGHT, weight);
    if (st == DT_OK) st = set(dt_layers_at(layers, 0), mesh, DECAY, decay);
    if (st == DT_OK) st = dt_carry_create(layers, &carry);
    if (st == DT_OK) st = feed(layers, carry, x, 0, T, whole);
    dt_carry_clear(carry);
    for (int i = 0, first = 0; i < 5 && st == DT_OK; first += pieces[i++])
        st = feed(layers, carry, x, first, pieces[i], fed);
    if (st == DT_OK && memcmp(fed, whole, sizeof fed) != 0)
        st = dt_fail(DT_ERR_INTERNAL, "in pieces it is another sequence");
    if (st == DT_OK && dt_runtime_size(rt) > 1 && memcmp(arg, whole, sizeof whole) != 0)
        st = dt_fail(DT_ERR_INTERNAL, "two ranks give something else than one");
    if (st == DT_OK && dt_runtime_size(rt) == 1) memcpy(arg, whole, sizeof whole);
    if (st == DT_OK && dt_runtime_rank(rt) == 0)
        printf("tp=%d: %d tokens in pieces of 1, 4, 2, 1 and 3 give what they give whole\n",
               dt_runtime_size(rt), (int)T);
    dt_carry_release(&carry);
    dt_layers_release(&layers);
    dt_mesh_release(&mesh);
    return st;
}

int main(void)
{
    float one[B * T * C];
    dt_status st = DT_OK;

    for (int n = 1; n <= 2 && st == DT_OK; n++) {
        dt_run_options options = DT_RUN_OPTIONS_INIT;
        options.n_ranks = n;
        st = dt_run(&options, rank_main, one);
    }
    if (st != DT_OK) (void)fprintf(stderr, "%s\n", dt_last_error()->message);
    return st == DT_OK ? 0 : 1;
}
