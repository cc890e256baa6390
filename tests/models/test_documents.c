/* SPDX-License-Identifier: Apache-2.0
 *
 * Sequences made of documents: logits, loss and gradients are those of the documents one by one, in
 * every architecture and on every mesh. */
#include <dtensor/model_training.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"
#include "tests/support/golden.h"

enum { ROWS = 2, T = 12, MOST = 4, VOCAB = 60 };

/* Documents of two rows; the second row has one that fills it. */
static const int lengths[2][ROWS][MOST + 1] = {
    { { 5, 1, 4, 2, 0 }, { 3, 9, 0 } },
    { { 2, 10, 0 }, { 12, 0 } },
};

typedef struct scene {
    const char *folder;
    dt_recomputed recompute;
    int64_t chunk;
    bool sequence_parallel;
    int which;      /* of lengths[] */
    bool forgotten; /* whole sequences where documents are meant: that must be seen */
} scene;

typedef struct batch {
    int32_t ids[ROWS * T], targets[ROWS * T], starts[ROWS * T];
    int n_valid;
} batch;

/* Some tokens; what follows a document's last token is no target. */
static void fill(const scene *s, batch *b)
{
    memset(b, 0, sizeof *b);
    for (int r = 0; r < ROWS; r++)
        for (int k = 0, at = 0; at < T; at += lengths[s->which][r][k++])
            for (int j = 0; j < lengths[s->which][r][k]; j++) {
                const int i = r * T + at + j;
                b->ids[i] = (7 * i * i + 3 * i + 1) % VOCAB;
                b->starts[i] = at;
                b->targets[i] = -100;
                if (j > 0) b->targets[i - 1] = b->ids[i];
                b->n_valid += j > 0;
            }
}

typedef struct call {
    int at, rows, tokens; /* of the batch, from that element on */
    bool documents;
} call;

static dt_status add(dt_model *m, const scene *s, const batch *b, const call *c, dt_gradients *g,
                     double *loss)
{
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    dt_tensor *ids, *targets, *sum;
    DT_HELD(tape) *t = NULL;
    float value = 0.0f;

    how.recompute = s->recompute;
    how.chunk = s->chunk;
    how.n_valid = b->n_valid;
    how.starts = c->documents ? b->starts + c->at : NULL;
    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(m)), &t));
    dt_tape_record(t, g);
    ids = dt_model_ids(t, m, b->ids + c->at, c->rows, c->tokens);
    targets = dt_model_ids(t, m, b->targets + c->at, c->rows, c->tokens);
    sum = dt_model_loss(t, m, ids, targets, &how);
    dt_backward(t, sum, NULL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_tensor_read(sum, &value, sizeof value));
    *loss += value;
    return dt_gradients_settle(g, t);
}

static dt_status score(dt_model *m, const batch *b, const call *c, float *logits)
{
    const int64_t vocab = dt_model_info_of(m)->vocab_size;
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    DT_HELD(tape) *t = NULL;
    DT_HELD(tensor) *full = NULL;
    dt_tensor *x;

    how.starts = c->documents ? b->starts + c->at : NULL;
    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(m)), &t));
    x = dt_model_logits(t, m, dt_model_ids(t, m, b->ids + c->at, c->rows, c->tokens), &how);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(x, &full));
    memcpy(logits + c->at * vocab, dt_tensor_local(full)->data,
           (size_t)(c->rows * c->tokens * vocab) * sizeof *logits);
    return DT_OK;
}

/* The largest difference, in units of the largest element. */
static double off(const float *a, const float *b, int64_t n)
{
    double most = 1e-30, worst = 0.0;

    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)b[i]));
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    }
    return worst / most;
}

/* What a part of the batch gives: gradients of all parameters, whole, and logits. */
typedef struct outcome {
    double loss;
    float *gradients, *logits;
} outcome;

/* All gradients one after the other: takes them if there is somewhere to put them. Returns how many
 * numbers there are. */
static dt_status take(dt_gradients *g, float *to, int64_t *n, double *worst, const float *others)
{
    dt_tensor *w;

    *n = 0;
    for (int64_t i = 0; (w = dt_gradients_at(g, i)) != NULL; i++) {
        dt_tensor *gradient = dt_gradient(g, w), *full = NULL;
        int64_t count = 1;
        for (int k = 0; k < dt_tensor_n_axes(w); k++) count *= dt_tensor_extent(w, k);
        if (gradient != NULL && to != NULL) {
            DT_TRY(dt_full_tensor(gradient, &full));
            memcpy(to + *n, dt_tensor_local(full)->data, (size_t)count * sizeof *to);
            dt_tensor_release(&full);
        }
        if (others != NULL) *worst = fmax(*worst, off(others + *n, to + *n, count));
        *n += count;
    }
    return DT_OK;
}

static dt_status run_together(dt_model *m, const scene *s, dt_gradients *g, const batch *b,
                              outcome *out)
{
    const call all = { 0, ROWS, T, !s->forgotten };

    DT_TRY(add(m, s, b, &all, g, &out->loss));
    return score(m, b, &all, out->logits);
}

static dt_status run_apart(dt_model *m, const scene *s, dt_gradients *g, const batch *b,
                           outcome *out)
{
    for (int r = 0; r < ROWS; r++)
        for (int k = 0, at = 0; at < T; at += lengths[s->which][r][k++]) {
            const call one = { r * T + at, 1, lengths[s->which][r][k], false };
            DT_TRY(add(m, s, b, &one, g, &out->loss));
            DT_TRY(score(m, b, &one, out->logits));
        }
    return DT_OK;
}

static dt_status compare(dt_model *m, const scene *s, dt_gradients *g, outcome *together,
                         outcome *apart)
{
    const int64_t n_logits = ROWS * T * dt_model_info_of(m)->vocab_size;
    double worst = 0.0, logits;
    int64_t n;
    batch b;

    fill(s, &b);
    DT_TRY(run_together(m, s, g, &b, together));
    DT_TRY(take(g, together->gradients, &n, &worst, NULL));
    dt_gradients_clear(g);
    DT_TRY(run_apart(m, s, g, &b, apart));
    DT_TRY(take(g, apart->gradients, &n, &worst, together->gradients));
    logits = off(together->logits, apart->logits, n_logits);
    if (s->forgotten) {
        DT_EXPECT(worst > 1e-2 && logits > 1e-2, "%s: that documents were forgotten is not seen",
                  s->folder);
        return DT_OK;
    }
    DT_EXPECT(fabs(together->loss - apart->loss) <= 1e-6 * apart->loss,
              "%s: loss %.9g together, %.9g apart", s->folder, together->loss, apart->loss);
    DT_EXPECT(logits <= 1e-6, "%s: logits are off by %.3g", s->folder, logits);
    DT_EXPECT(worst <= 1e-6, "%s: gradients are off by %.3g", s->folder, worst);
    return DT_OK;
}

static dt_status body(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    outcome out[2] = { { 0.0, NULL, NULL }, { 0.0, NULL, NULL } };
    dt_gradients *g = NULL;
    dt_model *m = NULL;
    dt_status st = DT_OK;
    int64_t n;

    load.keep_dtype = false;
    load.dtype = DT_F32;
    load.sequence_parallel = s->sequence_parallel;
    DT_TRY(dt_model_load(mesh, s->folder, &load, &m));
    DT_TRY_TO(done, st, dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY_TO(done, st, dt_layers_watch(dt_model_layers(m), g));
    DT_TRY_TO(done, st, take(g, NULL, &n, NULL, NULL));
    for (int i = 0; i < 2; i++) {
        DT_TRY_TO(done, st, dti_alloc_array((size_t)n, sizeof(float), (void **)&out[i].gradients));
        DT_TRY_TO(done, st,
                  dti_alloc_array((size_t)(ROWS * T * dt_model_info_of(m)->vocab_size),
                                  sizeof(float), (void **)&out[i].logits));
    }
    st = compare(m, s, g, &out[0], &out[1]);
done:
    for (int i = 0; i < 2; i++) {
        dti_free(out[i].gradients);
        dti_free(out[i].logits);
    }
    dt_gradients_release(&g);
    dt_model_release(&m);
    return st;
}

static void check(const char *fixture, const char *mesh, scene s)
{
    char folder[DT_TEST_PATH_BYTES];

    s.folder = dt_test_source_path(folder, "tests/golden/%s", fixture);
    for (s.which = 0; s.which < 2; s.which++) dt_test_on_ranks(mesh, body, &s);
}

DT_TEST(documents, of_a_sequence_do_not_see_each_other_in_any_architecture)
{
    for (size_t f = 0; f < DT_GOLDEN_FIXTURES; f++)
        check(dt_golden_fixtures[f], f % 2 == 0 ? "tp=1" : "tp=2", (scene){ .chunk = 0 });
}

static const char *const some[] = { "gemma3/base", "gpt_neo/base", "llama/uneven",
                                    "qwen3_moe/base" };

DT_TEST(documents, are_apart_on_every_mesh)
{
    static const char *const meshes[] = { "dp=2", "dp=2,tp=2", "tp=3" };

    for (size_t f = 0; f < DT_COUNT(some); f++)
        for (size_t k = 0; k < DT_COUNT(meshes); k++)
            check(some[f], meshes[k], (scene){ .chunk = 0 });
}

DT_TEST(documents, are_apart_where_tokens_are_cut_or_blocks_run_again)
{
    for (size_t f = 0; f < DT_COUNT(some); f++) {
        check(some[f], "tp=2", (scene){ .sequence_parallel = true, .chunk = f % 2 == 0 ? 0 : 5 });
        check(some[f], "tp=2", (scene){ .recompute = DT_RECOMPUTED_BLOCKS, .chunk = 5 });
        check(some[f], "tp=1", (scene){ .recompute = DT_RECOMPUTED_CHEAP });
    }
}

DT_TEST(documents, that_are_forgotten_are_seen)
{
    for (size_t f = 0; f < DT_COUNT(some); f++)
        check(some[f], "tp=1", (scene){ .forgotten = true });
}

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    static const int32_t ids[8] = { 0 }, wrong[3][8] = { { 0, 0, 1, 2, 0, 0, 0, 0 },
                                                         { 0, 0, 2, 0, 0, 0, 0, 0 },
                                                         { 0, 0, 0, 0, 1, 1, 1, 1 } };
    static const char *const place[] = { "token 2 of sequence 0 has 1",
                                         "token 3 of sequence 0 has 0",
                                         "token 0 of sequence 1 has 1" };
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    DT_HELD(model) *m = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    DT_TRY(dt_model_load(mesh, arg, NULL, &m));
    for (int i = 0; i < 3; i++) {
        how.starts = wrong[i];
        (void)dt_model_logits(t, m, dt_model_ids(t, m, ids, 2, 4), &how);
        DT_EXPECT(dt_tape_status(t) == DT_ERR_ARG &&
                      strstr(dt_last_error()->message, place[i]) != NULL,
                  "%s", dt_last_error()->message);
        dt_tape_reset(t);
    }
    return DT_OK;
}

DT_TEST(documents, that_begin_nowhere_are_refused)
{
    char folder[DT_TEST_PATH_BYTES];

    dt_test_on_ranks("tp=2", refused, dt_test_source_path(folder, "tests/golden/llama/tied"));
}
