/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step holds and sends: the formulas for a model whose extents all divide, nothing padded.
 * A dry run says the same, and a step that repeats takes nothing from the system. */
#include <dtensor/collectives.h>
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <dtensor/ops_general.h>
#include <dtensor/optimizers.h>
#include <dtensor/weights.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/device/device.h"
#include "tests/support/counting.h"
#include "tests/support/dt_test.h"

/* V=256, h=64, 4 blocks, 2 of 4 heads of 16 with keys, inner width 176: 217 664 parameters. */
enum { V = 256, H = 64, KV = 32, FF = 176, BLOCKS = 4, PARAMS = 217664, NORMS = 9 * H * 4 };

#define ROW(name_, kind_, a, b)                                                                  \
    {                                                                                            \
        .name = (name_), .kind = (kind_), .axis = { { (a), DT_UNIT_ROW }, { (b), DT_UNIT_ROW } } \
    }
#define BLOCK(i)                                                                      \
    ROW(i ".norm1", &dt_rms_norm_kind, H, 0), ROW(i ".q", &dt_linear_kind, H, H),     \
        ROW(i ".k", &dt_linear_kind, KV, H), ROW(i ".v", &dt_linear_kind, KV, H),     \
        ROW(i ".o", &dt_linear_kind, H, H), ROW(i ".norm2", &dt_rms_norm_kind, H, 0), \
        ROW(i ".gate", &dt_linear_kind, FF, H), ROW(i ".up", &dt_linear_kind, FF, H), \
        ROW(i ".down", &dt_linear_kind, H, FF)

static const dt_layer_spec micro[] = { ROW("embed", &dt_linear_kind, V, H),
                                       BLOCK("0"),
                                       BLOCK("1"),
                                       BLOCK("2"),
                                       BLOCK("3"),
                                       ROW("norm", &dt_rms_norm_kind, H, 0),
                                       ROW("head", &dt_linear_kind, V, H) };
enum { N_LAYERS = (int)DT_COUNT(micro) };

/* The sum of what all layers give for a row of each rank. */
static dt_tensor *loss_of(dt_tape *t, dt_layers *m, dt_tensor *narrow, dt_tensor *wide)
{
    dt_tensor *loss = NULL;

    for (int i = 0; i < N_LAYERS; i++) {
        const bool is_wide = micro[i].axis[1].extent == FF;
        dt_tensor *y = dt_layer_forward(t, dt_layers_at(m, i), is_wide ? wide : narrow);
        y = dt_sum(t, y, DT_ALL_AXES);
        loss = loss == NULL ? y : dt_add(t, loss, y);
    }
    return loss;
}

typedef struct stepper {
    dt_layers *layers;
    dt_optimizer *opt;
    dt_tape *tape;
    dt_tensor *narrow, *wide;
    dti_device *device;
} stepper;

/* zero 3: parameters are cut themselves. */
static dt_status open_stepper(dt_mesh *mesh, const dt_optimizer_options *options, dt_dtype dtype,
                              stepper *s)
{
    static const dt_plan cut = { .dim = "dp", .others = "fully_shard" };
    dt_optimizer_options o = *options;
    const dt_placement rows[DT_MAX_DIMS] = { DT_SHARD(0) };
    const int64_t n = dt_mesh_dim_size(mesh, 0);

    *s = (stepper){ .layers = NULL };
    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &s->device));
    DT_TRY(dt_layers_create(mesh, "tp?", micro, N_LAYERS, o.zero == 3 ? &cut : NULL, &s->layers));
    DT_TRY(dt_layers_init(s->layers, dtype, 3, NULL, 0));
    o.zero %= 3;
    DT_TRY(dt_optimizer_create(s->layers, &o, &s->opt));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &s->tape));
    DT_TRY(dt_ones(mesh, rows, dtype, 2, (int64_t[]){ n, H }, &s->narrow));
    DT_TRY(dt_ones(mesh, rows, dtype, 2, (int64_t[]){ n, FF }, &s->wide));
    return DT_OK;
}

static void close_stepper(stepper *s)
{
    dt_tensor_release(&s->narrow);
    dt_tensor_release(&s->wide);
    dt_tape_release(&s->tape);
    dt_optimizer_release(&s->opt);
    dt_layers_release(&s->layers);
}

static dt_status pass(stepper *s, bool last)
{
    dt_tape_record(s->tape, dt_optimizer_gradients(s->opt));
    dt_optimizer_backward(s->opt, s->tape, loss_of(s->tape, s->layers, s->narrow, s->wide), last,
                          NULL);
    DT_TRY(dt_tape_status(s->tape));
    return DT_OK;
}

static int64_t used(const stepper *s)
{
    const int64_t data = (H + FF) * (int64_t)dt_dtype_size(dt_tensor_dtype(s->narrow));
    const int64_t counters = (N_LAYERS + 1) * 21 * 8; /* of norms */

    return (int64_t)dti_memory_used(s->device->memory) - data - counters;
}

static int64_t all_bytes(const dt_tape *t)
{
    int64_t bytes = 0;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) bytes += dt_tape_comm(t, (dt_comm_kind)k).bytes;
    return bytes;
}

/* --- the formulas ----------------------------------------------------------------------------- */

typedef struct formula {
    const char *mesh;
    int zero;
    dt_dtype dtype;
    int64_t state, gradients, held; /* of optimizer; between the last pass and the step; in all */
    int64_t sent;                   /* for gradients and parameters of one step with one pass */
} formula;

static const formula formulas[] = {
    { "dp=2", 0, DT_F32, 8LL * PARAMS, 4LL * PARAMS, 3482624, 870656 },
    { "dp=4", 0, DT_F32, 8LL * PARAMS, 4LL * PARAMS, 3482624, 1305984 },
    { "dp=2", 1, DT_F32, 4LL * PARAMS, 4LL * PARAMS, 2611968, 870656 },
    { "dp=4", 1, DT_F32, 2LL * PARAMS, 4LL * PARAMS, 2176640, 1305984 },
    { "dp=2", 2, DT_F32, 4LL * PARAMS, 2LL * PARAMS, 2176640, 870656 },
    { "dp=4", 2, DT_F32, 2LL * PARAMS, 1LL * PARAMS, 1523648, 1305984 },
    /* nothing here asks for gradients of inputs, so the way back gathers norms alone */
    { "dp=2", 3, DT_F32, 4LL * PARAMS, 2LL * PARAMS, 1741312, 870656 + NORMS / 2 },
    { "dp=4", 3, DT_F32, 2LL * PARAMS, 1LL * PARAMS, 870656, 1305984 + NORMS * 3 / 4 },
    /* bf16: 2 of parameters, 4 of gradients, 12 of masters and moments */
    { "dp=2", 0, DT_BF16, 12LL * PARAMS, 4LL * PARAMS, 18LL * PARAMS, 4LL * PARAMS },
    { "dp=4", 1, DT_BF16, 3LL * PARAMS, 4LL * PARAMS, 9LL * PARAMS, 18LL * PARAMS / 4 },
    { "dp=4", 2, DT_BF16, 3LL * PARAMS, 1LL * PARAMS, 6LL * PARAMS, 18LL * PARAMS / 4 },
};

static dt_status holds(dt_mesh *mesh, const void *arg)
{
    const formula *f = arg;
    const int p = dt_mesh_n_ranks(mesh);
    const int64_t norm = 2 * 26 * 8 * (p - 1) / p;
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    dt_counted counted;
    int64_t early;
    stepper s;
    dt_status st;

    o.zero = f->zero;
    DT_TRY_TO(done, st, open_stepper(mesh, &o, f->dtype, &s));
    DT_TRY_TO(done, st, pass(&s, true)); /* groups are made */
    dt_tape_reset(s.tape);
    DT_TRY_TO(done, st, dt_optimizer_step(s.opt, 0.1, NULL));
    DT_TRY_TO(done, st, dt_count_mesh(mesh));
    (void)dt_counted_take();
    DT_TRY_TO(done, st, pass(&s, true));
    early = all_bytes(s.tape); /* what travels before the step */
    dt_tape_reset(s.tape);
    DT_EXPECT_TO(done, st, dt_optimizer_state_bytes(s.opt) == f->state, "state: %lld, not %lld",
                 (long long)dt_optimizer_state_bytes(s.opt), (long long)f->state);
    DT_EXPECT_TO(done, st,
                 (int64_t)dti_memory_of_kind(s.device->memory, DTI_KIND_STATES) == f->state &&
                     (int64_t)dti_memory_of_kind(s.device->memory, DTI_KIND_WEIGHTS) ==
                         PARAMS * (int64_t)dt_dtype_size(f->dtype) / (f->zero == 3 ? p : 1),
                 "by kind: %zu of state", dti_memory_of_kind(s.device->memory, DTI_KIND_STATES));
    DT_EXPECT_TO(done, st, used(&s) == f->held, "held: %lld, not %lld", (long long)used(&s),
                 (long long)f->held);
    DT_TRY_TO(done, st, dt_optimizer_step(s.opt, 0.1, NULL));
    counted = dt_counted_take();
    DT_EXPECT_TO(done, st, early + all_bytes(dt_optimizer_tape(s.opt)) == f->sent + norm,
                 "sent: %lld and %lld, not %lld and %lld", (long long)early,
                 (long long)all_bytes(dt_optimizer_tape(s.opt)), (long long)f->sent,
                 (long long)norm);
    /* what is gathered ahead goes through the ranks' helpers */
    DT_EXPECT_TO(done, st,
                 f->zero == 3 ||
                     (counted.sent == f->sent + norm && counted.received == counted.sent),
                 "really sent: %lld", (long long)counted.sent);
    DT_EXPECT_TO(done, st, used(&s) == f->held - f->gradients, "after the step: %lld",
                 (long long)used(&s));
done:
    dt_count_end();
    close_stepper(&s);
    return st;
}

DT_TEST(optimizer_bytes, are_those_of_the_formulas)
{
    for (size_t i = 0; i < DT_COUNT(formulas); i++)
        dt_test_on_ranks(formulas[i].mesh, holds, &formulas[i]);
}

/* --- uneven pieces ---------------------------------------------------------------------------- */

/* clang-format off */
static const dt_layer_spec odd[] = { ROW("a", &dt_linear_kind, 5, 3), ROW("b", &dt_linear_kind, 1, 3),
                                     ROW("c", &dt_linear_kind, 1, 1), ROW("d", &dt_linear_kind, 2, 2) };
/* clang-format on */

/* Pieces add up to the whole, without padding, of whatever can be cut; one element stays whole. */
static dt_status odd_pieces(dt_mesh *mesh, const void *arg)
{
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    DT_HELD(layers) *m = NULL;
    DT_HELD(optimizer) *opt = NULL;
    int64_t bytes;

    (void)arg;
    o.zero = 1;
    DT_TRY(dt_layers_create(mesh, "tp?", odd, (int)DT_COUNT(odd), NULL, &m));
    DT_TRY(dt_layers_init(m, DT_F32, 1, NULL, 0));
    DT_TRY(dt_optimizer_create(m, &o, &opt));
    bytes = dt_optimizer_state_bytes(opt);
    DT_TRY(dt_all_reduce(mesh, NULL, &bytes, &bytes, 1, DT_I64, DT_SUM));
    DT_EXPECT(bytes == 8 * (15 + 3 + dt_mesh_n_ranks(mesh) + 4), "%lld bytes", (long long)bytes);
    return DT_OK;
}

DT_TEST(optimizer_bytes, uneven_pieces_are_not_padded)
{
    dt_test_on_ranks("dp=2", odd_pieces, NULL);
    dt_test_on_ranks("dp=3", odd_pieces, NULL);
    dt_test_on_ranks("dp=4", odd_pieces, NULL);
}

/* --- dry, and warm ---------------------------------------------------------------------------- */

typedef struct cost {
    dt_comm_counter comm[DT_N_COMM_KINDS];
    dt_op_work work;
    int64_t held, peak, state;
} cost;

static dt_status cost_of(dt_mesh *mesh, int zero, cost *out)
{
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    DT_ENDS(close_stepper) stepper s = { 0 };

    o.zero = zero;
    DT_TRY(open_stepper(mesh, &o, DT_BF16, &s));
    for (int i = 0; i < 2; i++) {
        DT_TRY(pass(&s, false));
        DT_TRY(pass(&s, true));
        dt_tape_reset(s.tape);
        out->held = used(&s);
        DT_TRY(dt_optimizer_step(s.opt, 0.1, NULL));
    }
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        out->comm[k] = dt_tape_comm(dt_optimizer_tape(s.opt), (dt_comm_kind)k);
    out->work = dt_tape_work(dt_optimizer_tape(s.opt));
    out->peak = (int64_t)dti_memory_peak(s.device->memory);
    out->state = dt_optimizer_state_bytes(s.opt);
    return DT_OK;
}

static dt_status as_predicted(dt_mesh *mesh, const void *arg)
{
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    dt_runtime *like = dt_mesh_runtime(mesh);
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    const int zero = *(const int *)arg;
    cost run = { .held = 0 }, dry = { .held = 0 };
    DT_HELD(mesh) *ghost = NULL;
    char spec[64];

    (void)snprintf(spec, sizeof spec, "dp=%d", dt_mesh_n_ranks(mesh));
    options.n_ranks = dt_mesh_n_ranks(mesh);
    DT_TRY(cost_of(mesh, zero, &run));
    DT_TRY(dt_runtime_create_dry(&options, dt_runtime_rank(like), like, &rt));
    DT_TRY(dt_mesh_create(rt, spec, &ghost));
    DT_TRY(cost_of(ghost, zero, &dry));
    DT_EXPECT(memcmp(&run, &dry, sizeof run) == 0,
              "held %lld, %lld dry; peak %lld, %lld; flops %g, %g", (long long)run.held,
              (long long)dry.held, (long long)run.peak, (long long)dry.peak, run.work.flops,
              dry.work.flops);
    DT_EXPECT(run.work.flops > 0.0, "no work");
    return DT_OK;
}

DT_TEST(optimizer_bytes, a_dry_run_says_the_same)
{
    for (int zero = 0; zero <= 2; zero++) {
        dt_test_on_ranks("dp=1", as_predicted, &zero);
        dt_test_on_ranks("dp=3", as_predicted, &zero);
    }
}

static dt_status repeats(dt_mesh *mesh, const void *arg)
{
    const dt_optimizer_options *o = arg;
    uint64_t allocs = 0;
    DT_ENDS(close_stepper) stepper s = { 0 };

    DT_TRY(open_stepper(mesh, o, DT_BF16, &s));
    for (int i = 0; i < 8; i++) {
        if (i == 4) allocs = dti_alloc_count();
        DT_TRY(pass(&s, false));
        dt_tape_reset(s.tape);
        DT_TRY(pass(&s, true));
        dt_tape_reset(s.tape);
        DT_TRY(dt_optimizer_step(s.opt, 0.1, NULL));
    }
    DT_EXPECT(dti_alloc_count() == allocs, "zero %d: %llu allocations", o->zero,
              (unsigned long long)(dti_alloc_count() - allocs));
    return DT_OK;
}

DT_TEST(optimizer_bytes, a_warm_step_takes_no_memory)
{
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;

    for (o.zero = 0; o.zero <= 2; o.zero++)
        for (int stochastic = 0; stochastic < 2; stochastic++) {
            o.stochastic = stochastic == 1;
            o.masters = !o.stochastic;
            dt_test_on_ranks("dp=2", repeats, &o);
            dt_test_on_ranks("dp=3", repeats, &o);
        }
}
