/* SPDX-License-Identifier: Apache-2.0
 *
 * Models with linear attention: prompts in pieces, beams, what a sequence holds, and what such
 * models are refused for. Logits and tokens are in test_golden.c, what layers carry in
 * test_carried.c, engines in test_engine_slots.c. */
#include <dtensor/generation.h>
#include <dtensor/model_training.h>
#include <stdio.h>
#include <string.h>

#include "files/safetensors.h"
#include "models/judge/prediction.h"
#include "models/run/state.h"
#include "tests/support/dt_test.h"

enum { ROWS = 3, TOKENS = 9, ROOM = 24, VOCAB = 83 };

static dt_status load(dt_mesh *mesh, const char *fixture, dt_dtype dtype, dt_model **model)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];

    options.keep_dtype = false;
    options.dtype = dtype;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/%s", fixture), &options,
                         model));
    return DT_OK;
}

/* --- pieces ----------------------------------------------------------------------------------- */

/* Tokens first .. first + n - 1 of all rows; the logits of the last of each. */
static dt_status read_on(dt_state *s, int32_t ids[ROWS][TOKENS], int64_t first, int64_t n,
                         float logits[ROWS * VOCAB])
{
    DT_HELD(tape) *t = dt_test_tape(s->model->mesh);
    DT_HELD(tensor) *full = NULL;
    int32_t part[ROWS * TOKENS];
    dt_tensor *y;

    for (int64_t b = 0; b < ROWS; b++)
        memcpy(part + b * n, ids[b] + first, (size_t)n * sizeof *part);
    y = dt_cast(t, dt_model_forward(t, s->model, s, part, n, DT_LOGITS_LAST), DT_F32);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(y, &full));
    memcpy(logits, dt_tensor_local(full)->data, ROWS * VOCAB * sizeof *logits);
    return DT_OK;
}

/* Pieces shorter and longer than the convolution's window give the bits of the whole, and what is
 * remembered does not grow with them. */
static dt_status in_pieces(dt_mesh *mesh, const void *arg)
{
    static const int64_t pieces[][4] = { { 1, 4, 2, 2 }, { 6, 1, 1, 1 }, { 2, 2, 4, 1 } };
    const dt_dtype dtype = *(const dt_dtype *)arg;
    float whole[ROWS * VOCAB], last[ROWS * VOCAB];
    int32_t ids[ROWS][TOKENS];
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    int64_t bytes;

    for (int i = 0; i < ROWS * TOKENS; i++) ids[i / TOKENS][i % TOKENS] = (i * i + 5) % VOCAB;
    DT_TRY(load(mesh, "qwen3_next/uneven", dtype, &m));
    DT_TRY(dt_state_create(m, ROWS, ROOM, &s));
    DT_TRY(read_on(s, ids, 0, TOKENS, whole));
    bytes = dti_state_bytes(s);
    for (size_t p = 0; p < DT_COUNT(pieces); p++) {
        int64_t first = 0;
        dt_state_rewind(s, 3); /* which forgets all */
        DT_EXPECT_EQ_INT(dt_state_length(s), 0);
        for (int i = 0; i < 4; first += pieces[p][i++])
            DT_TRY(read_on(s, ids, first, pieces[p][i], last));
        DT_EXPECT(memcmp(last, whole, sizeof whole) == 0, "pieces %d: other bits", (int)p);
        DT_EXPECT_EQ_INT(dti_state_bytes(s), bytes);
    }
    return DT_OK;
}

DT_TEST(linear_models, prompts_in_pieces_give_the_bits_of_the_whole)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };
    static const dt_dtype dtypes[] = { DT_F32, DT_BF16 };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t d = 0; d < 1 + m % 2; d++) dt_test_on_ranks(meshes[m], in_pieces, &dtypes[d]);
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* Of two layers a matrix for each value head and a window; of one keys and values, with room for
 * all of a sequence. A rank has its heads'. */
static dt_status holds(dt_mesh *mesh, const void *arg)
{
    enum { KEYS = 4, GROUP = 2, E = 6, V = 5, WINDOW = 3, KV = 2, HEAD = 16, LAYERS = 2 };
    const int64_t ranks = *(const int *)arg, f32 = (int64_t)sizeof(float);
    static const int32_t ids[2] = { 1, 2 };
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    DT_TRY(load(mesh, "qwen3_next/base", DT_F32, &m));
    DT_TRY(dt_state_create(m, 1, ROOM, &s));
    (void)dt_model_forward(t, m, s, ids, 2, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT_EQ_INT(dti_state_bytes(s),
                     LAYERS * KEYS / ranks * (GROUP * E * V + WINDOW * (2 * E + GROUP * V)) * f32 +
                         2 * ROOM * KV / ranks * HEAD * f32);
    return DT_OK;
}

DT_TEST(linear_models, a_sequence_holds_as_much_however_long_it_is)
{
    static const int one = 1, two = 2;

    dt_test_on_ranks("tp=1", holds, &one);
    dt_test_on_ranks("tp=2", holds, &two);
}

/* --- beams ------------------------------------------------------------------------------------ */

static dt_status read_ids(const dti_st_file *file, const char *name, int64_t most, int32_t *to,
                          int64_t *n)
{
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage = { 0 };
    const dti_st_entry *e = dti_st_find(file, name);
    int64_t ids[64];

    DT_EXPECT(e != NULL && e->dtype == DT_I64, "%s", name);
    *n = e->shape[0] * (e->n_axes > 1 ? e->shape[1] : 1);
    DT_EXPECT(*n <= most && most <= 64, "%lld ids of %s", (long long)*n, name);
    DT_TRY(dti_st_stage_create(0, NULL, &stage));
    DT_TRY(dti_st_read_slice(file, e, NULL, NULL, DT_I64, &stage, ids));
    for (int64_t i = 0; i < *n; i++) to[i] = (int32_t)ids[i];
    return DT_OK;
}

/* What is remembered goes with its beam: texts are those of Transformers. */
static dt_status beams(dt_mesh *mesh, const void *arg)
{
    enum { BEAMS = 3, NEW = 12 };
    DT_ENDS(dti_st_close) dti_st_file *file = NULL;
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    int32_t prompt[64], want[BEAMS * NEW];
    DT_HELD(generated) *g = NULL;
    DT_HELD(model) *m = NULL;
    char path[DT_TEST_PATH_BYTES];
    dt_ids one = { prompt, 0 };
    int64_t n;

    (void)dt_test_source_path(path, "tests/golden/%s/expected.safetensors", (const char *)arg);
    DT_TRY(dti_st_open(path, &file));
    DT_TRY(read_ids(file, "prompt", 64, prompt, &one.n));
    DT_TRY(read_ids(file, "beams_f32", BEAMS * NEW, want, &n));
    o.num_beams = o.num_return_sequences = BEAMS;
    o.max_new_tokens = NEW;
    DT_TRY(load(mesh, arg, DT_F32, &m));
    DT_TRY(dt_generate_batch(m, &one, 1, &o, &g));
    for (int i = 0; i < BEAMS; i++) {
        const dt_ids text = dt_generated_ids(g, i);
        DT_EXPECT(text.n == NEW && memcmp(text.ids, want + i * NEW, NEW * sizeof *want) == 0,
                  "beam %d is another than that of Transformers", i);
    }
    return DT_OK;
}

DT_TEST(linear_models, beams_are_those_of_transformers)
{
    dt_test_on_ranks("tp=1", beams, "qwen3_next/uneven");
    dt_test_on_ranks("tp=2", beams, "qwen3_next/base");
    dt_test_on_ranks("tp=4", beams, "qwen3_next/uneven");
    dt_test_on_ranks("dp=2,tp=2", beams, "qwen3_next/base");
}

/* --- what is refused -------------------------------------------------------------------------- */

static dt_status refuses(dt_mesh *mesh, const void *arg)
{
    static const int32_t ids[4] = { 1, 2, 3, 4 }, starts[4] = { 0, 0, 2, 2 };
    static const int32_t longer[] = { 1, 2, 3 }, shorter[] = { 1, 2 };
    const dt_ids prompts[] = { { longer, 3 }, { shorter, 2 } };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(model) *m = NULL;
    dt_generated *g = NULL;
    dt_tensor *x;

    (void)arg;
    DT_TRY(load(mesh, "qwen3_next/base", DT_F32, &m));
    DT_EXPECT_STATUS(dt_generate_batch(m, prompts, 2, &o, &g), DT_ERR_UNSUPPORTED,
                     "run sequences of one length together");
    how.starts = starts;
    x = dt_model_ids(t, m, ids, 1, 4);
    (void)dt_model_loss(t, m, x, x, &how);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_UNSUPPORTED, "give each document a sequence");
    return DT_OK;
}

DT_TEST(linear_models, what_would_be_wrong_is_refused)
{
    dt_test_on_ranks("tp=1", refuses, NULL);
    dt_test_on_ranks("tp=2", refuses, NULL);
}
