/* SPDX-License-Identifier: Apache-2.0
 *
 * One order of additions for every number of rows: a token's logits are the same bits whether its
 * sequence comes alone or among others, in one pass, in chunks, or token by token. */
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "dtensor/host.h"
#include "dtensor/kernels/cpu/cpu.h"
#include "models/model.h"
#include "tests/support/golden.h"

enum { TOKENS = 60, MOST = 33, MAX_PASSES = TOKENS };

typedef struct order_case {
    const char *fixture;
    dt_dtype dtype;
    /* Where angles of positions change with the length: keys of earlier passes keep theirs (one
     * pass only), or are read again (logits of the last pass alone). */
    bool once, late;
} order_case;

/* How sequences are read: pass p ends before token ends[p], the last one's being the end. */
typedef struct order_passes {
    int64_t batch, n;
    int64_t ends[MAX_PASSES];
} order_passes;

/* The first and the last sequence are the same. */
static int32_t id_of(const dt_model_info *info, const order_passes *p, int64_t b, int64_t t)
{
    const int64_t shift = b == 0 || b == p->batch - 1 ? 0 : b;

    return (int32_t)((3 + 7 * t + 11 * shift + t * t % 5) % info->vocab_size);
}

/* Rows begin .. end - 1 of the first and the last sequence's logits, as bits of f32. */
static dt_status keep(dt_tensor *logits, const order_passes *p, int64_t begin, int64_t end,
                      float *first, float *last)
{
    const int64_t vocab = dt_tensor_extent(logits, 2), n = (end - begin) * vocab;
    dt_tensor *full = NULL;
    dti_host host;
    size_t bytes;

    DT_TRY(dt_full_tensor(logits, &full));
    DT_TRY(dti_host_open(full, DTI_HOST_READS, &host));
    bytes = dt_dtype_size(dt_tensor_dtype(full));
    dti_convert(first + begin * vocab, DT_F32, host.local.data, dt_tensor_dtype(full), n);
    dti_convert(last + begin * vocab, DT_F32,
                (const char *)host.local.data + (size_t)((p->batch - 1) * n) * bytes,
                dt_tensor_dtype(full), n);
    DT_TRY(dti_host_close(&host, DT_OK));
    dt_tensor_release(&full);
    return DT_OK;
}

static dt_status read_tokens(dt_model *m, const order_passes *p, float *first, float *last)
{
    const dt_model_info *info = &m->info;
    int32_t ids[MOST * TOKENS];
    dt_state *state = NULL;
    dt_tape *tape = NULL;
    dt_status st = DT_OK;
    int64_t begin = 0;

    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(m)), &tape));
    DT_TRY_TO(done, st, dt_state_create(m, p->batch, p->ends[p->n - 1], &state));
    for (int64_t pass = 0; pass < p->n; begin = p->ends[pass++]) {
        const int64_t n = p->ends[pass] - begin;
        dt_tensor *logits;
        for (int64_t b = 0; b < p->batch; b++)
            for (int64_t t = 0; t < n; t++) ids[b * n + t] = id_of(info, p, b, begin + t);
        dt_tape_reset(tape);
        logits = dt_model_forward(tape, m, state, ids, n, DT_LOGITS_ALL);
        DT_TRY_TO(done, st, dt_tape_status(tape));
        DT_TRY_TO(done, st, keep(logits, p, begin, p->ends[pass], first, last));
    }
done:
    dt_state_release(&state);
    dt_tape_release(&tape);
    return st;
}

/* The same tokens in one pass, alone: `whole`. */
static dt_status expect_same(dt_model *m, const order_case *c, const order_passes *p,
                             const float *whole, float *first, float *last)
{
    const int64_t vocab = m->info.vocab_size;
    const int64_t begin = c->late && p->n > 1 ? p->ends[p->n - 2] : 0;

    if (c->once && p->n > 1) return DT_OK;
    DT_TRY(read_tokens(m, p, first, last));
    for (int64_t t = begin; t < p->ends[p->n - 1]; t++)
        for (int who = 0; who < 2; who++)
            DT_EXPECT(memcmp((who == 0 ? first : last) + t * vocab, whole + t * vocab,
                             (size_t)vocab * sizeof *whole) == 0,
                      "token %lld of the %s of %lld sequences, read in %lld passes, the first of "
                      "%lld tokens, has other logits than alone",
                      (long long)t, who == 0 ? "first" : "last", (long long)p->batch,
                      (long long)p->n, (long long)p->ends[0]);
    return DT_OK;
}

/* `first` tokens, and then one by one to the end. */
static order_passes decoded(int64_t batch, int64_t first, int64_t end)
{
    order_passes p = { batch, 0, { 0 } };

    for (int64_t at = first; at <= end; at++) p.ends[p.n++] = at;
    return p;
}

static dt_status every_way(dt_model *m, const order_case *c, float *whole, float *first,
                           float *last)
{
    static const order_passes chunks[] = {
        { 1, 2, { 44, TOKENS } }, { 1, 3, { 20, 45, TOKENS } },
        { 1, 2, { 59, TOKENS } }, { 1, 4, { 2, 5, 36, TOKENS } },
        { 2, 1, { TOKENS } },     { 3, 1, { TOKENS } },
        { 8, 1, { TOKENS } },     { MOST, 1, { TOKENS } },
        { 3, 2, { 31, TOKENS } }, { MOST, 3, { 33, 34, TOKENS } },
    };
    const order_passes ends[] = { decoded(1, 40, TOKENS), decoded(1, 1, TOKENS),
                                  decoded(8, 58, TOKENS), decoded(MOST, 57, TOKENS) };

    DT_TRY(read_tokens(m, &(order_passes){ 1, 1, { TOKENS } }, whole, last));
    for (size_t i = 0; i < DT_COUNT(chunks); i++)
        DT_TRY(expect_same(m, c, &chunks[i], whole, first, last));
    for (size_t i = 0; i < DT_COUNT(ends); i++)
        DT_TRY(expect_same(m, c, &ends[i], whole, first, last));
    return DT_OK;
}

static dt_status on_mesh(dt_mesh *mesh, const void *arg)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    const order_case *c = arg;
    char relative[128], folder[DT_TEST_PATH_BYTES];
    dt_status st = DT_OK;
    dt_model *m = NULL;
    float *rows = NULL;
    size_t n;

    (void)snprintf(relative, sizeof relative, "tests/golden/%s", c->fixture);
    options.keep_dtype = false;
    options.dtype = c->dtype;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(folder, relative), &options, &m));
    n = (size_t)(TOKENS * m->info.vocab_size);
    DT_TRY_TO(done, st, dti_alloc_array(3 * n, sizeof *rows, (void **)&rows));
    DT_TRY_TO(done, st, every_way(m, c, rows, rows + n, rows + 2 * n));
done:
    dti_free(rows);
    dt_model_release(&m);
    return st;
}

static void check(const order_case *c, const char *mesh, const char *isa)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    dt_status st;

    options.isa = isa;
    st = dt_test_run(&options, mesh, on_mesh, c);
    if (st != DT_OK)
        dti_error_prefix("%s, %s, %s, %s", c->fixture, mesh, isa, dt_dtype_name(c->dtype));
    DT_ASSERT_OK(st);
}

/* One of each architecture, and one in f32; then all there are. */
static const order_case architectures[] = {
    { "llama/uneven", DT_BF16, false, false },     { "qwen2/windows", DT_BF16, false, false },
    { "qwen3/uneven", DT_BF16, false, false },     { "gpt_neo/uneven", DT_BF16, false, false },
    { "phi3/uneven", DT_BF16, false, false },      { "gemma3/uneven", DT_BF16, false, false },
    { "qwen3_moe/uneven", DT_BF16, false, false }, { "qwen3_moe/base", DT_F32, false, false },
};

DT_TEST(row_order, a_token_has_the_bits_that_it_has_alone)
{
    for (size_t i = 0; i < DT_COUNT(architectures); i++) {
        check(&architectures[i], "tp=1", "auto");
        check(&architectures[i], "tp=2", "auto");
    }
}

DT_TEST(row_order, on_every_instruction_set)
{
    dt_test_long();
    for (size_t f = 0; f < DT_GOLDEN_FIXTURES; f++)
        for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
            for (int dtype = DT_F32; dtype <= DT_F16; dtype++) {
                const char *name = dt_golden_fixtures[f];
                const order_case c = { name, (dt_dtype)dtype, strstr(name, "dynamic") != NULL,
                                       strstr(name, "longrope") != NULL };
                check(&c, "tp=1", dti_isa_name((dti_isa)isa));
                if (isa == (int)dti_isa_detect()) check(&c, "tp=2", dti_isa_name((dti_isa)isa));
            }
}
