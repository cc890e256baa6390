/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/engine_runs.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"

enum { CONTEXT = 512, MOST_TEXTS = 4, MOST_NEW = 160, FAMILIES = 3, N_KINDS = 9, MOST_PROMPTS = 2 };

/* --- a model of a longer context -------------------------------------------------------------- */

/* The fixture's config.json with other numbers of positions. */
static dt_status write_config(const char *fixture, const char *folder)
{
    static const char key[] = "\"max_position_embeddings\":";
    char path[DT_TEST_PATH_BYTES], text[1 << 14], out[sizeof text + 64];
    const char *at = text, *next;
    size_t n, used = 0;
    FILE *f;

    (void)dt_test_source_path(path, "tests/golden/%s/config.json", fixture);
    f = fopen(path, "rb");
    DT_EXPECT(f != NULL, "%s", path);
    n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[n] = '\0';
    while ((next = strstr(at, key)) != NULL) {
        used += (size_t)snprintf(out + used, sizeof out - used, "%.*s%s %d", (int)(next - at), at,
                                 key, (int)CONTEXT);
        at = next + strlen(key);
        at += strspn(at, " 0123456789");
    }
    used += (size_t)snprintf(out + used, sizeof out - used, "%s", at);
    dt_test_write_file(folder, "config.json", out, used);
    return DT_OK;
}

/* --- requests --------------------------------------------------------------------------------- */

/* What became of a text. */
typedef struct text_run {
    int32_t ids[MOST_NEW];
    uint64_t logprobs; /* hash of them */
    int64_t n;
    dt_end end;
    bool over;
} text_run;

typedef struct request_run {
    dt_generate_options options;
    int32_t ids[MOST_PROMPTS][CONTEXT];
    dt_ids prompts[MOST_PROMPTS];
    int64_t n_prompts, n_texts, number;
    uint64_t salt;
    text_run alone[MOST_TEXTS], together[MOST_TEXTS];
    uint64_t scores[2]; /* hash of what on_scores saw: alone, together */
    uint64_t *seen;
    dt_error errors[2]; /* DT_OK: it goes well */
    bool cancelled, spoiled;
} request_run;

static int64_t draw(uint64_t *state, int64_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((*state >> 33) % (uint64_t)n);
}

static void hash_scores(void *arg, int64_t n, const float *scores, int64_t n_rows, int64_t vocab)
{
    request_run *r = arg;

    *r->seen = dti_hash_word(*r->seen, (uint64_t)(n * 8 + n_rows));
    *r->seen = dti_hash_bytes(*r->seen, scores, (size_t)(n_rows * vocab) * sizeof *scores);
}

static void hash_logprobs(text_run *t, const dt_logprob *list, int64_t n)
{
    if (n > 0) t->logprobs = dti_hash_bytes(t->logprobs, list, (size_t)n * sizeof *list);
}

/* Options of every kind; lists are static. */
static void set_options(request_run *r, uint64_t *u, int64_t kind)
{
    static const int32_t some[] = { 3, 7, 11, 19 };
    static const int32_t word[] = { 5, 9 };
    static const dt_ids words[] = { { word, 2 }, { some, 1 } };
    dt_generate_options *o = &r->options;

    o->seed = (uint64_t)draw(u, 5);
    o->do_sample = kind >= 2 && kind != 6 && kind != 8;
    if (kind == 1 || kind == 4) {
        o->repetition_penalty = 1.3;
        o->no_repeat_ngram_size = 3;
        o->min_new_tokens = draw(u, 20);
    }
    if (kind == 2 || kind == 5) {
        o->top_k = 1 + draw(u, 20);
        o->temperature = 0.8;
    }
    if (kind == 3) {
        o->top_p = 0.9;
        o->min_p = 0.002;
        o->typical_p = draw(u, 2) == 0 ? 0.95 : 1;
    }
    if (kind == 4) {
        o->suppress_tokens = (dt_ids){ some, 3 };
        o->bad_words = words;
        o->n_bad_words = 2;
        o->forced_bos = 4;
        o->forced_eos = (dt_ids){ some, 2 };
        o->begin_suppress_tokens = (dt_ids){ some, 4 };
    }
    if (kind == 5) o->num_return_sequences = 2 + draw(u, MOST_TEXTS - 1);
    if (kind == 7) {
        o->top_k = 0;
        o->temperature = 1.2;
        o->renormalize_logits = true;
        o->eta_cutoff = 0.001;
    }
    if (draw(u, 4) == 0) o->n_logprobs = draw(u, 4);
    if (draw(u, 4) == 0) o->frequency_penalty = 0.5;
    if (kind >= 7) {
        o->on_scores = hash_scores;
        o->scores_arg = r;
    }
    o->ignore_eos = draw(u, 3) == 0;
    o->eos = (dt_ids){ some, 4 };
}

/* Prompts of a family begin alike. */
static void make_request(request_run *r, const dt_engine_run *run, uint64_t *u, int64_t vocab)
{
    const int64_t kind = draw(u, N_KINDS);

    *r = (request_run){ .options = DT_GENERATE_OPTIONS_INIT, .n_prompts = kind == 6 ? 2 : 1 };
    r->options.max_new_tokens = 1 + draw(u, dti_min(run->most_new, MOST_NEW));
    r->salt = draw(u, 8) == 0;
    set_options(r, u, kind);
    r->n_texts = r->n_prompts * r->options.num_return_sequences;
    for (int64_t i = 0; i < r->n_prompts; i++) {
        const int64_t n = 1 + draw(u, run->longest),
                      common = draw(u, 3) == 0 ? draw(u, n + 1) : n - n / 9;
        const int64_t family = draw(u, FAMILIES), own = draw(u, 1 << 20);
        for (int64_t j = 0; j < n; j++)
            r->ids[i][j] =
                (int32_t)((j < common ? j * j % 31 + family * 7 + j : own * (j + 3) % 97 + j * 5) %
                          vocab);
        r->prompts[i] = (dt_ids){ r->ids[i], n };
    }
}

static void keep_alone(request_run *r, const dt_generated *g, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const dt_ids ids = dt_generated_ids(g, i);
        text_run *t = &r->alone[first + i];
        memcpy(t->ids, ids.ids, (size_t)ids.n * sizeof *ids.ids);
        t->n = ids.n;
        for (int64_t k = 0, n_list = 0; k < ids.n; k++) {
            const dt_logprob *list = dt_generated_logprobs(g, i, k, &n_list);
            hash_logprobs(t, list, n_list);
        }
        t->end = dt_generated_end(g, i);
    }
}

/* Options may ban all tokens: then that is what both have to say. Prompts of two lengths have
 * padding, which layers that carry state refuse: these are greedy, and made one by one. */
static dt_status make_alone(dt_model *m, request_run *r)
{
    const bool apart = dt_layers_carry_states(dt_model_layers(m));
    const int64_t n = apart ? 1 : r->n_prompts, texts = r->n_texts / r->n_prompts * n;

    r->seen = &r->scores[0];
    for (int64_t p = 0; p < r->n_prompts; p += n) {
        dt_generated *g = NULL;
        const dt_status st = dt_generate_batch(m, r->prompts + p, n, &r->options, &g);
        if (st != DT_OK) r->errors[0] = *dt_last_error();
        if (st == DT_ERR_ARG) return DT_OK;
        DT_TRY(st);
        keep_alone(r, g, p * texts, texts);
        dt_generated_release(&g);
    }
    return DT_OK;
}

/* --- the engine ------------------------------------------------------------------------------- */

typedef struct whole_run {
    const dt_engine_run *run;
    dt_model *model;
    dt_engine *engine;
    request_run *requests; /* [run->n_requests] */
    int64_t n_over;
    int64_t *log;
    int64_t n_log;
    size_t log_room;
} whole_run;

static void keep_log(void *arg, const int64_t *words, int64_t n)
{
    whole_run *w = arg;

    if (dti_grow((void **)&w->log, &w->log_room, (size_t)(w->n_log + n), sizeof *words) != DT_OK)
        return;
    memcpy(w->log + w->n_log, words, (size_t)n * sizeof *words);
    w->n_log += n;
}

static dt_status take_event(whole_run *w, const dt_engine_event *e)
{
    request_run *r = NULL;
    text_run *t;

    for (int64_t i = 0; i < w->run->n_requests && r == NULL; i++)
        if (w->requests[i].number == e->request) r = &w->requests[i];
    DT_EXPECT(r != NULL && !r->cancelled, "an event of request %lld", (long long)e->request);
    DT_EXPECT(r->errors[1].code == DT_OK, "an event of request %lld, which has failed",
              (long long)e->request);
    if (e->kind == DT_ENGINE_FAILED) {
        r->errors[1] = *e->error;
        return DT_OK;
    }
    DT_EXPECT(e->text >= 0 && e->text < r->n_texts, "text %lld", (long long)e->text);
    t = &r->together[e->text];
    DT_EXPECT(!t->over && e->n == t->n, "token %lld after %lld", (long long)e->n, (long long)t->n);
    if (e->kind == DT_ENGINE_TOKEN) {
        t->ids[t->n++] = e->id;
        hash_logprobs(t, e->logprobs, e->n_logprobs);
        return DT_OK;
    }
    t->over = true;
    t->end = e->end;
    return DT_OK;
}

static dt_status step(whole_run *w)
{
    const dt_engine_event *events;
    int64_t n;

    DT_TRY(dt_engine_step(w->engine, &events, &n));
    for (int64_t i = 0; i < n; i++) DT_TRY(take_event(w, &events[i]));
    return DT_OK;
}

static dt_status submit(whole_run *w, request_run *r)
{
    dt_engine_request q = DT_ENGINE_REQUEST_INIT;
    dt_generate_options o = r->options;

    o.seed += r->spoiled;
    q.prompts = r->prompts;
    q.n_prompts = r->n_prompts;
    q.options = &o;
    q.salt = r->salt;
    r->seen = &r->scores[1];
    return dt_engine_submit(w->engine, &q, &r->number);
}

static dt_status cancel_one(whole_run *w, request_run *r)
{
    bool over = r->errors[1].code != DT_OK, all = true;

    for (int64_t i = 0; i < r->n_texts; i++) all = all && r->together[i].over;
    r->cancelled = r->cancelled || !(over || all);
    return dt_engine_cancel(w->engine, r->number);
}

/* In the last of several rounds nobody is cancelled: all are compared. */
static dt_status make_together(whole_run *w, int64_t k)
{
    const bool cancels = !w->run->spoiled && (k < w->run->n_more || k == 0);
    uint64_t u = w->run->seed + 99 + (uint64_t)k;
    const int64_t n = w->run->n_requests;

    for (int64_t at = 0; at < n || dt_engine_is_busy(w->engine);) {
        for (int64_t more = draw(&u, 5); more > 0 && at < n; more--)
            DT_TRY(submit(w, &w->requests[at++]));
        if (draw(&u, 9) == 0 && at > 0 && cancels)
            DT_TRY(cancel_one(w, &w->requests[draw(&u, at)]));
        DT_TRY(step(w));
    }
    return DT_OK;
}

static dt_status compare(const request_run *r, int64_t number)
{
    if (r->cancelled) return DT_OK;
    DT_EXPECT(strcmp(r->errors[0].message, r->errors[1].message) == 0,
              "request %lld says \"%s\", alone \"%s\"", (long long)number, r->errors[1].message,
              r->errors[0].message);
    for (int64_t i = 0; i < r->n_texts && r->errors[0].code == DT_OK; i++) {
        const text_run *a = &r->alone[i], *b = &r->together[i];
        for (int64_t j = 0; j < a->n && j < b->n; j++)
            DT_EXPECT(a->ids[j] == b->ids[j],
                      "token %lld of text %lld of request %lld (%lld tokens) is %d, alone %d",
                      (long long)j, (long long)i, (long long)number, (long long)r->prompts[0].n,
                      b->ids[j], a->ids[j]);
        DT_EXPECT(a->logprobs == b->logprobs, "log-probabilities of text %lld of request %lld",
                  (long long)i, (long long)number);
        DT_EXPECT(b->over && a->n == b->n && a->end == b->end,
                  "text %lld of request %lld has %lld tokens and end %d, alone %lld and %d",
                  (long long)i, (long long)number, (long long)b->n, (int)b->end, (long long)a->n,
                  (int)a->end);
    }
    DT_EXPECT(r->scores[0] == r->scores[1], "scores of request %lld", (long long)number);
    return DT_OK;
}

static dt_status check_counts(const whole_run *w, dt_engine_counts *c)
{
    DT_TRY(dt_engine_count(w->engine, c));
    DT_EXPECT(c->used_blocks == 0 && c->running == 0 && c->waiting == 0, "%lld blocks stay used",
              (long long)c->used_blocks);
    if (getenv("DTENSOR_TEST_VERBOSE") != NULL)
        (void)fprintf(stderr,
                      "%s: %lld passes, %lld rows, %lld read, %lld found, %lld preempted of %lld "
                      "blocks\n",
                      w->run->fixture, (long long)c->passes, (long long)c->rows,
                      (long long)c->read_tokens, (long long)c->found_tokens,
                      (long long)c->preemptions, (long long)c->blocks);
    DT_TRY(dt_engine_replay(w->log, w->n_log));
    return DT_OK;
}

/* Of the first rank, for all. */
static void add_round(const whole_run *w, const dt_engine_counts *c)
{
    dt_engine_tally *t = w->run->tally;

    if (t == NULL || dt_runtime_rank(dt_mesh_runtime(dt_model_mesh(w->model))) != 0) return;
    for (int64_t i = 0; i < w->run->n_requests; i++) {
        const request_run *r = &w->requests[i];
        *(r->cancelled ? &t->cancelled : &t->compared) += 1;
        for (int64_t k = 0; k < r->n_texts && !r->cancelled; k++) t->tokens += r->together[k].n;
    }
    t->passes += c->passes;
    t->rows += c->rows;
    t->preempted += c->preemptions;
    t->found += c->found_tokens;
}

static dt_status make_all_alone(whole_run *w)
{
    const dt_engine_run *run = w->run;
    dt_engine_tally *t =
        dt_runtime_rank(dt_mesh_runtime(dt_model_mesh(w->model))) == 0 ? run->tally : NULL;
    bool spoils = run->spoiled;
    uint64_t u = run->seed;

    DT_TRY(dti_alloc_array((size_t)run->n_requests, sizeof *w->requests, (void **)&w->requests));
    for (int64_t i = 0; i < run->n_requests; i++) {
        request_run *r = &w->requests[i];
        make_request(r, run, &u, dt_model_info_of(w->model)->vocab_size);
        DT_TRY(make_alone(w->model, r));
        r->spoiled = spoils && r->options.do_sample && r->options.top_k != 1 && r->alone[0].n > 20;
        spoils = spoils && !r->spoiled;
        if (t == NULL) continue;
        t->requests++;
        *(r->options.do_sample ? &t->sampled : &t->greedy) += 1;
    }
    return DT_OK;
}

/* Round k: all of them together, in an order of its own. */
static dt_status run_round(whole_run *w, int64_t k)
{
    dt_engine_options options = k == 0 ? w->run->options : w->run->more[k - 1];
    dt_engine_counts counts;

    for (int64_t i = 0; i < w->run->n_requests; i++) {
        request_run *r = &w->requests[i];
        memset(r->together, 0, sizeof r->together);
        r->errors[1] = (dt_error){ .code = DT_OK };
        r->scores[1] = 0;
        r->number = 0;
        r->cancelled = false;
    }
    w->n_log = 0;
    options.log = keep_log;
    options.log_arg = w;
    DT_TRY(dt_engine_create(w->model, &options, &w->engine));
    DT_TRY(make_together(w, k));
    for (int64_t i = 0; i < w->run->n_requests; i++) DT_TRY(compare(&w->requests[i], i));
    DT_TRY(check_counts(w, &counts));
    add_round(w, &counts);
    dt_engine_release(&w->engine);
    return DT_OK;
}

static dt_status run_all(dt_mesh *mesh, whole_run *w, const char *folder)
{
    dt_load_options load = DT_LOAD_OPTIONS_INIT;

    load.keep_dtype = false;
    load.dtype = w->run->dtype;
    load.weights = w->run->weights;
    DT_TRY(dt_model_create_random(mesh, folder, &load, 7, &w->model));
    DT_TRY(make_all_alone(w));
    for (int64_t k = 0; k <= w->run->n_more; k++) DT_TRY(run_round(w, k));
    return DT_OK;
}

/* What ranks share. */
typedef struct shared_run {
    const dt_engine_run *run;
    char folder[DT_TEST_PATH_BYTES];
} shared_run;

static dt_status on_rank(dt_mesh *mesh, const void *arg)
{
    const shared_run *shared = arg;
    whole_run w = { .run = shared->run };
    const dt_status st = run_all(mesh, &w, shared->folder);

    dt_engine_release(&w.engine);
    dt_model_release(&w.model);
    dti_free(w.requests);
    dti_free(w.log);
    return st;
}

dt_status dt_engine_run_try(const dt_engine_run *run, const char *mesh)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    shared_run shared = { .run = run };
    dt_status st;

    DT_TRY(write_config(run->fixture, dt_test_temp_dir(shared.folder)));
    st = dt_test_run(&options, mesh, on_rank, &shared);
    if (st != DT_OK)
        dti_error_prefix("%s, %s, %s, seed %llu", run->fixture, mesh, dt_dtype_name(run->dtype),
                         (unsigned long long)run->seed);
    return st;
}

void dt_engine_run_check(const dt_engine_run *run, const char *mesh)
{
    DT_ASSERT_OK(dt_engine_run_try(run, mesh));
}
