/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step of gradients costs and holds: reductions per block, bytes of sequence parallel, the
 * dry run's prediction against the run, the same bits twice and on all ranks. */
#include <dtensor/inspect.h>
#include <dtensor/model_training.h>
#include <dtensor/ops_loss.h>
#include <dtensor/predict.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "dtensor/device/device.h"
#include "tests/support/dt_test.h"
#include "tests/support/golden.h"

enum { ROWS = 2, TOKENS = 9 };

typedef struct step_of {
    const char *folder;
    bool sequence_parallel;
    dt_recomputed recompute;
    int64_t chunk;
    double n_valid; /* 0: counted, which is a reduction more */
    bool documents; /* two in each sequence */
} step_of;

/* What was counted. */
typedef struct counted {
    dt_comm_counter forward[DT_N_COMM_KINDS], backward[DT_N_COMM_KINDS], leaves[DT_N_COMM_KINDS];
    dt_op_work work;
    int64_t kept, peak;
    int64_t n_layers, n_kv_heads;
    uint64_t hash; /* of this rank's pieces of all gradients */
} counted;

static void counters(const dt_tape *t, dt_comm_counter to[DT_N_COMM_KINDS])
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++) to[k] = dt_tape_comm(t, (dt_comm_kind)k);
}

static void less(dt_comm_counter a[DT_N_COMM_KINDS], const dt_comm_counter b[DT_N_COMM_KINDS])
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        a[k].calls -= b[k].calls;
        a[k].bytes -= b[k].bytes;
    }
}

/* Copies of a gradient have the same bytes on every rank that has them. */
static dt_status same_copies(dt_mesh *mesh, dt_tensor *g)
{
    dt_placement place[DT_MAX_DIMS];
    int64_t shape[DT_MAX_AXES];
    dt_tensor *again = NULL;
    const int n = dt_tensor_n_axes(g);

    for (int m = 0; m < dt_mesh_n_dims(mesh); m++)
        place[m] = dt_layout_placement(dt_tensor_layout(g), m);
    for (int a = 0; a < n; a++) shape[a] = dt_tensor_extent(g, a);
    DT_TRY(dt_from_local_checked(mesh, place, DT_F32, n, shape, dt_tensor_local(g)->data, &again));
    dt_tensor_release(&again);
    return DT_OK;
}

static dt_status look(dt_mesh *mesh, dt_layers *layers, const dt_gradients *g, counted *out)
{
    out->hash = 1;
    for (int64_t i = 0; dt_gradients_at(g, i) != NULL; i++) {
        dt_tensor *x = dt_gradient(g, dt_gradients_at(g, i));
        const dt_local *piece;
        size_t n = sizeof(float);
        DT_EXPECT(x != NULL, "a parameter without gradient");
        piece = dt_tensor_local(x);
        for (int a = 0; a < piece->n_axes; a++) n *= (size_t)piece->shape[a];
        out->hash = dti_hash_bytes(out->hash, piece->data, n);
        DT_TRY(same_copies(mesh, x));
    }
    (void)layers;
    return DT_OK;
}

static dt_status run_step(dt_mesh *mesh, const step_of *s, counted *out)
{
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    int32_t ids[ROWS * TOKENS], next[ROWS * TOKENS], starts[ROWS * TOKENS];
    DT_HELD(model) *model = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dti_device *device;
    dt_tensor *loss;

    memset(out, 0, sizeof *out);
    for (int i = 0; i < ROWS * TOKENS; i++) {
        ids[i] = 3 + 5 * i % 17;
        next[i] = i % TOKENS == 2 ? -100 : 3 + 5 * (i + 1) % 17;
        starts[i] = i % TOKENS < 3 ? 0 : 3;
    }
    load.keep_dtype = false;
    load.dtype = DT_F32;
    load.sequence_parallel = s->sequence_parallel;
    how.recompute = s->recompute;
    how.chunk = s->chunk;
    how.n_valid = s->n_valid;
    how.starts = s->documents ? starts : NULL;
    DT_TRY(dt_model_load(mesh, s->folder, &load, &model));
    out->n_layers = dt_model_info_of(model)->n_layers;
    out->n_kv_heads = dt_model_info_of(model)->n_kv_heads;
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_layers_watch(dt_model_layers(model), g));
    dt_tape_record(t, g);
    loss = dt_model_loss(t, model, dt_model_ids(t, model, ids, ROWS, TOKENS),
                         dt_model_ids(t, model, next, ROWS, TOKENS), &how);
    counters(t, out->forward);
    out->kept = dt_tape_kept_bytes(t);
    dt_backward(t, loss, NULL);
    DT_TRY(dt_tape_status(t));
    counters(t, out->backward);
    DT_TRY(dt_gradients_settle(g, t));
    counters(t, out->leaves);
    less(out->leaves, out->backward);
    less(out->backward, out->forward);
    out->work = dt_tape_work(t);
    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &device));
    out->peak = (int64_t)dti_memory_peak(device->memory);
    return look(mesh, dt_model_layers(model), g, out);
}

/* --- reductions of a block -------------------------------------------------------------------- */

static int64_t bytes_of(const dt_comm_counter c[DT_N_COMM_KINDS])
{
    int64_t n = 0;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) n += c[k].bytes;
    return n;
}

/* Each half of a block reduces once forward and once backward; the embedding once forward, the head
 * once backward; the loss twice forward. With tokens cut between blocks the same bytes travel. */
static dt_status count_block(dt_mesh *mesh, const void *arg)
{
    const step_of *whole = arg;
    step_of cut = *whole;
    counted a, b;
    bool shared;

    cut.sequence_parallel = true;
    DT_TRY(run_step(mesh, whole, &a));
    DT_TRY(run_step(mesh, &cut, &b));
    shared = a.n_kv_heads < dt_mesh_dim_size(mesh, 0);
    DT_EXPECT_EQ_INT(a.forward[DT_COMM_ALL_REDUCE].calls, 1 + 2 * a.n_layers + 2);
    /* keys and values that every rank holds whole are read by other query heads on each */
    DT_EXPECT_EQ_INT(a.backward[DT_COMM_ALL_REDUCE].calls, (shared ? 4 : 2) * a.n_layers + 1);
    DT_EXPECT_EQ_INT(a.backward[DT_COMM_ALL_GATHER].calls, 0);
    DT_EXPECT_EQ_INT(a.backward[DT_COMM_REDUCE_SCATTER].calls, 0);
    DT_EXPECT_EQ_INT(bytes_of(a.leaves), 0);
    DT_EXPECT_EQ_INT(b.forward[DT_COMM_ALL_REDUCE].calls, 2); /* of the loss */
    DT_EXPECT_EQ_INT(b.backward[DT_COMM_ALL_REDUCE].calls, shared ? 2 * a.n_layers : 0);
    if (dt_mesh_dim_size(mesh, 0) ==
        2) { /* tokens that divide: 9 do not by 2, both halves add up */
        DT_EXPECT_EQ_INT(bytes_of(a.forward), bytes_of(b.forward));
        DT_EXPECT_EQ_INT(bytes_of(a.backward), bytes_of(b.backward));
    }
    return DT_OK;
}

DT_TEST(gradient_steps, a_block_reduces_twice_forward_and_twice_backward)
{
    static const char *const dense[] = { "llama/uneven", "qwen2/base", "phi3/uneven" };
    char folder[DT_TEST_PATH_BYTES];

    for (size_t f = 0; f < DT_COUNT(dense); f++) {
        step_of s = { .folder = folder, .n_valid = ROWS * TOKENS };
        (void)dt_test_source_path(folder, "tests/golden/%s", dense[f]);
        dt_test_on_ranks("tp=2", count_block, &s);
        dt_test_on_ranks("tp=3", count_block, &s);
    }
}

/* --- the dry run ------------------------------------------------------------------------------ */

typedef struct predicted {
    step_of step;
    const char *mesh;
} predicted;

static dt_status same_counters(const dt_comm_counter *a, const dt_comm_counter *b, const char *what)
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        DT_EXPECT(a[k].calls == b[k].calls && a[k].bytes == b[k].bytes,
                  "%s: %s predicted %lld x %lld bytes, counted %lld x %lld", what,
                  dt_comm_kind_name((dt_comm_kind)k), (long long)a[k].calls, (long long)a[k].bytes,
                  (long long)b[k].calls, (long long)b[k].bytes);
    return DT_OK;
}

static dt_status expect(dt_mesh *mesh, const predicted *p, dt_training_cost *out)
{
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_loss_options loss = DT_LOSS_OPTIONS_INIT;
    dt_step_options step = DT_STEP_OPTIONS_INIT;
    dt_runtime *rt = dt_mesh_runtime(mesh);
    static const int32_t nothing = 0;

    o.mesh = p->mesh;
    o.batch = ROWS;
    o.sequence = TOKENS;
    o.load = &load;
    load.keep_dtype = false;
    load.dtype = DT_F32;
    load.sequence_parallel = p->step.sequence_parallel;
    loss.recompute = p->step.recompute;
    loss.chunk = p->step.chunk;
    loss.starts = p->step.documents ? &nothing : NULL; /* is not read */
    step.loss = &loss;
    DT_TRY(dt_predict_training(rt, p->step.folder, &o, &step, dt_runtime_rank(rt), out));
    return DT_OK;
}

static dt_status predict(dt_mesh *mesh, const void *arg)
{
    const predicted *p = arg;
    dt_training_cost expected;
    counted is, again;

    DT_TRY(expect(mesh, p, &expected));
    DT_TRY(run_step(mesh, &p->step, &is));
    DT_TRY(run_step(mesh, &p->step, &again));
    DT_TRY(same_counters(expected.forward.comm, is.forward, "forward"));
    DT_TRY(same_counters(expected.backward.comm, is.backward, "backward"));
    DT_TRY(same_counters(expected.gradients.comm, is.leaves, "leaves"));
    DT_EXPECT_EQ_INT(expected.kept_bytes, is.kept);
    DT_EXPECT_EQ_INT(expected.peak_bytes, is.peak);
    DT_EXPECT_CLOSE(expected.forward.work.flops + expected.backward.work.flops +
                        expected.gradients.work.flops,
                    is.work.flops, 0.5);
    DT_EXPECT(is.work.flops > 0, "operations are counted");
    DT_EXPECT(is.hash == again.hash, "two runs give other bits");
    return DT_OK;
}

static void predict_all(bool sequence_parallel, dt_recomputed recompute)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };

    for (size_t f = 0; f < DT_GOLDEN_FIXTURES; f++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            char folder[DT_TEST_PATH_BYTES];
            predicted p = { .mesh = meshes[m] };
            if (!dt_test_is_due(f, m, DT_COUNT(meshes), 2)) continue;
            p.step = (step_of){ .folder = dt_test_source_path(folder, "tests/golden/%s",
                                                              dt_golden_fixtures[f]),
                                .sequence_parallel = sequence_parallel,
                                .recompute = recompute,
                                .chunk = 4 };
            dt_test_on_ranks(meshes[m], predict, &p);
        }
}

DT_TEST(gradient_steps, are_what_the_dry_run_says_and_the_same_twice)
{
    predict_all(false, DT_RECOMPUTED_NOTHING);
}

DT_TEST(gradient_steps, with_tokens_cut_and_less_kept_are_predicted_too)
{
    dt_test_long();
    predict_all(true, DT_RECOMPUTED_CHEAP);
    predict_all(false, DT_RECOMPUTED_BLOCKS);
}

/* Tokens that are cut evenly (9 by 3), and not, and fewer in a chunk than ranks. */
DT_TEST(gradient_steps, with_tokens_cut_and_chunks_are_what_the_dry_run_says)
{
    static const char *const some[] = { "llama/uneven", "gpt_neo/base", "qwen3_moe/base" };
    static const char *const meshes[] = { "tp=3", "tp=2", "dp=2,tp=3" };

    for (size_t f = 0; f < DT_COUNT(some); f++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            char folder[DT_TEST_PATH_BYTES];
            predicted p = { .mesh = meshes[m] };
            if (!dt_test_is_due(f, m, DT_COUNT(meshes), 2)) continue;
            p.step = (step_of){ .folder = dt_test_source_path(folder, "tests/golden/%s", some[f]),
                                .sequence_parallel = true,
                                .recompute = (dt_recomputed)f,
                                .chunk = m == 0 ? 2 : 6 };
            dt_test_on_ranks(p.mesh, predict, &p);
        }
}

/* A head in chunks of tokens that every rank has an equal part of sends what a whole one does; on
 * the way back once more, as it runs again. */
static dt_status chunks_send_the_same(dt_mesh *mesh, const void *arg)
{
    const step_of *whole = arg;
    step_of few = *whole;
    counted a, b;

    few.chunk = 3;
    DT_TRY(run_step(mesh, whole, &a));
    DT_TRY(run_step(mesh, &few, &b));
    DT_EXPECT_EQ_INT(b.forward[DT_COMM_ALL_GATHER].calls, a.forward[DT_COMM_ALL_GATHER].calls + 2);
    DT_EXPECT_EQ_INT(b.forward[DT_COMM_ALL_GATHER].bytes, a.forward[DT_COMM_ALL_GATHER].bytes);
    DT_EXPECT_EQ_INT(b.forward[DT_COMM_REDUCE_SCATTER].bytes,
                     a.forward[DT_COMM_REDUCE_SCATTER].bytes);
    DT_EXPECT_EQ_INT(b.backward[DT_COMM_REDUCE_SCATTER].bytes,
                     a.backward[DT_COMM_REDUCE_SCATTER].bytes);
    DT_EXPECT_EQ_INT(b.forward[DT_COMM_ALL_TO_ALL].bytes + b.backward[DT_COMM_ALL_TO_ALL].bytes, 0);
    DT_EXPECT(b.kept < a.kept, "kept %lld, %lld", (long long)b.kept, (long long)a.kept);
    return DT_OK;
}

DT_TEST(gradient_steps, of_cut_tokens_send_nothing_more_for_chunks)
{
    char folder[DT_TEST_PATH_BYTES];
    const step_of s = { .folder = dt_test_source_path(folder, "tests/golden/llama/uneven"),
                        .sequence_parallel = true,
                        .recompute = DT_RECOMPUTED_BLOCKS,
                        .n_valid = ROWS * TOKENS };

    dt_test_on_ranks("tp=3", chunks_send_the_same, &s);
}

/* Of a vocabulary of 128256 on eight ranks: of the logits and their gradient one chunk is left. */
DT_TEST(gradient_steps, of_cut_tokens_hold_one_chunk_of_logits)
{
    static const char config[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 64,"
        " \"num_attention_heads\": 8, \"num_hidden_layers\": 1, \"vocab_size\": 128256,"
        " \"max_position_embeddings\": 4096, \"torch_dtype\": \"bfloat16\"}";
    enum { LENGTH = 4096, CHUNK = 256 };
    const int64_t token = 128256 / 8 * 2;     /* bytes of its logits */
    const int64_t head = 128256 / 8 * 64 * 4; /* of a gradient: chunks add up to another one */
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_loss_options loss = DT_LOSS_OPTIONS_INIT;
    dt_step_options step = DT_STEP_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    int64_t peak[2][2];

    dt_test_write_file(dt_test_temp_dir(folder), "config.json", config, sizeof config - 1);
    o.mesh = "tp=8";
    o.batch = 1;
    o.sequence = LENGTH;
    o.load = &load;
    step.loss = &loss;
    for (int cut = 0; cut < 2; cut++)
        for (int few = 0; few < 2; few++) {
            dt_training_cost cost;
            load.sequence_parallel = cut != 0;
            loss.chunk = few != 0 ? CHUNK : 0;
            DT_ASSERT_OK(dt_predict_training(NULL, folder, &o, &step, 0, &cost));
            peak[cut][few] = cost.peak_bytes;
        }
    DT_ASSERT(peak[1][0] - peak[1][1] >= 2 * (LENGTH - CHUNK) * token - head);
    DT_ASSERT(peak[1][1] <= peak[0][1]);
    dt_test_remove_dir(folder);
}

DT_TEST(gradient_steps, of_documents_are_what_the_dry_run_says)
{
    static const char *const some[] = { "llama/uneven", "gpt_neo/base", "gemma3/base" };

    for (size_t f = 0; f < DT_COUNT(some); f++)
        for (int k = 0; k < 3; k++) {
            char folder[DT_TEST_PATH_BYTES];
            predicted p = { .mesh = k == 1 ? "dp=2,tp=2" : "tp=2" };
            p.step = (step_of){ .folder = dt_test_source_path(folder, "tests/golden/%s", some[f]),
                                .recompute = k == 2 ? DT_RECOMPUTED_BLOCKS : DT_RECOMPUTED_NOTHING,
                                .documents = true };
            dt_test_on_ranks(p.mesh, predict, &p);
        }
}

DT_TEST(gradient_steps, options_of_a_prediction_are_judged)
{
    char folder[DT_TEST_PATH_BYTES];
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_training_cost cost;

    (void)dt_test_source_path(folder, "tests/golden/llama/tied");
    DT_ASSERT_OK(dt_predict_training(NULL, folder, NULL, NULL, 0, &cost));
    DT_ASSERT(cost.sequence > 0 && cost.kept_bytes > 0);
    DT_ASSERT_STATUS(dt_predict_training(NULL, NULL, NULL, NULL, 0, &cost), DT_ERR_ARG, "NULL");
    DT_ASSERT_STATUS(dt_predict_training(NULL, folder, NULL, NULL, 1, &cost), DT_ERR_ARG,
                     "rank 1 of a mesh of 1");
    o.sequence = -1;
    DT_ASSERT_STATUS(dt_predict_training(NULL, folder, &o, NULL, 0, &cost), DT_ERR_ARG, "sequence");
    o.sequence = 1;
    o.batch = (int64_t)1 << 40;
    DT_ASSERT_STATUS(dt_predict_training(NULL, folder, &o, NULL, 0, &cost), DT_ERR_ARG,
                     "sequences are possible");
}
