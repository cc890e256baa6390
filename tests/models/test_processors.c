/* SPDX-License-Identifier: Apache-2.0
 *
 * Processors of scores against those of Transformers, on scores that are cut over 1 to 4 ranks;
 * draws, and what the options refuse. tools/make_generation_golden.py makes the cases. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/argmax.h"
#include "files/safetensors.h"
#include "models/architectures/config_keys.h"
#include "models/generation/generation_config.h"
#include "models/generation/text_rules.h"
#include "tests/support/dt_test.h"

enum { ROWS = 3, VOCAB = 101, MAX_EXPECTED = 64 };
enum { MAX_SCORES = ROWS * 257, MAX_IDS = ROWS * 32 }; /* of any checkpoint */

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };

typedef struct fixture {
    const char *of; /* the checkpoint whose logits they are; "": none, they were made up */
    dti_json cases;
    int64_t vocab, length;
    float scores[MAX_SCORES];
    int32_t history[MAX_IDS];
    float expected[MAX_EXPECTED][MAX_SCORES]; /* of each case */
} fixture;

/* The tensor "<of>.<name>", ROWS rows of what belongs to a row. */
static dt_status find(const dti_st_file *file, const fixture *f, const char *name, int64_t most,
                      const dti_st_entry **e)
{
    char full[96];

    (void)snprintf(full, sizeof full, "%s%s%s", f->of, f->of[0] != '\0' ? "." : "", name);
    *e = dti_st_find(file, full);
    DT_EXPECT(*e != NULL && (*e)->n_axes == 2 && (*e)->shape[0] == ROWS &&
                  ROWS * (*e)->shape[1] <= most,
              "%s", full);
    return DT_OK;
}

static dt_status read_floats(const dti_st_file *file, const fixture *f, const char *name,
                             const dti_st_stage *stage, float *to)
{
    const dti_st_entry *e;

    DT_TRY(find(file, f, name, MAX_SCORES, &e));
    DT_EXPECT(e->shape[1] == f->vocab, "%s: vocabulary", name);
    DT_TRY(dti_st_read_slice(file, e, NULL, NULL, DT_F32, stage, to));
    return DT_OK;
}

static dt_status read_tensors(fixture *f, const dti_st_file *file, const dti_st_stage *stage)
{
    const dti_st_entry *e;
    int64_t ids[MAX_IDS];

    DT_TRY(find(file, f, "scores", MAX_SCORES, &e));
    f->vocab = e->shape[1];
    DT_TRY(read_floats(file, f, "scores", stage, f->scores));
    DT_TRY(find(file, f, "history", MAX_IDS, &e));
    f->length = e->shape[1];
    DT_TRY(dti_st_read_slice(file, e, NULL, NULL, DT_I64, stage, ids));
    for (int i = 0; i < ROWS * f->length; i++) f->history[i] = (int32_t)ids[i];
    for (size_t i = 0; i < dti_json_count(&f->cases); i++) {
        const dti_json one = dti_json_at(&f->cases, i);
        const char *name;
        DT_TRY(dti_json_string(&one, "name", &name));
        DT_TRY(read_floats(file, f, name, stage, f->expected[i]));
    }
    return DT_OK;
}

/* The cases of tests/golden/generation/<name>.json. */
static dt_status open_cases(const char *name, dti_json_doc *doc, dti_json *cases,
                            dti_st_file **file)
{
    char path[DT_TEST_PATH_BYTES];

    DT_TRY(dti_json_read(dt_test_source_path(path, "tests/golden/generation/%s.json", name),
                         DTI_JSON_CONFIG_BYTES, doc));
    DT_TRY(dti_json_array(&doc->root, "cases", cases));
    DT_EXPECT(dti_json_count(cases) <= MAX_EXPECTED, "too many cases");
    DT_TRY(dti_st_open(dt_test_source_path(path, "tests/golden/generation/%s.safetensors", name),
                       file));
    return DT_OK;
}

static dt_status read_fixture(const dti_st_file *file, const char *of, const dti_json *cases,
                              fixture *f)
{
    dti_st_stage stage = { 0 };
    dt_status st;

    *f = (fixture){ .of = of, .cases = *cases };
    DT_TRY(dti_st_stage_create(0, NULL, &stage));
    st = read_tensors(f, file, &stage);
    dti_st_stage_destroy(&stage);
    return st;
}

/* Logits of ROWS sequences as a model leaves them, cut over "tp". */
static dt_status lay(dt_tape *tape, dt_mesh *mesh, int64_t vocab, const float *scores,
                     dt_tensor **logits)
{
    const int64_t shape[] = { ROWS, 1, vocab };
    dt_placement place[DT_MAX_DIMS] = { { 0 } };

    place[dt_mesh_n_dims(mesh) - 1] = DT_SHARD(2);
    DT_TRY(dt_distribute(mesh, place, DT_F32, 3, shape,
                         (dt_source){ .full = scores, .root = DT_EQUAL_COPIES }, logits));
    *logits = dt_tape_own(tape, *logits);
    return DT_OK;
}

static dt_status take(dti_scores *s, dt_tape *tape, dt_mesh *mesh, int64_t vocab,
                      const float *scores)
{
    dt_tensor *logits;

    DT_TRY(lay(tape, mesh, vocab, scores, &logits));
    DT_TRY(dti_scores_take(s, tape, logits));
    return DT_OK;
}

/* As generate() would do it for this case. */
static dt_status make_rules(const fixture *f, const dti_json *one, dti_generation_config *config,
                            dt_model_info *info, dti_text_rules *rules)
{
    int64_t step;
    dti_json keys;
    bool beams;

    *info = (dt_model_info){ .vocab_size = f->vocab, .max_positions = 1000 };
    DT_TRY(dti_json_int(one, "step", 0, f->length, &step));
    DT_TRY(dti_json_bool(one, "beams", &beams));
    DT_TRY(dti_json_object(one, "config", &keys));
    DT_TRY(dti_generation_config_read(&keys, config));
    DT_TRY(dti_config_eos(&keys, info));
    DT_TRY(dti_rules_make(rules, info, &config->options, f->length - step));
    rules->n_new = step;
    if (beams) rules->keep = (info->n_eos > 0 ? info->n_eos : 1) + 1;
    return DT_OK;
}

static dt_status compare(const fixture *f, const char *name, const float *ours, const float *theirs)
{
    for (int i = 0; i < ROWS * f->vocab; i++) {
        const float a = ours[i], b = theirs[i];
        DT_EXPECT(a == b || fabsf(a - b) <= 1e-6f * fmaxf(1.0f, fabsf(b)),
                  "%s %s: score of token %d in row %d is %.9g, theirs is %.9g", f->of, name,
                  (int)(i % f->vocab), (int)(i / f->vocab), (double)a, (double)b);
    }
    return DT_OK;
}

static dt_status run_case(dt_mesh *mesh, const fixture *f, size_t i)
{
    const int64_t lengths[ROWS] = { f->length, f->length, f->length };
    const dti_history h = { .ids = f->history, .room = f->length, .length = lengths };
    const dti_json one = dti_json_at(&f->cases, i);
    DT_HELD(tape) *tape = dt_test_tape(mesh);
    DT_ENDS(dti_generation_config_free) dti_generation_config config = { 0 };
    DT_ENDS(dti_scores_free) dti_scores scores = { 0 };
    DT_ENDS(dti_rules_free) dti_text_rules rules = { 0 };
    float whole[MAX_SCORES];
    dt_model_info info;
    const char *name;

    DT_TRY(dti_json_string(&one, "name", &name));
    DT_TRY(make_rules(f, &one, &config, &info, &rules));
    DT_TRY(take(&scores, tape, mesh, f->vocab, f->scores));
    DT_TRY(dti_process(&rules, &h, &scores));
    DT_TRY(dti_scores_whole(&scores, whole));
    DT_TRY(compare(f, name, whole, f->expected[i]));
    return DT_OK;
}

static dt_status run_cases(dt_mesh *mesh, const void *arg)
{
    const fixture *f = arg;

    for (size_t i = 0; i < dti_json_count(&f->cases); i++) DT_TRY(run_case(mesh, f, i));
    return DT_OK;
}

DT_TEST(processors, scores_are_those_of_transformers_on_every_mesh)
{
    DT_ENDS(dti_json_free) dti_json_doc doc = { 0 };
    DT_ENDS(dti_st_close) dti_st_file *file = NULL;
    dti_json cases;
    DT_FREED fixture *f = NULL;

    DT_ASSERT_OK(dti_alloc(sizeof *f, (void **)&f));
    DT_ASSERT_OK(open_cases("processors", &doc, &cases, &file));
    DT_ASSERT(dti_json_count(&cases) > 25);
    DT_ASSERT_OK(read_fixture(file, "", &cases, f));
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], run_cases, f);
}

/* What is drawn from: the logits of the checkpoints of each architecture, after each processor. */
DT_TEST(processors, scores_of_checkpoints_are_those_of_transformers_on_every_mesh)
{
    DT_ENDS(dti_json_free) dti_json_doc doc = { 0 };
    dti_json cases, checkpoints;
    DT_ENDS(dti_st_close) dti_st_file *file = NULL;
    DT_FREED fixture *f = NULL;

    DT_ASSERT_OK(dti_alloc(sizeof *f, (void **)&f));
    DT_ASSERT_OK(open_cases("sampling", &doc, &cases, &file));
    DT_ASSERT_OK(dti_json_array(&doc.root, "checkpoints", &checkpoints));
    DT_ASSERT(dti_json_count(&checkpoints) >= 20 && dti_json_count(&cases) >= 8);
    for (size_t i = 0; i < dti_json_count(&checkpoints); i++) {
        const dti_json of = dti_json_at(&checkpoints, i);
        const char *name;
        DT_ASSERT_OK(dti_json_as_string(&of, &name));
        DT_ASSERT_OK(read_fixture(file, name, &cases, f));
        for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], run_cases, f);
    }
}

/* --- the best alone --------------------------------------------------------------------------- */

enum { FEW_DRAWS = 3 };

/* The keys of some draws from processed scores. */
static dt_status draw_some(dti_text_rules *rules, const dti_history *h, dti_scores *scores,
                           int64_t keys[FEW_DRAWS][ROWS])
{
    DT_TRY(dti_process(rules, h, scores));
    for (int64_t i = 0; i < FEW_DRAWS; i++) DT_TRY(dti_scores_draw(scores, 77, i, keys[i]));
    return DT_OK;
}

/* As case i of a fixture says, but with a top_k and without what looks at tokens. */
static dt_status draw_both(dt_mesh *mesh, const fixture *f, size_t i, int64_t k)
{
    const int64_t lengths[ROWS] = { f->length, f->length, f->length };
    const dti_history h = { .ids = f->history, .room = f->length, .length = lengths };
    const dti_json one = dti_json_at(&f->cases, i);
    int64_t all[FEW_DRAWS][ROWS], best[FEW_DRAWS][ROWS];
    DT_HELD(tape) *tape = dt_test_tape(mesh);
    DT_ENDS(dti_generation_config_free) dti_generation_config config = { 0 };
    DT_ENDS(dti_scores_free) dti_scores scores = { 0 };
    DT_ENDS(dti_rules_free) dti_text_rules rules = { 0 };
    dt_tensor *logits;
    dt_model_info info;
    bool enough;

    DT_TRY(make_rules(f, &one, &config, &info, &rules));
    dti_rules_free(&rules);
    config.options.top_k = k;
    config.options.repetition_penalty = 1;
    config.options.no_repeat_ngram_size = 0;
    DT_TRY(dti_rules_make(&rules, &info, &config.options, f->length));
    DT_EXPECT(rules.top.n > k && rules.top.k == k, "%lld are looked at", (long long)rules.top.n);
    DT_TRY(lay(tape, mesh, f->vocab, f->scores, &logits));
    DT_TRY(dti_scores_take(&scores, tape, logits));
    DT_TRY(draw_some(&rules, &h, &scores, all));
    DT_TRY(dti_scores_take_best(&scores, tape, logits, &rules.top, 1, &enough));
    DT_EXPECT(enough, "%s: more than %lld equal ones", f->of, (long long)rules.top.n);
    DT_TRY(draw_some(&rules, &h, &scores, best));
    DT_EXPECT(memcmp(all, best, sizeof all) == 0, "%s, case %d, k %lld: other draws", f->of, (int)i,
              (long long)k);
    return DT_OK;
}

static dt_status draw_cases(dt_mesh *mesh, const void *arg)
{
    const fixture *f = arg;

    for (size_t i = 0; i < dti_json_count(&f->cases); i++)
        DT_TRY(draw_both(mesh, f, i, i % 2 == 0 ? 7 : 50));
    return DT_OK;
}

/* The sampling cases of all checkpoints: the reference is the path that works on all logits. */
DT_TEST(processors, draws_from_the_best_alone_are_those_from_all)
{
    DT_ENDS(dti_json_free) dti_json_doc doc = { 0 };
    dti_json cases, checkpoints;
    DT_ENDS(dti_st_close) dti_st_file *file = NULL;
    DT_FREED fixture *f = NULL;

    DT_ASSERT_OK(dti_alloc(sizeof *f, (void **)&f));
    DT_ASSERT_OK(open_cases("sampling", &doc, &cases, &file));
    DT_ASSERT_OK(dti_json_array(&doc.root, "checkpoints", &checkpoints));
    for (size_t i = 0; i < dti_json_count(&checkpoints); i++) {
        const dti_json of = dti_json_at(&checkpoints, i);
        const char *name;
        DT_ASSERT_OK(dti_json_as_string(&of, &name));
        DT_ASSERT_OK(read_fixture(file, name, &cases, f));
        for (size_t m = i % 2; m < DT_COUNT(meshes); m += 2) /* tp=1, 3, dp=2; or tp=2, 4 */
            dt_test_on_ranks(meshes[m], draw_cases, f);
    }
}

/* --- draws ------------------------------------------------------------------------------------ */

enum { DRAWS = 4000 };

typedef struct draws {
    float scores[ROWS * VOCAB];
    int32_t *drawn; /* [DRAWS, ROWS], of the first mesh; others compare */
    bool first;
} draws;

static dt_status draw(dt_mesh *mesh, const void *arg)
{
    const draws *d = arg;
    DT_HELD(tape) *tape = dt_test_tape(mesh);
    DT_ENDS(dti_scores_free) dti_scores scores = { 0 };
    int64_t keys[ROWS];

    DT_TRY(take(&scores, tape, mesh, VOCAB, d->scores));
    for (int64_t i = 0; i < DRAWS; i++) {
        DT_TRY(dti_scores_draw(&scores, 1234, i, keys));
        for (int r = 0; r < ROWS; r++) {
            const int32_t id = (int32_t)dti_argmax_index(keys[r]);
            if (d->first)
                d->drawn[i * ROWS + r] = id;
            else
                DT_EXPECT(d->drawn[i * ROWS + r] == id, "draw %lld of row %d is %d", (long long)i,
                          r, (int)id);
        }
    }
    return DT_OK;
}

/* Six standard deviations of a binomial. */
static void check_frequency(const draws *d, int row, int32_t token, double p)
{
    const double sd = sqrt(p * (1 - p) / DRAWS);
    double n = 0;

    for (int i = 0; i < DRAWS; i++) n += d->drawn[i * ROWS + row] == token;
    if (fabs(n / DRAWS - p) > 6 * sd)
        dt_test_fail(__FILE__, __LINE__, "token %d was drawn with frequency %g, should be %g",
                     (int)token, n / DRAWS, p);
}

DT_TEST(processors, a_seed_draws_the_same_on_every_mesh_and_as_softmax_says)
{
    draws d = { .first = true };

    for (int i = 0; i < ROWS * VOCAB; i++) d.scores[i] = -INFINITY;
    d.scores[3] = 0.0f; /* row 0: 1/2, 1/4, 1/4 */
    d.scores[50] = d.scores[100] = logf(0.5f);
    for (int i = VOCAB; i < 2 * VOCAB; i++) d.scores[i] = 7.5f; /* row 1: all alike */
    d.scores[2 * VOCAB + 40] = -3.0f;                           /* row 2: one */
    DT_ASSERT_OK(dti_alloc_array(DRAWS * ROWS, sizeof *d.drawn, (void **)&d.drawn));
    dt_test_on_ranks("tp=1", draw, &d);
    d.first = false;
    for (size_t m = 1; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], draw, &d);
    check_frequency(&d, 0, 3, 0.5);
    check_frequency(&d, 0, 50, 0.25);
    check_frequency(&d, 0, 100, 0.25);
    for (int32_t token = 0; token < VOCAB; token++) check_frequency(&d, 1, token, 1.0 / VOCAB);
    for (int i = 0; i < DRAWS; i++) DT_ASSERT_EQ_INT(d.drawn[i * ROWS + 2], 40);
    dti_free(d.drawn);
}

/* --- top_p and typical_p on their boundary -------------------------------------------------- */

typedef struct boundary {
    float scores[ROWS * VOCAB];
    double top_p, typical_p;
    size_t kept; /* the only one of three tokens that stays */
} boundary;

/* Weights are integers of 2^-40: of three tokens that have 2^40, 2^40 - d and d of these the last
 * two have just half of the probability. Transformers takes out what has no more than 1 - top_p,
 * and keeps no more typical tokens once they have typical_p; the second one is the most typical. */
static dt_status cut_at_boundary(dt_mesh *mesh, const void *arg)
{
    static const int32_t tokens[] = { 3, 50, 100 };
    const dt_model_info info = { .vocab_size = VOCAB, .max_positions = 64 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    const boundary *b = arg;
    DT_HELD(tape) *tape = dt_test_tape(mesh);
    DT_ENDS(dti_scores_free) dti_scores scores = { 0 };
    DT_ENDS(dti_rules_free) dti_text_rules rules = { 0 };

    o.do_sample = true;
    o.top_k = 0;
    o.top_p = b->top_p;
    o.typical_p = b->typical_p;
    DT_TRY(dti_rules_make(&rules, &info, &o, 10));
    DT_TRY(take(&scores, tape, mesh, VOCAB, b->scores));
    DT_TRY(dti_process_sampling(&rules, &scores));
    for (int r = 0; r < ROWS; r++)
        for (size_t i = 0; i < DT_COUNT(tokens); i++) {
            const int64_t at = tokens[i] - scores.first;
            if (at < 0 || at >= scores.n) continue;
            DT_EXPECT((scores.data[r * scores.n + at] > -INFINITY) == (i == b->kept), "token %d",
                      (int)tokens[i]);
        }
    return DT_OK;
}

DT_TEST(processors, masses_are_cut_exactly_on_their_boundary)
{
    const float near = -0x1p-22f;
    const int64_t rest = (1LL << 40) - llrint(exp((double)near) * 0x1p40);
    float small = (float)log((double)rest * 0x1p-40);
    boundary b;

    while (llrint(exp((double)small) * 0x1p40) < rest) small = nextafterf(small, 0.0f);
    while (llrint(exp((double)small) * 0x1p40) > rest) small = nextafterf(small, -30.0f);
    DT_ASSERT_EQ_INT(llrint(exp((double)small) * 0x1p40), rest);
    for (int i = 0; i < ROWS * VOCAB; i++) b.scores[i] = -INFINITY;
    for (int r = 0; r < ROWS; r++) {
        b.scores[r * VOCAB + 3] = 0;
        b.scores[r * VOCAB + 50] = near;
        b.scores[r * VOCAB + 100] = small;
    }
    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        b.top_p = 0.5, b.typical_p = 1, b.kept = 0;
        dt_test_on_ranks(meshes[m], cut_at_boundary, &b);
        b.top_p = 1, b.typical_p = exp2(-41) * (double)((1LL << 40) - rest), b.kept = 1;
        dt_test_on_ranks(meshes[m], cut_at_boundary, &b);
    }
}

/* --- refusals --------------------------------------------------------------------------------- */

static void refuse(dt_generate_options o, const char *message)
{
    const dt_model_info info = { .vocab_size = 100, .max_positions = 64 };
    DT_ENDS(dti_rules_free) dti_text_rules rules;

    DT_ASSERT_STATUS(dti_rules_make(&rules, &info, &o, 10), DT_ERR_ARG, message);
}

DT_TEST(processors, options_out_of_their_range_are_named)
{
    static const int32_t outside[] = { 5, 100 };
    static const dt_ids empty = DT_IDS_NONE;
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT, p;

    o.do_sample = true;
#define REFUSE(field, value, message) \
    do {                              \
        p = o;                        \
        p.field = value;              \
        refuse(p, message);           \
    } while (0)
    REFUSE(temperature, 0.0, "do_sample false");
    REFUSE(temperature, (double)NAN, "temperature");
    REFUSE(temperature, 1e-38, "overflow"); /* drew other tokens, silently */
    REFUSE(top_k, -1, "top_k is -1");
    REFUSE(top_p, 1.5, "top_p is 1.5");
    REFUSE(min_p, -0.5, "min_p is -0.5");
    REFUSE(typical_p, 0.0, "typical_p is 0");
    REFUSE(epsilon_cutoff, 1.0, "epsilon_cutoff is 1");
    REFUSE(repetition_penalty, 0.0, "repetition_penalty is 0");
    REFUSE(repetition_penalty, 1e-38, "repetition_penalty is 1e-38: logits"); /* blamed weights */
    REFUSE(repetition_penalty, 1e30, "repetition_penalty is 1e+30: logits");
    REFUSE(top_p, 1.0000001, "top_p is 1.0000001, must be");
    REFUSE(min_p, 1.0000000000000002, "min_p is 1.0000000000000002, must be");
    REFUSE(no_repeat_ngram_size, -2, "no_repeat_ngram_size is -2");
    REFUSE(max_new_tokens, -2, "max_new_tokens is -2");
    REFUSE(max_length, 10, "leaves nothing of max_length 10");
    REFUSE(forced_bos, 100, "forced_bos: token 100");
    REFUSE(suppress_tokens, ((dt_ids){ outside, 2 }), "suppress_tokens: token 100");
    REFUSE(suppress_tokens, ((dt_ids){ NULL, 2 }), "that is NULL");
    p = o;
    p.bad_words = &empty;
    p.n_bad_words = 1;
    refuse(p, "list 0 is empty");
}

DT_TEST(processors, a_generation_config_fills_the_options)
{
    static const char text[] =
        "{\"temperature\": 0.6, \"top_p\": 0.9, \"do_sample\": true, \"top_k\": null,"
        " \"eos_token_id\": [1, 2], \"suppress_tokens\": [4], \"bad_words_ids\": [[1], [2, 3]],"
        " \"forced_eos_token_id\": 7, \"guidance_scale\": 1.5, \"num_beam_groups\": 1,"
        " \"transformers_version\": \"4.44.0\", \"diversity_penalty\": 0.0, \"top_h\": null}";
    DT_ENDS(dti_json_free) dti_json_doc doc = { 0 };
    DT_ENDS(dti_generation_config_free) dti_generation_config config = { 0 };

    DT_ASSERT_OK(dti_json_parse("generation_config.json", text, sizeof text - 1, &doc));
    DT_ASSERT_OK(dti_generation_config_read(&doc.root, &config));
    DT_ASSERT(config.options.do_sample && config.options.temperature == 0.6);
    DT_ASSERT(config.options.top_p == 0.9 && config.options.top_k == 50);
    DT_ASSERT(config.options.suppress_tokens.n == 1 && config.options.suppress_tokens.ids[0] == 4);
    DT_ASSERT(config.options.n_bad_words == 2 && config.options.bad_words[1].ids[1] == 3);
    DT_ASSERT(config.options.forced_eos.n == 1 && config.options.forced_eos.ids[0] == 7);
    DT_ASSERT_EQ_STR(config.left_out, "guidance_scale");
}

DT_TEST(processors, a_bad_generation_config_is_refused_by_key)
{
    static const char *const texts[][2] = {
        { "{\"temperature\": \"hot\"}", "temperature" },
        { "{\"top_p\": 2}", "top_p is 2" },
        { "{\"bad_words_ids\": [1]}", "bad_words_ids[0]" },
        { "{\"bad_words_ids\": [[]]}", "bad_words_ids[0]" },
        { "{\"suppress_tokens\": [-1]}", "suppress_tokens[0]" },
        { "{\"do_sample\": 1}", "do_sample" },
    };

    for (size_t i = 0; i < DT_COUNT(texts); i++) {
        dti_generation_config config = { 0 };
        dti_json_doc doc = { 0 };
        DT_ASSERT_OK(dti_json_parse("g.json", texts[i][0], strlen(texts[i][0]), &doc));
        DT_ASSERT_STATUS(dti_generation_config_read(&doc.root, &config), DT_ERR_FORMAT,
                         texts[i][1]);
        dti_generation_config_free(&config);
        dti_json_free(&doc);
    }
}

/* Logits of +inf were taken for the best token. */
DT_TEST(processors, keys_say_what_overflows)
{
    DT_ASSERT(dti_argmax_overflows(dti_argmax_key(INFINITY, 3)));
    DT_ASSERT(dti_argmax_overflows(dti_argmax_key(NAN, 0)));
    DT_ASSERT(!dti_argmax_overflows(dti_argmax_key(FLT_MAX, 3)));
    DT_ASSERT(!dti_argmax_overflows(dti_argmax_key(-INFINITY, 3)));
}
