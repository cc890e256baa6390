/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws from the best columns alone against draws from all: where many are equal to the k-th, where
 * a division makes them equal, where there are none, infinities and NaN; and texts of whole
 * models. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "dtensor/argmax.h"
#include "models/generation/text_rules.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };

/* --- rows that were made up ------------------------------------------------------------------- */

enum { VOCAB = 403, ROWS = 2, DRAWS = 8 };

/* The second row; the first one is random. */
typedef enum row_kind {
    RANDOM,
    COARSE,   /* as bf16 rounds: some are equal */
    EQUAL,    /* all are */
    NEAR,     /* neighbours, which a division by 0.9 makes equal */
    AT_LIMIT, /* as many equal the k-th as are looked at */
    FEW,      /* three that are not -inf */
    NONE,     /* none */
    ZEROS,    /* of both signs */
    NANS,
    INFINITE
} row_kind;

typedef struct few_case {
    row_kind kind;
    int64_t top_k;
    double temperature, top_p, min_p, typical_p, epsilon, eta;
    bool renormalise;
    bool enough; /* the best alone suffice */
} few_case;

static float score_of(const few_case *c, const dti_top *top, int64_t i, float uniform)
{
    switch (c->kind) {
    case COARSE:
        return roundf(8 * uniform) / 2;
    case EQUAL:
        return 1.25f;
    case NEAR:
        return 1.9f + (float)(i * 7 % VOCAB) * 0x1p-23f;
    case AT_LIMIT: /* one better than all, n equal ones, all others worse */
        return i == 200 ? 3.0f : i % 2 == 0 && i / 2 < top->n ? 1.0f : -2.0f;
    case FEW:
        return i == 3 || i == 77 || i == 402 ? uniform : -INFINITY;
    case NONE:
        return -INFINITY;
    case ZEROS:
        return i % 4 == 0 ? 0.0f : i % 4 == 1 ? -0.0f : -1.0f - (float)i;
    case NANS:
        return i == 300 ? NAN : uniform;
    case INFINITE:
        return i == 5 ? INFINITY : uniform;
    default:
        return 4 * uniform;
    }
}

static dt_generate_options options_of(const few_case *c)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;

    o.do_sample = true;
    o.top_k = c->top_k;
    if (c->temperature > 0) o.temperature = c->temperature;
    if (c->top_p > 0) o.top_p = c->top_p;
    if (c->min_p > 0) o.min_p = c->min_p;
    if (c->typical_p > 0) o.typical_p = c->typical_p;
    if (c->epsilon > 0) o.epsilon_cutoff = c->epsilon;
    if (c->eta > 0) o.eta_cutoff = c->eta;
    o.renormalize_logits = c->renormalise;
    return o;
}

static dt_status lay(dt_tape *t, dt_mesh *mesh, const few_case *c, const dti_top *top,
                     dt_tensor **logits)
{
    dt_placement place[DT_MAX_DIMS] = { { 0 } };
    float scores[ROWS * VOCAB];

    dt_test_random(scores, ROWS * VOCAB, 9);
    for (int64_t i = 0; i < VOCAB; i++) scores[VOCAB + i] = score_of(c, top, i, scores[VOCAB + i]);
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) place[m] = DT_SHARD(2); /* over all ranks */
    DT_TRY(dt_distribute(mesh, place, DT_F32, 3, (int64_t[]){ ROWS, 1, VOCAB },
                         (dt_source){ .full = scores, .root = DT_EQUAL_COPIES }, logits));
    *logits = dt_tape_own(t, *logits);
    return DT_OK;
}

static dt_status draw(dti_text_rules *rules, dti_scores *s, int64_t keys[DRAWS][2 * ROWS])
{
    static const int64_t lengths[2 * ROWS] = { 0 };
    const dti_history h = { .length = lengths };

    DT_TRY(dti_scores_expand(s, 2)); /* as for two texts of each prompt */
    DT_TRY(dti_process(rules, &h, s));
    for (int64_t i = 0; i < DRAWS; i++) DT_TRY(dti_scores_draw(s, 5, i, keys[i]));
    return DT_OK;
}

/* The same key, or both say that logits are no numbers, or that nothing is left. */
static bool same(int64_t a, int64_t b)
{
    const bool nothing = a == INT64_MIN || b == INT64_MIN;

    return a == b || (!nothing && dti_argmax_overflows(a) && dti_argmax_overflows(b));
}

static dt_status draw_both(dt_mesh *mesh, const void *arg)
{
    const few_case *c = arg;
    const dt_generate_options o = options_of(c);
    const dt_model_info info = { .vocab_size = VOCAB, .max_positions = 64 };
    int64_t all[DRAWS][2 * ROWS], few[DRAWS][2 * ROWS];
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_ENDS(dti_scores_free) dti_scores s = { 0 };
    DT_ENDS(dti_rules_free) dti_text_rules rules = { 0 };
    dt_tensor *logits;
    bool enough = !c->enough;

    DT_TRY(dti_rules_make(&rules, &info, &o, 4));
    DT_TRY(lay(t, mesh, c, &rules.top, &logits));
    DT_TRY(dti_scores_take_best(&s, t, logits, &rules.top, 1, &enough));
    DT_EXPECT(enough == c->enough, "kind %d, k %lld: enough is %d", c->kind, (long long)c->top_k,
              enough);
    if (!enough) return DT_OK;
    DT_TRY(draw(&rules, &s, few));
    DT_TRY(dti_scores_take(&s, t, logits));
    DT_TRY(draw(&rules, &s, all));
    for (int i = 0; i < DRAWS; i++)
        for (int r = 0; r < 2 * ROWS; r++)
            DT_EXPECT(same(few[i][r], all[i][r]),
                      "kind %d, k %lld: draw %d of row %d is %llx, from all %llx", c->kind,
                      (long long)c->top_k, i, r, (unsigned long long)few[i][r],
                      (unsigned long long)all[i][r]);
    return DT_OK;
}

DT_TEST(few_scores, draws_are_those_from_all)
{
    /* clang-format off */
    static const few_case cases[] = {
        /* kind     k    temp   top_p min_p typical epsilon eta  renormalise enough */
        { RANDOM,   1,   0,     0,    0,    0,      0,      0,    false,     true  },
        { RANDOM,   50,  1.7,   0.9,  0,    0,      0,      0,    false,     true  },
        { RANDOM,   256, 2.5,   0.99, 1e-4, 0,      0,      0,    true,      true  },
        { RANDOM,   20,  0.7,   0,    0.05, 0.9,    0.01,   0.02, true,      true  },
        { COARSE,   20,  0.7,   0.8,  0,    0,      0,      0,    false,     true  },
        { COARSE,   50,  1,     0,    0.1,  0.7,    0,      0,    false,     true  },
        { EQUAL,    5,   0,     0.5,  0,    0,      0,      0,    false,     false },
        { EQUAL,    200, 0,     0.5,  0,    0,      0,      0,    false,     true  }, /* n: all */
        { NEAR,     9,   0.9,   0,    0,    0,      0,      0,    false,     true  },
        { NEAR,     40,  0.9,   0.6,  0,    0,      0,      0,    false,     true  },
        { NEAR,     9,   1e-30, 0.6,  0,    0,      0,      0,    false,     true  },
        { AT_LIMIT, 5,   0,     0,    0,    0,      0,      0,    false,     false },
        { AT_LIMIT, 50,  0,     0.9,  0,    0,      0,      0,    false,     false },
        { FEW,      5,   0.5,   0.9,  0,    0,      0,      0,    false,     true  },
        { FEW,      3,   0,     0,    0,    0.5,    0,      0,    false,     true  },
        { FEW,      2,   0,     0,    0,    0,      0,      0,    false,     true  },
        { NONE,     5,   0,     0,    0,    0,      0,      0,    false,     true  },
        { ZEROS,    5,   0,     0,    0,    0,      0,      0,    false,     false },
        { ZEROS,    90,  0.7,   0.7,  0,    0,      0,      0,    false,     true  },
        { NANS,     5,   0.7,   0.9,  0,    0,      0,      0,    false,     true  },
        { INFINITE, 5,   0.7,   0.9,  0,    0,      0,      0,    false,     true  },
    };
    /* clang-format on */

    for (size_t c = 0; c < DT_COUNT(cases); c++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            dt_test_on_ranks(meshes[m], draw_both, &cases[c]);
}

/* Where a processor looks at tokens, the choice is not bounded, or somebody wants all scores. */
DT_TEST(few_scores, are_taken_only_where_they_suffice)
{
    static const int32_t ids[] = { 5 };
    const dt_model_info info = { .vocab_size = 1000, .max_positions = 64 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT, p;
    dti_text_rules rules;

    o.do_sample = true;
#define LOOKS_AT(columns, change)                            \
    do {                                                     \
        p = o;                                               \
        change;                                              \
        DT_ASSERT_OK(dti_rules_make(&rules, &info, &p, 10)); \
        DT_ASSERT_EQ_INT(rules.top.n, (columns));            \
        dti_rules_free(&rules);                              \
    } while (0)
    LOOKS_AT(164, (void)0);
    LOOKS_AT(164, p.top_p = 0.9);
    LOOKS_AT(164, p.renormalize_logits = true);
    LOOKS_AT(164, p.min_length = 3); /* the prompt is longer */
    LOOKS_AT(2 * 256 + 64, p.top_k = DTI_TOP_K_MOST);
    LOOKS_AT(0, p.top_k = DTI_TOP_K_MOST + 1);
    LOOKS_AT(0, p.top_k = 0);
    LOOKS_AT(0, p.do_sample = false);
    LOOKS_AT(0, p.num_beams = 2);
    LOOKS_AT(0, p.repetition_penalty = 1.1);
    LOOKS_AT(0, p.no_repeat_ngram_size = 2);
    LOOKS_AT(0, p.min_new_tokens = 3);
    LOOKS_AT(0, p.forced_bos = 3);
    LOOKS_AT(0, (p.forced_eos = (dt_ids){ ids, 1 }));
    LOOKS_AT(0, p.remove_invalid_values = true);
    LOOKS_AT(0, (p.suppress_tokens = (dt_ids){ ids, 1 }));
    LOOKS_AT(0, (p.begin_suppress_tokens = (dt_ids){ ids, 1 }));
#undef LOOKS_AT
}

/* --- texts ------------------------------------------------------------------------------------ */

enum { TEXTS = 2, NEW = 6 };

static void look_away(void *arg, int64_t n, const float *scores, int64_t n_rows, int64_t vocab)
{
    (void)n, (void)scores, (void)n_rows, (void)vocab;
    ++*(int64_t *)arg;
}

/* Texts with and without a look at all scores, which is what makes a step take them. */
static dt_status sample(dt_mesh *mesh, const void *arg)
{
    static const int32_t ids[] = { 5, 77, 30, 21, 9, 60 };
    const dt_ids prompts[] = { { ids, 6 }, { ids + 2, 3 } };
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    DT_HELD(model) *m = NULL;
    DT_HELD(generated) *few = NULL, *all = NULL;
    int64_t looks = 0;

    load.keep_dtype = false;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/%s", (const char *)arg),
                         &load, &m));
    o.max_new_tokens = NEW;
    o.ignore_eos = o.do_sample = true;
    o.seed = 11;
    o.temperature = 1.3;
    o.top_k = 12;
    o.top_p = 0.95;
    o.num_return_sequences = TEXTS;
    DT_TRY(dt_generate_batch(m, prompts, 2, &o, &few));
    o.on_scores = look_away;
    o.scores_arg = &looks;
    DT_TRY(dt_generate_batch(m, prompts, 2, &o, &all));
    DT_EXPECT(looks == NEW && dt_generated_count(few) == 2 * TEXTS, "texts");
    for (int64_t i = 0; i < 2 * TEXTS; i++)
        DT_EXPECT(dt_generated_ids(few, i).n == NEW &&
                      memcmp(dt_generated_ids(few, i).ids, dt_generated_ids(all, i).ids,
                             NEW * sizeof(int32_t)) == 0,
                  "%s: text %lld differs", (const char *)arg, (long long)i);
    return DT_OK;
}

DT_TEST(few_scores, texts_of_every_architecture_are_those_from_all)
{
    static const char *const checkpoints[] = { "llama/uneven",   "llama/tied",    "qwen2/base",
                                               "qwen3/uneven",   "gemma3/base",   "phi3/uneven",
                                               "gpt_neo/uneven", "qwen3_moe/base" };

    for (size_t c = 0; c < DT_COUNT(checkpoints); c++)
        for (size_t m = 0; m<DT_COUNT(meshes); m += c> 0 ? 2 : 1)
            dt_test_on_ranks(meshes[m], sample, checkpoints[c]);
}
