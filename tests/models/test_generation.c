/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole texts against those of Transformers' generate(): batches with padding, penalties, ends,
 * beams; and what must not depend on the mesh or on how rows came about.
 * tools/make_generation_golden.py makes the cases. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "files/safetensors.h"
#include "models/architectures/config_keys.h"
#include "models/generation/generation_config.h"
#include "models/run/state.h"
#include "tests/support/dt_test.h"

enum { MAX_ROWS = 16, MAX_TOKENS = 40 };

static const char *const meshes[] = { "tp=1",      "tp=2", "tp=3",     "tp=4",
                                      "dp=2,tp=2", "pp=2", "pp=2,tp=2" };
static const char *const deeper[] = { "pp=3", "pp=4", "pp=2,dp=2", "tp=2,pp=2" };

/* One run of generate(). */
typedef struct text_case {
    const char *name, *model;
    dti_json keys;
    int64_t n_prompts, longest, n_rows, width;
    int32_t prompts[MAX_ROWS][MAX_TOKENS]; /* without padding */
    int64_t lengths[MAX_ROWS];
    int32_t expected[MAX_ROWS][MAX_TOKENS];
    float scores[MAX_ROWS];
    bool has_scores;
    bool sequence_parallel; /* in this run */
    bool alone;             /* each prompt runs by itself as well */
} text_case;

static dt_status read_ids(const dti_st_file *file, const char *name, const char *part,
                          int64_t to[MAX_ROWS * MAX_TOKENS], int64_t *rows, int64_t *columns)
{
    const dti_st_entry *e;
    dti_st_stage stage = { 0 };
    char full[64];
    dt_status st;

    (void)snprintf(full, sizeof full, "%s.%s", name, part);
    e = dti_st_find(file, full);
    DT_EXPECT(e != NULL && e->dtype == DT_I64 && e->shape[0] <= MAX_ROWS, "%s", full);
    *rows = e->shape[0];
    *columns = e->n_axes > 1 ? e->shape[1] : 1;
    DT_EXPECT(*columns <= MAX_TOKENS, "%s", full);
    DT_TRY(dti_st_stage_create(0, NULL, &stage));
    st = dti_st_read_slice(file, e, NULL, NULL, DT_I64, &stage, to);
    dti_st_stage_destroy(&stage);
    return st;
}

static dt_status read_scores(const dti_st_file *file, text_case *c)
{
    const dti_st_entry *e;
    dti_st_stage stage = { 0 };
    char full[64];
    dt_status st;

    (void)snprintf(full, sizeof full, "%s.scores", c->name);
    e = dti_st_find(file, full);
    c->has_scores = e != NULL;
    if (e == NULL) return DT_OK;
    DT_EXPECT(e->shape[0] == c->n_rows, "%s", full);
    DT_TRY(dti_st_stage_create(0, NULL, &stage));
    st = dti_st_read_slice(file, e, NULL, NULL, DT_F32, &stage, c->scores);
    dti_st_stage_destroy(&stage);
    return st;
}

static dt_status read_case(const dti_st_file *file, const dti_json *one, text_case *c)
{
    int64_t ids[MAX_ROWS * MAX_TOKENS], lengths[MAX_ROWS * MAX_TOKENS], n, columns;

    *c = (text_case){ 0 };
    DT_TRY(dti_json_string(one, "name", &c->name));
    DT_TRY(dti_json_string(one, "model", &c->model));
    DT_TRY(dti_json_object(one, "config", &c->keys));
    DT_TRY(read_ids(file, c->name, "prompts", ids, &c->n_prompts, &c->longest));
    DT_TRY(read_ids(file, c->name, "lengths", lengths, &n, &columns));
    for (int64_t i = 0; i < c->n_prompts; i++) {
        c->lengths[i] = lengths[i];
        for (int64_t j = 0; j < lengths[i]; j++)
            c->prompts[i][j] = (int32_t)ids[(i + 1) * c->longest - lengths[i] + j];
    }
    DT_TRY(read_ids(file, c->name, "new", ids, &c->n_rows, &c->width));
    for (int64_t i = 0; i < c->n_rows; i++)
        for (int64_t j = 0; j < c->width; j++) c->expected[i][j] = (int32_t)ids[i * c->width + j];
    DT_TRY(read_scores(file, c));
    return DT_OK;
}

static dt_status load_as(dt_mesh *mesh, const char *fixture, bool sequence_parallel,
                         dt_model **model)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];

    options.keep_dtype = false;
    options.sequence_parallel = sequence_parallel;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/%s", fixture), &options,
                         model));
    return DT_OK;
}

static dt_status load(dt_mesh *mesh, const char *fixture, dt_model **model)
{
    return load_as(mesh, fixture, false, model);
}

/* Ours are as theirs, and theirs goes on with padding. */
static dt_status compare_row(const text_case *c, const dt_generate_options *o,
                             const dt_generated *g, int64_t ours, int64_t row)
{
    const dt_ids ids = dt_generated_ids(g, ours);

    DT_EXPECT(ids.n >= 1 && ids.n <= c->width, "%s: row %lld has %lld tokens", c->name,
              (long long)row, (long long)ids.n);
    for (int64_t j = 0; j < c->width; j++) {
        const int32_t id = j < ids.n ? ids.ids[j] : o->pad;
        DT_EXPECT(id == c->expected[row][j], "%s: token %lld of row %lld is %d, theirs is %d",
                  c->name, (long long)j, (long long)row, id, c->expected[row][j]);
    }
    if (c->has_scores) /* f32 sums, which a negative length penalty multiplies */
        DT_EXPECT(fabs(dt_generated_score(g, ours) - (double)c->scores[row]) <=
                      1e-5 * fmax(1.0, fabs((double)c->scores[row])),
                  "%s: score of row %lld is %g, theirs is %g", c->name, (long long)row,
                  dt_generated_score(g, ours), (double)c->scores[row]);
    DT_EXPECT(dt_generated_end(g, ours) != DT_END_NONE, "%s: row %lld has no end", c->name,
              (long long)row);
    return DT_OK;
}

/* All prompts together, or prompt `only` alone. */
static dt_status run_prompts(dt_model *model, const text_case *c, const dt_generate_options *o,
                             int64_t only)
{
    const int64_t per = o->num_return_sequences;
    dt_ids prompts[MAX_ROWS];
    DT_HELD(generated) *g = NULL;
    int64_t n = 0, first = 0;

    for (int64_t i = 0; i < c->n_prompts; i++)
        if (only < 0 || i == only) prompts[n++] = (dt_ids){ c->prompts[i], c->lengths[i] };
    if (only > 0) first = only * per;
    DT_TRY(dt_generate_batch(model, prompts, n, o, &g));
    DT_EXPECT(dt_generated_count(g) == n * per, "rows");
    for (int64_t r = 0; r < n * per; r++) DT_TRY(compare_row(c, o, g, r, first + r));
    return DT_OK;
}

static dt_status run_case(dt_mesh *mesh, const void *arg)
{
    const text_case *c = arg;
    DT_HELD(model) *model = NULL;
    DT_ENDS(dti_generation_config_free) dti_generation_config config = { 0 };
    dt_model_info info = { 0 };

    DT_TRY(dti_config_eos(&c->keys, &info));
    DT_TRY(dti_generation_config_read(&c->keys, &config));
    config.options.eos = (dt_ids){ info.eos, info.n_eos };
    DT_TRY(load_as(mesh, c->model, c->sequence_parallel, &model));
    DT_TRY(run_prompts(model, c, &config.options, -1));
    for (int64_t i = 0; i < c->n_prompts && c->alone; i++)
        DT_TRY(run_prompts(model, c, &config.options, i));
    return DT_OK;
}

static void run_texts(const char *const *on, size_t n_on, bool sequence_parallel)
{
    char path[DT_TEST_PATH_BYTES];
    DT_ENDS(dti_json_free) dti_json_doc doc = { 0 };
    DT_ENDS(dti_st_close) dti_st_file *file = NULL;
    dti_json cases;

    (void)dt_test_source_path(path, "tests/golden/generation/texts.json");
    DT_ASSERT_OK(dti_json_read(path, DTI_JSON_CONFIG_BYTES, &doc));
    DT_ASSERT_OK(dti_json_array(&doc.root, "cases", &cases));
    (void)dt_test_source_path(path, "tests/golden/generation/texts.safetensors");
    DT_ASSERT_OK(dti_st_open(path, &file));
    DT_ASSERT(dti_json_count(&cases) >= 35);
    for (size_t i = 0; i < dti_json_count(&cases); i++) {
        const dti_json one = dti_json_at(&cases, i);
        text_case c;
        DT_ASSERT_OK(read_case(file, &one, &c));
        c.sequence_parallel = sequence_parallel;
        if (sequence_parallel && !c.has_scores) continue;
        for (size_t m = sequence_parallel; m < n_on; m++) {
            c.alone = c.n_prompts > 1 && (m == 0 || !c.has_scores); /* beams take long */
            if (dt_test_fits_launch(on[m]) && dt_test_is_due(i, m, n_on, 3))
                dt_test_on_ranks(on[m], run_case, &c);
        }
    }
}

DT_TEST(generation, texts_are_those_of_transformers_on_every_mesh)
{
    run_texts(meshes, DT_COUNT(meshes), false);
}

/* Prompts are read with their tokens cut over the ranks; that is where steps of beams begin. */
DT_TEST(generation, texts_are_theirs_over_more_stages_and_with_tokens_cut_between_blocks)
{
    dt_test_long();
    run_texts(deeper, DT_COUNT(deeper), false);
    run_texts(meshes, DT_COUNT(meshes), true);
}

/* --- sampling --------------------------------------------------------------------------------- */

enum { DRAWN = 16, TEXTS = 3 };

typedef struct sampled {
    int32_t ids[TEXTS][DRAWN];
    bool first, beams;
    bool twice; /* the prompt is given so often instead of asking for as many texts */
} sampled;

static dt_generate_options sampling(void)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;

    o.max_new_tokens = DRAWN;
    o.ignore_eos = true;
    o.do_sample = true;
    o.seed = 42;
    o.temperature = 1.5;
    o.top_p = 0.95;
    o.repetition_penalty = 1.1;
    return o;
}

static dt_status sample(dt_mesh *mesh, const void *arg)
{
    static const int32_t prompt[] = { 5, 77, 130, 201, 9 };
    const dt_ids one = { prompt, 5 }, three[] = { one, one, one };
    dt_generate_options o = sampling();
    sampled *x = (sampled *)(uintptr_t)arg;
    DT_HELD(model) *model = NULL;
    DT_HELD(generated) *g = NULL;

    DT_TRY(load(mesh, "llama/uneven", &model));
    if (!x->twice) o.num_return_sequences = TEXTS;
    if (x->beams) o.num_beams = TEXTS;
    DT_TRY(dt_generate_batch(model, three, x->twice ? TEXTS : 1, &o, &g));
    DT_EXPECT(dt_generated_count(g) == TEXTS, "rows");
    for (int64_t i = 0; i < TEXTS; i++) {
        const dt_ids ids = dt_generated_ids(g, i);
        DT_EXPECT(ids.n == DRAWN, "length");
        if (x->first)
            memcpy(x->ids[i], ids.ids, sizeof x->ids[i]);
        else
            DT_EXPECT(memcmp(x->ids[i], ids.ids, sizeof x->ids[i]) == 0, "text %lld differs",
                      (long long)i);
    }
    return DT_OK;
}

DT_TEST(generation, a_seed_gives_the_same_texts_on_every_mesh)
{
    sampled x = { .first = true };

    dt_test_on_ranks("tp=1", sample, &x);
    x.first = false;
    DT_ASSERT(memcmp(x.ids[0], x.ids[1], sizeof x.ids[0]) != 0);
    DT_ASSERT(memcmp(x.ids[1], x.ids[2], sizeof x.ids[0]) != 0);
    for (size_t m = 1; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], sample, &x);
    x.twice = true;
    dt_test_on_ranks("tp=2", sample, &x);
    for (size_t m = 0; m < DT_COUNT(deeper); m++) dt_test_on_ranks(deeper[m], sample, &x);
}

/* Sampled beams: draws without replacement, the same on every mesh. */
DT_TEST(generation, sampled_beams_are_the_same_on_every_mesh)
{
    sampled x = { .first = true, .beams = true };

    dt_test_on_ranks("tp=1", sample, &x);
    x.first = false;
    for (size_t m = 1; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], sample, &x);
}

/* --- what a checkpoint asks for --------------------------------------------------------------- */

static dt_status asks(dt_mesh *mesh, const void *folder)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_HELD(model) *model = NULL;

    DT_TRY(dt_model_load(mesh, folder, NULL, &model));
    DT_TRY(dt_model_generate_options(model, &o));
    DT_EXPECT(o.do_sample && o.top_k == 7 && o.temperature == 0.5, "top_k %lld, temperature %g",
              (long long)o.top_k, o.temperature);
    DT_EXPECT_STATUS(dt_model_generate_options(NULL, &o), DT_ERR_ARG, "model or out is NULL");
    return DT_OK;
}

static dt_status asks_wrongly(dt_mesh *mesh, const void *folder)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_HELD(model) *model = NULL;

    DT_TRY(dt_model_load(mesh, folder, NULL, &model));
    DT_EXPECT_STATUS(dt_model_generate_options(model, &o), DT_ERR_FORMAT, "could not be read when");
    return DT_OK;
}

DT_TEST(generation, options_of_a_model_are_those_of_its_folder)
{
    static const char sound[] = "{\"do_sample\": true, \"top_k\": 7, \"temperature\": 0.5}";
    static const char wrong[] = "{\"top_k\": \"seven\"}", *const names[] = { "config.json",
                                                                             "model.safetensors" };
    char folder[DT_TEST_PATH_BYTES], from[DT_TEST_PATH_BYTES], to[DT_TEST_PATH_BYTES + 32];

    (void)dt_test_temp_dir(folder);
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        (void)snprintf(to, sizeof to, "%s/%s", folder, names[i]);
        DT_ASSERT(
            symlink(dt_test_source_path(from, "tests/golden/llama/uneven/%s", names[i]), to) == 0);
    }
    dt_test_write_file(folder, "generation_config.json", sound, sizeof sound - 1);
    dt_test_on_ranks("tp=2", asks, folder);
    dt_test_write_file(folder, "generation_config.json", wrong, sizeof wrong - 1);
    dt_test_on_ranks("tp=1", asks_wrongly, folder);
}

/* --- scores that are asked for ---------------------------------------------------------------- */

enum { SHOWN_STEPS = 6, SHOWN_VOCAB = 257 };

typedef struct shown {
    int64_t calls;
    int32_t best[SHOWN_STEPS];
    bool penalised; /* a suppressed token had no score */
} shown;

static void on_scores(void *arg, int64_t n, const float *scores, int64_t n_rows, int64_t vocab)
{
    shown *x = arg;
    int64_t best = 0;

    if (n != x->calls || n >= SHOWN_STEPS || n_rows != 1 || vocab != SHOWN_VOCAB) return;
    for (int64_t i = 1; i < vocab; i++)
        if (scores[i] > scores[best]) best = i;
    x->best[n] = (int32_t)best;
    x->penalised = scores[256] == -INFINITY;
    x->calls++;
}

static dt_status show_scores(dt_mesh *mesh, const void *arg)
{
    static const int32_t prompt[] = { 5, 77, 130 }, suppressed[] = { 256 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_HELD(model) *model = NULL;
    DT_HELD(generated) *g = NULL;
    shown x = { 0 };

    (void)arg;
    o.max_new_tokens = SHOWN_STEPS;
    o.ignore_eos = true;
    o.suppress_tokens = (dt_ids){ suppressed, 1 };
    o.on_scores = on_scores;
    o.scores_arg = &x;
    DT_TRY(load(mesh, "llama/uneven", &model));
    DT_TRY(dt_generate_batch(model, &(dt_ids){ prompt, 3 }, 1, &o, &g));
    DT_EXPECT(x.calls == SHOWN_STEPS && x.penalised, "%lld calls", (long long)x.calls);
    for (int i = 0; i < SHOWN_STEPS; i++)
        DT_EXPECT(x.best[i] == dt_generated_ids(g, 0).ids[i], "step %d", i);
    return DT_OK;
}

DT_TEST(generation, scores_are_shown_on_every_rank_as_they_are_chosen_from)
{
    dt_test_on_ranks("tp=1", show_scores, NULL);
    dt_test_on_ranks("tp=3", show_scores, NULL);
    dt_test_on_ranks("dp=2,tp=2", show_scores, NULL);
}

/* --- states ----------------------------------------------------------------------------------- */

enum { ROWS = 5, SEEN = 6 };

static dt_status last_logits(dt_model *m, dt_state *s, const int32_t *ids, float *out)
{
    DT_HELD(tape) *t = NULL;
    DT_HELD(tensor) *whole = NULL;
    dt_tensor *logits;

    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(m)), &t));
    logits = dt_model_forward(t, m, s, ids, 1, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(logits, &whole));
    memcpy(out, dt_tensor_local(whole)->data, ROWS * 101 * sizeof *out);
    return DT_OK;
}

static dt_status read_rows(dt_model *m, const int32_t *ids, dt_state **out)
{
    dt_tape *t = NULL;
    dt_status st;

    DT_TRY(dt_state_create(m, ROWS, SEEN + 2, out));
    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(m)), &t));
    (void)dt_model_forward(t, m, *out, ids, SEEN, DT_LOGITS_LAST);
    st = dt_tape_status(t);
    dt_tape_release(&t);
    return st;
}

/* Rows that were moved go on as rows that were read so. */
static dt_status check_order(dt_model *m, const int64_t *from)
{
    static const int32_t next[ROWS] = { 1, 2, 3, 4, 5 };
    int32_t ids[ROWS * SEEN], moved[ROWS * SEEN];
    float ours[ROWS * 101], theirs[ROWS * 101];
    DT_HELD(state) *a = NULL, *b = NULL;

    for (int i = 0; i < ROWS * SEEN; i++) /* rows differ from their row % SEEN-th token on */
        ids[i] = i % SEEN < i / SEEN ? i % SEEN : 10 + i;
    for (int r = 0; r < ROWS; r++)
        memcpy(moved + r * SEEN, ids + from[r] * SEEN, SEEN * sizeof *ids);
    DT_TRY(read_rows(m, ids, &a));
    DT_TRY(read_rows(m, moved, &b));
    DT_TRY(dti_state_reorder(a, from));
    for (int r = 0; r < ROWS; r++)
        DT_EXPECT(memcmp(a->ids + r * a->capacity, moved + r * SEEN, SEEN * sizeof *ids) == 0,
                  "ids of row %d", r);
    DT_TRY(last_logits(m, a, next, ours));
    DT_TRY(last_logits(m, b, next, theirs));
    DT_EXPECT(memcmp(ours, theirs, sizeof ours) == 0, "logits differ");
    return DT_OK;
}

static dt_status check_orders(dt_mesh *mesh, const void *arg)
{
    static const int64_t orders[][ROWS] = {
        { 0, 1, 2, 3, 4 }, { 0, 0, 0, 0, 0 }, { 4, 4, 4, 4, 4 }, { 1, 0, 2, 3, 4 },
        { 1, 2, 3, 4, 0 }, { 4, 3, 2, 1, 0 }, { 1, 0, 0, 4, 3 }, { 1, 2, 0, 4, 3 },
        { 2, 2, 3, 0, 1 }, { 3, 3, 1, 1, 0 },
    };
    dt_model *model;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY(load(mesh, "gpt_neo/uneven", &model));
    for (size_t i = 0; i < DT_COUNT(orders) && st == DT_OK; i++) st = check_order(model, orders[i]);
    dt_model_release(&model);
    return st;
}

DT_TEST(generation, sequences_of_a_state_can_be_moved_in_any_order)
{
    dt_test_on_ranks("tp=1", check_orders, NULL);
    dt_test_on_ranks("tp=3", check_orders, NULL);
}

/* --- strings that end a text ------------------------------------------------------------------ */

/* The fewest tokens whose text has `word` in it; all if none do. */
static int64_t tokens_until(const dt_tokenizer *tok, dt_ids ids, const char *word)
{
    for (int64_t n = 1; n <= ids.n; n++) {
        char *text;
        size_t bytes;
        bool found;
        if (dt_tokenizer_decode(tok, ids.ids, (size_t)n, false, &text, &bytes) != DT_OK) break;
        found = strstr(text, word) != NULL;
        dt_tokenizer_free(text);
        if (found) return n;
    }
    return ids.n;
}

static dt_status stop_at_words(dt_mesh *mesh, const void *arg)
{
    static const char *const words[] = { "e", "th",   "\n",     "ou w", "no such text",
                                         ".", "the ", "ROMEO:", "O:" }; /* the prompt ends so */
    static const char *const never[] = { "no such text", "nor this" };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    dt_generated *whole = NULL, *g = NULL;
    dt_tokenizer *tok = NULL;
    dt_model *model = NULL;
    dt_status st = DT_OK;
    int32_t *ids = NULL;
    size_t n;

    (void)arg;
    (void)dt_test_source_path(folder, "examples/checkpoint");
    DT_TRY(dt_tokenizer_open(folder, &tok));
    DT_TRY_TO(done, st, dt_tokenizer_encode(tok, "ROMEO:", 6, 0, &ids, &n));
    DT_TRY_TO(done, st, dt_model_load(mesh, folder, NULL, &model));
    o.max_new_tokens = 40;
    o.ignore_eos = true;
    DT_TRY_TO(done, st, dt_generate_batch(model, &(dt_ids){ ids, (int64_t)n }, 1, &o, &whole));
    o.tokenizer = tok;
    for (size_t i = 0; i < DT_COUNT(words); i++) {
        const char *const stops[] = { never[0], words[i], never[1] };
        const int64_t want = tokens_until(tok, dt_generated_ids(whole, 0), words[i]);
        o.stop_strings = stops;
        o.n_stop_strings = 3;
        DT_TRY_TO(done, st, dt_generate_batch(model, &(dt_ids){ ids, (int64_t)n }, 1, &o, &g));
        DT_EXPECT_TO(done, st, dt_generated_ids(g, 0).n == want, "\"%s\": %lld tokens, not %lld",
                     words[i], (long long)dt_generated_ids(g, 0).n, (long long)want);
        DT_EXPECT_TO(done, st, (dt_generated_end(g, 0) == DT_END_STRING) == (want < 40),
                     "\"%s\": end %d", words[i], (int)dt_generated_end(g, 0));
        dt_generated_release(&g);
    }
done:
    dt_generated_release(&g);
    dt_generated_release(&whole);
    dt_model_release(&model);
    dt_tokenizer_free(ids);
    dt_tokenizer_release(&tok);
    return st;
}

DT_TEST(generation, strings_end_a_text_with_the_token_that_completes_them)
{
    dt_test_on_ranks("tp=2", stop_at_words, NULL);
}

/* --- refusals --------------------------------------------------------------------------------- */

static dt_status refusals(dt_mesh *mesh, const void *arg)
{
    static const int32_t prompt[] = { 1, 2, 3 }, outside[] = { 1, 101 };
    static const char *const words[] = { "x" };
    const dt_ids one = { prompt, 3 }, none = { prompt, 0 }, bad = { outside, 2 };
    const dt_ids two[] = { one, none };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT, p;
    dt_generated *g;
    dt_model *m;

    (void)arg;
    DT_TRY(load(mesh, "gpt_neo/uneven", &m)); /* 64 positions, 101 tokens */
    p = o;
#define REFUSE(prompts, n, text)                                                  \
    DT_EXPECT_STATUS(dt_generate_batch(m, prompts, n, &p, &g), DT_ERR_ARG, text); \
    DT_EXPECT(g == NULL, "result");                                               \
    p = o
    REFUSE(&one, 0, "0 prompts");
    REFUSE(two, 2, "prompt 1 is empty");
    REFUSE(&bad, 1, "token id 101");
    p.num_beams = 0;
    REFUSE(&one, 1, "num_beams is 0");
    p.num_return_sequences = 2;
    REFUSE(&one, 1, "set do_sample or num_beams");
    p.num_beams = 2, p.num_return_sequences = 3;
    REFUSE(&one, 1, "more than num_beams, 2");
    p.num_beams = 101;
    REFUSE(&one, 1, "vocabulary allow");
    p.max_new_tokens = 63;
    REFUSE(&one, 1, "exceed the model's context of 64");
    p.max_new_tokens = INT64_MAX;
    REFUSE(&one, 1, "exceed the model's context of 64");
    p.max_new_tokens = 63;
    p.stop_strings = words, p.n_stop_strings = 1;
    REFUSE(&one, 1, "tokenizer");
#undef REFUSE
    dt_model_release(&m);
    return DT_OK;
}

DT_TEST(generation, batches_that_make_no_sense_are_refused)
{
    dt_test_on_ranks("tp=2", refusals, NULL);
}

static dt_status ban_everything(dt_mesh *mesh, const void *arg)
{
    static const int32_t prompt[] = { 1, 2, 3 };
    int32_t all[101];
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    const dt_ids one = { prompt, 3 };
    dt_generated *g;
    dt_model *m;

    (void)arg;
    for (int i = 0; i < 101; i++) all[i] = i;
    DT_TRY(load(mesh, "gpt_neo/uneven", &m));
    o.suppress_tokens = (dt_ids){ all, 101 };
    DT_EXPECT_STATUS(dt_generate_batch(m, &one, 1, &o, &g), DT_ERR_ARG, "no token is left");
    o.do_sample = true;
    o.top_k = 0;
    DT_EXPECT_STATUS(dt_generate_batch(m, &one, 1, &o, &g), DT_ERR_ARG, "no token is left");
    dt_model_release(&m);
    return DT_OK;
}

DT_TEST(generation, a_choice_from_nothing_is_an_error)
{
    dt_test_on_ranks("tp=3", ban_everything, NULL);
}
