/* SPDX-License-Identifier: Apache-2.0
 *
 * What a training step sends: call by call and byte by byte. */
#include <dtensor.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/golden.h"

enum { ROWS = 2, TOKENS = 8 };

typedef struct scene {
    const char *fixture;
    bool sequence_parallel;
    dt_recomputed recompute;
    int64_t chosen; /* experts of a token; 0: no mixture of them */
} scene;

/* What a tape counted, by kind. */
typedef struct counts {
    dt_comm_counter of[DT_N_COMM_KINDS];
} counts;

static counts since(const dt_tape *t, const counts *before)
{
    counts now;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        now.of[k] = dt_tape_comm(t, (dt_comm_kind)k);
        now.of[k].calls -= before->of[k].calls;
        now.of[k].bytes -= before->of[k].bytes;
    }
    return now;
}

static counts sum(const counts *a, const counts *b)
{
    counts c = *a;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        c.of[k].calls += b->of[k].calls;
        c.of[k].bytes += b->of[k].bytes;
    }
    return c;
}

#define EXPECT(counts_, kind_, calls_, bytes_)                                                  \
    DT_EXPECT((counts_)->of[kind_].calls == (calls_) && (counts_)->of[kind_].bytes == (bytes_), \
              "%s, %s: %s: %lld calls, %lld bytes, not %lld and %lld", s->fixture, #counts_,    \
              dt_comm_kind_name(kind_), (long long)(counts_)->of[kind_].calls,                  \
              (long long)(counts_)->of[kind_].bytes, (long long)(calls_), (long long)(bytes_))

/* With L blocks: each sums 2 activations forward and 2 backward, the embedding 1 forward, the head
 * 1 backward, and the loss 3 numbers of each token in 2 calls. Blocks that run again sum again. Of
 * a mixture of experts the gradients of the weights of a token's experts are summed too. */
static dt_status check_whole(const scene *s, int64_t n_layers, int64_t activation, int64_t ranks,
                             const counts *forward, const counts *backward)
{
    const int64_t one = 2 * (ranks - 1) * activation / ranks;
    const int64_t numbers = 2 * (ranks - 1) * ROWS * TOKENS * 3 * (int64_t)sizeof(float) / ranks;
    const int64_t again = s->recompute == DT_RECOMPUTED_BLOCKS ? 2 * n_layers : 0;
    const int64_t mixed = s->chosen > 0 ? n_layers : 0;
    const int64_t weights =
        2 * (ranks - 1) * ROWS * TOKENS * s->chosen * (int64_t)sizeof(float) / ranks;

    EXPECT(forward, DT_COMM_ALL_REDUCE, 2 * n_layers + 1 + 2, (2 * n_layers + 1) * one + numbers);
    EXPECT(backward, DT_COMM_ALL_REDUCE, 2 * n_layers + 1 + again + mixed,
           (2 * n_layers + 1 + again) * one + mixed * weights);
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        if (k != DT_COMM_ALL_REDUCE) {
            EXPECT(forward, k, 0, 0);
            EXPECT(backward, k, 0, 0);
        }
    return DT_OK;
}

/* Tokens are cut: of each sum there is a reduce-scatter and a gather, half of the bytes each. */
static dt_status check_cut(const scene *s, int64_t n_layers, int64_t activation, int64_t ranks,
                           const counts *forward, const counts *backward)
{
    const int64_t n = 2 * n_layers + 1, half = (ranks - 1) * activation / ranks;

    EXPECT(forward, DT_COMM_REDUCE_SCATTER, n, n * half);
    EXPECT(forward, DT_COMM_ALL_GATHER, n, n * half);
    EXPECT(backward, DT_COMM_REDUCE_SCATTER, n, n * half);
    EXPECT(backward, DT_COMM_ALL_GATHER, n, n * half);
    EXPECT(backward, DT_COMM_ALL_REDUCE, 0, 0);
    return DT_OK;
}

static dt_status check(const scene *s, dt_model *model, const counts *forward,
                       const counts *backward)
{
    const dt_model_info *info = dt_model_info_of(model);
    const int64_t activation = ROWS * TOKENS * info->hidden_size * (int64_t)sizeof(float);
    const int64_t ranks = dt_mesh_n_ranks(dt_model_mesh(model));

    return (s->sequence_parallel ? check_cut : check_whole)(s, info->n_layers, activation, ranks,
                                                            forward, backward);
}

static dt_status run(dt_mesh *mesh, const void *arg)
{
    const counts none = { { { 0 } } };
    const scene *s = arg;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    int32_t ids[ROWS * TOKENS], targets[ROWS * TOKENS];
    char folder[DT_TEST_PATH_BYTES];
    DT_HELD(model) *model = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *loss;
    counts forward, backward, settled;

    for (int i = 0; i < ROWS * TOKENS; i++) targets[i] = (ids[i] = i) + 1;
    load.keep_dtype = false;
    load.dtype = DT_F32;
    load.sequence_parallel = s->sequence_parallel;
    how.recompute = s->recompute;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/%s", s->fixture), &load,
                         &model));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_layers_watch(dt_model_layers(model), g));
    dt_tape_record(t, g);
    loss = dt_model_loss(t, model, dt_model_ids(t, model, ids, ROWS, TOKENS),
                         dt_model_ids(t, model, targets, ROWS, TOKENS), &how);
    forward = since(t, &none);
    dt_backward(t, loss, NULL);
    DT_TRY(dt_tape_status(t));
    backward = since(t, &forward);
    DT_TRY(check(s, model, &forward, &backward));
    DT_TRY(dt_gradients_settle(g, t));
    forward = sum(&forward, &backward);
    settled = since(t, &forward);
    DT_EXPECT(settled.of[DT_COMM_ALL_GATHER].calls == 0, "a gradient is gathered");
    return DT_OK;
}

DT_TEST(gradient_counts, a_block_sums_twice_each_way)
{
    static const char *const fixtures[] = { "llama/tied",  "llama/biases", "qwen2/base",
                                            "qwen3/base",  "phi3/base",    "gemma3/base",
                                            "gpt_neo/base" };

    for (size_t f = 0; f < DT_COUNT(fixtures); f++) {
        dt_test_on_ranks("tp=2", run, &(scene){ fixtures[f], false, DT_RECOMPUTED_NOTHING, 0 });
        dt_test_on_ranks("tp=2", run, &(scene){ fixtures[f], false, DT_RECOMPUTED_BLOCKS, 0 });
        dt_test_on_ranks("tp=2", run, &(scene){ fixtures[f], true, DT_RECOMPUTED_NOTHING, 0 });
    }
}

DT_TEST(gradient_counts, a_mixture_of_experts_sums_its_weights_too)
{
    const char *name = "qwen3_moe/base";

    dt_test_on_ranks("tp=2", run, &(scene){ name, false, DT_RECOMPUTED_NOTHING, 2 });
    dt_test_on_ranks("tp=2", run, &(scene){ name, false, DT_RECOMPUTED_BLOCKS, 2 });
}
