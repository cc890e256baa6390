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
    fu_run r = { .d = d, .which = DTI_FUSED_HEADS, .dtype = t, .calls = calls, .n_calls = n };

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
    fu_check(&r, "heads with norms");
    r = run_of(d, t, s, plain, 4);
    r.skew = skew;
    fu_check(&r, "heads without norms");
}

DT_TEST(cuda_heads, a_layer_has_one_kernel_for_them)
{
    static const head_shape shapes[] = {
        { 1, 1, 4, 2, 64, 64, 4 },  { 2, 3, 3, 3, 16, 16, 6 },  { 1, 2, 5, 1, 128, 128, 4 },
        { 1, 5, 3, 1, 80, 20, 7 },  { 2, 1, 2, 1, 10, 6, 3 },   { 1, 3, 2, 2, 24, 24, 5 },
        { 1, 1, 2, 1, 256, 64, 3 }, { 1, 1, 3, 2, 200, 60, 3 }, { 1, 2, 3, 1, 6, 2, 4 },
    };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            for (int64_t skew = 0; skew < 2; skew++)
                check_layer(&d, kt_floats[t], &shapes[s], skew);
}

static const head_shape small = { 1, 3, 4, 4, 32, 32, 5 };

typedef struct place_case {
    const char *what;
    fu_call calls[3];
    int n_calls;
} place_case;

DT_TEST(cuda_heads, results_may_lie_where_operands_were)
{
    const head_shape *s = &small;
    const int64_t n = s->n_tokens * s->n_heads * s->width, h = s->n_heads;
    const place_case cases[] = {
        { "all in one place",
          { norm_of(s, Q, Q_WEIGHT, Q, h), rope_of(s, Q, Q, h), write_of(s, Q, K_CACHE) },
          3 },
        { "rotated where it was normed",
          { norm_of(s, Q, Q_WEIGHT, Q_NORMED, h), rope_of(s, Q_NORMED, Q_NORMED, h) },
          2 },
        { "rotated where it came from",
          { norm_of(s, Q, Q_WEIGHT, Q_NORMED, h), rope_of(s, Q_NORMED, Q, h) },
          2 },
        { "keys next to where queries were",
          { norm_of(s, Q, Q_WEIGHT, Q_NORMED, h), norm_of(s, K, K_WEIGHT, Q + n, h) },
          2 },
        { "written, then changed",
          { write_of(s, K, K_CACHE), rope_of(s, K, K_ROTATED, h), write_of(s, K_ROTATED, V_CACHE) },
          3 },
        { "normed and written", { norm_of(s, K, K_WEIGHT, V, h), write_of(s, V, K_CACHE) }, 2 },
    };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(cases); i++) {
            const fu_run r = run_of(&d, kt_floats[t], s, cases[i].calls, cases[i].n_calls);
            fu_check(&r, cases[i].what);
        }
}

/* rms_norm_1p, as Gemma has it. */
DT_TEST(cuda_heads, weights_may_count_from_one)
{
    const head_shape *s = &small;
    fu_call calls[] = { norm_of(s, Q, Q_WEIGHT, Q_NORMED, s->n_heads),
                        rope_of(s, Q_NORMED, Q_ROTATED, s->n_heads) };
    CR_DEVICE d = cr_open();

    calls[0].row = "rms_norm_1p";
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        const fu_run r = run_of(&d, kt_floats[t], s, calls, 2);
        fu_check(&r, "rms_norm_1p");
    }
}

/* A row that no cache has is written nowhere; the rest is, and who waits is told. */
DT_TEST(cuda_heads, positions_outside_the_cache_are_told)
{
    const head_shape *s = &small;
    const fu_call calls[] = { rope_of(s, K, K_ROTATED, s->n_kv), write_of(s, K_ROTATED, K_CACHE),
                              write_of(s, V, V_CACHE) };
    CR_DEVICE d = cr_open();
    fu_memory memory;
    fu_run r;

    r = run_of(&d, DT_BF16, s, calls, 3);
    r.positions[1] = s->n_rows;
    fu_check(&r, "a position outside");
    DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), "position 5 is outside the cache, which has 5 rows");
    memory = fu_open(&r);
    DT_ASSERT_CUDA(d.m, fu_start_fused(&r, &memory));
    DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), "position 5 is outside the cache, which has 5 rows");
    DT_ASSERT_CUDA(d.m, d.m->sync(d.c));
    fu_close(&r, &memory);
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
    CR_DEVICE d = cr_open();
    fu_run r;

    r = run_of(&d, DT_F32, s, calls, 2);
    DT_ASSERT_EQ_INT(fu_run_once(&r, false, want), 2);
    memory = fu_open(&r);
    before = d.m->launches(d.c);
    DT_ASSERT_CUDA(d.m, d.m->capture_begin(d.c));
    DT_ASSERT_CUDA(d.m, fu_start_fused(&r, &memory));
    DT_ASSERT_CUDA(d.m, d.m->capture_end(d.c, &g));
    DT_ASSERT_EQ_INT(d.m->launches(d.c), before + 1);
    DT_ASSERT_CUDA(d.m, d.m->graph_launch(d.c, g));
    DT_ASSERT_CUDA(d.m, d.m->copy(d.c, got, memory.floats, sizeof got, DTI_CUDA_DOWN));
    DT_ASSERT_EQ_INT(memcmp(got, want, sizeof got), 0);
    d.m->graph_destroy(g);
    fu_close(&r, &memory);
}
