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
#include "dtensor/device/device.h"
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
    bool random;    /* weights, by config.json alone */
    bool not_ahead; /* no unit is gathered before its turn */
} step_of;

/* What the last of the steps made and counted on this rank. */
typedef struct made {
    float loss;
    float *gradients; /* [n] all, gathered; to be freed */
    int64_t n, n_gradients;
    dt_comm_counter comm[DT_N_COMM_KINDS];
    int64_t settle_bytes, peak;
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
    dti_device *device;
    dt_tensor *loss;

    for (int i = 0; i < ROWS * TOKENS; i++) {
        ids[i] = 3 + 5 * i % 17;
        next[i] = i % TOKENS == 2 ? -100 : 3 + 5 * (i + 1) % 17;
    }
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
    out->settle_bytes = -received(t);
    DT_TRY(dt_gradients_settle(g, t));
    out->settle_bytes += received(t);
    for (int k = 0; k < DT_N_COMM_KINDS; k++) out->comm[k] = dt_tape_comm(t, (dt_comm_kind)k);
    DT_TRY(dti_device_of(rt, &device));
    out->peak = (int64_t)dti_memory_peak(device->memory);
    dti_gathered_bytes(rt, &out->gathered, &out->most);
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
    if (s->random)
        DT_TRY(dt_model_create_random(mesh, s->folder, &o, 7, out));
    else
        DT_TRY(dt_model_load(mesh, s->folder, &o, out));
    if (s->not_ahead) dti_layers_set_ahead(dt_model_layers(*out), 0);
    return DT_OK;
}

static dt_status run(dt_mesh *mesh, const step_of *s, made *out)
{
    DT_HELD(model) *m = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    *out = (made){ 0 };
    DT_TRY(load(mesh, s, &m));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_layers_watch(dt_model_layers(m), g));
    for (int i = 0; i < (s->n_steps > 0 ? s->n_steps : 1); i++) DT_TRY(one_step(m, t, g, s, out));
    DT_TRY(look_at(g, out));
    out->weight_bytes = dt_model_local_bytes(m);
    return DT_OK;
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
    char folder[DT_TEST_PATH_BYTES];

    for (size_t f = 0; f < n; f++) {
        step_of s = { .folder = folder, .dims = dims };
        (void)dt_test_source_path(folder, "tests/golden/%s", folders[f]);
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

/* --- the texts of Transformers ---------------------------------------------------------------- */

DT_TEST(fully_shard, generates_the_same_texts)
{
    static const char *const fixtures[] = { "llama/tied", "qwen3_moe/uneven", "gemma3/uneven",
                                            "phi3/base" };
    static const char *const meshes[] = { "dp=2,tp=1", "dp=3,tp=1", "dp=2,tp=2" };
    const dt_plan plan = { .dim = "dp", .others = "fully_shard", .strict = true };

    for (size_t f = 0; f < DT_COUNT(fixtures); f++) {
        dt_golden x;
        DT_ASSERT_OK(dt_golden_open(fixtures[f], &x));
        x.plan = &plan;
        x.n_greedy = 10;
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            dt_golden_check(fixtures[f], meshes[m], &DT_TEST_RUN_OPTIONS, &x);
        dt_golden_close(&x);
    }
}

/* Linear layers in tiles, of which none is stored as it would be: through the reader of weights. */
DT_TEST(fully_shard, generates_the_same_texts_in_tiles)
{
    static const char *const fixtures[] = { "llama/tied", "qwen2/base", "phi3/base" };
    const dt_plan out = { .dim = "dp", .others = "fully_shard(out_tiles=3)" };
    const dt_plan both = { .dim = "dp", .others = "fully_shard(out_tiles=2,in_tiles=3)" };

    for (size_t f = 0; f < DT_COUNT(fixtures); f++)
        for (int k = 0; k < 2; k++) {
            dt_golden x;
            DT_ASSERT_OK(dt_golden_open(fixtures[f], &x));
            x.plan = k == 0 ? &out : &both;
            x.n_greedy = 5;
            dt_golden_check(fixtures[f], "dp=2,tp=1", &DT_TEST_RUN_OPTIONS, &x);
            dt_golden_close(&x);
        }
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* The micro model of which parallelism is computed by hand: 217664 parameters, 46208 of a block. */
enum { MICRO = 217664, EMBEDDING = 256 * 64, TP_WHOLE = 576 };

static const char *micro_model(char folder[DT_TEST_PATH_BYTES])
{
    static const char config[] =
        "{ \"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
        "\"hidden_size\": 64, \"intermediate_size\": 176, \"num_hidden_layers\": 4, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, "
        "\"vocab_size\": 256, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, "
        "\"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"dtype\": \"float32\" }";

    (void)dt_test_temp_dir(folder);
    dt_test_write_file(folder, "config.json", config, sizeof config - 1);
    return folder;
}

static dt_status predicted(dt_mesh *mesh, const step_of *s, dt_training_cost *out)
{
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_load_options how = DT_LOAD_OPTIONS_INIT;
    dt_loss_options loss = DT_LOSS_OPTIONS_INIT;
    dt_step_options step = DT_STEP_OPTIONS_INIT;
    char text[64];

    (void)snprintf(text, sizeof text, "dp=%d,tp=%d", dt_mesh_dim_size(mesh, 0),
                   dt_mesh_dim_size(mesh, 1));
    how.fully_shard = s->dims;
    o.mesh = text;
    o.batch = ROWS;
    o.sequence = TOKENS;
    o.load = &how;
    loss.recompute = s->recompute;
    loss.n_valid = ROWS * (TOKENS - 1);
    step.loss = &loss;
    DT_TRY(dt_predict_training(NULL, s->folder, &o, &step, dt_runtime_rank(dt_mesh_runtime(mesh)),
                               out));
    return DT_OK;
}

/* Every parameter is gathered there and back, but the embedding's table, of which no gradient needs
 * a value, there alone; every gradient is scattered: by the formula, by what the dry run says, and
 * no more in a second step. On two ranks that is 1273216 bytes. */
static dt_status count_bytes(dt_mesh *mesh, const void *arg)
{
    const step_of *of = arg;
    const int d = dt_mesh_dim_size(mesh, 0), tp = dt_mesh_dim_size(mesh, 1);
    const int64_t whole = 4 * ((MICRO - TP_WHOLE) / tp + TP_WHOLE), table = 4 * EMBEDDING / tp;
    step_of s = *of;
    dt_training_cost cost;
    dt_status st;
    made is;

    DT_TRY(predicted(mesh, &s, &cost));
    for (s.n_steps = 2; s.n_steps >= 1; s.n_steps--) { /* the peak is of all */
        int64_t all = 0, said = 0;
        DT_TRY(run(mesh, &s, &is));
        free(is.gradients);
        DT_EXPECT_EQ_INT(is.weight_bytes, whole / d);
        DT_EXPECT_EQ_INT(is.gradient_bytes, whole / d);
        DT_EXPECT_EQ_INT(is.comm[DT_COMM_ALL_GATHER].bytes, (2 * whole - table) / d * (d - 1));
        DT_EXPECT_EQ_INT(is.comm[DT_COMM_REDUCE_SCATTER].bytes, whole / d * (d - 1));
        if (tp == 1) DT_EXPECT_EQ_INT(is.settle_bytes, 0);
        for (int k = 0; k < DT_N_COMM_KINDS; k++) {
            all += is.comm[k].bytes;
            said += cost.forward.comm[k].bytes + cost.backward.comm[k].bytes +
                    cost.gradients.comm[k].bytes;
        }
        DT_EXPECT_EQ_INT(all, said);
        if (s.n_steps == 2) DT_EXPECT_EQ_INT(is.peak, cost.peak_bytes);
        DT_EXPECT_EQ_INT(is.kept, cost.kept_bytes);
        DT_EXPECT_EQ_INT(cost.weight_bytes, is.weight_bytes);
        DT_EXPECT_EQ_INT(cost.gradient_bytes, is.gradient_bytes);
    }
    s.dims = NULL;
    s.n_steps = 1;
    st = run(mesh, &s, &is);
    free(is.gradients);
    DT_TRY(st);
    DT_EXPECT_EQ_INT(is.weight_bytes, whole);
    if (tp == 1) DT_EXPECT_EQ_INT(is.settle_bytes, 2 * whole / d * (d - 1));
    return DT_OK;
}

DT_TEST(fully_shard, sends_what_the_formula_says)
{
    char folder[DT_TEST_PATH_BYTES];
    step_of s = { .folder = micro_model(folder), .dims = "dp", .random = true };

    dt_test_on_ranks("dp=2,tp=1", count_bytes, &s);
    dt_test_on_ranks("dp=4,tp=1", count_bytes, &s);
    dt_test_on_ranks("dp=2,tp=2", count_bytes, &s);
    s.recompute = DT_RECOMPUTED_BLOCKS; /* the same bytes */
    dt_test_on_ranks("dp=2,tp=1", count_bytes, &s);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Bytes of a tensor as memory counts it. */
static int64_t counted(int64_t elements)
{
    dti_memory *m = NULL;
    dti_storage *x = NULL;
    int64_t bytes;

    DT_ASSERT_OK(dti_memory_create(true, NULL, &m));
    DT_ASSERT_OK(dti_storage_create(m, (size_t)elements * sizeof(float), true, &x));
    bytes = (int64_t)dti_memory_used(m);
    dti_storage_release(x);
    dti_memory_destroy(&m);
    return bytes;
}

typedef struct most_of {
    step_of step;
    int64_t most;
} most_of;

static dt_status gather_most(dt_mesh *mesh, const void *arg)
{
    const most_of *c = arg;
    made is;

    DT_TRY(run(mesh, &c->step, &is));
    free(is.gradients);
    DT_EXPECT_EQ_INT(is.gathered, 0);
    DT_EXPECT_EQ_INT(is.most, c->most);
    return DT_OK;
}

/* One unit and the next, whatever runs again. Not ahead: one parameter at a time, beside that of
 * the norm that is run again for it, or the unit that runs again. */
DT_TEST(fully_shard, gathers_no_more_than_two_units)
{
    const int64_t block =
        2 * counted(64) + 2 * counted(64 * 64) + 2 * counted(32 * 64) + 3 * counted(176 * 64);
    char folder[DT_TEST_PATH_BYTES];
    most_of c = { .step = { .folder = micro_model(folder), .dims = "dp", .random = true } };

    for (int n_steps = 2; n_steps <= 3; n_steps++)
        for (int again = DT_RECOMPUTED_NOTHING; again <= DT_RECOMPUTED_BLOCKS; again++) {
            c.step.n_steps = n_steps;
            c.step.recompute = (dt_recomputed)again;
            c.step.not_ahead = false;
            c.most = 2 * block;
            dt_test_on_ranks("dp=2,tp=1", gather_most, &c);
            c.step.not_ahead = true;
            c.most = again == DT_RECOMPUTED_BLOCKS  ? block
                     : again == DT_RECOMPUTED_CHEAP ? counted(EMBEDDING) + counted(64)
                                                    : counted(EMBEDDING);
            dt_test_on_ranks("dp=2,tp=1", gather_most, &c);
        }
}
