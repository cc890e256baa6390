/* SPDX-License-Identifier: Apache-2.0
 *
 * Sequences made of documents on a device: loss and gradients of models are those of the CPU;
 * segments that fall are refused by name when the host looks. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/model_training.h>
#include <dtensor/ops.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/cuda.h"
#include "tests/support/dt_test.h"

enum { ROWS = 2, T = 12, VOCAB = 60 };

static const int32_t starts[ROWS * T] = { 0, 0, 0, 0, 0, 5, 6, 6, 6, 6, 10, 10,
                                          0, 0, 0, 3, 3, 3, 3, 3, 3, 3, 3,  3 };

typedef struct scene {
    const char *folder;
    bool forgotten; /* whole sequences where documents are meant: that must be seen */
    float **made;   /* by rank 0: the loss, then all gradients; NULL: not yet */
    int64_t *n;
} scene;

/* Rank 0 keeps what the first run makes, and compares what a second one does. */
static dt_status keep(dt_tensor *x, const scene *s, bool compares, int64_t *at)
{
    DT_HELD(tensor) *full = NULL;
    DT_FREED float *got = NULL;
    double most = 1e-30, worst = 0.0;
    float *kept = *s->made;
    int64_t n = 1;

    DT_TRY(dt_full_tensor(x, &full));
    for (int a = 0; a < dt_tensor_n_axes(full); a++) n *= dt_tensor_extent(full, a);
    DT_TRY(dti_alloc_array((size_t)n, sizeof *got, (void **)&got));
    DT_TRY(dt_tensor_read(full, got, (size_t)n * sizeof *got));
    if (dt_runtime_rank(dt_mesh_runtime(dt_tensor_mesh(full))) != 0) return DT_OK;
    if (!compares) {
        kept = realloc(kept, (size_t)(*s->n + n) * sizeof *kept);
        DT_EXPECT(kept != NULL, "memory");
        *s->made = kept;
        memcpy(kept + *s->n, got, (size_t)n * sizeof *got);
        *s->n += n;
        return DT_OK;
    }
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)kept[*at + i]));
        worst = fmax(worst, fabs((double)got[i] - (double)kept[*at + i]));
    }
    *at += n;
    DT_EXPECT(worst <= 1e-5 * most || s->forgotten, "%s: off by %.3g of %.3g", s->folder, worst,
              most);
    DT_EXPECT(*at > 1 || !s->forgotten || worst > 1e-4 * most,
              "%s: that documents were forgotten is not seen", s->folder);
    return DT_OK;
}

static dt_status run(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    const bool compares = *s->made != NULL;
    int32_t ids[ROWS * T], next[ROWS * T];
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    DT_HELD(model) *model = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *loss, *w;
    int64_t at = 0;

    for (int i = 0; i < ROWS * T; i++) ids[i] = (7 * i * i + 3 * i + 1) % VOCAB;
    for (int i = 0; i < ROWS * T; i++)
        next[i] = i % T < T - 1 && starts[i + 1] == starts[i] ? ids[i + 1] : -100;
    load.keep_dtype = false;
    load.dtype = DT_F32;
    how.starts = s->forgotten && compares ? NULL : starts;
    DT_TRY(dt_model_load(mesh, s->folder, &load, &model));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_layers_watch(dt_model_layers(model), g));
    dt_tape_record(t, g);
    loss = dt_model_loss(t, model, dt_model_ids(t, model, ids, ROWS, T),
                         dt_model_ids(t, model, next, ROWS, T), &how);
    dt_backward(t, loss, NULL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_gradients_settle(g, t));
    DT_TRY(keep(loss, s, compares, &at));
    for (int64_t i = 0; (w = dt_gradients_at(g, i)) != NULL; i++)
        DT_TRY(keep(dt_gradient(g, w), s, compares, &at));
    DT_EXPECT(at == (compares ? *s->n : 0) || dt_runtime_rank(dt_mesh_runtime(mesh)) != 0,
              "%s: other gradients", s->folder);
    return DT_OK;
}

static void check(const char *fixture, const char *mesh, bool forgotten)
{
    const dt_run_options gpus = dt_test_cuda_options();
    char folder[DT_TEST_PATH_BYTES];
    float *made = NULL;
    int64_t n = 0;
    scene s = { .forgotten = forgotten, .made = &made, .n = &n };

    s.folder = dt_test_source_path(folder, "tests/golden/%s", fixture);
    dt_test_on_ranks(mesh, run, &s);
    DT_ASSERT_OK(dt_test_run(&gpus, mesh, run, &s));
    free(made);
}

DT_TEST(cuda_documents, of_a_sequence_have_the_gradients_of_the_cpu)
{
    check("llama/uneven", "tp=1", false);
    check("gemma3/base", "tp=2", false); /* with windows */
    check("qwen3_moe/base", "tp=1", false);
}

DT_TEST(cuda_documents, that_are_forgotten_are_seen)
{
    check("llama/uneven", "tp=1", true);
}

/* --- segments that fall ----------------------------------------------------------------------- */

static dt_status falling(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    const int64_t heads[] = { 1, 4, 2, 8 };
    const int32_t positions[4] = { 0, 1, 2, 3 }, segments[][4] = { { 0, 0, 2, 2 }, { 0, 2, 2, 1 } };
    dt_attention_options how = { .n_heads = 2, .n_kv_heads = 2, .scale = 0.3f };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *at = NULL, *rises = NULL, *falls = NULL;
    dt_tensor *y;
    float first[64];

    (void)arg;
    DT_TRY(dt_randn(mesh, &whole, DT_F32, 4, heads, (dt_random){ 1, 0 }, &x));
    DT_TRY(dt_distribute(mesh, &whole, DT_I32, 2, heads, (dt_source){ positions, 0 }, &at));
    DT_TRY(dt_distribute(mesh, &whole, DT_I32, 2, heads, (dt_source){ segments[0], 0 }, &rises));
    DT_TRY(dt_distribute(mesh, &whole, DT_I32, 2, heads, (dt_source){ segments[1], 0 }, &falls));
    how.segments = rises;
    y = dt_attention(t, x, x, x, at, &how);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_tensor_read(y, first, sizeof first));
    how.segments = falls;
    y = dt_attention(t, x, x, x, at, &how);
    DT_TRY(dt_tape_status(t)); /* nobody has waited yet */
    DT_EXPECT_STATUS(dt_tensor_read(y, first, sizeof first), DT_ERR_DEVICE,
                     "segment 2 is followed by 1: documents lie one after the other");
    return DT_OK;
}

DT_TEST(cuda_documents, that_do_not_follow_each_other_are_refused_when_the_host_looks)
{
    dt_test_on_gpus("tp=1", falling, NULL);
}
