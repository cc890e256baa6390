/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor serve: models behind the OpenAI API, until a signal ends it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/io_status.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "cli/cli.h"
#include "cli/hub_models.h"
#include "cli/interrupts.h"
#include "cli/print_report.h"
#include "cli/prompt.h"
#include "cli/session.h"

enum { PORT = 8080, MAX_REQUESTS = 64, DRAIN_S = 30, KEY_BYTES = 512, LEAST_CONTEXT = 16 };

/* A model as it was asked for. */
typedef struct wanted {
    char *folder;
    const char *name;
    dt_served *served;
    int64_t context,
        cache_bytes;     /* of one token, at the least: where no rank has what another has */
    cli_args args;       /* of its folder */
    cli_session session; /* what it was loaded with, which the service goes on to use */
    bool opened;
} wanted;

typedef struct serving {
    const cli_args *args;
    const cli_console *console;
    wanted *models; /* [args->serving.models.n] */
    dt_service *service;
    dt_server *server;
    cli_many keys; /* owned texts */
    int64_t max_running;
    FILE *log;
} serving;

/* --- what was asked for ----------------------------------------------------------------------- */

/* DIR is called by its last part. */
static dt_status read_model(const char *word, wanted *m)
{
    const char *equals = strchr(word, '='), *slash = strchr(word, '/');
    char *end;

    if (equals == NULL || (slash != NULL && slash < equals)) {
        DT_TRY(dti_strdup(word, &m->folder));
        end = m->folder + strlen(m->folder);
        while (end > m->folder + 1 && end[-1] == '/') *--end = '\0';
        m->name = strrchr(m->folder, '/');
        m->name = m->name != NULL && m->name[1] != '\0' ? m->name + 1 : m->folder;
        return DT_OK;
    }
    DT_CHECK(equals > word && equals[1] != '\0', DT_ERR_ARG,
             "--model: \"%s\" is no NAME=DIR: one of both is empty", word);
    DT_TRY(dti_strdup(word, &m->folder));
    m->folder[equals - word] = '\0';
    m->name = m->folder;
    return DT_OK;
}

static const char *folder_of(const wanted *m, const char *word)
{
    return m->name == m->folder && strchr(word, '=') != NULL ? m->folder + strlen(m->folder) + 1
                                                             : m->folder;
}

static dt_status add_key(serving *s, const char *text, size_t n)
{
    char *key;

    DT_TRY(dti_grow((void **)&s->keys.items, &s->keys.room, (size_t)s->keys.n + 1,
                    sizeof *s->keys.items));
    DT_TRY(dti_alloc(n + 1, (void **)&key));
    memcpy(key, text, n);
    s->keys.items[s->keys.n++] = key;
    return DT_OK;
}

/* A line of a file; empty ones and those that begin with # are none. */
static dt_status read_key(serving *s, const char *path, const char *line, size_t n)
{
    DT_CHECK(n <= KEY_BYTES && memchr(line, '\0', n) == NULL, DT_ERR_ARG,
             "--api-key-file: %s: a key has more than %d bytes, or is no text", path,
             (int)KEY_BYTES);
    return n > 0 && line[0] != '#' ? add_key(s, line, n) : DT_OK;
}

static dt_status read_keys(serving *s, const cli_env *env)
{
    const char *path = s->args->serving.key_file;
    dt_status st = DT_OK;
    char *bytes = NULL;
    size_t n = 0;

    if (env->api_key != NULL) DT_TRY(add_key(s, env->api_key, strlen(env->api_key)));
    if (path == NULL) return DT_OK;
    st = cli_file_read("--api-key-file", path, &bytes, &n);
    for (size_t at = 0; st == DT_OK && at < n;) {
        const char *stop = memchr(bytes + at, '\n', n - at);
        const size_t length = stop != NULL ? (size_t)(stop - bytes) - at : n - at;
        st = read_key(s, path, bytes + at, length);
        at += length + 1;
    }
    dti_free(bytes);
    DT_TRY(st);
    DT_CHECK(s->keys.n > 0, DT_ERR_ARG, "--api-key-file: %s has no key", path);
    return DT_OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

static dt_status weights_of(serving *s, int64_t *bytes)
{
    const int n = dt_service_n_ranks(s->service);
    dt_rank_memory_kinds *kinds;
    dt_status st;

    *bytes = 0;
    DT_TRY(dti_alloc_array((size_t)n, sizeof *kinds, (void **)&kinds));
    st = dt_service_memory(s->service, NULL, NULL, kinds);
    for (int r = 0; r < n && st == DT_OK; r++) *bytes += kinds[r].weights_bytes;
    dti_free(kinds);
    return st;
}

/* Bytes of a model's pool: --pool-tokens, or else its share of what is free. */
static int64_t pool_of(const serving *s, const wanted *m, int64_t share)
{
    const int64_t tokens = s->args->serving.pool_tokens;

    return tokens > 0 ? tokens * dti_max(m->cache_bytes, 1) : share;
}

/* The longest text: what was asked for, or the model's, or what the pool of caches has room for,
 * which takes a quarter of the memory that is free (dt_engine_options.pool_share). What was asked
 * for and does not fit is refused. */
static dt_status settle_contexts(serving *s)
{
    const bool gpu = dt_device_check("cuda") == DT_OK;
    const int64_t all = dti_machine_memory(), asked = s->args->serving.context;
    const int n = s->args->serving.models.n;
    char a[DTI_NUMBER_BYTES], b[DTI_NUMBER_BYTES], c[DTI_NUMBER_BYTES];
    int64_t weights;

    DT_TRY(weights_of(s, &weights));
    for (int i = 0; i < n; i++) {
        wanted *m = &s->models[i];
        const int64_t pool = pool_of(s, m, dti_max(all - weights, 0) / 4 / n);
        dt_model_info info;
        int64_t most;
        DT_TRY(dt_service_info(m->served, &info));
        most = s->args->serving.pool_tokens;
        if (most == 0) most = dt_engine_pool_tokens(&info, m->session.dtype, pool, s->max_running);
        DT_CHECK(asked <= info.max_positions, DT_ERR_ARG,
                 "--context %lld: the context of model %s is %lld", (long long)asked, m->name,
                 (long long)info.max_positions);
        m->context = asked > 0 ? asked : info.max_positions;
        if (m->context <= most || (s->args->serving.pool_tokens == 0 && (all == 0 || gpu)))
            continue;
        DT_CHECK(asked == 0 && most >= LEAST_CONTEXT, DT_ERR_MEMORY,
                 "model %s: a text of %lld tokens needs %s of caches, which have %s here: this "
                 "machine has %s; give a smaller --context, or more --pool-tokens",
                 m->name, (long long)m->context, dti_bytes_text(m->cache_bytes * m->context, a),
                 dti_bytes_text(pool, b), dti_bytes_text(all, c));
        m->context = most;
    }
    return DT_OK;
}

static void say_what_is_held(serving *s)
{
    char a[DTI_NUMBER_BYTES], b[DTI_NUMBER_BYTES];
    int64_t weights;

    if (s->console->quiet || weights_of(s, &weights) != DT_OK) return;
    (void)fprintf(stderr, "weights of all models and ranks: %s\n", dti_bytes_text(weights, a));
    for (int i = 0; i < s->args->serving.models.n; i++) {
        const wanted *m = &s->models[i];
        (void)fprintf(stderr,
                      "model %s: texts of up to %lld tokens, %lld at once; the longest takes %s of "
                      "caches\n",
                      m->name, (long long)m->context, (long long)s->max_running,
                      dti_bytes_text(m->cache_bytes * m->context, b));
    }
}

/* --- start and end ---------------------------------------------------------------------------- */

/* What all models share; the service keeps what it points to until its end. */
static dt_status start_service(serving *s, cli_session *session)
{
    const cli_serving_words *w = &s->args->serving;
    dt_service_options o = DT_SERVICE_OPTIONS_INIT;
    dt_engine_options engine = DT_ENGINE_OPTIONS_INIT;

    o.run = &session->run;
    o.max_running = (int)s->max_running;
    o.max_queued = 1 << 20; /* the server counts */
    o.processes = (int)w->processes;
    engine.max_texts = s->max_running;
    engine.pool_tokens = w->pool_tokens;
    if (w->pool_tokens > 0) o.engine = &engine;
    if (o.processes > 0) { /* which open modules themselves */
        session->run.setup = NULL;
        o.modules = s->args->load.items;
        o.n_modules = s->args->load.n;
    }
    DT_TRY(dt_service_start(&o, &s->service));
    return DT_OK;
}

/* Weights may take minutes to read; what a server needs beside them is looked at before. */
static dt_status check_tokenizer(const char *folder)
{
    dt_tokenizer *tokenizer;

    DT_CHECK(dt_tokenizer_files(folder) != NULL, DT_ERR_IO,
             "%s: has no tokenizer.json, so text cannot become tokens: a server needs one", folder);
    DT_TRY(dt_tokenizer_open(folder, &tokenizer));
    dt_tokenizer_release(&tokenizer);
    return DT_OK;
}

/* What the command line says of a model is read as every command reads it, folder by folder. */
static dt_status load_model(serving *s, const cli_env *env, int i)
{
    dt_parallelize_options how = DT_PARALLELIZE_OPTIONS_INIT;
    wanted *m = &s->models[i];
    cli_session *session = &m->session;
    dt_status st;

    DT_TRY(read_model(s->args->serving.models.items[i], m));
    m->args = *s->args;
    m->args.folder = folder_of(m, s->args->serving.models.items[i]);
    DT_TRY(cli_find_model(&cli_serve, &m->args, env));
    m->opened = true;
    DT_TRY(cli_session_open(&m->args, env, s->console, session));
    DT_TRY(check_tokenizer(m->args.folder));
    if (s->service == NULL) DT_TRY(start_service(s, session));
    how.mesh = session->mesh;
    how.keep_dtype = session->load.keep_dtype;
    how.dtype = session->load.dtype;
    how.plan = session->load.plan;
    how.plan_name = session->load.plan_name;
    how.sequence_parallel = session->load.sequence_parallel;
    how.fully_shard = session->load.fully_shard;
    how.weights = session->load.weights;
    how.offload = session->load.offload;
    how.progress = cli_progress_show;
    how.progress_arg = &session->progress;
    m->cache_bytes = dt_model_cache_bytes(&session->info, session->dtype, 1);
    st = dt_service_load(s->service, m->args.folder, &how, &m->served);
    cli_progress_end(&session->progress);
    DT_TRY(st);
    return DT_OK;
}

static void log_line(void *arg, const char *line)
{
    FILE *f = arg;

    (void)fprintf(f, "%s\n", line);
    (void)fflush(f);
}

static dt_status start_server(serving *s)
{
    const cli_serving_words *w = &s->args->serving;
    dt_server_options o = DT_SERVER_OPTIONS_INIT;
    dt_server_model *models;
    dt_status st;

    o.service = s->service;
    if (w->host != NULL) o.host = w->host;
    o.port = (int)(w->port >= 0 ? w->port : PORT);
    o.open = w->open;
    o.keys = s->keys.items;
    o.n_keys = s->keys.n;
    o.hosts = w->hosts.items;
    o.n_hosts = w->hosts.n;
    o.metrics = w->metrics;
    o.max_requests = (int)(w->max_requests > 0 ? w->max_requests : MAX_REQUESTS);
    if (w->max_connections > 0) o.max_connections = (int)w->max_connections;
    if (w->request_timeout > 0) o.request_ms = w->request_timeout * 1000;
    if (s->log != NULL) o.log = log_line;
    o.log_arg = s->log;
    DT_TRY(dti_alloc_array((size_t)w->models.n, sizeof *models, (void **)&models));
    for (int i = 0; i < w->models.n; i++)
        models[i] = (dt_server_model){ s->models[i].name, s->models[i].served, s->models[i].context,
                                       i == 0 ? w->chat_template : NULL };
    st = dt_server_start(&o, models, w->models.n, &s->server);
    dti_free(models);
    DT_TRY(st);
    return DT_OK;
}

static dt_status open_log(serving *s)
{
    const char *path = s->args->serving.access_log;

    s->log = s->console->quiet ? NULL : stderr;
    if (path == NULL) return DT_OK;
    s->log = fopen(path, "a");
    DT_CHECK(s->log != NULL, dti_io_status(errno), "--access-log: %s: %s", path, strerror(errno));
    return DT_OK;
}

static dt_status say_where(const serving *s)
{
    const char *host = s->args->serving.host != NULL ? s->args->serving.host : "127.0.0.1";
    const bool six = strchr(host, ':') != NULL;
    const int port = dt_server_port(s->server);

    (void)printf("listening at http://%s%s%s:%d\n", six ? "[" : "", host, six ? "]" : "", port);
    if (s->args->serving.demo)
        (void)printf("try: curl -N http://%s%s%s:%d/v1/completions -H 'Content-Type: "
                     "application/json' -d '{\"prompt\": \"ROMEO:\", \"max_tokens\": 80, "
                     "\"stream\": true}'\n",
                     six ? "[" : "", host, six ? "]" : "", port);
    return cli_flush();
}

/* Until a signal comes; a second one ends the process at once. */
static void wait_for_signal(void)
{
    const struct timespec pause = { 0, 50000000 };

    while (cli_interrupted() == 0) (void)nanosleep(&pause, NULL);
}

static void end_serving(serving *s)
{
    const int64_t drain = s->args->serving.drain;

    dt_server_stop(&s->server, (drain >= 0 ? drain : DRAIN_S) * 1000);
    for (int i = 0; s->models != NULL && i < s->args->serving.models.n; i++)
        (void)dt_service_unload(&s->models[i].served);
    (void)dt_service_stop(&s->service);
    for (int i = 0; s->models != NULL && i < s->args->serving.models.n; i++) {
        if (s->models[i].opened) cli_session_close(&s->models[i].session);
        dti_free(s->models[i].folder);
    }
    for (int i = 0; i < s->keys.n; i++) dti_free((void *)(uintptr_t)s->keys.items[i]);
    dti_free(s->keys.items);
    dti_free(s->models);
    if (s->log != NULL && s->log != stderr) (void)fclose(s->log);
}

static dt_status serve(const cli_args *args, const cli_env *env, const cli_console *console)
{
    static const dt_service_options service = DT_SERVICE_OPTIONS_INIT;
    const cli_serving_words *w = &args->serving;
    serving s = { .args = args, .console = console };
    dt_error why = { .code = DT_OK };
    dt_status st = DT_OK;

    DT_CHECK(w->models.n > 0, DT_ERR_ARG,
             "no model; give --model DIR or --model NAME=DIR, a Hugging Face folder");
    DT_CHECK(dt_server_is_built(), DT_ERR_UNSUPPORTED,
             "this build has no HTTP server; build again where libmicrohttpd is installed (on "
             "Debian: apt-get install libmicrohttpd-dev)");
    DT_CHECK(dt_launch_size() == 1, DT_ERR_UNSUPPORTED,
             "this is one of %d processes of a launcher; start it alone: --processes divides the "
             "ranks among processes",
             dt_launch_size());
    s.max_running = w->max_running > 0 ? w->max_running : service.max_running;
    DT_TRY_TO(done, st, read_keys(&s, env));
    DT_TRY_TO(done, st, open_log(&s));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)w->models.n, sizeof *s.models, (void **)&s.models));
    for (int i = 0; i < w->models.n; i++) DT_TRY_TO(done, st, load_model(&s, env, i));
    DT_TRY_TO(done, st, settle_contexts(&s));
    say_what_is_held(&s);
    DT_TRY_TO(done, st, cli_interrupts_catch(true));
    DT_TRY_TO(done, st, start_server(&s));
    DT_TRY_TO(done, st, say_where(&s));
    wait_for_signal();
    if (!console->quiet) (void)fprintf(stderr, "ending: answers under way are finished first\n");
done:
    if (st != DT_OK) why = *dt_last_error();
    end_serving(&s);
    if (st != DT_OK) dti_error_restore(&why);
    return st;
}

const cli_command cli_serve = {
    .name = "serve",
    .bit = CLI_SERVE,
    .usage = "--model DIR [--model NAME=DIR]... [OPTION]...",
    .runs = true,
    .summary = "answers for models by HTTP, with the OpenAI API",
    .details =
        "Loads the models, each on ranks of its own, and answers /v1/models, /v1/completions,\n"
        "/v1/chat/completions (with streams), /tokenize, /detokenize, /health and /metrics, and at "
        "/\n"
        "with a page to talk to them. It listens on this machine alone unless --host says more, "
        "and\n"
        "then wants keys. SIGTERM or Ctrl-C lets answers finish, a second one ends it at once. A "
        "line\n"
        "of JSON for each request goes to standard error, without what it said.",
    .run = serve,
};
