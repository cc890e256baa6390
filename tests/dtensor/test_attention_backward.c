/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention that is trained: its log-sum-exp and its gradients. The reference computes the whole
 * matrix of weights in float64; the gradients it is held against are central differences of a loss,
 * dy . y, so no formula of the kernels is repeated here. */
#include "tests/dtensor/test_kernels.h"

#include "dtensor/kernels/cpu/cpu_random.h"

enum { SAMPLES = 24 };

typedef struct shape {
    const char *name;
    int64_t batch, tokens, heads, kv, width, window;
    bool both_ways;
    float cap;
    double dropout;
    int n_segments;  /* 0: none */
    uint32_t extras; /* of DTI_ATTENTION_..., bias and sinks, and what the bias has one of */
} shape;

enum { DY, Q, K, V, BIAS, SINKS, N_VALUES };

/* A call: operands in float64, as the kernels see them in their dtype. */
typedef struct problem {
    const shape *s;
    dt_dtype dtype;
    dt_local local[N_VALUES], positions, segments;
    double *value[N_VALUES];
    dti_attention_train_attr attr;
    double *p; /* a row of weights */
} problem;

static int64_t bias_row(const problem *o, int64_t b, int64_t h, int64_t t)
{
    const int64_t index[] = { b, h, t };
    int64_t at = 0;

    for (int a = 0; a < 3; a++)
        at = at * o->local[BIAS].shape[a] + (o->local[BIAS].shape[a] == 1 ? 0 : index[a]);
    return at * o->s->tokens;
}

static bool sees(const problem *o, int64_t b, int64_t t, int64_t j)
{
    const shape *s = o->s;
    const int32_t *segments = o->segments.data;

    if (!s->both_ways && j > t) return false;
    if (s->window > 0 && (t - j >= s->window || j - t >= s->window)) return false;
    return s->n_segments == 0 || segments[b * s->tokens + t] == segments[b * s->tokens + j];
}

static float factor_of(const problem *o, int64_t b, int64_t h, int64_t t, int64_t j)
{
    const shape *s = o->s;
    const dti_random_fill uniform = { .kind = DTI_RANDOM_UNIFORM,
                                      .dtype = DT_F32,
                                      .key = { o->attr.seed, o->attr.stream },
                                      .scale = 1.0 };
    float u;

    if (s->dropout == 0.0) return 1.0f;
    dti_random_portable(&uniform, &u, ((b * s->heads + h) * s->tokens + t) * s->tokens + j, 1);
    return u < (float)s->dropout ? 0.0f : (float)(1.0 / (1.0 - s->dropout));
}

/* Row (b, t, h) of y, or its part of the loss; its log-sum-exp. */
static double row_of(const problem *o, int64_t b, int64_t t, int64_t h, double *y, double *lse)
{
    const shape *s = o->s;
    const int64_t kv = h / (s->heads / s->kv), e = s->width;
    const int64_t row = ((b * s->tokens + t) * s->heads + h) * e;
    const double sink = (s->extras & DTI_ATTENTION_SINKS) != 0 ? o->value[SINKS][h] : -INFINITY;
    double largest = sink, total, loss = 0.0;

    for (int64_t j = 0; j < s->tokens; j++) {
        const double *k = o->value[K] + ((b * s->tokens + j) * s->kv + kv) * e;
        double dot = 0.0;
        if (!sees(o, b, t, j)) continue;
        for (int64_t d = 0; d < e; d++) dot += o->value[Q][row + d] * k[d];
        dot *= (double)o->attr.of.scale;
        if (s->cap > 0.0f) dot = (double)s->cap * tanh(dot / (double)s->cap);
        if ((s->extras & DTI_ATTENTION_BIAS) != 0)
            dot =
                fmax(dot + o->value[BIAS][bias_row(o, b, h, t) + j], (double)DTI_ATTENTION_LOWEST);
        largest = fmax(largest, o->p[j] = dot);
    }
    total = exp(sink - largest);
    for (int64_t j = 0; j < s->tokens; j++)
        if (sees(o, b, t, j)) total += o->p[j] = exp(o->p[j] - largest);
    for (int64_t d = 0; d < e; d++) {
        double sum = 0.0;
        for (int64_t j = 0; j < s->tokens; j++)
            if (sees(o, b, t, j))
                sum += o->p[j] / total * (double)factor_of(o, b, h, t, j) *
                       o->value[V][((b * s->tokens + j) * s->kv + kv) * e + d];
        if (y != NULL) y[row + d] = sum;
        loss += o->value[DY][row + d] * sum;
    }
    if (lse != NULL) lse[row / e] = largest + log(total);
    return loss;
}

/* Batch row of an element, or all: what a difference has to sum. */
static double loss_of(const problem *o, int64_t b)
{
    double loss = 0.0;

    for (int64_t c = b < 0 ? 0 : b; c < (b < 0 ? o->s->batch : b + 1); c++)
        for (int64_t t = 0; t < o->s->tokens; t++)
            for (int64_t h = 0; h < o->s->heads; h++) loss += row_of(o, c, t, h, NULL, NULL);
    return loss;
}

static double slope_of(const problem *o, int operand, int64_t i)
{
    const double step = 1e-4, was = o->value[operand][i];
    const int64_t b =
        operand >= BIAS ? -1 : i / (kt_count(&o->local[operand]) / o->local[operand].shape[0]);
    double up, down;

    o->value[operand][i] = was + step;
    up = loss_of(o, b);
    o->value[operand][i] = was - step;
    down = loss_of(o, b);
    o->value[operand][i] = was;
    return (up - down) / (2.0 * step);
}

/* --- problems --------------------------------------------------------------------------------- */

static void fill_value(problem *o, int i, int n_axes, const int64_t *extents)
{
    dt_local *x = &o->local[i];
    int64_t n;

    *x = kt_filled(o->dtype, n_axes, extents, KT_UNIFORM, 60 + (uint32_t)i);
    n = kt_count(x);
    DT_ASSERT_OK(dti_alloc_array((size_t)n + 1, sizeof(double), (void **)&o->value[i]));
    for (int64_t k = 0; k < n; k++) o->value[i][k] = kt_get(x, k);
}

static void open_problem(problem *o, const shape *s, dt_dtype dtype)
{
    const int64_t q[] = { s->batch, s->tokens, s->heads, s->width };
    const int64_t k[] = { s->batch, s->tokens, s->kv, s->width };
    const int64_t bias[] = { (s->extras & DTI_ATTENTION_ONE_BATCH) != 0 ? 1 : s->batch,
                             (s->extras & DTI_ATTENTION_ONE_HEAD) != 0 ? 1 : s->heads,
                             (s->extras & DTI_ATTENTION_ONE_TOKEN) != 0 ? 1 : s->tokens,
                             s->tokens };

    *o = (problem){ .s = s, .dtype = dtype };
    fill_value(o, DY, 4, q);
    fill_value(o, Q, 4, q);
    fill_value(o, K, 4, k);
    fill_value(o, V, 4, k);
    fill_value(o, BIAS, 4, bias);
    fill_value(o, SINKS, 1, &s->heads);
    o->positions = kt_local(DT_I32, 2, q);
    o->segments = kt_local(DT_I32, 2, q);
    for (int64_t i = 0; i < s->batch * s->tokens; i++) {
        const int64_t t = i % s->tokens, n = s->n_segments > 0 ? s->n_segments : 1;
        ((int32_t *)o->positions.data)[i] = (int32_t)t;
        ((int32_t *)o->segments.data)[i] = (int32_t)(t * n / s->tokens * (i / s->tokens + 1));
    }
    o->attr.of = (dti_attention_attr){ .n_heads = s->heads,
                                       .n_kv_heads = s->kv,
                                       .window = s->window,
                                       .scale = 0.7f,
                                       .soft_cap = s->cap,
                                       .flags = s->extras };
    if (s->both_ways) o->attr.of.flags |= DTI_ATTENTION_BOTH_WAYS;
    if (s->n_segments > 0) o->attr.of.flags |= DTI_ATTENTION_SEGMENTS;
    o->attr.seed = 5;
    o->attr.stream = 9;
    o->attr.dropout = s->dropout;
    DT_ASSERT_OK(dti_alloc_array((size_t)s->tokens, sizeof(double), (void **)&o->p));
}

static void close_problem(problem *o)
{
    for (int i = 0; i < N_VALUES; i++) {
        kt_release(&o->local[i]);
        dti_free(o->value[i]);
    }
    kt_release(&o->positions);
    kt_release(&o->segments);
    dti_free(o->p);
}

/* --- results ---------------------------------------------------------------------------------- */

enum { Y, LSE, DQ, DK, DV, DBIAS, DSINKS, N_RESULTS };

typedef struct results {
    dt_local of[N_RESULTS];
} results;

static void open_results(const problem *o, results *r)
{
    const dt_local *like[] = { &o->local[Q],    NULL,         &o->local[Q],
                               &o->local[K],    &o->local[V], &o->local[BIAS],
                               &o->local[SINKS] };

    for (int i = 0; i < N_RESULTS; i++)
        r->of[i] = i == LSE
                       ? kt_local(DT_F32, 3, o->local[Q].shape)
                       : kt_local(i >= DBIAS ? DT_F32 : o->dtype, like[i]->n_axes, like[i]->shape);
}

static void close_results(results *r)
{
    for (int i = 0; i < N_RESULTS; i++) kt_release(&r->of[i]);
}

/* There and back on one instruction set. */
static void run_kernels(const problem *o, dti_cpu *cpu, results *r)
{
    const shape *s = o->s;
    const int64_t stats_shape[] = { s->batch, s->tokens, s->heads, 2 };
    DT_ENDS(kt_release) dt_local stats = kt_local(DT_F32, 4, stats_shape);
    dt_local in[KT_MAX_IN];
    const bool bias = (s->extras & DTI_ATTENTION_BIAS) != 0;
    const bool sinks = (s->extras & DTI_ATTENTION_SINKS) != 0;
    int n = 4;

    memcpy(in, (dt_local[]){ o->local[Q], o->local[K], o->local[V], o->positions }, 4 * sizeof *in);
    if (bias) in[n++] = o->local[BIAS];
    if (sinks) in[n++] = o->local[SINKS];
    if (s->n_segments > 0) in[n++] = o->segments;
    DT_ASSERT_OK(dti_attention_lse_cpu(&(dt_kargs){ in, &r->of[Y], &o->attr, cpu, n, 2, NULL }));
    memcpy(in, (dt_local[]){ o->local[DY], r->of[Y], r->of[LSE] }, 3 * sizeof *in);
    DT_ASSERT_OK(dti_attention_stats_cpu(&(dt_kargs){ in, &stats, NULL, cpu, 3, 1, NULL }));
    n = 6;
    memcpy(in,
           (dt_local[]){ o->local[DY], o->local[Q], o->local[K], o->local[V], stats, o->positions },
           6 * sizeof *in);
    if (bias) in[n++] = o->local[BIAS];
    if (s->n_segments > 0) in[n++] = o->segments;
    DT_ASSERT_OK(dti_attention_backward_cpu(
        &(dt_kargs){ in, &r->of[DQ], &o->attr, cpu, n, bias ? 4 : 3, NULL }));
    memcpy(in, (dt_local[]){ stats, o->local[SINKS] }, 2 * sizeof *in);
    if (sinks)
        DT_ASSERT_OK(dti_attention_backward_sinks_cpu(
            &(dt_kargs){ in, &r->of[DSINKS], NULL, cpu, 2, 1, NULL }));
}

/* Whether some elements of a gradient, `times` as large, are the differences of the loss. */
static bool is_slope(const problem *o, const dt_local *got, int operand, double times)
{
    const int64_t n = kt_count(got), step = n > SAMPLES ? n / SAMPLES : 1;
    const double tolerance = o->dtype == DT_F32 ? 1e-5 : 2e-2;
    double largest = 0.1;

    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(kt_get(got, i)));
    for (int64_t i = step / 2; i < n; i += step) {
        const double want = slope_of(o, operand, i), is = times * kt_get(got, i);
        if (!(fabs(is - want) <= tolerance * fmax(largest, fabs(want)))) {
            if (times == 1.0)
                fprintf(stderr, "%s: gradient %d of %s, element %lld is %.9g, not %.9g\n",
                        o->s->name, operand, dt_dtype_name(o->dtype), (long long)i, is, want);
            return false;
        }
    }
    return true;
}

static void check_forward(const problem *o, const results *r)
{
    const int64_t n = kt_count(&r->of[Y]), e = o->s->width;
    const double unit = o->dtype == DT_F32 ? 2e-6 : 5e-3;
    DT_FREED double *lse = NULL, *y = NULL;

    DT_ASSERT_OK(dti_alloc_array((size_t)n + 1, sizeof *y, (void **)&y));
    DT_ASSERT_OK(dti_alloc_array((size_t)(n / e) + 1, sizeof *lse, (void **)&lse));
    for (int64_t row = 0; row < n / e; row++)
        (void)row_of(o, row / o->s->heads / o->s->tokens, row / o->s->heads % o->s->tokens,
                     row % o->s->heads, y, lse);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(kt_get(&r->of[Y], i) - y[i]) <= unit * (1.0 + fabs(y[i]))))
            dt_test_fail(__FILE__, __LINE__, "%s: y[%lld] is %.9g, not %.9g", o->s->name,
                         (long long)i, kt_get(&r->of[Y], i), y[i]);
    for (int64_t i = 0; i < n / e; i++)
        DT_ASSERT_CLOSE(kt_get(&r->of[LSE], i), lse[i], 4e-6 * (1.0 + fabs(lse[i])));
}

static bool same_results(const results *a, const results *b)
{
    bool same = true;

    for (int i = 0; i < N_RESULTS; i++)
        same = same && memcmp(a->of[i].data, b->of[i].data,
                              (size_t)kt_count(&a->of[i]) * dt_dtype_size(a->of[i].dtype)) == 0;
    return same;
}

static void run_shape(const shape *s, dt_dtype dtype)
{
    static const int operands[] = { DQ, Q, DK, K, DV, V, DBIAS, BIAS, DSINKS, SINKS };
    DT_ENDS(close_problem) problem o;

    open_problem(&o, s, dtype);
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++) {
        results r[KT_MAX_THREADS];
        for (int t = 0; t < KT_MAX_THREADS; t++) {
            dti_pool *pool;
            dti_cpu *cpu;
            DT_ASSERT_OK(dti_pool_create(t + 1, false, NULL, NULL, &pool));
            DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, pool, &cpu));
            open_results(&o, &r[t]);
            run_kernels(&o, cpu, &r[t]);
            dti_cpu_destroy(&cpu);
            dti_pool_destroy(&pool);
            DT_ASSERT(same_results(&r[0], &r[t]));
        }
        check_forward(&o, &r[0]);
        for (size_t g = 0; g < DT_COUNT(operands); g += 2) {
            const dt_local *got = &r[0].of[operands[g]];
            if (operands[g] == DBIAS && (s->extras & DTI_ATTENTION_BIAS) == 0) continue;
            if (operands[g] == DSINKS && (s->extras & DTI_ATTENTION_SINKS) == 0) continue;
            DT_ASSERT(is_slope(&o, got, operands[g + 1], 1.0));
            if (s->tokens > 1 || operands[g] == DV) /* else nothing depends on scores */
                DT_ASSERT(!is_slope(&o, got, operands[g + 1], 2.0)); /* the check sees a factor */
        }
        for (int t = 0; t < KT_MAX_THREADS; t++) close_results(&r[t]);
    }
}

static const shape shapes[] = {
    { .name = "one token", .batch = 2, .tokens = 1, .heads = 2, .kv = 1, .width = 8 },
    { .name = "causal", .batch = 2, .tokens = 9, .heads = 4, .kv = 2, .width = 12 },
    { .name = "both ways",
      .batch = 1,
      .tokens = 7,
      .heads = 2,
      .kv = 2,
      .width = 16,
      .both_ways = true },
    { .name = "window", .batch = 1, .tokens = 21, .heads = 2, .kv = 1, .width = 8, .window = 5 },
    { .name = "window both ways",
      .batch = 1,
      .tokens = 21,
      .heads = 2,
      .kv = 1,
      .width = 8,
      .window = 4,
      .both_ways = true },
    { .name = "cap", .batch = 1, .tokens = 11, .heads = 2, .kv = 1, .width = 8, .cap = 1.5f },
    { .name = "sinks",
      .batch = 2,
      .tokens = 6,
      .heads = 4,
      .kv = 2,
      .width = 8,
      .extras = DTI_ATTENTION_SINKS },
    { .name = "bias",
      .batch = 2,
      .tokens = 6,
      .heads = 4,
      .kv = 2,
      .width = 8,
      .extras = DTI_ATTENTION_BIAS },
    { .name = "bias for all, cap, sinks",
      .batch = 2,
      .tokens = 6,
      .heads = 4,
      .kv = 2,
      .width = 8,
      .cap = 2.0f,
      .extras = DTI_ATTENTION_BIAS | DTI_ATTENTION_SINKS | DTI_ATTENTION_ONE_BATCH |
                DTI_ATTENTION_ONE_HEAD },
    { .name = "bias of keys",
      .batch = 2,
      .tokens = 6,
      .heads = 4,
      .kv = 2,
      .width = 8,
      .both_ways = true,
      .extras = DTI_ATTENTION_BIAS | DTI_ATTENTION_ONE_HEAD | DTI_ATTENTION_ONE_TOKEN },
    { .name = "documents",
      .batch = 2,
      .tokens = 17,
      .heads = 2,
      .kv = 1,
      .width = 8,
      .n_segments = 3 },
    { .name = "documents both ways",
      .batch = 2,
      .tokens = 17,
      .heads = 2,
      .kv = 1,
      .width = 8,
      .n_segments = 4,
      .both_ways = true,
      .window = 5,
      .extras = DTI_ATTENTION_BIAS | DTI_ATTENTION_SINKS },
    { .name = "dropout", .batch = 2, .tokens = 9, .heads = 4, .kv = 2, .width = 8, .dropout = 0.3 },
    { .name = "all dropped",
      .batch = 1,
      .tokens = 5,
      .heads = 2,
      .kv = 2,
      .width = 8,
      .dropout = 0.6,
      .n_segments = 2,
      .cap = 3.0f,
      .extras = DTI_ATTENTION_SINKS },
};

DT_TEST(attention_backward, gradients_are_differences_of_the_loss)
{
    for (size_t i = 0; i < DT_COUNT(shapes); i++) {
        run_shape(&shapes[i], DT_F32);
        run_shape(&shapes[i], DT_BF16);
    }
}

/* More queries than a block, more keys than a tile, a group wider than a block. */
DT_TEST(attention_backward, more_of_everything_than_a_tile)
{
    static const shape large[] = {
        { .name = "long", .batch = 1, .tokens = 150, .heads = 2, .kv = 1, .width = 20 },
        { .name = "long window",
          .batch = 1,
          .tokens = 200,
          .heads = 1,
          .kv = 1,
          .width = 8,
          .window = 70,
          .n_segments = 2,
          .dropout = 0.1 },
        { .name = "wide group", .batch = 1, .tokens = 3, .heads = 130, .kv = 1, .width = 4 },
    };

    dt_test_long();
    for (size_t i = 0; i < DT_COUNT(large); i++) run_shape(&large[i], DT_F32);
}
