/* SPDX-License-Identifier: Apache-2.0
 *
 * Beams that find no text or often an end, and words that begin with the prompt's first token. What
 * else is found is in test_generation.c. */
#include <dtensor/generation.h>

#include <string.h>

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

/* --- ends ------------------------------------------------------------------------------------- */

enum { FEW = 4, N_NEW = 6 };

/* Of four tokens two are ends. Where both ends of both beams are the best, as many candidates have
 * to be looked at that beams go on: naming an end again, which makes them more, changes nothing. */
static dt_status end_often(dt_mesh *mesh, const void *arg)
{
    static const int32_t prompt[] = { 1, 2, 3 };
    const dt_ids one = { prompt, 3 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    DT_HELD(model) *m = NULL;

    (void)arg;
    DT_TRY(
        dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/gpt_neo/uneven"), NULL, &m));
    o.num_beams = o.num_return_sequences = 2;
    o.max_new_tokens = N_NEW;
    o.length_penalty = 4; /* long texts are the best */
    o.early_stopping = DT_EARLY_STOPPING_NEVER;
    for (int32_t first = 0; first + FEW <= VOCAB; first++) {
        const int32_t ends[] = { first, first + 1, first, first + 1, first };
        int32_t others[VOCAB];
        dt_generated *g[2] = { NULL, NULL };
        int64_t n = 0;
        bool same = true;
        for (int32_t i = 0; i < VOCAB; i++)
            if (i < first || i >= first + FEW) others[n++] = i;
        o.suppress_tokens = (dt_ids){ others, n };
        for (int i = 0; i < 2; i++) {
            o.eos = (dt_ids){ ends, i == 0 ? 2 : 5 };
            DT_TRY(dt_generate_batch(m, &one, 1, &o, &g[i]));
        }
        for (int64_t r = 0; r < 2; r++) {
            const dt_ids a = dt_generated_ids(g[0], r), b = dt_generated_ids(g[1], r);
            same = same && a.n == b.n && memcmp(a.ids, b.ids, (size_t)a.n * sizeof *a.ids) == 0;
        }
        for (int i = 0; i < 2; i++) dt_generated_release(&g[i]);
        DT_EXPECT(same, "tokens from %d on", (int)first);
    }
    return DT_OK;
}

DT_TEST(beams, enough_candidates_are_looked_at_to_go_on)
{
    dt_test_on_ranks("tp=1", end_often, NULL);
    dt_test_on_ranks("tp=2", end_often, NULL);
}

/* --- words ------------------------------------------------------------------------------------ */

/* A word of which all but the last token is the whole prompt is banned as any other. */
static dt_status ban_a_word(dt_mesh *mesh, const void *arg)
{
    int32_t word[] = { 1, 2, 3, 0 }, chosen[2];
    const dt_ids prompt = { word, 3 }, banned = { word, 4 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    DT_HELD(model) *m = NULL;

    (void)arg;
    DT_TRY(
        dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/gpt_neo/uneven"), NULL, &m));
    o.max_new_tokens = 1;
    for (int i = 0; i < 2; i++) {
        dt_generated *g;
        DT_TRY(dt_generate_batch(m, &prompt, 1, &o, &g));
        chosen[i] = dt_generated_ids(g, 0).ids[0];
        dt_generated_release(&g);
        word[3] = chosen[i];
        o.bad_words = &banned;
        o.n_bad_words = 1;
    }
    DT_EXPECT(chosen[0] != chosen[1], "token %d comes again", (int)chosen[1]);
    return DT_OK;
}

DT_TEST(beams, a_word_may_begin_with_the_first_token)
{
    dt_test_on_ranks("tp=1", ban_a_word, NULL);
    dt_test_on_ranks("tp=3", ban_a_word, NULL);
}
