/* SPDX-License-Identifier: Apache-2.0
 *
 * Log-probabilities of new tokens against scores that are shown, and what biases and penalties of
 * new tokens do to these, on meshes that cut the vocabulary and the rows. Transformers' sequence
 * bias has goldens of its own (test_processors.c). */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"
#include <dtensor/generation.h>

enum { N_NEW = 7, VOCAB = 257, ROWS = 2, BEST = 3 };

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "dp=2", "dp=2,tp=2" };

static const int32_t first[] = { 5, 77, 130 }, second[] = { 9, 9, 31, 200, 4 };
static const dt_ids prompts[ROWS] = { { first, 3 }, { second, 5 } };

/* Scores of every step as they were shown. */
typedef struct shown {
    float scores[N_NEW][ROWS][VOCAB];
    int64_t n;
} shown;

static void on_scores(void *arg, int64_t n, const float *scores, int64_t n_rows, int64_t vocab)
{
    shown *x = arg;

    if (n != x->n || n >= N_NEW || n_rows != ROWS || vocab != VOCAB) return;
    memcpy(x->scores[n], scores, sizeof x->scores[n]);
    x->n++;
}

static dt_status generate(dt_mesh *mesh, const dt_generate_options *options, shown *x,
                          dt_generated **out)
{
    char path[DT_TEST_PATH_BYTES];
    dt_generate_options o = *options;
    DT_HELD(model) *model = NULL;

    *x = (shown){ .n = 0 };
    o.max_new_tokens = N_NEW;
    o.ignore_eos = true;
    o.on_scores = on_scores;
    o.scores_arg = x;
    DT_TRY(
        dt_model_load(mesh, dt_test_source_path(path, "tests/golden/llama/uneven"), NULL, &model));
    DT_TRY(dt_generate_batch(model, prompts, ROWS, &o, out));
    DT_EXPECT(x->n == N_NEW, "%lld steps", (long long)x->n);
    return DT_OK;
}

/* The rank of a score in its row: how many are better, at equal scores the lower token first. */
static int better(const float *row, int32_t id)
{
    int n = 0;

    for (int i = 0; i < VOCAB; i++) n += row[i] > row[id] || (row[i] == row[id] && i < id);
    return n;
}

static double log_sum(const float *row)
{
    double sum = 0;

    for (int i = 0; i < VOCAB; i++) sum += exp((double)row[i]);
    return log(sum);
}

static dt_status are_of_scores(dt_mesh *mesh, const void *arg)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_FREED shown *own = NULL;
    DT_HELD(generated) *g = NULL;

    (void)arg;
    DT_TRY(dti_alloc(sizeof *own, (void **)&own));
    o.n_logprobs = BEST;
    DT_TRY(generate(mesh, &o, own, &g));
    for (int i = 0; i < ROWS; i++)
        for (int n = 0; n < N_NEW; n++) {
            const float *row = own->scores[n][i];
            const double sum = log_sum(row);
            int64_t n_list;
            const dt_logprob *list = dt_generated_logprobs(g, i, n, &n_list);
            DT_EXPECT(n_list == BEST + 1 && list[0].id == dt_generated_ids(g, i).ids[n],
                      "text %d, token %d", i, n);
            for (int k = 0; k <= BEST; k++)
                DT_EXPECT(fabs((double)list[k].logprob - ((double)row[list[k].id] - sum)) < 1e-5,
                          "text %d, token %d: %g", i, n, (double)list[k].logprob);
            for (int k = 1; k <= BEST; k++)
                DT_EXPECT(better(row, list[k].id) == k - 1, "text %d, token %d", i, n);
        }
    DT_EXPECT(dt_generated_logprobs(g, 0, N_NEW, &(int64_t){ 0 }) == NULL, "past the end");
    return DT_OK;
}

DT_TEST(logprobs, are_those_of_the_models_own_scores)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], are_of_scores, NULL);
}

/* Sampled with everything that changes scores: what is told stays the model's own. */
static dt_status stay_the_models_own(dt_mesh *mesh, const void *arg)
{
    static const int32_t word[] = { 3 };
    static const dt_bias bias[] = { { { word, 1 }, 50 } };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_FREED shown *plain = NULL, *biased = NULL;
    DT_HELD(generated) *a = NULL, *b = NULL;
    int64_t n;

    (void)arg;
    DT_TRY(dti_alloc(sizeof *plain, (void **)&plain));
    DT_TRY(dti_alloc(sizeof *biased, (void **)&biased));
    o.n_logprobs = VOCAB;
    DT_TRY(generate(mesh, &o, plain, &a));
    o.sequence_bias = bias;
    o.n_sequence_bias = 1;
    o.do_sample = true;
    o.temperature = 0.5;
    DT_TRY(generate(mesh, &o, biased, &b));
    DT_EXPECT(dt_generated_ids(b, 0).ids[0] == 3, "%d", dt_generated_ids(b, 0).ids[0]);
    DT_EXPECT(memcmp(dt_generated_logprobs(a, 0, 0, &n) + 1, dt_generated_logprobs(b, 0, 0, &n) + 1,
                     VOCAB * sizeof(dt_logprob)) == 0,
              "other log-probabilities");
    return DT_OK;
}

DT_TEST(logprobs, do_not_change_with_what_is_done_to_scores)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        dt_test_on_ranks(meshes[m], stay_the_models_own, NULL);
}

/* OpenAI's rule, from the scores of the same tokens without it. */
static dt_status follow_the_rule(dt_mesh *mesh, const void *arg)
{
    static const int32_t word[] = { 3 };
    static const dt_bias bias[] = { { { word, 1 }, 100 } };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_FREED shown *plain = NULL, *penalised = NULL;
    DT_HELD(generated) *a = NULL, *b = NULL;

    (void)arg;
    DT_TRY(dti_alloc(sizeof *plain, (void **)&plain));
    DT_TRY(dti_alloc(sizeof *penalised, (void **)&penalised));
    o.sequence_bias = bias; /* one token, always: so all steps of both see the same */
    o.n_sequence_bias = 1;
    DT_TRY(generate(mesh, &o, plain, &a));
    o.presence_penalty = 1.5;
    o.frequency_penalty = -0.25;
    DT_TRY(generate(mesh, &o, penalised, &b));
    for (int n = 0; n < N_NEW; n++)
        for (int i = 0; i < ROWS; i++)
            for (int v = 0; v < VOCAB; v++) {
                const double less = v == 3 && n > 0 ? 1.5 - 0.25 * n : 0;
                DT_EXPECT_CLOSE(penalised->scores[n][i][v], (double)plain->scores[n][i][v] - less,
                                1e-4);
            }
    return DT_OK;
}

DT_TEST(logprobs, penalties_of_new_tokens_count_them)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        dt_test_on_ranks(meshes[m], follow_the_rule, NULL);
}

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    static const int32_t ids[] = { 1, 900 };
    const dt_bias outside = { { ids, 2 }, 1 }, empty = { { ids, 0 }, 1 },
                  endless = { { ids, 1 }, NAN };
    const struct {
        dt_generate_options o;
        const char *says;
    } cases[] = {
        { { .presence_penalty = 1e4 }, "presence_penalty is 10000" },
        { { .frequency_penalty = NAN }, "frequency_penalty" },
        { { .n_logprobs = 1025 }, "n_logprobs is 1025" },
        { { .n_logprobs = 1, .num_beams = 2 }, "beam search has none" },
        { { .sequence_bias = &outside, .n_sequence_bias = 1 }, "token 900 is outside" },
        { { .sequence_bias = &empty, .n_sequence_bias = 1 }, "list 0 is empty" },
        { { .sequence_bias = &endless, .n_sequence_bias = 1 }, "not finite" },
        { { .n_sequence_bias = 1 }, "that are NULL" },
    };

    (void)mesh, (void)arg;
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const dt_model_info info = { .vocab_size = VOCAB, .max_positions = 100 };
        dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
        o.presence_penalty = cases[i].o.presence_penalty;
        o.frequency_penalty = cases[i].o.frequency_penalty;
        o.n_logprobs = cases[i].o.n_logprobs;
        o.sequence_bias = cases[i].o.sequence_bias;
        o.n_sequence_bias = cases[i].o.n_sequence_bias;
        if (cases[i].o.num_beams > 0) o.num_beams = cases[i].o.num_beams;
        DT_EXPECT_STATUS(dt_generate_check(&o, &info, 3, NULL), DT_ERR_ARG, cases[i].says);
    }
    return DT_OK;
}

DT_TEST(logprobs, options_out_of_range_are_refused_by_name)
{
    dt_test_on_ranks("tp=1", refused, NULL);
}
