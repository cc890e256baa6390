/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention that is trained, on a device beside the CPU: results and log-sum-exps, statistics, and
 * all gradients. Both compute in f32 and round once, so they differ by the order of sums. */
#include "tests/cuda/attention_cases.h"

/* What a call has beside q, k, v and positions. */
typedef struct extras {
    bool both_ways, bias, sinks, segments;
    uint32_t one; /* DTI_ATTENTION_ONE_* of the bias */
    float soft_cap;
    double dropout;
} extras;

/* clang-format off */
/*    B  T   H  Kv S   e    q0 k0 nH nKv window position layout skew */
static const attention_shape shapes[] = {
    { 1, 1,  1, 1, 1,  8,   0, 0, 1, 1,  0,  0,  IN_TURN, 0 },
    { 2, 19, 4, 2, 19, 20,  0, 0, 4, 2,  0,  0,  IN_TURN, 1 },
    { 1, 37, 3, 3, 70, 64,  0, 0, 3, 3,  9,  30, IN_TURN, 0 },
    { 1, 9,  2, 1, 40, 130, 0, 0, 2, 1,  0,  31, IN_TURN, 0 },
    { 1, 5,  6, 1, 33, 256, 0, 0, 6, 1,  0,  28, IN_TURN, 0 },
    { 2, 10, 3, 2, 30, 16,  3, 0, 8, 2,  0,  20, IN_TURN, 0 }, /* parts of two groups */
    { 1, 7,  2, 4, 30, 16,  4, 0, 8, 4,  12, 20, IN_TURN, 0 }, /* kv heads that nobody reads */
    { 1, 4,  0, 2, 30, 16,  8, 0, 8, 4,  0,  3,  IN_TURN, 0 }, /* a rank without heads */
};
static const extras all_extras[] = {
    { .soft_cap = 0.0f },
    { .both_ways = true, .segments = true },
    { .bias = true, .dropout = 0.25 },
    { .bias = true, .one = DTI_ATTENTION_ONE_BATCH | DTI_ATTENTION_ONE_TOKEN, .sinks = true,
      .soft_cap = 2.0f, .segments = true },
    { .bias = true, .one = DTI_ATTENTION_ONE_HEAD | DTI_ATTENTION_ONE_BATCH, .both_ways = true },
    { .bias = true, .one = DTI_ATTENTION_ONE_HEAD, .soft_cap = 1.0f },
    { .sinks = true, .dropout = 0.5, .segments = true },
};
/* clang-format on */

static dti_attention_train_attr attr_of(const attention_shape *s, const extras *x)
{
    dti_attention_train_attr attr = { .of = { s->n_heads, s->n_kv, s->window,
                                              4.0f / sqrtf((float)s->width), x->soft_cap, 0, 0 },
                                      .seed = 7,
                                      .stream = 1ull << 40,
                                      .dropout = x->dropout };

    attr.of.flags = (x->both_ways ? DTI_ATTENTION_BOTH_WAYS : 0u) |
                    (x->bias ? DTI_ATTENTION_BIAS | x->one : 0u) |
                    (x->sinks ? DTI_ATTENTION_SINKS : 0u) |
                    (x->segments ? DTI_ATTENTION_SEGMENTS : 0u);
    return attr;
}

static dt_local make_bias(const attention_shape *s, const extras *x, dt_dtype t)
{
    const int64_t shape[] = { x->one & DTI_ATTENTION_ONE_BATCH ? 1 : s->batch,
                              x->one & DTI_ATTENTION_ONE_HEAD ? 1 : s->heads,
                              x->one & DTI_ATTENTION_ONE_TOKEN ? 1 : s->tokens, s->rows };
    dt_local bias = kt_filled(t, 4, shape, KT_UNIFORM, 24);

    /* some keys are masked, none of them a query's own */
    for (int64_t i = 0; i < kt_count(&bias) && (x->one & DTI_ATTENTION_ONE_TOKEN) == 0; i++)
        if (i % 7 == 3 && i % s->rows != s->position / 2 + i / s->rows % s->tokens)
            dti_store_f32(bias.data, t, i, t == DT_F16 ? -60000.0f : -1e30f);
    return bias;
}

/* Three documents, the first of which has no key of its own. */
static dt_local make_segments(const attention_shape *s)
{
    const int64_t shape[] = { s->batch, s->rows };
    dt_local segments = kt_local(DT_I32, 2, shape);

    for (int64_t i = 0; i < s->batch * s->rows; i++)
        ((int32_t *)segments.data)[i] = i % s->rows < 2 * s->rows / 3 ? 1 : 2;
    return segments;
}

/* q, k, v, positions and what follows them; the number of operands. */
static int make_forward(const attention_shape *s, const extras *x, dt_dtype t, dt_local *in)
{
    const int64_t heads[] = { s->heads };
    int n = N_IN;

    make_operands(s, t, in);
    if (x->bias) in[n++] = make_bias(s, x, t);
    if (x->sinks) in[n++] = kt_filled(t, 1, heads, KT_UNIFORM, 25);
    if (x->segments) in[n++] = make_segments(s);
    return n;
}

static void run_on_cpu(dt_kernel kernel, const dti_attention_train_attr *attr, dt_local *in,
                       int n_in, dt_local *out, int n_out)
{
    dt_kargs args = { .in = in, .out = out, .attr = attr, .n_in = n_in, .n_out = n_out };
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;

    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
    args.cpu = cpu;
    DT_ASSERT_OK(kernel(&args));
}

/* dy, y, lse: operands of the statistics. */
static void make_rows(const attention_shape *s, const extras *x, dt_dtype t, dt_local rows[3])
{
    const dti_attention_train_attr attr = attr_of(s, x);
    dt_local in[KT_MAX_IN];
    const int n_in = make_forward(s, x, t, in);

    rows[0] = kt_filled(t, 4, in[Q].shape, KT_UNIFORM, 26);
    rows[1] = kt_local(t, 4, in[Q].shape);
    rows[2] = kt_local(DT_F32, 3, in[Q].shape);
    run_on_cpu(dti_attention_lse_cpu, &attr, in, n_in, rows + 1, 2);
    for (int i = 0; i < n_in; i++) kt_release(&in[i]);
}

static dt_local make_stats(const attention_shape *s, const extras *x, dt_dtype t)
{
    const int64_t shape[] = { s->batch, s->tokens, s->heads, 2 };
    dt_local rows[3], stats = kt_local(DT_F32, 4, shape);

    make_rows(s, x, t, rows);
    run_on_cpu(dti_attention_stats_cpu, NULL, rows, 3, &stats, 1);
    for (int i = 0; i < 3; i++) kt_release(&rows[i]);
    return stats;
}

/* Result `which` of those in `results` is compared. */
static void run_case(const cr_device *d, cr_case *c, const dt_local *results, int which)
{
    c->which = which;
    c->ulps = 1.0;
    for (int r = 0; r < c->n_out; r++) {
        c->others[r] = results[r];
        if (r != which)
            c->others[r] = kt_local(results[r].dtype, results[r].n_axes, results[r].shape);
    }
    c->out = results[which];
    c->out.data = NULL;
    cr_run(c, d);
}

static void run_forward(const cr_device *d, const attention_shape *s, const extras *x, dt_dtype t,
                        int which)
{
    const dti_attention_train_attr attr = attr_of(s, x);
    cr_case c = { .row = "attention_lse",
                  .cpu = dti_attention_lse_cpu,
                  .n_out = 2,
                  .attr = &attr,
                  .skew = s->skew,
                  .slack = 1e-5 };
    dt_local results[2];

    c.n_in = make_forward(s, x, t, c.in);
    results[0] = c.in[Q];
    results[1] = (dt_local){ .dtype = DT_F32, .n_axes = 3 };
    memcpy(results[1].shape, c.in[Q].shape, 3 * sizeof(int64_t));
    run_case(d, &c, results, which);
}

static void run_backward(const cr_device *d, const attention_shape *s, const extras *x, dt_dtype t,
                         int which)
{
    const dti_attention_train_attr attr = attr_of(s, x);
    cr_case c = { .row = "attention_backward",
                  .cpu = dti_attention_backward_cpu,
                  .n_in = 6,
                  .n_out = x->bias ? 4 : 3,
                  .attr = &attr,
                  .skew = s->skew,
                  .slack = 4e-5 };
    dt_local results[4], forward[N_IN];

    make_operands(s, t, forward);
    c.in[0] = kt_filled(t, 4, forward[Q].shape, KT_UNIFORM, 26);
    for (int i = Q; i <= V; i++) c.in[1 + i] = results[i] = forward[i];
    c.in[4] = make_stats(s, x, t);
    c.in[5] = forward[POSITIONS];
    if (x->bias) {
        c.in[c.n_in] = results[3] = make_bias(s, x, t);
        results[3].dtype = DT_F32;
        c.n_in++;
    }
    if (x->segments) c.in[c.n_in++] = make_segments(s);
    run_case(d, &c, results, which);
}

DT_TEST(cuda_attention_backward, results_and_sums_are_those_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t s = 0; s < DT_COUNT(shapes); s++)
        for (size_t x = 0; x < DT_COUNT(all_extras); x++)
            for (int which = 0; which < 2; which++)
                run_forward(&d, &shapes[s], &all_extras[x], kt_floats[(s + x) % 3], which);
}

DT_TEST(cuda_attention_backward, gradients_are_those_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t s = 0; s < DT_COUNT(shapes); s++)
        for (size_t x = 0; x < DT_COUNT(all_extras); x++)
            for (int which = 0; which < (all_extras[x].bias ? 4 : 3); which++)
                run_backward(&d, &shapes[s], &all_extras[x], kt_floats[(s + x) % 3], which);
}

DT_TEST(cuda_attention_backward, statistics_have_the_bits_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t s = 0; s < DT_COUNT(shapes); s++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            cr_case c = { .row = "attention_stats",
                          .cpu = dti_attention_stats_cpu,
                          .n_in = 3,
                          .skew = shapes[s].skew,
                          .out = { .dtype = DT_F32, .n_axes = 4 } };
            make_rows(&shapes[s], &all_extras[0], kt_floats[t], c.in);
            memcpy(c.out.shape, c.in[0].shape, 3 * sizeof(int64_t));
            c.out.shape[3] = 2;
            cr_run(&c, &d);
        }
}

DT_TEST(cuda_attention_backward, sinks_are_those_of_the_cpu)
{
    static const extras sinks = { .sinks = true };
    CR_DEVICE d = cr_open();

    for (size_t s = 0; s < DT_COUNT(shapes); s++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            const int64_t heads[] = { shapes[s].heads };
            cr_case c = { .row = "attention_backward_sinks",
                          .cpu = dti_attention_backward_sinks_cpu,
                          .n_in = 2,
                          .ulps = 2.0,
                          .slack = 1e-5,
                          .out = { .dtype = DT_F32, .n_axes = 1, .shape = { heads[0] } } };
            c.in[0] = make_stats(&shapes[s], &sinks, kt_floats[t]);
            c.in[1] = kt_filled(kt_floats[t], 1, heads, KT_UNIFORM, 25);
            cr_run(&c, &d);
        }
}

/* Forward and backward; the last segment of the second row, which no query sees. */
DT_TEST(cuda_attention_backward, segments_that_fall_are_told_when_the_host_waits)
{
    static const attention_shape shape = { 2, 3, 1, 1, 9, 8, 0, 0, 1, 1, 0, 2, IN_TURN, 0 };
    static const extras documents = { .segments = true };
    const dti_attention_train_attr attr = attr_of(&shape, &documents);
    dt_local host[KT_MAX_IN], in[KT_MAX_IN], out[3];
    dt_kargs args = { .in = in, .out = out, .attr = &attr };
    CR_DEVICE d = cr_open();

    for (int back = 0; back < 2; back++)
        for (int falls = 0; falls < 2; falls++) {
            int32_t *segments;
            if (back != 0) {
                make_operands(&shape, DT_F32, host + 1);
                host[5] = host[1 + POSITIONS];
                host[0] = kt_filled(DT_F32, 4, host[1 + Q].shape, KT_UNIFORM, 26);
                host[4] = make_stats(&shape, &documents, DT_F32);
                host[6] = make_segments(&shape);
                args.n_in = 7;
                args.n_out = 3;
            } else {
                args.n_in = make_forward(&shape, &documents, DT_F32, host);
                args.n_out = 2;
            }
            segments = host[args.n_in - 1].data;
            segments[17] = falls != 0 ? segments[16] - 1 : segments[16];
            for (int i = 0; i < args.n_in; i++) {
                in[i] = host[i];
                in[i].data = cr_up(&d, &host[i], 0);
            }
            for (int r = 0; r < args.n_out; r++) {
                out[r] = back != 0 ? host[1 + r] : host[Q];
                if (back == 0 && r == 1) out[r].n_axes = 3;
                out[r].dtype = DT_F32;
                out[r].data = NULL;
                out[r].data = cr_up(&d, &out[r], 0);
            }
            DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, back != 0 ? "attention_backward"
                                                                : "attention_lse")(d.c, &args));
            if (falls != 0)
                DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), "documents lie one after the other");
            DT_ASSERT_CUDA(d.m, d.m->sync(d.c)); /* it is told once */
            for (int i = 0; i < args.n_in; i++) {
                cr_release(&d, &host[i], in[i].data, 0);
                kt_release(&host[i]);
            }
            for (int r = 0; r < args.n_out; r++) cr_release(&d, &out[r], out[r].data, 0);
        }
}
