/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks say that they hold: by kind, on GPUs with the memory of recorded passes. */
#include <dtensor.h>
#include <string.h>

#include "models/judge/prediction.h"
#include "models/run/step.h"
#include "tests/support/cuda.h"

enum { N_PROMPT = 4, N_NEW = 6, MAX_RANKS = 2 };

typedef struct memory_case {
    bool recorded; /* on a GPU, alone */
} memory_case;

static dt_status adds_up(dt_model *m, dt_rank_memory_kinds *mine)
{
    const int me = dt_runtime_rank(dt_mesh_runtime(dt_model_mesh(m)));
    dt_rank_memory_kinds kinds[MAX_RANKS];
    dt_rank_memory all[MAX_RANKS];

    DT_TRY(dt_model_memory(m, all));
    DT_TRY(dt_model_memory_kinds(m, kinds));
    for (int r = 0; r < dt_mesh_n_ranks(dt_model_mesh(m)); r++) {
        const dt_rank_memory_kinds *k = &kinds[r];
        DT_EXPECT(k->rank == r && all[r].rank == r, "rank %d", k->rank);
        DT_EXPECT(k->weights_bytes + k->caches_bytes + k->states_bytes + k->recorded_bytes +
                          k->values_bytes ==
                      all[r].allocated_bytes,
                  "kinds do not add up to %lld", (long long)all[r].allocated_bytes);
        DT_EXPECT(k->weights_bytes == all[r].cut_bytes + all[r].whole_bytes, "weights are %lld",
                  (long long)k->weights_bytes);
        DT_EXPECT(all[r].peak_bytes >= all[r].allocated_bytes &&
                      all[r].reserved_bytes >= all[r].allocated_bytes,
                  "%lld at most, %lld reserved", (long long)all[r].peak_bytes,
                  (long long)all[r].reserved_bytes);
    }
    *mine = kinds[me];
    return DT_OK;
}

static dt_status pass(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids, int64_t n)
{
    dt_tape_reset(t);
    (void)dt_model_forward(t, m, s, ids, n, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    return DT_OK;
}

static dt_status watch_decoding(dt_mesh *mesh, const void *arg)
{
    static const int32_t ids[N_PROMPT + N_NEW] = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3 };
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    const memory_case *c = arg;
    char path[DT_TEST_PATH_BYTES];
    dt_rank_memory_kinds k;
    DT_HELD(model) *m = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(state) *s = NULL;

    options.keep_dtype = false;
    DT_TRY(
        dt_model_load(mesh, dt_test_source_path(path, "tests/golden/llama/uneven"), &options, &m));
    DT_TRY(adds_up(m, &k));
    DT_EXPECT(k.weights_bytes > 0 && k.caches_bytes == 0 && k.recorded_bytes == 0,
              "%lld of weights", (long long)k.weights_bytes);
    DT_TRY(dt_state_create(m, 1, N_PROMPT + N_NEW, &s));
    DT_TRY(pass(t, m, s, ids, N_PROMPT));
    for (int i = 0; i < N_NEW; i++) DT_TRY(pass(t, m, s, ids + N_PROMPT + i, 1));
    DT_TRY(adds_up(m, &k));
    DT_EXPECT(k.caches_bytes == dti_state_bytes(s) && k.values_bytes > 0,
              "%lld of caches, %lld of values", (long long)k.caches_bytes,
              (long long)k.values_bytes);
    DT_EXPECT(dt_state_is_recorded(s) == c->recorded && (k.recorded_bytes > 0) == c->recorded,
              "%lld recorded", (long long)k.recorded_bytes);
    dt_state_release(&s);
    DT_TRY(adds_up(m, &k));
    DT_EXPECT(k.caches_bytes == 0 && k.recorded_bytes == 0,
              "%lld of caches, %lld recorded after the state", (long long)k.caches_bytes,
              (long long)k.recorded_bytes);
    return DT_OK;
}

DT_TEST(cuda_memory, kinds_add_up_to_what_is_allocated)
{
    const memory_case plain = { false }, recorded = { true };

    dt_test_on_ranks("tp=1", watch_decoding, &plain);
    dt_test_on_ranks("tp=2", watch_decoding, &plain);
    dt_test_on_gpus("tp=1", watch_decoding, &recorded);
    dt_test_on_gpus("tp=2", watch_decoding, &plain);
}

static dt_status refuse_null(dt_mesh *mesh, const void *arg)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    dt_rank_memory_kinds k;
    dt_model *m = NULL;
    dt_status st;

    (void)arg;
    DT_EXPECT(dt_model_memory_kinds(NULL, &k) == DT_ERR_ARG, "no model");
    DT_TRY(
        dt_model_load(mesh, dt_test_source_path(path, "tests/golden/llama/uneven"), &options, &m));
    st = dt_model_memory_kinds(m, NULL);
    dt_model_release(&m);
    DT_EXPECT(st == DT_ERR_ARG, "no place for the answer: %s", dt_status_name(st));
    return DT_OK;
}

DT_TEST(cuda_memory, kinds_without_a_model_or_a_place_are_refused)
{
    dt_test_on_ranks("tp=1", refuse_null, NULL);
}
