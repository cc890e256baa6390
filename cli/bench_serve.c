/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor bench --serve: a server under load. Closed loop: so many clients, each of which asks
 * again when it has its answer. Open loop: requests at random times (Poisson's), whatever the
 * answers do.
 *
 * As vLLM defines them: time to the first token (TTFT): from sending to the first event with
 * choices; between tokens (ITL): gaps between such events; end to end (E2EL): to the last of them;
 * per output token (TPOT): (E2EL - TTFT) / (tokens - 1), tokens as the server counts them. */
#include "cli/bench_serve.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/text.h"
#include "cli/bench_figures.h"
#include "cli/http_client.h"
#include "cli/option_table.h"
#include "cli/print_report.h"

enum { N_PROMPT = 128, N_NEW = 128, PER_CLIENT = 8, MOST_THREADS = 1024, N_FIGURES = 4 };

/* Seconds, one behind the other. */
typedef struct samples {
    double *values;
    size_t n, room;
} samples;

/* What one run of all requests has found; under the lock. */
typedef struct load_run {
    int64_t clients; /* 0: open loop */
    double rate;
    int64_t n_requests, n_done, n_failed, n_tokens;
    double seconds;
    samples figures[N_FIGURES]; /* TTFT, TPOT, ITL, E2EL */
    char failure[160];          /* of the first that failed */
} load_run;

typedef struct bombardment {
    const cli_args *args;
    cli_peer peer;
    char model[256];
    int64_t n_vocab; /* 0: unknown, prompts are words */
    int64_t n_prompt, n_new;
    load_run *run; /* that goes on */
    pthread_mutex_t lock;
    _Atomic int64_t next; /* request */
} bombardment;

static const char *const figure_names[] = { "ttft", "tpot", "itl", "e2el" };
static const char *const figure_words[] = { "first token", "per token", "between tokens", "whole" };

/* --- one request ------------------------------------------------------------------------------ */

typedef struct shot {
    int64_t sent_ns, first_ns, last_ns, n_tokens, n_events;
    samples gaps;
    bool done; /* [DONE] came */
    bool memory;
    char failure[160];
} shot;

static bool add_sample(samples *s, double value)
{
    if (dti_grow((void **)&s->values, &s->room, s->n + 1, sizeof *s->values) != DT_OK) return false;
    s->values[s->n++] = value;
    return true;
}

static void take_error(shot *s, const json_t *error)
{
    const char *message = json_string_value(json_object_get(error, "message"));

    (void)snprintf(s->failure, sizeof s->failure, "%.150s", message != NULL ? message : "an error");
}

static bool on_line(void *arg, const char *line, size_t n)
{
    shot *s = arg;
    const int64_t now = cli_now_ns();
    const bool event = strncmp(line, "data: ", 6) == 0;
    json_t *v, *usage, *error;

    if (strcmp(line, "data: [DONE]") == 0) s->done = true;
    if (s->done || n == 0 || (line[0] != '{' && !event)) return !s->done;
    v = json_loads(event ? line + 6 : line, 0, NULL);
    usage = json_object_get(v, "usage");
    error = json_object_get(v, "error");
    if (error != NULL) take_error(s, error);
    if (json_array_size(json_object_get(v, "choices")) > 0) {
        if (s->n_events++ == 0)
            s->first_ns = now;
        else if (!add_sample(&s->gaps, (double)(now - s->last_ns) * 1e-9))
            s->memory = true;
        s->last_ns = now;
    }
    if (json_is_object(usage))
        s->n_tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
    json_decref(v);
    return error == NULL;
}

/* Each prompt is another one, also of another number of clients: a server that keeps beginnings of
 * prompts has seen none of them. They are the same in every call. */
static json_t *prompt_of(const bombardment *b, int64_t request)
{
    json_t *ids = b->n_vocab > 0 ? json_array() : NULL;
    uint64_t x =
        (uint64_t)(b->run->clients << 32 | request) * 0x9e3779b97f4a7c15u + 88172645463325252u;
    char *text;
    json_t *v;

    for (int64_t i = 0; ids != NULL && i < b->n_prompt; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        (void)json_array_append_new(ids,
                                    json_integer((json_int_t)((x >> 33) % (uint64_t)b->n_vocab)));
    }
    if (ids != NULL) return ids;
    if (dti_alloc((size_t)b->n_prompt * 5 + 1, (void **)&text) != DT_OK) return NULL;
    for (int64_t i = 0; i < b->n_prompt; i++) {
        static const char words[] = " one two six ten red";
        x = x * 6364136223846793005u + 1442695040888963407u;
        memcpy(text + 4 * i, words + (x >> 33) % 5 * 4, 4);
    }
    v = json_stringn(text, (size_t)b->n_prompt * 4);
    dti_free(text);
    return v;
}

static dt_status shoot(bombardment *b, int64_t request, shot *s)
{
    json_t *body =
        json_pack("{s:s, s:o, s:I, s:f, s:b, s:b, s:{s:b}}", "model", b->model, "prompt",
                  prompt_of(b, request), "max_tokens", (json_int_t)b->n_new, "temperature", 0.0,
                  "ignore_eos", 1, "stream", 1, "stream_options", "include_usage", 1);
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    int status = 0;
    dt_status st = text != NULL ? DT_OK : DT_ERR_MEMORY;

    json_decref(body);
    s->sent_ns = cli_now_ns();
    if (st == DT_OK) st = cli_peer_ask(&b->peer, "/v1/completions", text, &status, on_line, s);
    free(text);
    if (st == DT_OK && s->failure[0] == '\0' && (status != 200 || !s->done))
        (void)snprintf(s->failure, sizeof s->failure,
                       status != 200 ? "status %d" : "status %d, but no [DONE]", status);
    if (st != DT_OK)
        (void)snprintf(s->failure, sizeof s->failure, "%.150s", dt_last_error()->message);
    return st;
}

static void keep_shot(bombardment *b, const shot *s)
{
    const double first = (double)(s->first_ns - s->sent_ns) * 1e-9;
    const double whole = (double)(s->last_ns - s->sent_ns) * 1e-9;
    load_run *r = b->run;

    (void)pthread_mutex_lock(&b->lock);
    if (s->failure[0] != '\0' || s->n_events == 0 || s->memory) {
        if (r->n_failed++ == 0) (void)snprintf(r->failure, sizeof r->failure, "%s", s->failure);
    } else {
        r->n_done++;
        r->n_tokens += s->n_tokens;
        (void)add_sample(&r->figures[0], first);
        if (s->n_tokens > 1)
            (void)add_sample(&r->figures[1], (whole - first) / (double)(s->n_tokens - 1));
        for (size_t i = 0; i < s->gaps.n; i++) (void)add_sample(&r->figures[2], s->gaps.values[i]);
        (void)add_sample(&r->figures[3], whole);
    }
    (void)pthread_mutex_unlock(&b->lock);
}

static void one_request(bombardment *b, int64_t request)
{
    shot s = { 0 };

    (void)shoot(b, request, &s);
    keep_shot(b, &s);
    dti_free(s.gaps.values);
}

/* --- runs ------------------------------------------------------------------------------------- */

static void *client(void *arg)
{
    bombardment *b = arg;

    for (int64_t i; (i = atomic_fetch_add(&b->next, 1)) < b->run->n_requests;) one_request(b, i);
    return NULL;
}

static void *single(void *arg)
{
    bombardment *b = arg;

    one_request(b, atomic_fetch_add(&b->next, 1));
    return NULL;
}

static void sleep_until(int64_t ns)
{
    const int64_t left = ns - cli_now_ns();
    const struct timespec pause = { (time_t)(left / 1000000000), (long)(left % 1000000000) };

    if (left > 0) (void)nanosleep(&pause, NULL);
}

/* Threads of a run; in an open loop each is started at its time. */
static dt_status start_threads(bombardment *b, pthread_t *threads, int64_t n, int64_t *started)
{
    const bool open = b->run->clients == 0;
    uint64_t x = 1;
    int64_t at = cli_now_ns();

    for (*started = 0; *started < n; ++*started) {
        if (open) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            at += (int64_t)(-log(((double)(x >> 11) + 0.5) * 0x1p-53) / b->run->rate * 1e9);
            sleep_until(at);
        }
        DT_CHECK(pthread_create(&threads[*started], NULL, open ? single : client, b) == 0,
                 DT_ERR_MEMORY, "%lld threads could be started, not one more", (long long)*started);
    }
    return DT_OK;
}

static dt_status run_load(bombardment *b, load_run *r)
{
    const int64_t n = r->clients > 0 ? r->clients : r->n_requests;
    int64_t started = 0, began;
    pthread_t *threads;
    dt_status st;

    DT_CHECK(n <= MOST_THREADS, DT_ERR_ARG, "%lld clients at once, at most %d", (long long)n,
             (int)MOST_THREADS);
    DT_TRY(dti_alloc_array((size_t)n, sizeof *threads, (void **)&threads));
    b->run = r;
    atomic_store(&b->next, 0);
    began = cli_now_ns();
    st = start_threads(b, threads, n, &started);
    for (int64_t i = 0; i < started; i++) (void)pthread_join(threads[i], NULL);
    r->seconds = (double)(cli_now_ns() - began) * 1e-9;
    dti_free(threads);
    DT_TRY(st);
    return DT_OK;
}

/* --- afterwards ------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Between the two nearest, as NumPy's. */
static double percentile(const samples *s, double p)
{
    const double at = s->n > 0 ? p / 100 * (double)(s->n - 1) : 0;
    const size_t i = (size_t)at;

    if (s->n == 0) return NAN;
    if (i + 1 >= s->n) return s->values[s->n - 1];
    return s->values[i] + (at - (double)i) * (s->values[i + 1] - s->values[i]);
}

static json_t *figure_json(const samples *s)
{
    double sum = 0;

    for (size_t i = 0; i < s->n; i++) sum += s->values[i];
    return json_pack("{s:o, s:o, s:o, s:o}", "mean_ms",
                     cli_json_number(s->n > 0 ? sum / (double)s->n * 1e3 : NAN), "p50_ms",
                     cli_json_number(percentile(s, 50) * 1e3), "p90_ms",
                     cli_json_number(percentile(s, 90) * 1e3), "p99_ms",
                     cli_json_number(percentile(s, 99) * 1e3));
}

static json_t *run_json(const load_run *r)
{
    json_t *v = json_pack("{s:I, s:I, s:o, s:o, s:o}", "requests", (json_int_t)r->n_done, "failed",
                          (json_int_t)r->n_failed, "seconds", cli_json_number(r->seconds),
                          "output_tokens_per_s", cli_json_number((double)r->n_tokens / r->seconds),
                          "requests_per_s", cli_json_number((double)r->n_done / r->seconds));

    if (r->clients > 0)
        (void)json_object_set_new(v, "clients", json_integer((json_int_t)r->clients));
    else
        (void)json_object_set_new(v, "rate", cli_json_number(r->rate));
    for (int f = 0; f < N_FIGURES; f++)
        (void)json_object_set_new(v, figure_names[f], figure_json(&r->figures[f]));
    return v;
}

static void print_run(const load_run *r)
{
    if (r->clients > 0)
        (void)printf("%" PRId64 " client%s: ", r->clients, r->clients == 1 ? "" : "s");
    else
        (void)printf("%g requests/s: ", r->rate);
    (void)printf("%" PRId64 " requests in %.2f s, %.1f tokens/s\n", r->n_done, r->seconds,
                 (double)r->n_tokens / r->seconds);
    for (int f = 0; f < N_FIGURES && r->n_done > 0; f++)
        (void)printf("  %-14s median %.2f ms, 90 %% %.2f, 99 %% %.2f\n", figure_words[f],
                     percentile(&r->figures[f], 50) * 1e3, percentile(&r->figures[f], 90) * 1e3,
                     percentile(&r->figures[f], 99) * 1e3);
}

/* --- before ----------------------------------------------------------------------------------- */

typedef struct listing {
    char *text;
    size_t n, room;
} listing;

static bool keep_line(void *arg, const char *line, size_t n)
{
    listing *l = arg;

    if (dti_grow((void **)&l->text, &l->room, l->n + n + 1, 1) != DT_OK) return false;
    memcpy(l->text + l->n, line, n);
    l->n += n;
    l->text[l->n] = '\0';
    return true;
}

/* The model that was named, or the first one that the server has. */
static dt_status find_model(bombardment *b)
{
    const char *wanted = b->args->folder;
    listing l = { 0 };
    json_t *tree = NULL, *one = NULL;
    const char *id = NULL;
    int status;
    dt_status st;
    size_t i;

    DT_TRY_TO(done, st, cli_peer_ask(&b->peer, "/v1/models", NULL, &status, keep_line, &l));
    DT_CHECK_TO(done, st, status == 200, DT_ERR_IO, "--serve: /v1/models is answered by %d%s",
                status, status == 401 ? ": set DTENSOR_API_KEY" : "");
    tree = l.text != NULL ? json_loads(l.text, 0, NULL) : NULL;
    json_array_foreach(json_object_get(tree, "data"), i, one)
    {
        id = json_string_value(json_object_get(one, "id"));
        if (id != NULL && (wanted == NULL || strcmp(id, wanted) == 0)) break;
        id = NULL;
    }
    DT_CHECK_TO(done, st, id != NULL, DT_ERR_ARG, "--serve: the server has no model%s%s",
                wanted != NULL ? " " : "", wanted != NULL ? wanted : "");
    (void)snprintf(b->model, sizeof b->model, "%s", id);
    b->n_vocab = json_integer_value(json_object_get(json_object_get(one, "meta"), "n_vocab"));
done:
    json_decref(tree);
    dti_free(l.text);
    return st;
}

static dt_status read_wanted(bombardment *b, load_run *runs, int *n_runs)
{
    const cli_serving_words *w = &b->args->serving;
    cli_batch clients[CLI_MAX_BATCHES];
    double rate = 0;

    *n_runs = 1;
    b->n_prompt = b->args->sequence > 0 ? b->args->sequence : N_PROMPT;
    b->n_new = b->args->max_new_tokens > 0 ? b->args->max_new_tokens : N_NEW;
    DT_CHECK(w->clients == NULL || w->rate == NULL, DT_ERR_ARG,
             "--clients and --rate: give one of them");
    DT_TRY(cli_parse_number("--rate", w->rate, &rate));
    DT_CHECK(w->rate == NULL || rate > 0, DT_ERR_ARG, "--rate: \"%s\" is not above 0", w->rate);
    if (w->rate != NULL) {
        runs[0] = (load_run){ .rate = rate, .n_requests = w->requests > 0 ? w->requests : 32 };
        return DT_OK;
    }
    DT_TRY(cli_batches_read(w->clients != NULL ? w->clients : "1", clients, n_runs));
    for (int i = 0; i < *n_runs; i++)
        runs[i] =
            (load_run){ .clients = clients[i].n,
                        .n_requests = w->requests > 0 ? w->requests : clients[i].n * PER_CLIENT };
    return DT_OK;
}

static dt_status report(const bombardment *b, load_run *runs, int n_runs)
{
    json_t *list = json_array();

    for (int i = 0; i < n_runs; i++) {
        load_run *r = &runs[i];
        for (int f = 0; f < N_FIGURES; f++)
            if (r->figures[f].n > 0)
                qsort(r->figures[f].values, r->figures[f].n, sizeof(double), by_value);
        if (b->args->json)
            (void)json_array_append_new(list, run_json(r));
        else
            print_run(r);
    }
    if (b->args->json)
        return cli_put_json(json_pack("{s:s, s:s, s:I, s:I, s:o}", "url", b->args->serving.url,
                                      "model", b->model, "prompt_tokens", (json_int_t)b->n_prompt,
                                      "max_tokens", (json_int_t)b->n_new, "runs", list),
                            JSON_REAL_PRECISION(6));
    json_decref(list);
    return cli_flush();
}

dt_status cli_bench_serve(const cli_args *args, const cli_env *env, const cli_console *console)
{
    static load_run none;
    bombardment b = { .args = args };
    load_run runs[CLI_MAX_BATCHES];
    int n_runs = 0;
    dt_status st = DT_OK;

    for (int i = 0; i < CLI_MAX_BATCHES; i++) runs[i] = none;
    (void)pthread_mutex_init(&b.lock, NULL);
    DT_TRY_TO(done, st, cli_peer_open(args->serving.url, env->api_key, &b.peer));
    DT_TRY_TO(done, st, read_wanted(&b, runs, &n_runs));
    DT_TRY_TO(done, st, find_model(&b));
    for (int i = 0; i < n_runs; i++) {
        DT_TRY_TO(done, st, run_load(&b, &runs[i]));
        DT_CHECK_TO(done, st, runs[i].n_done > 0, DT_ERR_IO, "--serve: no request was answered: %s",
                    runs[i].failure);
        if (runs[i].n_failed > 0) {
            char line[256];
            (void)snprintf(line, sizeof line, "%lld requests failed, the first one: %s",
                           (long long)runs[i].n_failed, runs[i].failure);
            cli_warn(console, line);
        }
    }
    DT_TRY_TO(done, st, report(&b, runs, n_runs));
done:
    for (int i = 0; i < CLI_MAX_BATCHES; i++)
        for (int f = 0; f < N_FIGURES; f++) dti_free(runs[i].figures[f].values);
    cli_peer_close(&b.peer);
    (void)pthread_mutex_destroy(&b.lock);
    return st;
}
