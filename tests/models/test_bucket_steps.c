/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of models whose gradients travel while backward goes on: parameters have the bits, and
 * tapes the bytes, of steps in which nothing does. And two ranks with one microbatch step as one
 * rank with two. */
#include <dtensor/model_training.h>
#include <dtensor/optimizers.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "tests/support/dt_test.h"
#include "tests/support/golden.h"

enum { ROWS = 4, TOKENS = 7, STEPS = 2, MOST = 3 };

typedef struct run_of {
    const char *folder;
    int zero, passes;
    dt_recomputed recompute;
    int64_t chunk, bucket;
    const char *fully_shard;
} run_of;

/* What a run has left, and sent. */
typedef struct left {
    uint64_t hash; /* of this rank's pieces of all parameters */
    int64_t bytes, calls;
    int64_t last_calls; /* within the last pass, before the step */
    double flops;
} left;

static void count(const dt_tape *t, left *out)
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const dt_comm_counter c = dt_tape_comm(t, (dt_comm_kind)k);
        out->bytes += c.bytes;
        out->calls += c.calls;
    }
    out->flops += dt_tape_work(t).flops;
}

static dt_status hash_params(const dt_optimizer *opt, uint64_t *hash)
{
    const dt_gradients *g = dt_optimizer_gradients((dt_optimizer *)opt);
    dt_tensor *w;

    for (int64_t i = 0; (w = dt_gradients_at(g, i)) != NULL; i++) {
        const dt_local *l = dt_tensor_local(w);
        size_t n = dt_dtype_size(l->dtype);
        for (int a = 0; a < l->n_axes; a++) n *= (size_t)l->shape[a];
        *hash = dti_hash_bytes(*hash, l->data, n);
    }
    return DT_OK;
}

/* Pass `pass` of a step has its share of the step's rows. */
static dt_status one_pass(dt_tape *t, dt_model *model, dt_optimizer *opt, const run_of *r, int pass)
{
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    int32_t ids[ROWS * TOKENS], next[ROWS * TOKENS];
    const int rows = ROWS / r->passes;
    dt_tensor *loss;

    for (int i = 0; i < ROWS * TOKENS; i++) {
        ids[i] = 3 + (5 * i + i / 11) % 17;
        next[i] = i % TOKENS == i / TOKENS ? -100 : 3 + (5 * i + 4) % 19;
    }
    how.recompute = r->recompute;
    how.chunk = r->chunk;
    how.n_valid = ROWS * (TOKENS - 1);
    dt_tape_record(t, dt_optimizer_gradients(opt));
    loss = dt_model_loss(t, model, dt_model_ids(t, model, ids + pass * rows * TOKENS, rows, TOKENS),
                         dt_model_ids(t, model, next + pass * rows * TOKENS, rows, TOKENS), &how);
    dt_optimizer_backward(opt, t, loss, pass == r->passes - 1, NULL);
    return dt_tape_status(t);
}

static dt_status train(dt_mesh *mesh, const run_of *r, left *out)
{
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    DT_HELD(model) *model = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    *out = (left){ .hash = 1 };
    load.keep_dtype = false;
    load.dtype = DT_F32;
    load.fully_shard = r->fully_shard;
    o.zero = r->zero;
    o.bucket_bytes = r->bucket;
    DT_TRY(dt_model_load(mesh, r->folder, &load, &model));
    DT_TRY(dt_optimizer_create(dt_model_layers(model), &o, &opt));
    for (int step = 0; step < STEPS; step++) {
        for (int pass = 0; pass < r->passes; pass++) {
            const int64_t calls = out->calls;
            DT_TRY(one_pass(t, model, opt, r, pass));
            count(t, out);
            out->last_calls = out->calls - calls;
            dt_tape_reset(t);
        }
        DT_TRY(dt_optimizer_step(opt, 1e-2, NULL));
        count(dt_optimizer_tape(opt), out);
    }
    return hash_params(opt, &out->hash);
}

static dt_status in_any_buckets(dt_mesh *mesh, const void *arg)
{
    static const int64_t buckets[] = { 1, 20000, INT64_MAX };
    run_of r = *(const run_of *)arg;
    left plain, got[MOST];

    r.bucket = 0;
    DT_TRY(train(mesh, &r, &plain));
    for (int i = 0; i < MOST; i++) {
        r.bucket = buckets[i];
        DT_TRY(train(mesh, &r, &got[i]));
        DT_EXPECT(got[i].hash == plain.hash, "zero %d, %d passes, buckets of %lld: other bits",
                  r.zero, r.passes, (long long)r.bucket);
        DT_EXPECT(got[i].bytes == plain.bytes, "buckets of %lld: %lld bytes, not %lld",
                  (long long)r.bucket, (long long)got[i].bytes, (long long)plain.bytes);
        DT_EXPECT(got[i].flops == plain.flops,
                  "zero %d, %d passes, buckets of %lld: %.0f operations, not %.0f", r.zero,
                  r.passes, (long long)r.bucket, got[i].flops, plain.flops);
    }
    if (dt_mesh_dim_size(mesh, 0) == 1 || r.fully_shard != NULL) return DT_OK;
    DT_EXPECT(got[0].calls > got[1].calls && got[1].calls > got[2].calls,
              "%lld, %lld, %lld calls: not fewer in larger buckets", (long long)got[0].calls,
              (long long)got[1].calls, (long long)got[2].calls);
    DT_EXPECT(r.zero == 2 || got[1].last_calls > plain.last_calls, "nothing went in the last pass");
    return DT_OK;
}

DT_TEST(bucket_steps, bits_bytes_and_work_are_those_without)
{
    static const char *const meshes[] = { "dp=1", "dp=2", "dp=4", "dp=2,tp=2" };
    static const char *const folders[] = { "tests/golden/llama/tied",
                                           "tests/golden/qwen3_moe/base" };
    char folder[DT_TEST_PATH_BYTES];

    for (int i = 0; i < 12; i++) {
        const run_of r = { .folder = dt_test_source_path(folder, "%s", folders[i / 3 % 2]),
                           .zero = i % 3,
                           .passes = 1 + i / 6,
                           .recompute = (dt_recomputed)((i + i / 3) % 3),
                           .chunk = i % 2 ? 3 : 0 };
        dt_test_on_ranks(meshes[(i + i / 4) % 4], in_any_buckets, &r);
    }
}

/* Parameters that are cut themselves: their gradients lie right over that dim, and travel over
 * another one that holds copies, beside gathers of the next block's parameters. */
DT_TEST(bucket_steps, fully_sharded_steps_have_the_bits_of_those_without)
{
    char folder[DT_TEST_PATH_BYTES];
    run_of r = { .folder = dt_test_source_path(folder, "tests/golden/llama/tied"), .passes = 2 };

    for (int recompute = 0; recompute < 3; recompute += 2) {
        r.recompute = (dt_recomputed)recompute;
        r.fully_shard = "dp";
        dt_test_on_ranks("dp=2", in_any_buckets, &r);
        r.fully_shard = "dp_shard";
        dt_test_on_ranks("dp_replicate=2,dp_shard=2", in_any_buckets, &r);
    }
}

/* --- ranks and microbatches ------------------------------------------------------------------- */

typedef struct same {
    run_of of;
    left *out;
} same;

static dt_status first_rank(dt_mesh *mesh, const void *arg)
{
    const same *s = arg;
    left out;

    DT_TRY(train(mesh, &s->of, &out));
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) *s->out = out;
    return DT_OK;
}

/* Sums associate alike: microbatches on one rank, ranks with one microbatch. The control: two ranks
 * with two microbatches add in another order than one rank with four. */
DT_TEST(bucket_steps, two_ranks_step_as_one_with_two_microbatches)
{
    char folder[DT_TEST_PATH_BYTES];
    left one, two;

    if (dt_test_processes() > 1) dt_test_skip("runs compare in one process");
    (void)dt_test_source_path(folder, "tests/golden/llama/tied");
    for (int zero = 0; zero < 3; zero++) {
        same s = { { folder, zero, 2, DT_RECOMPUTED_NOTHING, 0, 0, NULL }, &one };
        dt_test_on_ranks("dp=1", first_rank, &s);
        s = (same){ { folder, zero, 1, DT_RECOMPUTED_BLOCKS, 0, 5000, NULL }, &two };
        dt_test_on_ranks("dp=2", first_rank, &s);
        DT_ASSERT(one.hash == two.hash);
    }
    same s = { { folder, 0, 4, DT_RECOMPUTED_NOTHING, 0, 0, NULL }, &one };
    dt_test_on_ranks("dp=1", first_rank, &s);
    s = (same){ { folder, 0, 2, DT_RECOMPUTED_NOTHING, 0, 0, NULL }, &two };
    dt_test_on_ranks("dp=2", first_rank, &s);
    DT_ASSERT(one.hash != two.hash);
}
