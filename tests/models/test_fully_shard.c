/* SPDX-License-Identifier: Apache-2.0
 *
 * Fully sharded models (ZeRO-3) beside the same models whose parameters every rank holds: the same
 * bits of losses and gradients, bytes as computed by hand and as predicted, and no more gathered at
 * a time than the units in use. */
#include <dtensor/inspect.h>
#include <dtensor/model_training.h>
#include <dtensor/ops_loss.h>
#include <dtensor/predict.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/gather.h"
#include "parallel_styles/changes.h"
#include "tests/support/dt_test.h"
#include "tests/support/golden.h"

enum { ROWS = 4, TOKENS = 9 };

typedef struct step_of {
    const char *folder;
    const char *dims; /* that parameters are cut over beside the plan; NULL: none */
    dt_recomputed recompute;
    int64_t chunk;
    int n_steps; /* 0: 1 */
    bool uncut;  /* batches: every rank has all sequences */
    bool sequence_parallel;
} step_of;

/* What the last of the steps made and counted on this rank. */
typedef struct made {
    float loss;
    float *gradients; /* [n] all, gathered; to be freed */
    int64_t n, n_gradients;
    int64_t bytes; /* received, of all kinds */
    int64_t settle_bytes;
    int64_t weight_bytes, gradient_bytes, kept;
    int64_t gathered, most; /* gathered bytes left after the step, and the most */
} made;

static int64_t received(const dt_tape *t)
{
    int64_t n = 0;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) n += dt_tape_comm(t, (dt_comm_kind)k).bytes;
    return n;
}

static int64_t bytes_of(const dt_tensor *x)
{
    int64_t n = (int64_t)dt_dtype_size(dt_tensor_dtype(x));

    for (int a = 0; a < dt_tensor_n_axes(x); a++) n *= dt_tensor_local(x)->shape[a];
    return n;
}

/* Whole gradients, so that layouts do not matter. */
static dt_status look_at(const dt_gradients *g, made *out)
{
    for (int64_t i = 0; dt_gradients_at(g, i) != NULL; i++) {
        dt_tensor *x = dt_gradient(g, dt_gradients_at(g, i)), *whole;
        DT_EXPECT(x != NULL, "a parameter without gradient");
        DT_EXPECT(dt_tensor_layout(x) == dt_tensor_layout(dt_gradients_at(g, i)),
                  "gradient %d does not lie as its parameter", (int)i);
        out->gradient_bytes += bytes_of(x);
        DT_TRY(dt_full_tensor(x, &whole));
        const int64_t n = bytes_of(whole) / (int64_t)sizeof *out->gradients;
        out->gradients = realloc(out->gradients, (size_t)(out->n + n) * sizeof *out->gradients);
        memcpy(out->gradients + out->n, dt_tensor_local(whole)->data,
               (size_t)n * sizeof *out->gradients);
        dt_tensor_release(&whole);
        out->n += n;
        out->n_gradients++;
    }
    return DT_OK;
}

static dt_status one_step(dt_model *m, dt_tape *t, dt_gradients *g, const step_of *s, made *out)
{
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    int32_t ids[ROWS * TOKENS], next[ROWS * TOKENS];
    dt_runtime *rt = dt_mesh_runtime(dt_model_mesh(m));
    dt_tensor *loss;

    for (int i = 0; i < ROWS * TOKENS; i++) {
        ids[i] = 3 + 5 * i % 17;
        next[i] = i % TOKENS == 2 ? -100 : 3 + 5 * (i + 1) % 17;
    }
    free(out->gradients);
    *out = (made){ 0 };
    how.recompute = s->recompute;
    how.chunk = s->chunk;
    how.n_valid = ROWS * (TOKENS - 1);
    dt_gradients_clear(g);
    dt_tape_record(t, g);
    loss = dt_model_loss(t, m, dt_model_ids(t, m, ids, ROWS, TOKENS),
                         dt_model_ids(t, m, next, ROWS, TOKENS), &how);
    DT_TRY(dt_tape_status(t));
    out->kept = dt_tape_kept_bytes(t);
    DT_TRY(dt_tensor_read(loss, &out->loss, sizeof out->loss));
    dt_backward(t, loss, NULL);
    DT_TRY(dt_tape_status(t));
    out->bytes = received(t);
    DT_TRY(dt_gradients_settle(g, t));
    out->settle_bytes = received(t) - out->bytes;
    out->bytes = received(t);
    dti_gathered_bytes(rt, &out->gathered, &out->most);
    DT_TRY(look_at(g, out));
    dt_tape_reset(t);
    return DT_OK;
}

static dt_status load(dt_mesh *mesh, const step_of *s, dt_model **out)
{
    dt_load_options o = DT_LOAD_OPTIONS_INIT;

    o.keep_dtype = false;
    o.dtype = DT_F32;
    o.fully_shard = s->dims;
    o.sequence_parallel = s->sequence_parallel;
    o.dim = dt_mesh_find_dim(mesh, "tp") >= 0 ? "tp" : "tp?";
    if (s->uncut) o.batch_dim = NULL;
    DT_TRY(dt_model_load(mesh, s->folder, &o, out));
    return DT_OK;
}

static dt_status run(dt_mesh *mesh, const step_of *s, made *out)
{
    dt_gradients *g = NULL;
    dt_model *m = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;

    *out = (made){ 0 };
    DT_TRY(load(mesh, s, &m));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY_TO(done, st, dt_layers_watch(dt_model_layers(m), g));
    for (int i = 0; i < (s->n_steps > 0 ? s->n_steps : 1); i++)
        DT_TRY_TO(done, st, one_step(m, t, g, s, out));
    out->weight_bytes = dt_model_local_bytes(m);
done:
    dt_tape_release(&t);
    dt_gradients_release(&g);
    dt_model_release(&m);
    return st;
}

/* --- the same bits ---------------------------------------------------------------------------- */

/* Gradients are the same bits where they are sums over one mesh dim. Sums over two are taken dim
 * after dim, where whole parameters' are taken over all ranks in a row: the same but for rounding.
 */
static dt_status same(const dt_mesh *mesh, const made *a, made *b, const char *what)
{
    int dims = 0;
    float most = 0, apart = 0;

    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) dims += dt_mesh_dim_size(mesh, m) > 1;
    DT_EXPECT(memcmp(&a->loss, &b->loss, sizeof a->loss) == 0, "%s: loss %.9g, not %.9g", what,
              (double)b->loss, (double)a->loss);
    DT_EXPECT(a->n_gradients == b->n_gradients && a->n == b->n, "%s: other gradients", what);
    for (int64_t i = 0; i < a->n; i++) {
        most = fmaxf(most, fabsf(a->gradients[i]));
        apart = fmaxf(apart, fabsf(a->gradients[i] - b->gradients[i]));
    }
    DT_EXPECT(dims == 1 ? apart == 0 : apart <= 1e-6f * most, "%s: gradients are %g apart, of %g",
              what, (double)apart, (double)most);
    return DT_OK;
}

/* One way to run it: the same, on as few bytes. */
static dt_status compare(dt_mesh *mesh, const step_of *s, const made *whole, const char *what)
{
    made cut;
    dt_status st = run(mesh, s, &cut);

    if (st == DT_OK) st = same(mesh, whole, &cut, what);
    if (st != DT_OK) goto done;
    DT_EXPECT_TO(done, st, cut.weight_bytes < whole->weight_bytes, "%s: %lld bytes, whole %lld",
                 what, (long long)cut.weight_bytes, (long long)whole->weight_bytes);
    DT_EXPECT_TO(done, st, cut.gathered == 0, "%s: %lld bytes are still gathered", what,
                 (long long)cut.gathered);
    DT_EXPECT_TO(done, st, s->recompute != DT_RECOMPUTED_NOTHING || cut.kept <= whole->kept,
                 "%s: %lld bytes kept, whole %lld", what, (long long)cut.kept,
                 (long long)whole->kept);
done:
    free(cut.gradients);
    return st;
}

/* Whole parameters and cut ones; with everything kept, cheap things or blocks run again, the head
 * in chunks. Two steps: the second gathers ahead. */
static dt_status as_whole(dt_mesh *mesh, const void *arg)
{
    const step_of *cut = arg;
    step_of s = *cut;
    dt_status st;
    made whole;

    s.dims = NULL;
    DT_TRY(run(mesh, &s, &whole));
    s = *cut;
    s.n_steps = 2;
    st = compare(mesh, &s, &whole, "kept");
    s.recompute = DT_RECOMPUTED_CHEAP;
    if (st == DT_OK) st = compare(mesh, &s, &whole, "cheap");
    s.recompute = DT_RECOMPUTED_BLOCKS;
    if (st == DT_OK) st = compare(mesh, &s, &whole, "blocks");
    free(whole.gradients);
    DT_TRY(st);
    s.chunk = 4;
    s.dims = NULL;
    DT_TRY(run(mesh, &s, &whole));
    s.dims = cut->dims;
    st = compare(mesh, &s, &whole, "chunks");
    free(whole.gradients);
    return st;
}

static void everywhere(const char *const *folders, size_t n, const char *mesh, const char *dims)
{
    char folder[DT_TEST_PATH_BYTES], name[64];

    for (size_t f = 0; f < n; f++) {
        step_of s = { .folder = folder, .dims = dims };
        (void)snprintf(name, sizeof name, "tests/golden/%s", folders[f]);
        (void)dt_test_source_path(folder, name);
        dt_test_on_ranks(mesh, as_whole, &s);
    }
}

DT_TEST(fully_shard, gives_the_bits_of_whole_parameters)
{
    static const char *const folders[] = { "llama/tied",   "llama/biases", "qwen2/base",
                                           "gpt_neo/base", "gemma3/base",  "phi3/base" };
    static const char *const uneven[] = { "llama/uneven", "phi3/uneven", "qwen3_moe/uneven" };

    everywhere(folders, DT_COUNT(folders), "dp=2", "dp");
    everywhere(uneven, DT_COUNT(uneven), "dp=2", "dp");
    everywhere(uneven, DT_COUNT(uneven), "dp=4", "dp");
    everywhere(uneven, 1, "dp=3", "dp");
}

DT_TEST(fully_shard, goes_with_styles_of_another_dim)
{
    static const char *const folders[] = { "llama/tied", "phi3/uneven", "qwen3_moe/uneven",
                                           "gpt_neo/base" };

    everywhere(folders, DT_COUNT(folders), "dp=2,tp=2", "dp");
    everywhere(folders, 2, "tp=2,dp=2", "dp");
    everywhere(folders, 1, "dp=2,tp=3", "dp");
}

/* Cut over one dim and copies on the other. */
DT_TEST(fully_shard, goes_with_copies)
{
    static const char *const folders[] = { "llama/tied", "llama/uneven" };

    everywhere(folders, DT_COUNT(folders), "dp_replicate=2,dp_shard=2", "dp_shard");
    everywhere(folders, 1, "dp_replicate=2,dp_shard=2", "dp_replicate,dp_shard");
}

/* Where ranks share all sequences, gradients are whole on each and only sliced. */
static dt_status uncut(dt_mesh *mesh, const void *arg)
{
    step_of s = { .folder = arg, .uncut = true, .dims = "dp" };
    made whole, cut;

    DT_TRY(run(mesh, &s, &cut));
    free(cut.gradients);
    DT_EXPECT(cut.loss > 0 && cut.n_gradients > 0, "a loss of %g", (double)cut.loss);
    s.uncut = false;
    s.dims = "dp_shard";
    DT_EXPECT_STATUS(run(mesh, &s, &whole), DT_ERR_ARG,
                     "options.fully_shard lays out all layers by \"fully_shard\" on mesh dim "
                     "\"dp_shard\", which the mesh does not have");
    s.uncut = true;
    s.dims = NULL;
    DT_EXPECT_STATUS(run(mesh, &s, &whole), DT_ERR_ARG, "nothing uses mesh dim \"dp\"");
    return DT_OK;
}

DT_TEST(fully_shard, works_without_a_batch_to_cut)
{
    char folder[DT_TEST_PATH_BYTES];

    dt_test_on_ranks("dp=2", uncut, dt_test_source_path(folder, "tests/golden/llama/tied"));
}
