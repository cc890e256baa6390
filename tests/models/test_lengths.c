/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers of tokens at the end of what numbers hold. */
#include <dtensor/generation.h>

#include "tests/support/dt_test.h"

/* Prompt and new tokens together are more than a number holds. */
static dt_status as_many_as_numbers(dt_mesh *mesh, const void *arg)
{
    static const int32_t prompt[] = { 1, 2, 3 };
    static const int64_t most[] = { INT64_MAX, INT64_MAX - 1, INT64_MAX - 3, 9 };
    char folder[DT_TEST_PATH_BYTES];
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    int64_t n;

    (void)arg;
    (void)dt_test_source_path(folder, "tests/golden/gpt_neo/uneven");
    DT_TRY(dt_model_load(mesh, folder, NULL, &m));
    DT_TRY(dt_state_create(m, 1, 10, &s));
    for (size_t i = 0; i < DT_COUNT(most); i++) {
        o.max_new_tokens = most[i];
        DT_EXPECT_STATUS(dt_generate(m, s, prompt, 3, &o, NULL, &n), DT_ERR_ARG,
                         "new ones exceed the context of 10");
    }
    o.min_new_tokens = INT64_MAX; /* a length that no end token is before */
    o.max_new_tokens = 2;
    DT_TRY(dt_generate(m, s, prompt, 3, &o, NULL, &n));
    DT_EXPECT(n == 2, "%d tokens", (int)n);
    return DT_OK;
}

DT_TEST(lengths, more_new_tokens_than_numbers_hold_are_refused)
{
    dt_test_on_ranks("tp=1", as_many_as_numbers, NULL);
    dt_test_on_ranks("tp=2", as_many_as_numbers, NULL);
}
