/* SPDX-License-Identifier: Apache-2.0
 *
 * More ranks than cores, random meshes, random collectives on random sub-meshes, waited for in any
 * order. A few repetitions here; the long tests ask for a thousand by DTENSOR_STRESS. */
#include <stdlib.h>

#include "mesh/runtime.h"
#include "tests/support/comm_model.h"
#include "tests/support/dt_test.h"

enum { N_RANKS = 8, STEPS = 60, FEW = 8 };

/* All ranks in an order that `seed` decides. */
static void shuffle(uint64_t seed, int ranks[N_RANKS])
{
    for (int i = 0; i < N_RANKS; i++) ranks[i] = i;
    for (int i = N_RANKS - 1; i > 0; i--) {
        const int k = (int)(comm_hash(seed, (uint64_t)i, 5) % (uint64_t)(i + 1));
        const int swapped = ranks[i];
        ranks[i] = ranks[k];
        ranks[k] = swapped;
    }
}

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    static const char *const specs[] = { "a=8",         "a=2,b=4", "a=4,b=2",
                                         "a=2,b=2,c=2", "a=3,b=2", "a=5" };
    const uint64_t seed = *(const uint64_t *)arg;
    dt_status st = DT_OK;
    dt_mesh *mesh = NULL;
    int ranks[N_RANKS];

    for (uint64_t i = 0; i < 2 && st == DT_OK; i++) { /* the second one shares some groups */
        const uint64_t h = comm_hash(seed, i, 6);
        shuffle(h, ranks);
        DT_TRY(dt_mesh_create_ranks(rt, specs[h % DT_COUNT(specs)], ranks, &mesh));
        if (dt_mesh_is_member(mesh)) st = comm_random_steps(mesh, h % 1000000, STEPS, NULL);
        dt_mesh_release(&mesh);
    }
    return st;
}

DT_TEST(stress, random_collectives_on_random_meshes)
{
    const char *wanted = getenv("DTENSOR_STRESS");
    const uint64_t n = wanted != NULL ? (uint64_t)atoll(wanted) : FEW;
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.n_ranks = N_RANKS;
    for (uint64_t seed = 0; seed < n; seed++) DT_ASSERT_OK(dt_run(&o, on_rank, (void *)&seed));
}
