/* SPDX-License-Identifier: Apache-2.0
 *
 * Queries, keys and values on their way into attention: normed, rotated and written to the cache by
 * one kernel, with the bits of a kernel for each row, whatever lies where. */
#include "tests/cuda/fused.h"

/* Places in the buffer: what linear rows made, what is made of it, and what is read. */
enum {
    Q = 0,
    K = 4096,
    V = 8192,
    Q_NORMED = 12288,
    K_NORMED = 16384,
    Q_ROTATED = 20480,
    K_ROTATED = 24576,
    K_CACHE = 28672,
    V_CACHE = 36864,
    TABLE = 45056,
    Q_WEIGHT = 49152,
    K_WEIGHT = 50176
};

typedef struct head_shape {
    int64_t batch, n_tokens, n_heads, n_kv, width, rotated, n_rows;
} head_shape;

static dt_local heads_at(const head_shape *s, int64_t at, int64_t n_heads)
{
    return fu_at(at, 4, s->batch, s->n_tokens, n_heads, s->width);
}

static fu_call norm_of(const head_shape *s, int64_t at, int64_t weight, int64_t to, int64_t n_heads)
{
    return (fu_call){ "rms_norm",
                      2,
                      { heads_at(s, at, n_heads), fu_at(weight, 1, s->width, 0, 0, 0) },
                      heads_at(s, to, n_heads) };
}

static fu_call rope_of(const head_shape *s, int64_t at, int64_t to, int64_t n_heads)
{
    return (fu_call){ "rope",
                      2,
                      { heads_at(s, at, n_heads),
                        fu_at(TABLE, 3, s->batch, s->n_tokens, s->rotated, 0) },
                      heads_at(s, to, n_heads) };
}

static fu_call write_of(const head_shape *s, int64_t at, int64_t cache)
{
    const dt_local rows = fu_at(cache, 4, s->batch, s->n_rows, s->n_kv, s->width);

    return (fu_call){
        "kv_write", 3, { heads_at(s, at, s->n_kv), fu_positions(s->batch, s->n_tokens), rows }, rows
    };
}

/* Token t of a sequence goes to row t + 1, so rows 0 and the last stay. */
static fu_run run_of(const cr_device *d, dt_dtype t, const head_shape *s, const fu_call *calls,
                     int n)
{
    fu_run r = { .d = d, .dtype = t, .calls = calls, .n_calls = n };

    for (int64_t i = 0; i < s->batch * s->n_tokens; i++) r.positions[i] = i % s->n_tokens + 1;
    return r;
}

/* As Qwen3 calls them, and as Llama does. */
static void check_layer(const cr_device *d, dt_dtype t, const head_shape *s, int64_t skew)
{
    const fu_call normed[] = { norm_of(s, Q, Q_WEIGHT, Q_NORMED, s->n_heads),
                               rope_of(s, Q_NORMED, Q_ROTATED, s->n_heads),
                               norm_of(s, K, K_WEIGHT, K_NORMED, s->n_kv),
                               rope_of(s, K_NORMED, K_ROTATED, s->n_kv),
                               write_of(s, K_ROTATED, K_CACHE),
                               write_of(s, V, V_CACHE) };
    const fu_call plain[] = { rope_of(s, Q, Q_ROTATED, s->n_heads),
                              rope_of(s, K, K_ROTATED, s->n_kv), write_of(s, K_ROTATED, K_CACHE),
                              write_of(s, V, V_CACHE) };
    fu_run r = run_of(d, t, s, normed, 6);

    r.skew = skew;
    fu_check(&r, 1, "heads with norms");
    r = run_of(d, t, s, plain, 4);
    r.skew = skew;
    fu_check(&r, 1, "heads without norms");
}

DT_TEST(cuda_heads, a_layer_has_one_kernel_for_them)
{
    static const head_shape shapes[] = {
        { 1, 1, 4, 2, 64, 64, 4 },  { 2, 3, 3, 3, 16, 16, 6 },  { 1, 2, 5, 1, 128, 128, 4 },
        { 1, 5, 3, 1, 80, 20, 7 },  { 2, 1, 2, 1, 10, 6, 3 },   { 1, 3, 2, 2, 24, 24, 5 },
        { 1, 1, 2, 1, 256, 64, 3 }, { 1, 1, 3, 2, 200, 60, 3 }, { 1, 2, 3, 1, 6, 2, 4 },
    };
    cr_device d;

    cr_open(&d);
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            for (int64_t skew = 0; skew < 2; skew++)
                check_layer(&d, kt_floats[t], &shapes[s], skew);
    cr_close(&d);
}

static const head_shape small = { 1, 3, 4, 4, 32, 32, 5 };

/* Two or three calls, one kernel or as many as they are. */
typedef struct place_case {
    const char *what;
    fu_call calls[4];
    int n_calls;
    int64_t n_kernels;
} place_case;

DT_TEST(cuda_heads, results_may_lie_where_operands_were)
{
    const head_shape *s = &small;
    const int64_t n = s->n_tokens * s->n_heads * s->width, h = s->n_heads;
    const place_case cases[] = {
        { "all in one place",
          { norm_of(s, Q, Q_WEIGHT, Q, h), rope_of(s, Q, Q, h), write_of(s, Q, K_CACHE) },
          3,
          1 },
        { "rotated where it was normed",
          { norm_of(s, Q, Q_WEIGHT, Q_NORMED, h), rope_of(s, Q_NORMED, Q_NORMED, h) },
          2,
          1 },
        { "rotated where it came from",
          { norm_of(s, Q, Q_WEIGHT, Q_NORMED, h), rope_of(s, Q_NORMED, Q, h) },
          2,
          1 },
        { "rotated a head behind",
          { norm_of(s, Q, Q_WEIGHT, Q_NORMED, h), rope_of(s, Q_NORMED, Q + s->width, h) },
          2,
          2 },
        { "keys where queries were",
          { norm_of(s, Q, Q_WEIGHT, Q_NORMED, h), norm_of(s, K, K_WEIGHT, Q, h) },
          2,
          2 },
        { "keys next to where queries were",
          { norm_of(s, Q, Q_WEIGHT, Q_NORMED, h), norm_of(s, K, K_WEIGHT, Q + n, h) },
          2,
          1 },
        { "keys made of what queries became",
          { rope_of(s, Q, Q_ROTATED, h), norm_of(s, Q_ROTATED, K_WEIGHT, K_NORMED, h) },
          2,
          2 },
        { "a weight among the results",
          { rope_of(s, Q, Q_ROTATED, h), norm_of(s, K, Q_ROTATED + 5, K_NORMED, h) },
          2,
          2 },
        { "a result on the table", { rope_of(s, Q, Q_ROTATED, h), rope_of(s, K, TABLE, h) }, 2, 2 },
        { "rotated twice", { rope_of(s, Q, Q_ROTATED, h), rope_of(s, Q_ROTATED, K, h) }, 2, 2 },
        { "written twice to one cache",
          { write_of(s, K, K_CACHE), write_of(s, V, K_CACHE) },
          2,
          2 },
        { "written from the cache",
          { write_of(s, K, K_CACHE), write_of(s, K_CACHE + s->n_kv * s->width, V_CACHE) },
          2,
          2 },
        { "written, then changed",
          { write_of(s, K, K_CACHE), rope_of(s, K, K_ROTATED, h), write_of(s, K_ROTATED, V_CACHE) },
          3,
          1 },
        { "written, then changed in place",
          { write_of(s, K, K_CACHE), rope_of(s, K, K, h) },
          2,
          2 },
        { "normed and written", { norm_of(s, K, K_WEIGHT, V, h), write_of(s, V, K_CACHE) }, 2, 1 },
        { "four tensors",
          { rope_of(s, Q, Q_ROTATED, h), rope_of(s, K, K_ROTATED, h), rope_of(s, V, Q_NORMED, h),
            rope_of(s, Q, K_NORMED, h) },
          4,
          2 },
    };
    cr_device d;

    cr_open(&d);
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(cases); i++) {
            const fu_run r = run_of(&d, kt_floats[t], s, cases[i].calls, cases[i].n_calls);
            fu_check(&r, cases[i].n_kernels, cases[i].what);
        }
    cr_close(&d);
}

/* Heads that no warp keeps, rows that are no heads, layer norms; and a sum before all of it. */
DT_TEST(cuda_heads, other_rows_are_kernels_of_their_own)
{
    static const head_shape wide = { 1, 2, 2, 1, 520, 16, 3 };
    const head_shape *s = &small;
    fu_call calls[4] = { norm_of(&wide, Q, Q_WEIGHT, Q_NORMED, 1),
                         rope_of(&wide, Q_NORMED, Q_ROTATED, 1) };
    cr_device d;
    fu_run r;

    cr_open(&d);
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        r = run_of(&d, kt_floats[t], &wide, calls, 2);
        fu_check(&r, 2, "wide heads");
    }
    calls[0] = norm_of(s, Q, Q_WEIGHT, Q_NORMED, s->n_heads);
    calls[0].in[0] = calls[0].out = fu_at(Q_NORMED, 3, 1, 12, s->width, 0);
    calls[0].in[0].data = (void *)(intptr_t)Q;
    calls[1] = rope_of(s, Q_NORMED, Q_ROTATED, s->n_heads);
    r = run_of(&d, DT_F32, s, calls, 2);
    fu_check(&r, 2, "a norm of rows");
    calls[0] = norm_of(s, Q, Q_WEIGHT, Q_NORMED, s->n_heads);
    calls[0].row = "layer_norm";
    calls[0].n_in = 3;
    calls[0].in[2] = calls[0].in[1];
    r = run_of(&d, DT_F32, s, calls, 2);
    fu_check(&r, 2, "a layer norm of heads");

    /* a norm of the sum goes with the sum; of something else, with what follows */
    calls[0] = (fu_call){ "add",
                          2,
                          { heads_at(s, Q, s->n_heads), heads_at(s, K, s->n_heads) },
                          heads_at(s, V, s->n_heads) };
    calls[1] = norm_of(s, V, Q_WEIGHT, Q_NORMED, s->n_heads);
    calls[2] = rope_of(s, Q_NORMED, Q_ROTATED, s->n_heads);
    r = run_of(&d, DT_F32, s, calls, 3);
    fu_check(&r, 2, "heads that are sums");
    calls[1].in[0] = calls[0].in[0];
    fu_check(&r, 2, "heads after a sum");
    calls[1] = calls[0];
    calls[1].row = "mul";
    fu_check(&r, 3, "a product between");
    cr_close(&d);
}

/* rms_norm_1p, as Gemma has it. */
DT_TEST(cuda_heads, weights_may_count_from_one)
{
    const head_shape *s = &small;
    fu_call calls[] = { norm_of(s, Q, Q_WEIGHT, Q_NORMED, s->n_heads),
                        rope_of(s, Q_NORMED, Q_ROTATED, s->n_heads) };
    cr_device d;

    calls[0].row = "rms_norm_1p";
    cr_open(&d);
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        const fu_run r = run_of(&d, kt_floats[t], s, calls, 2);
        fu_check(&r, 1, "rms_norm_1p");
    }
    cr_close(&d);
}

/* A row that no cache has is written nowhere; the rest is, and who waits is told. */
DT_TEST(cuda_heads, positions_outside_the_cache_are_told)
{
    const head_shape *s = &small;
    const fu_call calls[] = { rope_of(s, K, K_ROTATED, s->n_kv), write_of(s, K_ROTATED, K_CACHE),
                              write_of(s, V, V_CACHE) };
    cr_device d;
    fu_memory memory;
    fu_run r;

    cr_open(&d);
    r = run_of(&d, DT_BF16, s, calls, 3);
    r.positions[1] = s->n_rows;
    fu_check(&r, 1, "a position outside");
    DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), "position 5 is outside the cache, which has 5 rows");
    memory = fu_open(&r);
    for (int i = 0; i < 3; i++) DT_ASSERT_CUDA(d.m, fu_start(&r, &memory, &calls[i]));
    DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), "position 5 is outside the cache, which has 5 rows");
    DT_ASSERT_CUDA(d.m, d.m->sync(d.c));
    fu_close(&r, &memory);
    cr_close(&d);
}

/* Recorded before it ends, it is one kernel of the graph. */
DT_TEST(cuda_heads, graphs_hold_the_one_kernel)
{
    const head_shape *s = &small;
    const fu_call calls[] = { rope_of(s, K, K_ROTATED, s->n_kv), write_of(s, K_ROTATED, K_CACHE) };
    static unsigned char got[FU_ELEMENTS * 4], want[FU_ELEMENTS * 4];
    dti_cuda_graph *g = NULL;
    fu_memory memory;
    int64_t before;
    cr_device d;
    fu_run r;

    cr_open(&d);
    r = run_of(&d, DT_F32, s, calls, 2);
    DT_ASSERT_EQ_INT(fu_run_once(&r, false, want), 2);
    memory = fu_open(&r);
    before = d.m->launches(d.c);
    DT_ASSERT_CUDA(d.m, d.m->capture_begin(d.c));
    for (int i = 0; i < 2; i++) DT_ASSERT_CUDA(d.m, fu_start(&r, &memory, &calls[i]));
    DT_ASSERT_CUDA(d.m, d.m->capture_end(d.c, &g));
    DT_ASSERT_EQ_INT(d.m->launches(d.c), before + 1);
    DT_ASSERT_CUDA(d.m, d.m->graph_launch(d.c, g));
    DT_ASSERT_CUDA(d.m, d.m->copy(d.c, got, memory.floats, sizeof got, DTI_CUDA_DOWN));
    DT_ASSERT_EQ_INT(memcmp(got, want, sizeof got), 0);
    d.m->graph_destroy(g);
    fu_close(&r, &memory);
    cr_close(&d);
}
