/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one and of many tokens over a cache. */
#include "tests/dtensor/test_kernels.h"

typedef struct attention_shape {
    int64_t batch, tokens, heads, kv, rows, width; /* of this rank */
    int64_t q_offset, k_offset, n_heads, n_kv;     /* global */
    int64_t window;
    int64_t position; /* of the first token in batch row 0; row b starts at position / (b + 1) */
} attention_shape;

/* What few calls have. */
typedef struct attention_extra {
    uint32_t flags;
    float cap;
    bool masks; /* the bias hides most keys */
} attention_extra;

static int64_t row_of(const attention_shape *s, int64_t b, int64_t j, int64_t kv)
{
    return ((b * s->rows + j) * s->kv + kv) * s->width;
}

/* What is added to the score of head h of token t for key j. */
static double bias_of(const kt_case *c, const attention_shape *s, const attention_extra *x,
                      int64_t b, int64_t h, int64_t t, int64_t j)
{
    const dt_local *bias = &c->in[4];
    const int64_t index[] = { b, h, t };
    int64_t at = 0;

    for (int a = 0; a < 3; a++)
        at = at * bias->shape[a] +
             ((x->flags & (uint32_t)DTI_ATTENTION_ONE_BATCH << a) != 0 ? 0 : index[a]);
    return kt_get(bias, at * s->rows + j);
}

/* Fills want and slack of one query head: plain softmax in float64. */
static void expect_row(kt_case *c, const attention_shape *s, const attention_extra *x, int64_t row,
                       double *p)
{
    const dti_attention_attr *attr = c->attr;
    const int64_t b = row / s->heads / s->tokens, h = row % s->heads;
    const int64_t kv = (s->q_offset + h) / (s->n_heads / s->n_kv) - s->k_offset;
    const int64_t at = ((const int32_t *)c->in[3].data)[row / s->heads];
    const int64_t first = s->window > 0 && at >= s->window ? at - s->window + 1 : 0;
    const int64_t ahead =
        s->window > 0 && at + s->window < s->rows ? at + s->window - 1 : s->rows - 1;
    const int64_t last = (x->flags & DTI_ATTENTION_BOTH_WAYS) != 0 ? ahead : at;
    double largest = -INFINITY, total = 0.0, magnitude = 0.0;

    for (int64_t j = first; j <= last; j++) {
        double dot = 0.0, terms = 0.0;
        for (int64_t d = 0; d < s->width; d++) {
            const double term =
                kt_get(&c->in[0], row * s->width + d) * kt_get(&c->in[1], row_of(s, b, j, kv) + d);
            dot += term;
            terms += fabs(term);
        }
        p[j] = dot * (double)attr->scale;
        if (x->cap > 0.0f) p[j] = (double)x->cap * tanh(p[j] / (double)x->cap);
        if ((x->flags & DTI_ATTENTION_BIAS) != 0)
            p[j] = fmax(p[j] + bias_of(c, s, x, b, h, row / s->heads % s->tokens, j),
                        (double)DTI_ATTENTION_LOWEST);
        largest = fmax(largest, p[j]);
        magnitude = fmax(magnitude, terms * fabs((double)attr->scale));
    }
    if ((x->flags & DTI_ATTENTION_SINKS) != 0) {
        const double sink = kt_get(&c->in[c->n_in - 1], h);
        largest = fmax(largest, sink);
        total = exp(sink - largest);
    }
    for (int64_t j = first; j <= last; j++) total += p[j] = exp(p[j] - largest);
    for (int64_t d = 0; d < s->width; d++) {
        double sum = 0.0, terms = 0.0;
        for (int64_t j = first; j <= last; j++) {
            const double term = p[j] / total * kt_get(&c->in[2], row_of(s, b, j, kv) + d);
            sum += term;
            terms += fabs(term);
        }
        c->want[row * s->width + d] = sum;
        /* Scores are off by some units of their magnitude, which weights follow; then the weighted
         * sum rounds once per key at most. */
        c->slack[row * s->width + d] =
            0x1p-24 * terms *
            ((double)(s->width + 8) * magnitude + 8.0 + (double)(last - first + 1));
    }
}

/* Operands behind positions. A masking bias hides what is no multiple of three, and all of the
 * keys of token 1. */
static void add_extras(kt_case *c, const attention_shape *s, const attention_extra *x,
                       dt_dtype dtype)
{
    if ((x->flags & DTI_ATTENTION_BIAS) != 0) {
        const bool one[] = { x->flags & DTI_ATTENTION_ONE_BATCH, x->flags & DTI_ATTENTION_ONE_HEAD,
                             x->flags & DTI_ATTENTION_ONE_TOKEN };
        const int64_t shape[] = { one[0] ? 1 : s->batch, one[1] ? 1 : s->heads,
                                  one[2] ? 1 : s->tokens, s->rows };
        dt_local *bias = &c->in[c->n_in++];
        *bias = kt_filled(dtype, 4, shape, KT_UNIFORM, 24);
        for (int64_t i = 0; x->masks && i < kt_count(bias); i++)
            if (i % s->rows % 3 != 0 || i / s->rows % shape[2] == 1)
                dti_store_f32(bias->data, dtype, i, -INFINITY);
    }
    if ((x->flags & DTI_ATTENTION_SINKS) != 0)
        c->in[c->n_in++] = kt_filled(dtype, 1, &s->heads, KT_UNIFORM, 25);
}

static void run_with(const attention_shape *s, const attention_extra *x, dt_dtype dtype,
                     kt_fill fill)
{
    const int64_t q[] = { s->batch, s->tokens, s->heads, s->width };
    const int64_t k[] = { s->batch, s->rows, s->kv, s->width };
    const int64_t positions[] = { s->batch, s->tokens };
    const dti_attention_attr attr = { s->n_heads, s->n_kv,
                                      s->window,  1.0f / sqrtf((float)(s->width + (s->width == 0))),
                                      x->cap,     x->flags,
                                      0 };
    char name[96];
    double *p;
    kt_case c = { .name = name, .kernel = dti_attention_cpu, .n_in = 4, .attr = &attr };

    (void)snprintf(name, sizeof name, "attention B%lld T%lld H%lld/%lld e%lld w%lld at %lld",
                   (long long)s->batch, (long long)s->tokens, (long long)s->heads, (long long)s->kv,
                   (long long)s->width, (long long)s->window, (long long)s->position);
    c.in[0] = kt_filled(dtype, 4, q, fill, 21);
    c.in[1] = kt_filled(dtype, 4, k, fill, 22);
    c.in[2] = kt_filled(dtype, 4, k, fill, 23);
    c.in[3] = kt_local(DT_I32, 2, positions);
    c.in[0].offset[2] = s->q_offset;
    c.in[1].offset[2] = c.in[2].offset[2] = s->k_offset;
    for (int64_t i = 0; i < s->batch * s->tokens; i++)
        ((int32_t *)c.in[3].data)[i] = (int32_t)(s->position / (i / s->tokens + 1) + i % s->tokens);
    add_extras(&c, s, x, dtype);
    c.out = (dt_local){ .dtype = dtype, .n_axes = 4 };
    memcpy(c.out.shape, q, sizeof q);
    kt_expect(&c);
    DT_ASSERT_OK(dti_alloc_array((size_t)s->rows + 1, sizeof *p, (void **)&p));
    for (int64_t row = 0; row < s->batch * s->tokens * s->heads; row++)
        expect_row(&c, s, x, row, p);
    dti_free(p);
    kt_run(&c);
}

static void run_attention(const attention_shape *s, dt_dtype dtype, kt_fill fill)
{
    run_with(s, &(attention_extra){ 0 }, dtype, fill);
}

static void run_everywhere(attention_shape s)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) run_attention(&s, kt_floats[t], KT_UNIFORM);
}

/* clang-format off */
/*    B  T    H  Kv  S     e    q0 k0  nH  nKv window position */
static const attention_shape shapes[] = {
    { 1, 1,   1, 1,  1,    1,   0, 0,  1,  1,  0,   0 },
    { 1, 1,   8, 2,  300,  64,  0, 0,  8,  2,  0,   290 },
    { 3, 1,   6, 2,  140,  7,   0, 0,  6,  2,  0,   128 },
    { 2, 1,   3, 3,  40,   80,  0, 0,  3,  3,  16,  39 },
    { 1, 1,   5, 1,  70,   33,  0, 0,  5,  1,  1,   69 },
    { 1, 1,   2, 1,  2500, 16,  0, 0,  2,  1,  0,   2400 },
    { 2, 1,   4, 2,  2500, 16,  0, 0,  4,  2,  1500, 2499 },
    { 1, 1,   4, 2,  1100, 8,   0, 0,  4,  2,  0,   1024 },
    { 1, 1,   4, 2,  1100, 8,   0, 0,  4,  2,  0,   1023 },
    { 1, 1,   9, 1,  130,  128, 0, 0,  9,  1,  0,   127 },
    { 1, 1,   8, 2,  2500, 64,  0, 0,  8,  2,  0,   2400 }, /* wakes the pool */
    { 2, 1,   4, 2,  2500, 65,  0, 0,  4,  2,  0,   2499 },
    { 1, 2,   2, 1,  3,    2,   0, 0,  2,  1,  0,   0 },
    { 1, 65,  4, 2,  65,   64,  0, 0,  4,  2,  0,   0 },
    { 2, 33,  6, 2,  120,  7,   0, 0,  6,  2,  0,   80 },
    { 1, 150, 1, 1,  150,  20,  0, 0,  1,  1,  0,   0 },
    { 1, 150, 2, 2,  200,  20,  0, 0,  2,  2,  31,  40 },
    { 1, 9,   3, 1,  70,   130, 0, 0,  3,  1,  1,   60 },
    { 1, 130, 1, 1,  600,  20,  0, 0,  1,  1,  300, 400 }, /* a window of more than a tile and a block of queries */
    { 1, 3,   260, 1, 5,   3,   0, 0,  260, 1, 0,   0 },
    { 2, 5,   3, 2,  30,   16,  3, 0,  8,  2,  0,   9 },   /* heads 3 4 5 of 8: parts of two groups */
    { 2, 1,   3, 2,  30,   16,  3, 0,  8,  2,  0,   9 },
    { 1, 4,   2, 1,  30,   16,  6, 3,  8,  4,  0,   3 },   /* kv head 3 alone */
    { 1, 1,   2, 4,  30,   16,  4, 0,  8,  4,  0,   20 },  /* all kv heads, one of them read */
    { 1, 4,   0, 0,  30,   16,  8, 4,  8,  4,  0,   3 },   /* a rank without heads */
    { 0, 4,   2, 2,  30,   16,  0, 0,  2,  2,  0,   3 },
};
/* clang-format on */

DT_TEST(kernels_attention, matches_float64)
{
    for (size_t i = 0; i < DT_COUNT(shapes); i++) run_everywhere(shapes[i]);
}

enum { BIAS = DTI_ATTENTION_BIAS, SINKS = DTI_ATTENTION_SINKS, BOTH = DTI_ATTENTION_BOTH_WAYS };
enum { ONE_B = DTI_ATTENTION_ONE_BATCH, ONE_H = DTI_ATTENTION_ONE_HEAD };
enum { ONE_T = DTI_ATTENTION_ONE_TOKEN };

/* clang-format off */
static const struct {
    attention_shape shape;
    attention_extra extra;
} extras[] = {
    { { 2, 1,   4, 2,  300,  16,  0, 0,  4,  2,  0,   290 }, { BOTH, 0, false } },
    { { 2, 1,   4, 2,  1500, 16,  0, 0,  4,  2,  40,  700 }, { BOTH, 0, false } },
    { { 1, 70,  4, 2,  100,  16,  0, 0,  4,  2,  0,   0 }, { BOTH, 0, false } },
    { { 2, 33,  3, 1,  120,  7,   0, 0,  3,  1,  9,   80 }, { BOTH, 0, false } },
    { { 1, 1,   4, 2,  300,  16,  0, 0,  4,  2,  0,   290 }, { 0, 2.5f, false } },
    { { 1, 70,  4, 2,  100,  16,  0, 0,  4,  2,  20,  10 }, { 0, 0.5f, false } },
    { { 2, 1,   4, 2,  1300, 16,  0, 0,  4,  2,  0,   1290 }, { SINKS, 0, false } },
    { { 1, 70,  4, 2,  100,  16,  0, 0,  4,  2,  0,   10 }, { SINKS, 0, false } },
    { { 2, 1,   4, 2,  1300, 16,  0, 0,  4,  2,  0,   1290 }, { BIAS, 0, false } },
    { { 2, 70,  4, 2,  100,  16,  0, 0,  4,  2,  0,   10 }, { BIAS, 0, false } },
    { { 2, 70,  4, 2,  100,  16,  0, 0,  4,  2,  0,   10 }, { BIAS | ONE_B, 0, true } },
    { { 2, 70,  4, 2,  100,  16,  0, 0,  4,  2,  0,   10 }, { BIAS | ONE_H, 0, true } },
    { { 2, 70,  4, 2,  100,  16,  0, 0,  4,  2,  0,   10 }, { BIAS | ONE_T, 0, true } },
    { { 2, 1,   4, 2,  300,  16,  0, 0,  4,  2,  0,   250 }, { BIAS | ONE_B | ONE_H | ONE_T, 0, true } },
    { { 2, 33,  3, 2,  130,  16,  3, 0,  8,  2,  31,  90 }, { BIAS | SINKS | BOTH, 1.5f, true } },
    { { 2, 1,   3, 2,  130,  16,  3, 0,  8,  2,  31,  90 }, { BIAS | SINKS | BOTH, 1.5f, true } },
};
/* clang-format on */

DT_TEST(kernels_attention, biased_capped_and_not_causal)
{
    for (size_t i = 0; i < DT_COUNT(extras); i++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            run_with(&extras[i].shape, &extras[i].extra, kt_floats[t], KT_UNIFORM);
}

DT_TEST(kernels_attention, large_scores_do_not_overflow)
{
    attention_shape s = { 1, 1, 4, 2, 200, 24, 0, 0, 4, 2, 0, 190 };

    for (int t = 0; t < 2; t++) {
        run_attention(&s, DT_F32, KT_EQUAL);
        run_attention(&s, DT_BF16, KT_ZERO);
        s.tokens = 70;
        s.position = 100;
    }
}

/* One head with scores of +-1e30: the softmax picks one key and gives its v exactly. */
DT_TEST(kernels_attention, a_softmax_of_one_key_is_exact)
{
    enum { E = 4, S = 200 };
    static float q[2 * E], k[S * E], v[S * E], y[2 * E];
    static int32_t positions[2] = { S - 2, S - 1 };
    const dti_attention_attr attr = { 1, 1, 0, 1.0f, 0, 0, 0 };

    for (int d = 0; d < E; d++) q[d] = q[E + d] = 1e15f;
    for (int j = 0; j < S; j++)
        for (int d = 0; d < E; d++) {
            k[j * E + d] = j == 77 ? 1e15f : -1e15f;
            v[j * E + d] = (float)(j * 10 + d);
        }
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (int64_t tokens = 1; tokens <= 2; tokens++) {
            const dt_local in[4] = {
                { .data = q, .dtype = DT_F32, .n_axes = 4, .shape = { 1, tokens, 1, E } },
                { .data = k, .dtype = DT_F32, .n_axes = 4, .shape = { 1, S, 1, E } },
                { .data = v, .dtype = DT_F32, .n_axes = 4, .shape = { 1, S, 1, E } },
                { .data = positions, .dtype = DT_I32, .n_axes = 2, .shape = { 1, tokens } }
            };
            dt_local out = in[0];
            dti_cpu *cpu;
            out.data = y;
            DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
            DT_ASSERT_OK(dti_attention_cpu(&(dt_kargs){ in, &out, &attr, cpu, 4, 1, NULL }));
            for (int i = 0; i < E * tokens; i++) DT_ASSERT(y[i] == (float)(770 + i % E));
            dti_cpu_destroy(&cpu);
        }
}

/* Rows of a larger batch, and a rank that holds fewer heads, give the bits of the smaller call. */
DT_TEST(kernels_attention, a_row_does_not_depend_on_its_neighbours)
{
    enum { T = 70, H = 4, E = 24, S = 90 };
    const int64_t q_shape[] = { 1, T, H, E }, k_shape[] = { 1, S, 2, E }, p_shape[] = { 1, T };
    const dti_attention_attr attr = { H, 2, 0, 0.2f, 0, 0, 0 };
    static float whole[T * H * E], part[T * H * E];
    dt_local in[4] = { kt_filled(DT_F32, 4, q_shape, KT_UNIFORM, 1),
                       kt_filled(DT_F32, 4, k_shape, KT_UNIFORM, 2),
                       kt_filled(DT_F32, 4, k_shape, KT_UNIFORM, 3), kt_local(DT_I32, 2, p_shape) };

    for (int t = 0; t < T; t++) ((int32_t *)in[3].data)[t] = t;
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++) {
        dt_local out = { .data = whole, .dtype = DT_F32, .n_axes = 4, .shape = { 1, T, H, E } };
        dti_cpu *cpu;
        DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
        DT_ASSERT_OK(dti_attention_cpu(&(dt_kargs){ in, &out, &attr, cpu, 4, 1, NULL }));
        out.data = part;
        for (int64_t n = 2; n < T; n += 13) {
            in[0].shape[1] = in[3].shape[1] = out.shape[1] = n;
            DT_ASSERT_OK(dti_attention_cpu(&(dt_kargs){ in, &out, &attr, cpu, 4, 1, NULL }));
            DT_ASSERT(memcmp(part, whole, (size_t)(n * H * E) * sizeof(float)) == 0);
        }
        in[0].shape[1] = in[3].shape[1] = T;
        dti_cpu_destroy(&cpu);
    }
    for (int i = 0; i < 4; i++) kt_release(&in[i]);
}

DT_TEST(kernels_attention, heads_without_their_kv_heads_are_refused)
{
    float data[64] = { 0 };
    int32_t position = 0;
    const dti_attention_attr attr = { 8, 4, 0, 1.0f, 0, 0, 0 };
    dt_local in[4] = { { .data = data,
                         .dtype = DT_F32,
                         .n_axes = 4,
                         .shape = { 1, 1, 2, 2 },
                         .offset = { 0, 0, 4 } },
                       { .data = data, .dtype = DT_F32, .n_axes = 4, .shape = { 1, 1, 2, 2 } },
                       { .data = data, .dtype = DT_F32, .n_axes = 4, .shape = { 1, 1, 2, 2 } },
                       { .data = &position, .dtype = DT_I32, .n_axes = 2, .shape = { 1, 1 } } };
    dt_local out = in[0];
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;

    DT_ASSERT_OK(dti_cpu_create(DTI_ISA_PORTABLE, NULL, &cpu));
    DT_ASSERT_STATUS(dti_attention_cpu(&(dt_kargs){ in, &out, &attr, cpu, 4, 1, NULL }),
                     DT_ERR_LAYOUT,
                     "query heads 4 to 5 read kv heads 2 to 2, but this rank holds 0 to 1");
}

/* A window that begins behind the first part of the keys leaves that part untouched: what a longer
 * call has left there must not count. */
DT_TEST(kernels_attention, what_an_earlier_call_left_in_scratch_does_not_count)
{
    enum { S = 2500, H = 4, E = 16, POSITION = 2400 };
    const int64_t q_shape[] = { 1, 1, H, E }, k_shape[] = { 1, S, 2, E }, p_shape[] = { 1, 1 };
    const dti_attention_attr whole = { H, 2, 0, 0.25f, 0, 0, 0 },
                             window = { H, 2, 300, 0.25f, 0, 0, 0 };
    dt_local in[4] = { kt_filled(DT_F32, 4, q_shape, KT_UNIFORM, 1),
                       kt_filled(DT_F32, 4, k_shape, KT_UNIFORM, 2),
                       kt_filled(DT_F32, 4, k_shape, KT_UNIFORM, 3), kt_local(DT_I32, 2, p_shape) };
    float after[H * E], fresh[H * E];
    dt_local out = { .dtype = DT_F32, .n_axes = 4, .shape = { 1, 1, H, E } };

    *(int32_t *)in[3].data = POSITION;
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++) {
        dti_cpu *used, *unused;
        DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &used));
        DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &unused));
        out.data = after;
        DT_ASSERT_OK(dti_attention_cpu(&(dt_kargs){ in, &out, &whole, used, 4, 1, NULL }));
        DT_ASSERT_OK(dti_attention_cpu(&(dt_kargs){ in, &out, &window, used, 4, 1, NULL }));
        out.data = fresh;
        DT_ASSERT_OK(dti_attention_cpu(&(dt_kargs){ in, &out, &window, unused, 4, 1, NULL }));
        DT_ASSERT(memcmp(after, fresh, sizeof after) == 0);
        dti_cpu_destroy(&used);
        dti_cpu_destroy(&unused);
    }
    for (int i = 0; i < 4; i++) kt_release(&in[i]);
}

/* A decode step allocates nothing, wherever in the cache it is. */
DT_TEST(kernels_attention, decode_allocates_once)
{
    const int64_t q_shape[] = { 1, 1, 4, 16 }, k_shape[] = { 1, 3000, 2, 16 }, p_shape[] = { 1, 1 };
    const dti_attention_attr attr = { 4, 2, 0, 0.25f, 0, 0, 0 };
    dt_local in[4] = { kt_filled(DT_BF16, 4, q_shape, KT_UNIFORM, 1),
                       kt_filled(DT_BF16, 4, k_shape, KT_UNIFORM, 2),
                       kt_filled(DT_BF16, 4, k_shape, KT_UNIFORM, 3),
                       kt_local(DT_I32, 2, p_shape) };
    DT_ENDS(kt_release) dt_local out = kt_local(DT_BF16, 4, q_shape);
    uint64_t before = 0;
    dti_cpu *cpu;

    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
    for (int32_t p = 0; p < 3000; p += 700) {
        *(int32_t *)in[3].data = p;
        DT_ASSERT_OK(dti_attention_cpu(&(dt_kargs){ in, &out, &attr, cpu, 4, 1, NULL }));
        if (p == 0) before = dti_alloc_count();
        DT_ASSERT_EQ_INT(dti_alloc_count(), before);
    }
    dti_cpu_destroy(&cpu);
    for (int i = 0; i < 4; i++) kt_release(&in[i]);
}
