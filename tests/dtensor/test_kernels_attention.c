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

/* --- one order of additions ------------------------------------------------------------------- */

/* A pass, and the part of it that is computed again by itself: batch rows, tokens and heads from
 * `first` on, `count` of each. */
typedef struct order_part {
    int64_t first[3], count[3];
} order_part;

typedef struct order_case {
    attention_shape shape;
    attention_extra extra;
} order_case;

/* The tensors of a pass: q, k, v, positions, bias or not, sinks or not; y. */
typedef struct order_pass {
    const order_case *of;
    dti_attention_attr attr;
    dt_local in[6], y;
    int n_in;
} order_pass;

static void copy_rows(dt_local *to, int64_t at, const dt_local *from, int64_t from_at, int64_t n)
{
    const size_t bytes = dt_dtype_size(to->dtype);

    memcpy((char *)to->data + (size_t)at * bytes,
           (const char *)from->data + (size_t)from_at * bytes, (size_t)n * bytes);
}

/* from [.., extents] restricted on three axes, the rest as it lies: axes of one element stay. */
static dt_local part_of(const dt_local *from, const int64_t first[3], const int64_t count[3],
                        int n_axes)
{
    int64_t shape[4], begin[3], inner = 1;
    dt_local to;

    for (int a = 0; a < n_axes; a++) shape[a] = from->shape[a];
    for (int a = 0; a < 3; a++) {
        begin[a] = a < n_axes && from->shape[a] > 1 ? first[a] : 0;
        if (a < n_axes && from->shape[a] > 1) shape[a] = count[a];
    }
    for (int a = 3; a < n_axes; a++) inner *= shape[a];
    to = kt_local(from->dtype, n_axes, shape);
    for (int64_t i = 0; i < shape[0]; i++)
        for (int64_t j = 0; j < shape[1]; j++)
            for (int64_t k = 0; k < (n_axes > 2 ? shape[2] : 1); k++)
                copy_rows(&to, ((i * shape[1] + j) * (n_axes > 2 ? shape[2] : 1) + k) * inner, from,
                          (((begin[0] + i) * from->shape[1] + begin[1] + j) *
                               (n_axes > 2 ? from->shape[2] : 1) +
                           begin[2] + k) *
                              inner,
                          inner);
    return to;
}

static void open_pass(order_pass *p, const order_case *c, dt_dtype dtype)
{
    const attention_shape *s = &c->shape;
    const int64_t q[] = { s->batch, s->tokens, s->heads, s->width };
    const int64_t k[] = { s->batch, s->rows, s->kv, s->width };
    kt_case of = { .n_in = 4 };

    of.in[0] = kt_filled(dtype, 4, q, KT_UNIFORM, 21);
    of.in[1] = kt_filled(dtype, 4, k, KT_UNIFORM, 22);
    of.in[2] = kt_filled(dtype, 4, k, KT_UNIFORM, 23);
    of.in[3] = kt_local(DT_I32, 2, q);
    for (int64_t i = 0; i < s->batch * s->tokens; i++)
        ((int32_t *)of.in[3].data)[i] =
            (int32_t)(s->position / (i / s->tokens + 1) + i % s->tokens);
    add_extras(&of, s, &c->extra, dtype);
    *p = (order_pass){ .of = c,
                       .attr = { s->n_heads, s->n_kv, s->window, 0.3f, c->extra.cap, c->extra.flags,
                                 0 },
                       .y = kt_local(dtype, 4, q),
                       .n_in = of.n_in };
    memcpy(p->in, of.in, sizeof p->in);
}

static void close_pass(order_pass *p)
{
    for (int i = 0; i < p->n_in; i++) kt_release(&p->in[i]);
    kt_release(&p->y);
}

static void run_pass(order_pass *p, dti_cpu *cpu)
{
    DT_ASSERT_OK(dti_attention_cpu(&(dt_kargs){ p->in, &p->y, &p->attr, cpu, p->n_in, 1, NULL }));
}

/* Heads that read the kv heads they did, of a rank that holds no others. */
static void take_part(order_pass *to, const order_pass *from, const order_part *p)
{
    const attention_shape *s = &from->of->shape;
    const int64_t group = s->n_heads / s->n_kv, kv = p->first[2] / group;
    const int64_t n_kv = (p->first[2] + p->count[2] - 1) / group - kv + 1;
    const int64_t k_first[] = { p->first[0], 0, kv }, k_count[] = { p->count[0], s->rows, n_kv };
    const int64_t b_first[] = { p->first[0], p->first[2], p->first[1] };
    const int64_t b_count[] = { p->count[0], p->count[2], p->count[1] };
    const bool bias = (from->of->extra.flags & DTI_ATTENTION_BIAS) != 0;

    *to = *from;
    to->in[0] = part_of(&from->in[0], p->first, p->count, 4);
    to->in[1] = part_of(&from->in[1], k_first, k_count, 4);
    to->in[2] = part_of(&from->in[2], k_first, k_count, 4);
    to->in[3] = part_of(&from->in[3], p->first, p->count, 2);
    if (bias) to->in[4] = part_of(&from->in[4], b_first, b_count, 4);
    if (from->n_in > 4 + bias) {
        to->in[4 + bias] = kt_local(from->in[4 + bias].dtype, 1, &p->count[2]);
        copy_rows(&to->in[4 + bias], 0, &from->in[4 + bias], p->first[2], p->count[2]);
    }
    to->in[0].offset[2] = p->first[2];
    to->in[1].offset[2] = to->in[2].offset[2] = kv;
    to->y = part_of(&from->y, p->first, p->count, 4);
}

static void expect_part(const order_pass *whole, const order_part *p, dti_cpu *cpu)
{
    const attention_shape *s = &whole->of->shape;
    order_pass part;
    dt_local want;

    take_part(&part, whole, p);
    want = part.y;
    part.y = kt_local(want.dtype, 4, want.shape);
    run_pass(&part, cpu);
    if (memcmp(part.y.data, want.data, (size_t)kt_count(&want) * dt_dtype_size(want.dtype)) != 0)
        dt_test_fail(__FILE__, __LINE__,
                     "%s %s, H%lld/%lld e%lld at %lld: batch rows %lld + %lld, tokens %lld + %lld, "
                     "heads %lld + %lld have other bits by themselves",
                     dti_isa_name(dti_cpu_isa(cpu)), dt_dtype_name(want.dtype), (long long)s->heads,
                     (long long)s->kv, (long long)s->width, (long long)s->position,
                     (long long)p->first[0], (long long)p->count[0], (long long)p->first[1],
                     (long long)p->count[1], (long long)p->first[2], (long long)p->count[2]);
    kt_release(&want);
    close_pass(&part);
}

/* Every token of every batch row alone, or one of `every`; chunks; rows; heads. */
static void expect_parts(const order_pass *whole, int64_t every, dti_cpu *cpu)
{
    const attention_shape *s = &whole->of->shape;
    const int64_t chunks[] = { 1, 16, 40, 71 };

    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t t = 0; t < s->tokens; t += every)
            expect_part(whole, &(order_part){ { b, t, 0 }, { 1, 1, s->heads } }, cpu);
        for (size_t i = 0; i + 1 < DT_COUNT(chunks) && chunks[i] < s->tokens; i++) {
            const int64_t end = chunks[i + 1] < s->tokens ? chunks[i + 1] : s->tokens;
            expect_part(
                whole, &(order_part){ { b, chunks[i], 0 }, { 1, end - chunks[i], s->heads } }, cpu);
        }
    }
    for (int64_t h = 0; h < s->heads; h++) {
        expect_part(whole, &(order_part){ { 0, 0, h }, { s->batch, s->tokens, 1 } }, cpu);
        expect_part(whole, &(order_part){ { 0, s->tokens - 1, 0 }, { s->batch, 1, h + 1 } }, cpu);
    }
}

/* clang-format off */
static const order_case orders[] = {
    /* B  T    H  Kv  S     e    q0 k0  nH  nKv window position */
    { { 1, 70,  4, 2,  90,   24,  0, 0,  4,  2,  0,   0 }, { 0, 0, false } },
    { { 3, 37,  6, 2,  400,  64,  0, 0,  6,  2,  0,   350 }, { 0, 0, false } },
    { { 2, 70,  7, 1,  200,  33,  0, 0,  7,  1,  50,  100 }, { 0, 0, false } },
    { { 3, 50,  4, 4,  300,  80,  0, 0,  4,  4,  0,   200 }, { 0, 0, false } },
    { { 2, 20,  9, 3,  2300, 64,  0, 0,  9,  3,  0,   2200 }, { 0, 0, false } },
    { { 2, 75,  2, 1,  2300, 130, 0, 0,  2,  1,  1100, 2100 }, { 0, 0, false } },
    { { 1, 3,   130, 1, 70,  16,  0, 0,  130, 1, 0,   60 }, { 0, 0, false } },
    { { 2, 40,  4, 2,  1200, 16,  0, 0,  4,  2,  0,   1100 }, { SINKS, 1.5f, false } },
    { { 2, 40,  4, 2,  120,  16,  0, 0,  4,  2,  31,  70 }, { BIAS | SINKS | BOTH, 0, true } },
    { { 2, 40,  4, 2,  1200, 64,  0, 0,  4,  2,  0,   1100 }, { BIAS | ONE_H, 0, false } },
};
/* clang-format on */

/* A query has the bits that it has alone, whatever is computed with it: other tokens, other rows of
 * other lengths, other heads, on any number of threads. */
DT_TEST(kernels_attention, a_row_does_not_depend_on_its_neighbours)
{
    for (size_t i = 0; i < DT_COUNT(orders); i++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            order_pass whole;
            open_pass(&whole, &orders[i], kt_floats[t]);
            for (int isa = 0; isa <= (int)dti_isa_detect(); isa++) {
                dti_cpu *one, *many;
                dti_pool *pool;
                DT_ASSERT_OK(dti_pool_create(3, false, NULL, NULL, &pool));
                DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &one));
                DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, pool, &many));
                run_pass(&whole, many);
                expect_parts(&whole, orders[i].shape.rows > 1000 ? 13 : 3, one);
                expect_part(&whole,
                            &(order_part){ { 0, 0, 0 },
                                           { 1, orders[i].shape.tokens, orders[i].shape.heads } },
                            many);
                dti_cpu_destroy(&one);
                dti_cpu_destroy(&many);
                dti_pool_destroy(&pool);
            }
            close_pass(&whole);
        }
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
