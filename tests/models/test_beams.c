/* SPDX-License-Identifier: Apache-2.0
 *
 * Beams that find no text. What they find is in test_generation.c. */
#include <dtensor/generation.h>

#include "tests/support/dt_test.h"

enum { VOCAB = 101 };

/* Neither an empty text nor "none" says what has happened. */
static dt_status find_nothing(dt_mesh *mesh, const void *arg)
{
    static const int32_t prompt[] = { 1, 2, 3 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    const dt_ids one = { prompt, 3 };
    char folder[DT_TEST_PATH_BYTES];
    int32_t all[VOCAB];
    dt_generated *g;
    dt_model *m;

    (void)arg;
    for (int i = 0; i < VOCAB; i++) all[i] = i;
    DT_TRY(
        dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/gpt_neo/uneven"), NULL, &m));
    o.num_beams = 2;
    o.suppress_tokens = (dt_ids){ all, VOCAB };
    DT_EXPECT_STATUS(dt_generate_batch(m, &one, 1, &o, &g), DT_ERR_ARG,
                     "without text 1 of prompt 1");
    o.suppress_tokens = (dt_ids)DT_IDS_NONE;
    o.length_penalty = -10000; /* every score is infinite */
    DT_EXPECT_STATUS(dt_generate_batch(m, &one, 1, &o, &g), DT_ERR_ARG, "length_penalty -10000");
    DT_EXPECT(g == NULL, "result");
    dt_model_release(&m);
    return DT_OK;
}

DT_TEST(beams, ending_with_nothing_is_an_error)
{
    dt_test_on_ranks("tp=1", find_nothing, NULL);
    dt_test_on_ranks("tp=3", find_nothing, NULL);
}
