/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/small_net.h"

#include <dtensor/ops.h>
#include <dtensor/ops_general.h>
#include <dtensor/ops_loss.h>
#include <dtensor/training_checkpoints.h>
#include <dtensor/weights.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/device/device.h"
#include "tests/support/dt_test.h"

enum { V = DT_NET_V, D = DT_NET_D, F = DT_NET_F, ROWS = DT_NET_ROWS, TOKENS = DT_NET_TOKENS };
enum { EMBED, NORM, SCALE, UP, DOWN, HEAD, N_LAYERS };

static dt_tensor *scale_forward(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    return dt_mul(t, x, dt_layer_use(t, layer, 0));
}

/* y = x * scale, which training leaves alone. */
static const dt_layer_kind frozen_scale = {
    .name = "frozen_scale",
    .params = { { .name = "scale", .axes = "d", .frozen = true, .begins = DT_BEGINS_ONES } },
    .values = "...d -> ...d",
    .forward = scale_forward,
};

#define ROW(name_, kind_, a, b, with_, style_, tied_)                                             \
    {                                                                                             \
        .name = (name_), .kind = (kind_), .axis = { { (a), DT_UNIT_ROW }, { (b), DT_UNIT_ROW } }, \
        .with = (with_), .eps = 1e-5f, .style = (style_), .tied_to = (tied_)                      \
    }

static const dt_layer_spec net[N_LAYERS] = {
    ROW("embed", &dt_embedding_kind, V, D, NULL, "embedding_rowwise", NULL),
    ROW("norm", &dt_rms_norm_kind, D, 0, NULL, "replicate", NULL),
    ROW("scale", &frozen_scale, D, 0, NULL, "replicate", NULL),
    ROW("mlp.up", &dt_linear_kind, F, D, "bias", "colwise", NULL),
    ROW("mlp.down", &dt_linear_kind, D, F, NULL, "rowwise", NULL),
    ROW("head", &dt_linear_kind, V, D, NULL, "colwise", "embed"),
};

dt_status dt_test_net_away(dt_mesh *mesh, const dt_plan *plan, dt_dtype dtype, const char *offload,
                           dt_layers **out)
{
    static const dt_init_rule rules[] = { { "**.weight", DT_INIT_NORMAL, 0.0, 0.3 },
                                          { "norm.weight", DT_INIT_CONSTANT, 1.0, 0.0 } };
    dt_status st = DT_OK;

    DT_TRY(dt_layers_create(mesh, "tp?", net, N_LAYERS, plan, out));
    if (offload != NULL) st = dt_layers_offload(*out, offload);
    if (st == DT_OK) st = dt_layers_init(*out, dtype, 16, rules, 2);
    if (st != DT_OK) dt_layers_release(out);
    return st;
}

dt_status dt_test_net_create(dt_mesh *mesh, dt_dtype dtype, dt_layers **out)
{
    DT_TRY(dt_test_net_away(mesh, NULL, dtype, NULL, out));
    return DT_OK;
}

dt_status dt_test_net_planned(dt_mesh *mesh, const dt_plan *plan, dt_dtype dtype, dt_layers **out)
{
    DT_TRY(dt_test_net_away(mesh, plan, dtype, NULL, out));
    return DT_OK;
}

/* Rows of numbers below V, cut over "dp". */
static dt_tensor *numbers(dt_tape *t, dt_mesh *mesh, int64_t step, int64_t first, int64_t n)
{
    dt_placement place[DT_MAX_DIMS] = { { 0 } };
    const int64_t shape[] = { n, TOKENS };
    int32_t full[ROWS * TOKENS];
    dt_tensor *x;

    for (int m = 0; m < dt_mesh_n_dims(mesh); m++)
        if (strncmp(dt_mesh_dim_name(mesh, m), "dp", 2) == 0) place[m] = DT_SHARD(0);
    for (int64_t i = 0; i < n * TOKENS; i++) {
        const int64_t at = first * TOKENS + i + step * 5;
        full[i] = (int32_t)((at * at * 7 + at * 3 + at / 4) % V);
    }
    if (dt_distribute(mesh, place, DT_I32, 2, shape, (dt_source){ full, DT_EQUAL_COPIES }, &x) !=
        DT_OK)
        return NULL;
    return dt_tape_own(t, x);
}

dt_tensor *dt_test_net_loss(dt_tape *t, dt_layers *m, int64_t step, int64_t first, int64_t n)
{
    dt_cross_entropy_options how = DT_CROSS_ENTROPY_OPTIONS_INIT;
    dt_mesh *mesh = dt_layers_mesh(m);
    dt_tensor *x = dt_layer_forward(t, dt_layers_at(m, EMBED), numbers(t, mesh, step, first, n));
    dt_tensor *h = dt_layer_forward(t, dt_layers_at(m, NORM), x);

    how.n_valid = ROWS * TOKENS;
    h = dt_layer_forward(t, dt_layers_at(m, SCALE), h);
    h = dt_tanh(t, dt_layer_forward(t, dt_layers_at(m, UP), h));
    x = dt_add(t, x, dt_layer_forward(t, dt_layers_at(m, DOWN), h));
    x = dt_layer_forward(t, dt_layers_at(m, HEAD), x);
    return dt_cross_entropy(t, x, numbers(t, mesh, step + 1, first, n), &how);
}

static dt_status append(dt_tensor *x, float **out, int64_t *n, size_t *room)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    int64_t more = 1;
    dt_tensor *y;
    dt_status st;

    DT_TRY(dt_redistribute_cast(x, whole, DT_F32, &y));
    for (int a = 0; a < dt_tensor_n_axes(y); a++) more *= dt_tensor_extent(y, a);
    st = dti_grow((void **)out, room, (size_t)(*n + more), sizeof **out);
    if (st == DT_OK) st = dt_tensor_read(y, *out + *n, (size_t)more * sizeof **out);
    dt_tensor_release(&y);
    *n += more;
    return st;
}

dt_status dt_test_net_values(dt_layers *m, dt_optimizer *opt, float **out, int64_t *n)
{
    dt_optimizer_state state;
    size_t room = 0;

    *out = NULL;
    *n = 0;
    for (int i = 0; i < dt_layers_count(m); i++) {
        const dt_layer *layer = dt_layers_at(m, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            if (dt_layer_owns_param(layer, p))
                DT_TRY(append(dt_layer_param(layer, p), out, n, &room));
    }
    for (int64_t i = 0; dt_optimizer_state_at(opt, i, &state); i++)
        DT_TRY(append(state.value, out, n, &room));
    return DT_OK;
}

dt_status dt_test_net_step(dt_optimizer *opt, dt_tape *t, dt_layers *m, const dt_test_training *how,
                           int step, dt_step_report *report)
{
    const int64_t rows = ROWS / how->passes;

    for (int i = 0; i < how->passes; i++) {
        dt_tensor *loss;
        dt_tape_record(t, dt_optimizer_gradients(opt));
        loss = dt_test_net_loss(t, m, step, i * rows, rows);
        if (how->scale != 0.0) loss = dt_mul_scalar(t, loss, how->scale);
        dt_optimizer_backward(opt, t, loss, i + 1 == how->passes, NULL);
        DT_TRY(dt_tape_status(t));
        dt_tape_reset(t);
    }
    DT_TRY(dt_optimizer_step(opt, how->lr, report));
    return DT_OK;
}

/* By checkpoints: to layers and an optimizer that lie in memory, and back. */
static dt_status exchange(dt_mesh *mesh, const dt_test_training *how, dt_layers **m,
                          dt_optimizer **opt)
{
    const char *const params[] = { NULL, how->offload }, *const state[] = { NULL,
                                                                            how->options.offload };
    dt_optimizer_options options = how->options;
    DT_HELD(run_folder) *run = NULL;

    DT_TRY(dt_run_folder_open(mesh, how->folder, NULL, &run));
    for (int i = 0; i < 2; i++) {
        DT_TRY(dt_run_folder_save(run, *m, *opt, &(dt_run_progress){ .step = i }, NULL));
        dt_optimizer_release(opt);
        dt_layers_release(m);
        options.offload = state[i];
        DT_TRY(dt_test_net_away(mesh, how->plan, how->dtype, params[i], m));
        DT_TRY(dt_optimizer_create(*m, &options, opt));
        DT_TRY(dt_run_folder_load(run, NULL, *m, *opt, NULL, NULL));
    }
    return DT_OK;
}

static dt_status train(dt_mesh *mesh, const void *arg)
{
    dt_test_trained *const *to = arg, *o = *to;
    const bool tells = dt_runtime_rank(dt_mesh_runtime(mesh)) == 0;
    DT_HELD(layers) *m = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_FREED float *values = NULL;
    dti_device *device;
    int64_t n = 0;

    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &device));
    DT_TRY(dt_test_net_away(mesh, o->how.plan, o->how.dtype, o->how.offload, &m));
    DT_TRY(dt_optimizer_create(m, &o->how.options, &opt));
    for (int i = 0; i < o->how.steps; i++) {
        dt_step_report report;
        if (o->how.folder != NULL && 2 * i == o->how.steps)
            DT_TRY(exchange(mesh, &o->how, &m, &opt));
        DT_TRY(dt_test_net_step(opt, t, m, &o->how, i, &report));
        if (tells) o->norms[i] = report.norm;
    }
    if (tells) {
        o->used = dti_memory_used(device->memory);
        o->states = dti_memory_of_kind(device->memory, DTI_KIND_STATES);
        o->state_bytes = dt_optimizer_state_bytes(opt);
        o->param_bytes = dt_layers_local_bytes(m);
    }
    DT_TRY(dt_test_net_values(m, opt, &values, &n));
    DT_EXPECT(n <= DT_NET_VALUES, "%lld values", (long long)n);
    if (tells) memcpy(o->values, values, (size_t)(o->n = n) * sizeof *values);
    return DT_OK;
}

void dt_test_train(const dt_run_options *options, const char *mesh, const dt_test_training *how,
                   dt_test_trained *out)
{
    dt_test_trained *to = out;

    *out = (dt_test_trained){ .how = *how };
    dt_test_ok(__FILE__, __LINE__, mesh, dt_test_run(options, mesh, train, &to));
}

void dt_test_train_fails(const dt_run_options *options, const char *mesh,
                         const dt_test_training *how, dt_status status, const char *says)
{
    dt_test_trained out = { .how = *how }, *to = &out;

    DT_ASSERT_STATUS(dt_test_run(options, mesh, train, &to), status, says);
}

bool dt_test_trained_same(const dt_test_trained *a, const dt_test_trained *b)
{
    return a->n == b->n && memcmp(a->values, b->values, (size_t)a->n * sizeof(float)) == 0 &&
           memcmp(a->norms, b->norms, sizeof a->norms) == 0;
}

double dt_test_trained_apart(const dt_test_trained *a, const dt_test_trained *b)
{
    double worst = 0.0, largest = 0.0;

    for (int64_t i = 0; i < a->n; i++) {
        worst = fmax(worst, fabs((double)a->values[i] - (double)b->values[i]));
        largest = fmax(largest, fabs((double)a->values[i]));
    }
    return a->n == b->n ? worst / largest : 1.0;
}
