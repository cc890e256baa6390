/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests on their way: streamed, cancelled, late, more urgent than others, too many. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/served.h"

static const char neo[] = "gpt_neo/base", chatting[] = "examples/checkpoint";
static const int32_t ids[] = { 5, 17, 3, 88, 42 };
static const dt_ids prompt = { ids, 5 };

static void nap(int ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

    (void)nanosleep(&t, NULL);
}

enum { LONG = 55 }; /* tokens, as many as the context has room for */

/* A request that ends by itself only after all others. */
static dt_generate_options endless(void)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;

    o.max_new_tokens = LONG;
    o.ignore_eos = true;
    return o;
}

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- functions that hold a model back ---------------------------------------------------------
 */

/* Goes on until nobody wants it any more, or so many milliseconds. */
static dt_status wait_here(dt_call *call, void *arg)
{
    int32_t ms;
    const double begin = now_s();

    (void)arg;
    memcpy(&ms, dt_call_input(call, 0)->data, sizeof ms);
    DT_TRY(dt_call_reply(call, &(dt_piece){ 0 }));
    while (dt_call_goes_on(call)) {
        char over = now_s() - begin > ms * 1e-3;
        int64_t n = 1;
        dt_mesh *mesh = dt_model_mesh(dt_call_model(call));
        DT_TRY(dt_mesh_broadcast_work(mesh, 0, &over, 1, &n));
        if (over) break;
        nap(1);
    }
    return DT_OK;
}

static dt_status add_wait(dt_runtime *rt, void *arg)
{
    return dt_function_register(rt, "wait", wait_here, arg);
}

/* Keeps all slots of a model busy from a thread of its own, until it is let go. */
typedef struct holder {
    dt_served *model;
    pthread_t thread;
    _Atomic bool holds, lets_go;
    dt_status st;
} holder;

static bool has_begun(void *arg, const dt_piece *piece)
{
    holder *h = arg;

    (void)piece;
    h->holds = true;
    while (!h->lets_go) nap(1);
    return false;
}

static void *hold(void *arg)
{
    holder *h = arg;
    dt_request_options how = DT_REQUEST_OPTIONS_INIT;
    const int32_t ms = 60000;
    const dt_piece input = { .data = &ms, .n_bytes = sizeof ms };

    how.on_piece = has_begun;
    how.arg = h;
    h->st = dt_service_call(h->model, "wait", &input, 1, &how, NULL);
    return NULL;
}

static void begin_to_hold(holder *h, dt_served *model)
{
    *h = (holder){ .model = model };
    DT_ASSERT(pthread_create(&h->thread, NULL, hold, h) == 0);
    while (!h->holds) nap(1);
}

static void let_go(holder *h)
{
    h->lets_go = true;
    (void)pthread_join(h->thread, NULL);
    DT_ASSERT_EQ_INT(h->st, DT_OK);
}

/* --- streams ---------------------------------------------------------------------------------- */

typedef struct heard {
    int32_t ids[3][64];
    int64_t n[3];
    int64_t most;
    pthread_t thread;
    bool elsewhere;
    char text[512];
} heard;

static bool hear(void *arg, int64_t text, int64_t n, int32_t id)
{
    heard *h = arg;

    if (!pthread_equal(h->thread, pthread_self()) || n != h->n[text]) h->elsewhere = true;
    h->ids[text][h->n[text]++] = id;
    return h->most == 0 || h->n[text] < h->most;
}

static bool hear_one(void *arg, int64_t n, int32_t id)
{
    return hear(arg, 1, n, id);
}

static bool read_text(void *arg, int64_t text, const char *bytes, size_t n)
{
    heard *h = arg;

    (void)text;
    (void)strncat(h->text, bytes, n);
    return true;
}

DT_TEST(requests, tokens_stream_to_the_thread_that_waits)
{
    dt_request_options how = DT_REQUEST_OPTIONS_INIT;
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_service *s = served_start(2, 20000, NULL);
    dt_served *m = served_load(s, neo);
    heard h = { .thread = pthread_self() };

    how.on_token = hear;
    how.arg = &h;
    o.max_new_tokens = 9;
    for (int beams = 0; beams < 2; beams++) {
        dt_generated *g;
        memset(h.n, 0, sizeof h.n);
        o.num_return_sequences = 3;
        o.do_sample = !beams;
        o.num_beams = beams ? 4 : 1;
        DT_ASSERT_OK(dt_service_generate(m, &prompt, 1, &o, &how, &g));
        DT_ASSERT(!h.elsewhere);
        for (int i = 0; i < 3; i++) {
            const dt_ids x = dt_generated_ids(g, i);
            DT_ASSERT_EQ_INT(h.n[i], x.n);
            DT_ASSERT(memcmp(h.ids[i], x.ids, (size_t)x.n * sizeof *x.ids) == 0);
        }
        dt_generated_release(&g);
    }
    o.on_token = hear_one; /* of a single text */
    o.arg = &h;
    DT_ASSERT_STATUS(dt_service_generate(m, &prompt, 1, &o, NULL, &(dt_generated *){ NULL }),
                     DT_ERR_ARG, "on_token");
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

DT_TEST(requests, a_callback_that_has_enough_ends_the_text)
{
    dt_generate_options o = endless();
    dt_service *s = served_start(2, 20000, NULL);
    dt_served *m = served_load(s, neo);
    heard h = { .thread = pthread_self(), .most = 3 };
    dt_service_counts counts;
    dt_generated *g;

    o.on_token = hear_one;
    o.arg = &h;
    DT_ASSERT_OK(dt_service_generate(m, &prompt, 1, &o, NULL, &g));
    DT_ASSERT_EQ_INT(h.n[1], 3);
    DT_ASSERT_EQ_INT(dt_generated_end(g, 0), DT_END_CANCELLED);
    DT_ASSERT_EQ_INT(dt_generated_ids(g, 0).n, 3);
    DT_ASSERT(memcmp(dt_generated_ids(g, 0).ids, h.ids[1], 3 * sizeof(int32_t)) == 0);
    DT_ASSERT_OK(dt_service_count(m, &counts));
    DT_ASSERT_EQ_INT(counts.cancelled, 1);
    dt_generated_release(&g);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

static void look(void *arg, int64_t n, const float *scores, int64_t n_rows, int64_t vocab)
{
    int64_t *seen = arg;

    if (n == *seen && n_rows == 2 && vocab > 100 && scores[0] == scores[0]) ++*seen;
}

DT_TEST(requests, scores_and_stop_strings_are_those_of_generate)
{
    static const char *const stop[] = { "e" };
    char folder[DT_TEST_PATH_BYTES];
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_request_options how = DT_REQUEST_OPTIONS_INIT;
    dt_service *s = served_start(2, 20000, NULL);
    dt_served *m = NULL, *talker = NULL;
    heard h = { .thread = pthread_self() };
    dt_tokenizer *tokenizer;
    dt_generated *g;
    int32_t *romeo;
    int64_t seen = 0;
    size_t n;

    m = served_load(s, neo);
    o.max_new_tokens = 5;
    o.ignore_eos = true;
    o.on_scores = look;
    o.scores_arg = &seen;
    DT_ASSERT_OK(dt_service_generate(m, (dt_ids[]){ prompt, { ids + 1, 3 } }, 2, &o, NULL, &g));
    DT_ASSERT_EQ_INT(seen, 5);
    dt_generated_release(&g);

    DT_ASSERT_OK(dt_service_load(s, dt_test_source_path(folder, "%s", chatting), NULL, &talker));
    o = (dt_generate_options)DT_GENERATE_OPTIONS_INIT;
    o.max_new_tokens = 60;
    o.stop_strings = stop;
    o.n_stop_strings = 1;
    how.on_text = read_text;
    how.arg = &h;
    DT_ASSERT_OK(dt_tokenizer_open(folder, &tokenizer));
    DT_ASSERT_OK(dt_tokenizer_encode(tokenizer, "ROMEO:", 6, DT_ENCODE_ADD_SPECIAL, &romeo, &n));
    DT_ASSERT_OK(dt_service_generate(talker, &(dt_ids){ romeo, (int64_t)n }, 1, &o, &how, &g));
    dt_tokenizer_free(romeo);
    dt_tokenizer_release(&tokenizer);
    DT_ASSERT_EQ_INT(dt_generated_end(g, 0), DT_END_STRING);
    DT_ASSERT(strchr(h.text, 'e') != NULL);
    dt_generated_release(&g);
    DT_ASSERT_OK(dt_service_unload(&talker));
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

/* --- the queue -------------------------------------------------------------------------------- */

DT_TEST(requests, the_most_urgent_is_first_and_too_many_are_refused)
{
    dt_service_options so = DT_SERVICE_OPTIONS_INIT;
    dt_run_options run = DT_TEST_RUN_OPTIONS;
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_request_options how = DT_REQUEST_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    dt_service *s;
    dt_served *m;
    dt_ticket *t[4];
    dt_generated *g;
    int64_t before;
    holder h;

    run.n_ranks = 2;
    run.setup = add_wait;
    so.run = &run;
    (void)served_place(&so, &run);
    so.max_queued = 3;
    so.max_running = 1;
    DT_ASSERT_OK(dt_service_start(&so, &s));
    DT_ASSERT_OK(dt_service_load(s, dt_test_source_path(folder, "tests/golden/%s", neo), NULL, &m));
    begin_to_hold(&h, m);
    o.max_new_tokens = 3;
    for (int i = 0; i < 3; i++) {
        how.priority = i == 2 ? 5 : 0;
        DT_ASSERT_OK(dt_service_submit(m, &prompt, 1, &o, &how, &t[i]));
    }
    DT_ASSERT_STATUS(dt_service_submit(m, &prompt, 1, &o, &how, &t[3]), DT_ERR_MEMORY,
                     "3 requests wait");
    DT_ASSERT(dt_ticket_progress(t[2], &before) == DT_TICKET_QUEUED && before == 0);
    DT_ASSERT(dt_ticket_progress(t[1], &before) == DT_TICKET_QUEUED && before == 2);
    dt_ticket_cancel(t[0]);
    DT_ASSERT(dt_ticket_progress(t[1], &before) == DT_TICKET_QUEUED && before == 1);
    let_go(&h);
    for (int i = 2; i >= 0; i--) {
        DT_ASSERT_OK(dt_ticket_wait(t[i], &g));
        DT_ASSERT_EQ_INT(dt_generated_ids(g, 0).n, i == 0 ? 0 : 3);
        DT_ASSERT_EQ_INT(dt_generated_end(g, 0), i == 0 ? DT_END_CANCELLED : DT_END_LENGTH);
        dt_generated_release(&g);
        DT_ASSERT_STATUS(dt_ticket_wait(t[i], &g), DT_ERR_ARG, "waited for before");
        dt_ticket_release(&t[i]);
    }
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

DT_TEST(requests, short_ones_do_not_wait_for_a_long_one)
{
    dt_generate_options o = endless(), few = DT_GENERATE_OPTIONS_INIT;
    dt_service *s = served_start(2, 20000, NULL);
    dt_served *m = served_load(s, neo);
    dt_generated *g;
    dt_ticket *t;
    int64_t steps;

    DT_ASSERT_OK(dt_service_submit(m, &prompt, 1, &o, NULL, &t));
    few.max_new_tokens = 3;
    DT_ASSERT_OK(dt_service_generate(m, &prompt, 1, &few, NULL, &g));
    DT_ASSERT(dt_ticket_progress(t, &steps) == DT_TICKET_RUNNING || steps == LONG);
    dt_generated_release(&g);
    DT_ASSERT_OK(dt_ticket_wait(t, &g));
    DT_ASSERT_EQ_INT(dt_generated_ids(g, 0).n, LONG);
    dt_generated_release(&g);
    dt_ticket_release(&t);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

/* Nobody waits for a model that is busy but who asks it. */
DT_TEST(requests, a_model_is_loaded_and_memory_told_while_another_is_busy)
{
    dt_service *s = served_start(2, 20000, add_wait);
    dt_served *busy = served_load(s, neo), *other;
    dt_rank_memory ranks[2], both[2];
    dt_rank_memory_kinds kinds[2];
    dt_service_counts counts;
    dt_generated *g;
    holder h;

    begin_to_hold(&h, busy);
    DT_ASSERT_OK(dt_service_memory(s, busy, ranks, kinds));
    DT_ASSERT(ranks[1].allocated_bytes >= kinds[1].weights_bytes && kinds[1].weights_bytes > 0);
    other = served_load(s, neo);
    DT_ASSERT_OK(dt_service_generate(other, &prompt, 1, NULL, NULL, &g));
    dt_generated_release(&g);
    DT_ASSERT_OK(dt_service_memory(s, NULL, both, NULL));
    DT_ASSERT_EQ_INT(both[0].whole_bytes, 2 * ranks[0].whole_bytes);
    DT_ASSERT_STATUS(dt_service_memory(s, (dt_served *)(void *)s, ranks, NULL), DT_ERR_ARG,
                     "of another service");
    DT_ASSERT_OK(dt_service_unload(&other));
    DT_ASSERT_OK(dt_service_count(busy, &counts));
    DT_ASSERT_EQ_INT(counts.running, 1);
    let_go(&h);
    DT_ASSERT_OK(dt_service_unload(&busy));
    DT_ASSERT_OK(dt_service_stop(&s));
}

/* --- deadlines -------------------------------------------------------------------------------- */

DT_TEST(requests, a_deadline_holds_in_the_queue_and_behind_it)
{
    dt_request_options how = DT_REQUEST_OPTIONS_INIT;
    dt_service *s = served_start(2, 20000, add_wait);
    dt_served *m = served_load(s, neo);
    const int32_t ms = 60000;
    const dt_piece input = { .data = &ms, .n_bytes = sizeof ms };
    dt_rank_memory before[2], after[2];
    dt_generated *g;
    holder h;

    DT_ASSERT_OK(dt_service_generate(m, &prompt, 1, NULL, NULL, &g)); /* the pool is there */
    dt_generated_release(&g);
    DT_ASSERT_OK(dt_service_memory(s, m, before, NULL));
    begin_to_hold(&h, m);
    how.deadline_ms = 50;
    DT_ASSERT_STATUS(dt_service_generate(m, &prompt, 1, NULL, &how, &g), DT_ERR_COMM,
                     "it had to wait; rank 0: call of request 2");
    let_go(&h);
    DT_ASSERT_STATUS(dt_service_call(m, "wait", &input, 1, &how, NULL), DT_ERR_COMM, "deadline");
    DT_ASSERT_OK(dt_service_generate(m, &prompt, 1, NULL, NULL, &g));
    dt_generated_release(&g);
    DT_ASSERT_OK(dt_service_memory(s, m, after, NULL));
    DT_ASSERT_EQ_INT(before[1].allocated_bytes, after[1].allocated_bytes);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

/* Requests that are cancelled at all times leave nothing, and the next one is as ever. */
DT_TEST(requests, cancelled_ones_leave_nothing)
{
    dt_generate_options o = endless();
    dt_service *s = served_start(2, 20000, NULL);
    dt_served *m = served_load(s, neo);
    dt_rank_memory before[2], after[2];
    dt_service_counts counts;
    dt_generated *g;

    DT_ASSERT_OK(dt_service_generate(m, &prompt, 1, NULL, NULL, &g)); /* the pool is there */
    dt_generated_release(&g);
    DT_ASSERT_OK(dt_service_memory(s, m, before, NULL));
    for (int i = 0; i < 200; i++) {
        dt_ticket *t;
        o.num_beams = i % 4 == 3 ? 3 : 1;
        DT_ASSERT_OK(dt_service_submit(m, &prompt, 1, &o, NULL, &t));
        if (i % 3 == 1) nap(i % 5);
        if (i % 2 == 0) dt_ticket_cancel(t);
        if (i % 8 == 0) {
            DT_ASSERT_OK(dt_ticket_wait(t, &g));
            dt_generated_release(&g);
        }
        dt_ticket_release(&t);
    }
    o.num_beams = 1;
    o.max_new_tokens = 3;
    DT_ASSERT_OK(dt_service_generate(m, &prompt, 1, &o, NULL, &g));
    DT_ASSERT_EQ_INT(dt_generated_ids(g, 0).n, 3);
    dt_generated_release(&g);
    do {
        DT_ASSERT_OK(dt_service_count(m, &counts));
    } while (counts.queued + counts.running > 0);
    DT_ASSERT_EQ_INT(counts.done + counts.cancelled, 202);
    DT_ASSERT_EQ_INT(counts.engine.used_blocks + counts.engine.waiting + counts.engine.running, 0);
    DT_ASSERT_OK(dt_service_memory(s, m, after, NULL));
    DT_ASSERT_EQ_INT(before[0].allocated_bytes, after[0].allocated_bytes);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

/* --- chat ------------------------------------------------------------------------------------- */

/* A folder with links to files of another one. */
static void link_files(char folder[DT_TEST_PATH_BYTES], const char *from, const char *const *files,
                       size_t n)
{
    char path[DT_TEST_PATH_BYTES], to[2 * DT_TEST_PATH_BYTES];

    (void)dt_test_temp_dir(folder);
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(to, sizeof to, "%s/%s", folder, files[i]);
        DT_ASSERT(symlink(dt_test_source_path(path, "%s/%s", from, files[i]), to) == 0);
    }
}

/* A template beside a checkpoint that has none. */
DT_TEST(requests, a_chat_answers_by_the_folders_template)
{
    static const char *const files[] = { "config.json", "model.safetensors", "tokenizer.json",
                                         "tokenizer_config.json", "generation_config.json" };
    static const char template[] =
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}";
    const dt_chat_message romeo = { "user", "ROMEO:", 0 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_request_options how = DT_REQUEST_OPTIONS_INIT;
    dt_service *s = served_start(2, 20000, NULL);
    char folder[DT_TEST_PATH_BYTES];
    heard h = { .thread = pthread_self() };
    dt_served *m;
    char *text;

    link_files(folder, chatting, files, sizeof files / sizeof *files);
    dt_test_write_file(folder, "chat_template.jinja", template, sizeof template - 1);
    DT_ASSERT_OK(dt_service_load(s, folder, NULL, &m));
    o.max_new_tokens = 20;
    how.on_text = read_text;
    how.arg = &h;
    DT_ASSERT_OK(dt_service_chat(m, &romeo, 1, NULL, &o, &how, &text));
    DT_ASSERT(strlen(text) > 10);
    DT_ASSERT_EQ_STR(text, h.text);
    dt_tokenizer_free(text);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

DT_TEST(requests, options_are_what_the_folder_asks_for)
{
    static const char *const files[] = { "config.json", "model.safetensors" };
    static const char config[] =
        "{\"do_sample\": true, \"temperature\": 0.5, \"top_k\": 7, \"suppress_tokens\": [3, 4],"
        " \"bad_words_ids\": [[1, 2], [5]], \"eos_token_id\": 9, \"pad_token_id\": 0}";
    dt_service *s = served_start(2, 20000, NULL);
    char folder[DT_TEST_PATH_BYTES];
    dt_generate_options o;
    dt_generated *g;
    dt_served *m;

    link_files(folder, "tests/golden/gpt_neo/base", files, 2);
    dt_test_write_file(folder, "generation_config.json", config, sizeof config - 1);
    DT_ASSERT_OK(dt_service_load(s, folder, NULL, &m));
    DT_ASSERT_OK(dt_service_generate_options(m, &o));
    DT_ASSERT(o.do_sample && o.temperature == 0.5 && o.top_k == 7 && o.pad == 0);
    DT_ASSERT(o.suppress_tokens.n == 2 && o.suppress_tokens.ids[1] == 4);
    DT_ASSERT_EQ_INT(o.n_bad_words, 2);
    DT_ASSERT(o.bad_words[0].n == 2 && o.bad_words[1].n == 1 && o.bad_words[1].ids[0] == 5);
    o.max_new_tokens = 12;
    DT_ASSERT_OK(dt_service_generate(m, &prompt, 1, &o, NULL, &g));
    for (int64_t i = 0; i < dt_generated_ids(g, 0).n; i++) {
        const int32_t id = dt_generated_ids(g, 0).ids[i];
        DT_ASSERT(id != 3 && id != 4 && id != 5);
    }
    dt_generated_release(&g);
    DT_ASSERT_OK(dt_service_unload(&m));
    dt_test_write_file(folder, "generation_config.json", "{", 1);
    DT_ASSERT_OK(dt_service_load(s, folder, NULL, &m));
    DT_ASSERT_STATUS(dt_service_generate_options(m, &o), DT_ERR_FORMAT, "generation_config");
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

DT_TEST(requests, bad_ones_are_refused_at_once)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_request_options how = DT_REQUEST_OPTIONS_INIT;
    const dt_chat_message hello = { "user", "hello", 0 };
    dt_service *s = served_start(1, 20000, NULL);
    dt_served *m = served_load(s, neo);
    const int32_t far = 100000;
    dt_generated *g;
    char *text;

    o.num_beams = 0;
    DT_ASSERT_STATUS(dt_service_generate(m, &prompt, 1, &o, NULL, &g), DT_ERR_ARG, "num_beams");
    DT_ASSERT_STATUS(dt_service_generate(m, &prompt, 0, NULL, NULL, &g), DT_ERR_ARG, "0 prompts");
    DT_ASSERT_STATUS(dt_service_generate(m, &(dt_ids){ ids, 0 }, 1, NULL, NULL, &g), DT_ERR_ARG,
                     "prompt 0 is empty");
    DT_ASSERT_STATUS(dt_service_generate(m, &(dt_ids){ &far, 1 }, 1, NULL, NULL, &g), DT_ERR_ARG,
                     "100000");
    DT_ASSERT_STATUS(dt_service_generate(NULL, &prompt, 1, NULL, NULL, &g), DT_ERR_ARG, "NULL");
    how.deadline_ms = -1;
    DT_ASSERT_STATUS(dt_service_generate(m, &prompt, 1, NULL, &how, &g), DT_ERR_ARG, "deadline_ms");
    DT_ASSERT(g == NULL);
    DT_ASSERT_STATUS(dt_service_chat(m, &hello, 1, NULL, NULL, NULL, &text), DT_ERR_IO, NULL);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}
