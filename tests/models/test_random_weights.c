/* SPDX-License-Identifier: Apache-2.0
 *
 * Models with random weights: the same on every mesh, of any shape that config.json says. */
#include <dtensor.h>
#include <math.h>

#include "tests/support/dt_test.h"

enum { N_IDS = 5 };

/* The logits of a prompt, and of the same model with another seed. */
static dt_status logits_of(dt_mesh *mesh, const char *folder, uint64_t seed, dt_tensor **out)
{
    static const int32_t ids[N_IDS] = { 3, 1, 4, 1, 5 };
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    DT_HELD(model) *model = NULL;
    DT_HELD(state) *state = NULL;
    DT_HELD(tape) *tape = dt_test_tape(mesh);

    options.keep_dtype = false;
    DT_TRY(dt_model_create_random(mesh, dt_test_source_path(path, "%s", folder), &options, seed,
                                  &model));
    DT_TRY(dt_state_create(model, 1, N_IDS, &state));
    DT_TRY(dt_full_tensor(dt_model_forward(tape, model, state, ids, N_IDS, DT_LOGITS_LAST), out));
    return DT_OK;
}

typedef struct random_case {
    const char *folder;
    float *want; /* [vocab] of one rank, written by the first run */
} random_case;

static dt_status compare(dt_mesh *mesh, const void *arg)
{
    const random_case *c = arg;
    DT_HELD(tensor) *mine = NULL, *other = NULL;
    bool same = true;
    int64_t n;

    DT_TRY(logits_of(mesh, c->folder, 7, &mine));
    DT_TRY(logits_of(mesh, c->folder, 8, &other));
    DT_TRY(dt_equal(mine, other, &same));
    DT_EXPECT(!same, "seeds 7 and 8 give the same model");
    n = dt_tensor_extent(mine, 2);
    if (dt_mesh_n_ranks(mesh) == 1) {
        DT_TRY(dt_tensor_read(mine, c->want, (size_t)n * sizeof(float)));
    } else {
        const float *got = dt_tensor_local(mine)->data;
        for (int64_t i = 0; i < n; i++)
            DT_EXPECT(fabsf(got[i] - c->want[i]) <= 1e-5f * (1 + fabsf(c->want[i])),
                      "logit %d is %g, on one rank %g", (int)i, (double)got[i], (double)c->want[i]);
    }
    return DT_OK;
}

DT_TEST(random_weights, are_the_same_on_every_mesh)
{
    static const char *const folders[] = { "tests/golden/llama/uneven", "tests/golden/gemma3/base",
                                           "tests/golden/gpt_neo/base" };
    static float want[4096];

    for (size_t i = 0; i < DT_COUNT(folders); i++) {
        const random_case c = { folders[i], want };
        dt_test_on_ranks("tp=1", compare, &c);
        dt_test_on_ranks("tp=2", compare, &c);
        dt_test_on_ranks("tp=3", compare, &c);
    }
}

static dt_status make(dt_mesh *mesh, const void *folder)
{
    dt_model *model;

    DT_TRY(dt_model_create_random(mesh, folder, NULL, 1, &model));
    dt_model_release(&model);
    return DT_OK;
}

DT_TEST(random_weights, need_a_configuration)
{
    dt_test_on_ranks_fail("tp=1", make, "tests/golden/none", DT_ERR_IO, "tests/golden/none");
    dt_test_on_ranks_fail("tp=2", make, NULL, DT_ERR_ARG, "dir is NULL");
}
