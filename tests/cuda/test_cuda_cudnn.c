/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of many queries by cuDNN, beside our kernel, which does the rest. The simulated
 * device's cuDNN computes whatever graph it is given, and takes spans of 16 queries; a real one
 * takes 512. */
#include "tests/cuda/attention_cases.h"

#include <stdlib.h>

#include "dtensor/kernels/cuda/attention_spans.h"

/* --- arithmetic ------------------------------------------------------------------------------- */

DT_TEST(cuda_cudnn, spans_cover_the_last_queries_without_gaps)
{
    for (int64_t n = 1; n < 70000; n += n < 2000 ? 1 : 997) {
        dti_attention_span spans[DTI_MOST_SPANS];
        const int n_spans = dti_attention_spans(n, spans);
        int64_t end = n, last = DTI_SPAN_MOST;
        for (int k = 0; k < n_spans; k++) {
            DT_ASSERT(spans[k].begin + spans[k].n_rows == end && spans[k].n_rows <= last);
            DT_ASSERT(spans[k].n_rows >= 512 && (spans[k].n_rows & (spans[k].n_rows - 1)) == 0);
            end = spans[k].begin;
            last = spans[k].n_rows;
        }
        DT_ASSERT(end >= 0 && end < 512);
    }
}

DT_TEST(cuda_cudnn, a_plan_never_reads_beyond_the_cache)
{
    int64_t last = 0;
    int n = 0;

    for (int64_t keys = 1; keys <= 8192; keys++) {
        const int64_t plan = dti_attention_plan_keys(keys, 1);
        DT_ASSERT(plan >= 1 && plan <= keys &&
                  (keys < 64 || 8 * plan >= 7 * keys || plan >= keys - 63));
        DT_ASSERT(dti_attention_plan_keys(keys, keys) == keys); /* all of them are needed */
        n += keys >= 1024 && plan != last;
        last = plan;
    }
    DT_ASSERT(n == 3 * 8 + 1); /* three octaves, and 8192 */
}

static double pairs(const dti_attention_span *s, int64_t window)
{
    double n = 0;

    for (int64_t t = s->begin; t < s->begin + s->n_rows; t++)
        n += (double)(window > 0 && t + 1 > window ? window : t + 1);
    return n;
}

DT_TEST(cuda_cudnn, what_a_plan_saves_follows_the_keys_that_are_seen)
{
    static const int64_t windows[] = { 0, 1, 300, 1000, 1024, 5000 };

    for (int64_t begin = 0; begin <= 4096; begin += 512)
        for (size_t w = 0; w < DT_COUNT(windows); w++) {
            const dti_attention_span span = { begin, 1024 };
            const double flops = 4.0 * pairs(&span, windows[w]) * 32 * 128;
            const double want = fmax(flops / 500e12 * 1e9 - 5e3, 0.0);
            DT_ASSERT_CLOSE(dti_attention_gain_ns(&span, windows[w], 32, 128), want,
                            1e-6 * want + 1e-6);
        }
}

/* --- calls ------------------------------------------------------------------------------------ */

/* DTENSOR_SIM_CUDNN until the device is closed. */
static void open_with(cr_device *d, const char *how, const char *sim)
{
    DT_ASSERT_EQ_INT(setenv("DTENSOR_SIM_CUDNN", sim, 1), 0);
    *d = cr_open();
    DT_ASSERT_CUDA(d->m, d->m->cudnn_ask(d->c, how));
}

static void close_with(cr_device *d)
{
    cr_close(d);
    DT_ASSERT_EQ_INT(unsetenv("DTENSOR_SIM_CUDNN"), 0);
}

static void open_simulated(cr_device *d, const char *how, const char *sim)
{
    open_with(d, how, sim);
    if (strcmp(d->m->name, "simulated") == 0) return;
    close_with(d);
    dt_test_skip("skipped: what is asked of cuDNN here only the simulated device does");
}

static dti_cuda_cudnn_use use_of(const cr_device *d)
{
    dti_cuda_cudnn_use use;

    memset(&use, 0, sizeof use);
    DT_ASSERT(d->m->cudnn_use(d->c, &use));
    return use;
}

typedef struct cudnn_case {
    attention_shape shape;
    int calls, taken; /* of one: is it offered to cuDNN, does that take it */
} cudnn_case;

/* clang-format off */
/*      B  T   H  Kv S    e    q0 k0 nH nKv window position layout skew */
static const cudnn_case cases[] = {
    { { 1, 70, 4, 2, 340, 64,  0, 0, 4, 2, 0,  230, IN_TURN, 0 }, 1, 1 }, /* 64, then 6 of ours */
    { { 1, 65, 2, 1, 65,  128, 0, 0, 2, 1, 0,  0,   IN_TURN, 0 }, 1, 1 }, /* the whole cache */
    { { 2, 33, 6, 2, 120, 24,  0, 0, 6, 2, 0,  80,  IN_TURN, 0 }, 1, 1 },
    { { 1, 48, 2, 2, 200, 80,  0, 0, 2, 2, 31, 40,  IN_TURN, 0 }, 1, 1 }, /* two spans, a window */
    { { 1, 70, 2, 2, 200, 96,  0, 0, 2, 2, 0,  130, IN_TURN, 0 }, 1, 1 }, /* too far for the plan */
    { { 1, 20, 4, 2, 290, 128, 0, 0, 4, 2, 0,  200, IN_TURN, 0 }, 1, 1 }, /* our keys in parts */
    { { 1, 40, 3, 1, 70,  256, 0, 0, 3, 1, 17, 20,  IN_TURN, 0 }, 1, 1 },
    { { 1, 32, 2, 1, 70,  64,  0, 0, 2, 1, 1,  5,   IN_TURN, 0 }, 1, 1 },
    { { 3, 20, 4, 2, 60,  64,  0, 0, 4, 2, 0,  0,   PADDED,  0 }, 1, 1 }, /* pads before the span */
    { { 4, 18, 2, 2, 70,  64,  0, 0, 2, 2, 0,  9,   PADDED,  0 }, 1, 1 }, /* in some, within */
    { { 2, 40, 4, 4, 140, 128, 0, 0, 4, 4, 70, 90,  PADDED,  0 }, 1, 1 },
    { { 1, 16, 2, 1, 30,  16,  6, 3, 8, 4, 0,  3,   IN_TURN, 0 }, 1, 1 }, /* kv head 3 alone */
    { { 2, 16, 2, 4, 30,  16,  4, 0, 8, 4, 0,  3,   IN_TURN, 0 }, 1, 1 }, /* one of four is read */
    { { 1, 16, 3, 2, 30,  16,  3, 0, 8, 2, 0,  9,   IN_TURN, 0 }, 0, 0 }, /* parts of two groups */
    { { 1, 15, 4, 2, 30,  16,  0, 0, 4, 2, 0,  9,   IN_TURN, 0 }, 0, 0 }, /* too few queries */
    { { 1, 32, 2, 1, 80,  96,  0, 0, 2, 1, 0,  40,  IN_TURN, 1 }, 0, 0 }, /* misaligned */
    { { 1, 32, 2, 1, 80,  20,  0, 0, 2, 1, 0,  40,  IN_TURN, 0 }, 0, 0 },
};
/* For a real device. */
static const attention_shape large[] = {
    { 1, 1100, 8, 2, 1500, 128, 0, 0, 8, 2, 0,   300, IN_TURN, 0 },
    { 1, 512,  4, 1, 512,  256, 0, 0, 4, 1, 0,   0,   IN_TURN, 0 },
    { 2, 600,  4, 4, 700,  64,  0, 0, 4, 4, 0,   0,   PADDED,  0 },
    { 2, 700,  4, 1, 1500, 256, 0, 0, 4, 1, 512, 600, IN_TURN, 0 },
    { 1, 513,  3, 1, 1500, 80,  0, 0, 3, 1, 256, 900, IN_TURN, 0 },
};
/* clang-format on */

DT_TEST(cuda_cudnn, what_it_takes_matches_the_cpu)
{
    cr_device d;

    open_simulated(&d, "now", "");
    for (size_t i = 0; i < DT_COUNT(cases); i++)
        for (int f16 = 0; f16 < 2; f16++) {
            const dti_cuda_cudnn_use before = use_of(&d);
            dti_cuda_cudnn_use after;
            run_attention(&d, &cases[i].shape, f16 ? DT_F16 : DT_BF16, false); /* twice */
            after = use_of(&d);
            DT_ASSERT_EQ_INT((int)(after.n_calls - before.n_calls), 2 * cases[i].calls);
            DT_ASSERT_EQ_INT((int)(after.n_taken - before.n_taken), 2 * cases[i].taken);
            DT_ASSERT_EQ_STR(after.why, "");
        }
    close_with(&d);
}

DT_TEST(cuda_cudnn, a_real_device_matches_the_cpu)
{
    cr_device d;
    dti_cuda_cudnn_use use;

    open_with(&d, "check", "");
    if (strcmp(d.m->name, "simulated") == 0) {
        close_with(&d);
        dt_test_skip("skipped: these sizes are for a real device");
    }
    for (size_t i = 0; i < DT_COUNT(large); i++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            run_attention(&d, &large[i], kt_floats[t], false);
    use = use_of(&d);
    DT_ASSERT_EQ_STR(use.why, "");
    DT_ASSERT(use.n_taken == use.n_calls && use.n_calls == 4 * DT_COUNT(large));
    close_with(&d);
}

/* cuDNN may weigh what stands behind the text with zero, which a NaN survives. */
DT_TEST(cuda_cudnn, junk_behind_the_text_is_left_to_our_kernel)
{
    static const attention_shape shapes[] = {
        { 1, 32, 2, 1, 300, 64, 0, 0, 2, 1, 0, 100, IN_TURN, 0 },
        { 2, 20, 4, 2, 100, 80, 0, 0, 4, 2, 0, 40, PADDED, 0 },
    };
    cr_device d;

    open_with(&d, "now", "");
    for (size_t i = 0; i < DT_COUNT(shapes); i++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            run_attention(&d, &shapes[i], kt_floats[t], true);
    close_with(&d);
}

/* The result of a shape in bf16, with a device that was opened. */
static dt_local result_of(const cr_device *d, const attention_shape *s)
{
    const dti_attention_attr attr = { s->n_heads, s->n_kv, s->window, 0.25f, 0, 0, 0 };
    cr_case c = { .row = "attention", .n_in = N_IN, .attr = &attr };
    dt_local y;

    make_operands(s, DT_BF16, c.in);
    y = kt_local(DT_BF16, 4, c.in[Q].shape);
    c.out = y;
    c.out.data = NULL;
    cr_run_cuda(&c, d, y.data);
    for (int i = 0; i < N_IN; i++) kt_release(&c.in[i]);
    return y;
}

static dt_local own_result(const attention_shape *s)
{
    CR_DEVICE d = cr_open();
    dt_local y;

    y = result_of(&d, s);
    return y;
}

/* Without masks its rows are wrong, and the ones before are ours, bit for bit. */
DT_TEST(cuda_cudnn, its_rows_are_those_of_the_spans)
{
    const attention_shape *s = &cases[0].shape;
    const size_t first = 6 * 4 * 64 * 2; /* bytes of the queries before the span */
    DT_ENDS(kt_release) dt_local own = own_result(s), y;
    cr_device d;

    open_simulated(&d, "now", "wrong");
    y = result_of(&d, s);
    DT_ASSERT(memcmp(y.data, own.data, first) == 0);
    for (size_t t = 6; t + 1 < 70; t++) /* the last query sees all keys but those behind it */
        DT_ASSERT(memcmp((char *)y.data + t * 512, (char *)own.data + t * 512, 512) != 0);
    close_with(&d);
}

DT_TEST(cuda_cudnn, a_check_drops_plans_whose_results_differ)
{
    const attention_shape *s = &cases[0].shape;
    DT_ENDS(kt_release) dt_local own = own_result(s);
    cr_device d;

    open_simulated(&d, "check", "wrong");
    for (int i = 0; i < 2; i++) {
        dt_local y = result_of(&d, s);
        const dti_cuda_cudnn_use use = use_of(&d);
        DT_ASSERT(memcmp(y.data, own.data, cr_bytes(&y)) == 0);
        DT_ASSERT(use.n_calls == i + 1 && use.n_taken == 0);
        DT_ASSERT(use.n_plans == 1 && use.n_dropped == 1);
        DT_ASSERT(strstr(use.why, "64 queries of 4 heads") != NULL);
        DT_ASSERT(strstr(use.why, "of its size from our kernel's") != NULL);
        kt_release(&y);
    }
    close_with(&d);
}

DT_TEST(cuda_cudnn, a_check_keeps_plans_whose_results_agree)
{
    cr_device d;
    dti_cuda_cudnn_use use;

    open_simulated(&d, "check", "");
    for (size_t i = 0; i < 5; i++) run_attention(&d, &cases[i].shape, DT_F16, false);
    use = use_of(&d);
    DT_ASSERT_EQ_STR(use.why, "");
    DT_ASSERT(use.n_dropped == 0 && use.n_taken == use.n_calls && use.n_taken > 0);
    close_with(&d);
}

DT_TEST(cuda_cudnn, what_is_refused_is_computed_by_our_kernel)
{
    static const struct {
        const char *sim, *why;
        int plans, dropped;
    } rows[] = {
        { "none", "libcudnn.so.9", 0, 0 },
        { "refuse", "CUDNN_STATUS_NOT_SUPPORTED", 0, 1 },
        { "fails", "CUDNN_STATUS_NOT_SUPPORTED", 1, 1 },
    };
    const attention_shape *s = &cases[3].shape;
    DT_ENDS(kt_release) dt_local own = own_result(s);

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        cr_device d;
        dti_cuda_cudnn_use use;
        open_simulated(&d, "now", rows[i].sim);
        for (int call = 0; call < 3; call++) {
            dt_local y = result_of(&d, s);
            DT_ASSERT(memcmp(y.data, own.data, cr_bytes(&y)) == 0);
            kt_release(&y);
        }
        use = use_of(&d);
        DT_ASSERT(use.n_calls == 3 && use.n_taken == 0);
        DT_ASSERT(strstr(use.why, rows[i].why) != NULL);
        close_with(&d);
    }
}

/* Operands of the first case on the device, and room for its result; host: where they were made. */
static dt_local lay_first_case(cr_device *d, dt_local in[N_IN], void *host[N_IN])
{
    dt_local out;

    make_operands(&cases[0].shape, DT_BF16, in);
    for (int i = 0; i < N_IN; i++) {
        host[i] = in[i].data;
        in[i].data = cr_up(d, &in[i], 0);
    }
    out = in[Q];
    out.data = cr_up(d, &(dt_local){ .dtype = DT_BF16, .n_axes = 4, .shape = { 1, 70, 4, 64 } }, 0);
    return out;
}

static void release_call(cr_device *d, dt_local in[N_IN], void *host[N_IN], dt_local *out)
{
    cr_release(d, out, out->data, 0);
    for (int i = 0; i < N_IN; i++) {
        cr_release(d, &in[i], in[i].data, 0);
        in[i].data = host[i];
        kt_release(&in[i]);
    }
}

/* The stream may hold kernels that wait for ranks which have failed. A late device does a piece of
 * work each time that it is asked whether all is done; the first call has taken the memory. */
DT_TEST(cuda_cudnn, a_plan_that_is_dropped_waits_for_nothing)
{
    enum { N_BEFORE = 50 };
    const dti_attention_attr attr = { 4, 2, 0, 0.25f, 0, 0, 0 };
    const float one = 1.0f;
    dt_local in[N_IN], out;
    const dt_kargs args = { .in = in, .out = &out, .attr = &attr, .n_in = N_IN, .n_out = 1 };
    bool all_done = false;
    void *host[N_IN];
    int asked = 0;
    cr_device d;

#ifdef DT_TEST_PLAIN /* other tests of this process may have opened the device */
    if (getenv("DTENSOR_SIM_LATE") == NULL) dt_test_skip("skipped: the device is not late");
#endif
    DT_ASSERT_EQ_INT(setenv("DTENSOR_SIM_LATE", "1", 1), 0);
    open_simulated(&d, "now", "");
    out = lay_first_case(&d, in, host);
    DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "attention")(d.c, &args));
    DT_ASSERT_EQ_INT(setenv("DTENSOR_SIM_CUDNN", "fails", 1), 0);
    for (int i = 0; i < N_BEFORE; i++)
        DT_ASSERT_CUDA(d.m, d.m->fill(d.c, out.data, 1, &one, sizeof one));
    DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "attention")(d.c, &args));
    DT_ASSERT(use_of(&d).n_taken == 1 && use_of(&d).n_dropped == 1);
    for (; !all_done; asked++) DT_ASSERT_CUDA(d.m, d.m->done(d.c, &all_done));
    if (asked <= N_BEFORE) dt_test_fail(__FILE__, __LINE__, "all was done after %d pieces", asked);
    release_call(&d, in, host, &out);
    close_with(&d);
}

/* Small calls lose next to nothing, so they wait. */
DT_TEST(cuda_cudnn, a_plan_is_not_made_before_it_pays)
{
    cr_device d;
    dti_cuda_cudnn_use use;

    open_with(&d, "1", "");
    run_attention(&d, &cases[0].shape, DT_BF16, false);
    use = use_of(&d);
    DT_ASSERT(use.n_taken == 0 && use.n_plans == 0 && use.n_dropped == 0);
    close_with(&d);
}

DT_TEST(cuda_cudnn, nothing_goes_through_it_while_a_graph_is_recorded)
{
    const dti_attention_attr attr = { 4, 2, 0, 0.25f, 0, 0, 0 };
    dt_local in[N_IN], out;
    const dt_kargs args = { .in = in, .out = &out, .attr = &attr, .n_in = N_IN, .n_out = 1 };
    dti_cuda_graph *graph;
    void *host[N_IN];
    cr_device d;

    open_with(&d, "now", "");
    out = lay_first_case(&d, in, host);
    DT_ASSERT_CUDA(d.m, d.m->capture_begin(d.c));
    DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "attention")(d.c, &args));
    DT_ASSERT_CUDA(d.m, d.m->capture_end(d.c, &graph));
    DT_ASSERT_CUDA(d.m, d.m->graph_launch(d.c, graph));
    DT_ASSERT_CUDA(d.m, d.m->sync(d.c));
    DT_ASSERT(use_of(&d).n_calls == 0);
    d.m->graph_destroy(graph);
    release_call(&d, in, host, &out);
    close_with(&d);
}

DT_TEST(cuda_cudnn, it_is_off_unless_it_is_asked_for)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    dti_cuda *c = dt_test_cuda_open(m);
    dti_cuda_cudnn_use use;

    DT_ASSERT(!m->cudnn_use(c, &use));
    DT_ASSERT_CUDA(m, m->cudnn_ask(c, "1"));
    DT_ASSERT(m->cudnn_use(c, &use) && use.n_calls == 0);
    DT_ASSERT_CUDA(m, m->cudnn_ask(c, "0"));
    DT_ASSERT(!m->cudnn_use(c, &use));
    DT_ASSERT_CUDA_FAILS(m, m->cudnn_ask(c, "yes"),
                         "DTENSOR_CUDNN is \"yes\"; choose 0, 1, now or check");
    m->close(c);
}

typedef struct told {
    char text[256];
    dt_log_level level;
} told;

static void remember(void *arg, dt_log_level level, int rank, const char *line)
{
    told *t = arg;

    (void)rank;
    if (strstr(line, "cuDNN") == NULL) return;
    t->level = level;
    (void)snprintf(t->text, sizeof t->text, "%s", line);
}

static dt_status nothing(dt_runtime *rt, void *arg)
{
    (void)rt;
    (void)arg;
    return DT_OK;
}

/* A run reads the variable, and its log has what came of it. */
DT_TEST(cuda_cudnn, a_run_asks_for_it_and_tells_what_it_did)
{
    told t = { .text = "" };
    dt_run_options o = dt_test_cuda_options();

    o.log = remember;
    o.log_arg = &t;
    DT_ASSERT_EQ_INT(setenv("DTENSOR_CUDNN", "1", 1), 0);
    DT_ASSERT_OK(dt_run(&o, nothing, NULL));
    DT_ASSERT_EQ_STR(t.text, "cuDNN took 0 of 0 calls of attention by 0 plans");
    DT_ASSERT(t.level == DT_LOG_INFO);
    DT_ASSERT_EQ_INT(setenv("DTENSOR_CUDNN", "perhaps", 1), 0);
    DT_ASSERT_STATUS(dt_run(&o, nothing, NULL), DT_ERR_UNSUPPORTED, "choose 0, 1, now or check");
    DT_ASSERT_EQ_INT(unsetenv("DTENSOR_CUDNN"), 0);
}

/* Our kernel comes over it, and says so. */
DT_TEST(cuda_cudnn, positions_outside_the_cache_are_reported)
{
    static const int32_t wrong[] = { -1, 340, INT32_MAX, INT32_MIN };
    const attention_shape *s = &cases[0].shape;
    const dti_attention_attr attr = { 4, 2, 0, 0.25f, 0, 0, 0 };
    cr_device d;

    open_with(&d, "now", "");
    for (size_t i = 0; i < DT_COUNT(wrong); i++) {
        dt_local in[N_IN], device[N_IN], out;
        const dt_kargs args = {
            .in = device, .out = &out, .attr = &attr, .n_in = N_IN, .n_out = 1
        };
        char text[32];
        make_operands(s, DT_BF16, in);
        ((int32_t *)in[POSITIONS].data)[i % 2 == 0 ? 69 : 30] = wrong[i];
        memcpy(device, in, sizeof device);
        for (int x = 0; x < N_IN; x++) device[x].data = cr_up(&d, &in[x], 0);
        out = in[Q];
        out.data = cr_up(&d, &in[Q], 0);
        (void)snprintf(text, sizeof text, "position %d", wrong[i]);
        DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "attention")(d.c, &args));
        DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), text);
        for (int x = 0; x < N_IN; x++) {
            cr_release(&d, &in[x], device[x].data, 0);
            kt_release(&in[x]);
        }
        cr_release(&d, &out, out.data, 0);
    }
    close_with(&d);
}
