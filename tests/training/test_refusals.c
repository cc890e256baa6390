/* SPDX-License-Identifier: Apache-2.0
 *
 * What makes no sense is refused by name, and changes nothing. */
#include <dtensor/factories.h>
#include <dtensor/ops_general.h>
#include <dtensor/weights.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"
#include "tests/support/small_net.h"

/* Options that differ from the defaults in what is not zero here; flags say the rest. */
typedef struct refusal {
    dt_optimizer_options o;
    dt_status status;
    const char *says;
} refusal;

static dt_status refuse(dt_mesh *mesh, const void *arg)
{
    const refusal *r = arg;
    dt_optimizer *opt = NULL;
    dt_layers *m = NULL;
    dt_status st;

    DT_TRY(dt_test_net_create(mesh, DT_F32, &m));
    st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_optimizer_create(m, &r->o, &opt),
                               r->status, r->says);
    if (st == DT_OK && opt != NULL) st = dt_fail(DT_ERR_INTERNAL, "an optimizer was made");
    dt_optimizer_release(&opt);
    dt_layers_release(&m);
    return st;
}

static void refused(dt_optimizer_options o, dt_status status, const char *says)
{
    dt_test_on_ranks("dp=2", refuse, &(refusal){ o, status, says });
}

/* The defaults with one field changed. */
#define REFUSED(field, value, says)                         \
    do {                                                    \
        dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT; \
        o.field = (value);                                  \
        refused(o, DT_ERR_ARG, (says));                     \
    } while (0)

DT_TEST(optimizer_refusals, options)
{
    REFUSED(size, 3, "dt_optimizer_options");
    REFUSED(rule, (dt_optimizer_rule)7, "7 is no dt_optimizer_rule");
    REFUSED(beta1, 1.0, "beta1 is 1: it lies in [0, 1)");
    REFUSED(beta2, (double)NAN, "beta2 is nan");
    REFUSED(eps, -1e-8, "eps is -1e-08");
    REFUSED(weight_decay, (double)INFINITY, "weight_decay is inf");
    REFUSED(momentum, 1.5, "momentum is 1.5: it lies in [0, 1]");
    REFUSED(dampening, -0.5, "dampening is -0.5");
    REFUSED(nesterov, true, "nesterov needs a momentum");
    REFUSED(clip, (double)NAN, "clip is nan");
    REFUSED(n_groups, 2, "groups is a list of 2");
    REFUSED(zero, 3, "zero is 3: 0, 1 and 2 are possible; stage 3 is the style \"fully_shard\"");
    REFUSED(zero, -1, "zero is -1");
    REFUSED(over, "tp", "over \"tp\": the mesh has no dim \"tp\"");
    REFUSED(over, "dp,", "the mesh has no dim \"\"");
    REFUSED(over, "", "over is empty");
    REFUSED(stochastic, true, "set masters to false");
    REFUSED(loss_scale, 1000.0, "loss_scale is 1000: it is a power of 2");
    REFUSED(loss_scale, (double)NAN, "loss_scale is nan");
    REFUSED(loss_scale, (double)INFINITY, "loss_scale is inf");
    REFUSED(bucket_bytes, -1, "bucket_bytes is -1");
    REFUSED(window_bytes, -5, "window_bytes is -5");
}

DT_TEST(optimizer_refusals, groups)
{
    static const dt_parameter_group bad[] = { { "", 1.0, 0.0, false },
                                              { "**", (double)NAN, 0.0, false },
                                              { "**", 1.0, (double)NAN, false },
                                              { "norm.*.weight", 1.0, 0.0, false },
                                              { "**", 1.0, 0.0, true } };
    static const char *const says[] = { "group 0 has no pattern",
                                        "group 0 (\"**\"): lr_factor is nan",
                                        "group 0 (\"**\"): weight_decay is nan",
                                        "group 0: no parameter matches \"norm.*.weight\"",
                                        "nothing to train" };
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;

    o.n_groups = 1;
    for (size_t i = 0; i < DT_COUNT(bad); i++) {
        o.groups = &bad[i];
        refused(o, DT_ERR_ARG, says[i]);
    }
}

/* --- calls ------------------------------------------------------------------------------------ */

#define EXPECT(call, says) DT_EXPECT_STATUS(call, DT_ERR_ARG, says)

static dt_status after(dt_tape *t)
{
    const dt_status st = dt_tape_status(t);

    dt_tape_reset(t);
    return st;
}

static dt_status calls(dt_mesh *mesh, const void *arg)
{
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    DT_HELD(layers) *m = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = NULL, *other = NULL;
    DT_HELD(tensor) *w = NULL;
    dt_optimizer *second = NULL;
    dt_tensor *loss;
    dt_optimizer_state state;

    (void)arg;
    DT_TRY(dt_test_net_create(mesh, DT_F32, &m));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &other));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    EXPECT(dt_optimizer_create(m, &o, NULL), "out is NULL");
    EXPECT(dt_optimizer_create(NULL, &o, &opt), "layers is NULL");
    DT_TRY(dt_optimizer_create(m, NULL, &opt));
    EXPECT(dt_optimizer_create(m, &o, &second), "watched by another collection");
    EXPECT(dt_optimizer_step(NULL, 0.1, NULL), "optimizer is NULL");
    EXPECT(dt_optimizer_step(opt, (double)NAN, NULL), "step 1: lr is nan");
    EXPECT(dt_optimizer_step(opt, -0.1, NULL), "step 1: lr is -0.1");
    EXPECT(dt_optimizer_step(opt, 0.1, NULL), "step 1: no backward pass has reached any parameter");
    EXPECT(dt_optimizer_restore(NULL, 1, 1.0, 0), "optimizer is NULL");
    EXPECT(dt_optimizer_restore(opt, -1, 1.0, 0), "-1 steps");
    EXPECT(dt_optimizer_restore(opt, INT64_MAX, 1.0, 0), "9223372036854775807 steps");
    EXPECT(dt_optimizer_restore(opt, 1, 1.0, INT64_MAX), "9223372036854775807 good ones");
    EXPECT(dt_optimizer_restore(opt, 1, 3.0, 0), "a loss scale of 3");
    DT_EXPECT(!dt_optimizer_state_at(opt, -1, &state) &&
                  !dt_optimizer_state_at(opt, 1000, &state) &&
                  !dt_optimizer_state_at(NULL, 0, &state),
              "state that there is none of");

    dt_tape_record(t, g);
    dt_optimizer_backward(opt, t, dt_test_net_loss(t, m, 0, 0, DT_NET_ROWS), true, NULL);
    EXPECT(after(t), "does not record for this optimizer");
    dt_optimizer_backward(opt, t, dt_layer_param(dt_layers_at(m, 1), 0), true, NULL);
    EXPECT(after(t), "does not record for this optimizer");
    dt_tape_record(t, dt_optimizer_gradients(opt));
    dt_optimizer_backward(opt, t, NULL, true, NULL);
    EXPECT(after(t), "loss is NULL");
    dt_tape_record(t, dt_optimizer_gradients(opt));
    dt_optimizer_backward(NULL, t, dt_test_net_loss(t, m, 0, 0, DT_NET_ROWS), true, NULL);
    EXPECT(after(t), "optimizer is NULL");
    dt_tape_record(t, dt_optimizer_gradients(opt));
    dt_optimizer_backward(opt, t, dt_layer_param(dt_layers_at(m, 1), 0), true, NULL);
    EXPECT(after(t), "the loss has 6 elements");
    dt_tape_record(t, dt_optimizer_gradients(opt));
    dt_tape_record(other, dt_optimizer_gradients(opt));
    loss = dt_test_net_loss(t, m, 0, 0, DT_NET_ROWS);
    dt_optimizer_backward(opt, other, loss, true, NULL);
    EXPECT(after(other), "another tape has made it");
    dt_optimizer_backward(opt, t, loss, true, NULL);
    DT_TRY(after(t));

    DT_TRY(dt_optimizer_step(opt, 0.1, NULL));
    EXPECT(dt_optimizer_step(opt, 0.1, NULL), "step 2: no backward pass");
    dt_tape_record(t, dt_optimizer_gradients(opt));
    dt_optimizer_backward(opt, t, dt_test_net_loss(t, m, 0, 0, DT_NET_ROWS), true, NULL);
    DT_TRY(after(t));
    DT_TRY(dt_zeros_like(dt_layer_param(dt_layers_at(m, 1), 0), &w));
    DT_TRY(dt_layer_set_param(dt_layers_at(m, 1), 0, w));
    EXPECT(dt_optimizer_step(opt, 0.1, NULL), "norm.weight has another value");
    return DT_OK;
}

DT_TEST(optimizer_refusals, calls)
{
    dt_test_on_ranks("dp=2", calls, NULL);
}

static dt_status no_values(dt_mesh *mesh, const void *arg)
{
    static const dt_layer_spec spec = { .name = "a",
                                        .kind = &dt_linear_kind,
                                        .axis = { { 3, DT_UNIT_ROW }, { 2, DT_UNIT_ROW } } };
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    DT_HELD(layers) *m = NULL;
    DT_HELD(optimizer) *opt = NULL;

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp?", &spec, 1, NULL, &m));
    EXPECT(dt_optimizer_create(m, NULL, &opt), "a.weight has no value yet");
    DT_TRY(dt_layers_init(m, DT_F16, 1, NULL, 0));
    o.masters = false;
    o.stochastic = true;
    EXPECT(dt_optimizer_create(m, &o, &opt), "a.weight is f16: stochastic rounds bf16 alone");
    return DT_OK;
}

DT_TEST(optimizer_refusals, parameters)
{
    dt_test_on_ranks("dp=1", no_values, NULL);
}

/* --- ranks that step differently -------------------------------------------------------------- */

typedef enum otherwise { IN_LR, IN_CLIP, IN_GROUPS, IN_STEPS, N_OTHERWISE } otherwise;

static dt_status differs(dt_mesh *mesh, const void *arg)
{
    static const char *const says[] = {
        "step 1: lr is 0.1 on rank 0 and 0.1000000001 on rank 2: every rank passes the same; "
        "nothing was written",
        "step 1: clip is 0.5 on rank 2 and 1 on rank 0",
        "step 1: lr_factor of mlp.up.weight is 1 on rank 0 and 3 on rank 2",
        "the count of steps is 0 on rank 0 and 7 on rank 2",
    };
    const otherwise what = *(const otherwise *)arg;
    const bool odd = dt_runtime_rank(dt_mesh_runtime(mesh)) == 2;
    const dt_parameter_group group = { "mlp.up.weight", odd ? 3.0 : 1.0, -1.0, false };
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    DT_HELD(layers) *m = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_FREED float *before = NULL, *values = NULL;
    int64_t n = 0;

    o.clip = what == IN_CLIP && odd ? 0.5 : 1.0;
    o.groups = what == IN_GROUPS ? &group : NULL;
    o.n_groups = what == IN_GROUPS;
    DT_TRY(dt_test_net_create(mesh, DT_F32, &m));
    DT_TRY(dt_optimizer_create(m, &o, &opt));
    if (what == IN_STEPS && odd) DT_TRY(dt_optimizer_restore(opt, 7, 1.0, 0));
    DT_TRY(dt_test_net_values(m, opt, &before, &n));
    dt_tape_record(t, dt_optimizer_gradients(opt));
    dt_optimizer_backward(opt, t, dt_test_net_loss(t, m, 0, 0, DT_NET_ROWS), true, NULL);
    DT_TRY(after(t));
    EXPECT(dt_optimizer_step(opt, what == IN_LR && odd ? 0.1000000001 : 0.1, NULL), says[what]);
    DT_TRY(dt_test_net_values(m, opt, &values, &n));
    DT_EXPECT(memcmp(before, values, (size_t)n * sizeof *values) == 0, "values were written");
    if (what == IN_LR) DT_TRY(dt_optimizer_step(opt, 0.1, NULL));
    return DT_OK;
}

DT_TEST(optimizer_refusals, ranks_that_step_differently)
{
    for (otherwise what = 0; what < N_OTHERWISE; what++) {
        dt_test_on_ranks("dp=4", differs, &what);
        dt_test_on_ranks("dp=2,tp=2", differs, &what);
    }
}

/* --- what was recorded before a step, and ranks that take no part ----------------------------- */

/* A step writes over what a record keeps: the parameter is the same tensor, with other bytes. */
static dt_status outdated(dt_mesh *mesh, const void *arg)
{
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    DT_HELD(layers) *m = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(tape) *t = NULL, *before = NULL;
    dt_tensor *loss, *w;

    o.zero = *(const int *)arg;
    DT_TRY(dt_test_net_create(mesh, DT_F32, &m));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &before));
    DT_TRY(dt_optimizer_create(m, &o, &opt));
    w = dt_layer_param(dt_layers_at(m, 3), 0);
    dt_tape_record(before, dt_optimizer_gradients(opt));
    loss = dt_test_net_loss(before, m, 0, 0, DT_NET_ROWS);
    dt_tape_record(t, dt_optimizer_gradients(opt));
    dt_optimizer_backward(opt, t, dt_test_net_loss(t, m, 0, 0, DT_NET_ROWS), true, NULL);
    DT_TRY(after(t));
    DT_TRY(dt_optimizer_step(opt, 0.1, NULL));
    DT_EXPECT(dt_layer_param(dt_layers_at(m, 3), 0) == w, "another tensor");
    dt_optimizer_backward(opt, before, loss, true, NULL);
    EXPECT(after(before), "cleared while the tape recorded");
    loss = dt_test_net_loss(before, m, 0, 0, DT_NET_ROWS); /* is not recorded */
    dt_tape_record(before, dt_optimizer_gradients(opt));
    loss = dt_test_net_loss(before, m, 0, 0, DT_NET_ROWS);
    DT_TRY(dt_fill(w, 0.0));
    dt_optimizer_backward(opt, before, loss, true, NULL);
    EXPECT(after(before), "was written over");
    return DT_OK;
}

DT_TEST(optimizer_refusals, records_of_before)
{
    for (int zero = 0; zero <= 2; zero++) dt_test_on_ranks("dp=2", outdated, &zero);
}

/* The last rank of the run is no member of the mesh: it makes the same calls, and waits for nobody.
 */
static dt_status with_outsider(dt_runtime *rt, void *arg)
{
    dt_test_training how = {
        .dtype = DT_BF16, .options = DT_OPTIMIZER_OPTIONS_INIT, .steps = 2, .passes = 2, .lr = 0.01
    };
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(layers) *m = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(tape) *t = NULL;
    dt_step_report report;

    (void)arg;
    how.options.zero = 2;
    DT_TRY(dt_mesh_create(rt, "dp=2", &mesh));
    DT_TRY(dt_test_net_create(mesh, how.dtype, &m));
    DT_TRY(dt_tape_create(rt, &t));
    DT_TRY(dt_optimizer_create(m, &how.options, &opt));
    for (int i = 0; i < how.steps; i++) {
        dt_tape_record(t, dt_optimizer_gradients(opt));
        dt_optimizer_backward(opt, t, dt_test_net_loss(t, m, i, 0, DT_NET_ROWS), true, NULL);
        DT_TRY(after(t));
        DT_TRY(dt_optimizer_step(opt, how.lr, &report));
    }
    DT_EXPECT(report.step == 2 && dt_optimizer_steps(opt) == 2 &&
                  (dt_optimizer_state_bytes(opt) > 0) == dt_mesh_is_member(mesh),
              "step %lld, %lld bytes", (long long)report.step,
              (long long)dt_optimizer_state_bytes(opt));
    return DT_OK;
}

DT_TEST(optimizer_refusals, outsiders_are_let_go)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;

    options.n_ranks = 3;
    if (dt_test_processes() <= options.n_ranks) DT_ASSERT_OK(dt_run(&options, with_outsider, NULL));
}
