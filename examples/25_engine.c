/* SPDX-License-Identifier: Apache-2.0
 *
 * Three texts made together on two ranks: they begin one after the other, and share passes from
 * then on. Each is what it would be alone:  25_engine [folder] */
#include <dtensor.h>
#include <stdio.h>
#include <string.h>

enum { N_TEXTS = 3, N_NEW = 12 };

static const char *const prompts[N_TEXTS] = { "ROMEO:", "JULIET:", "KING RICHARD III:" };

typedef struct job {
    const char *folder;
    dt_tokenizer *tokenizer;
    int32_t texts[N_TEXTS][N_NEW];
    int64_t n[N_TEXTS];
} job;

static dt_status submit(dt_engine *engine, const job *j, int64_t i)
{
    dt_engine_request request = DT_ENGINE_REQUEST_INIT;
    dt_generate_options options = DT_GENERATE_OPTIONS_INIT;
    int32_t *ids;
    int64_t number;
    size_t n;
    dt_status st;

    DT_TRY(dt_tokenizer_encode(j->tokenizer, prompts[i], strlen(prompts[i]), DT_ENCODE_ADD_SPECIAL,
                               &ids, &n));
    options.max_new_tokens = N_NEW;
    options.do_sample = i == 1; /* each by options of its own */
    options.seed = 5;
    request.prompts = &(dt_ids){ ids, (int64_t)n };
    request.n_prompts = 1;
    request.options = &options;
    st = dt_engine_submit(engine, &request, &number);
    dt_tokenizer_free(ids);
    return st;
}

/* Requests are numbered from 1 on. Rank 0 keeps what comes. */
static void keep(job *j, const dt_engine_event *e)
{
    if (e->kind == DT_ENGINE_TOKEN) j->texts[e->request - 1][j->n[e->request - 1]++] = e->id;
    if (e->kind == DT_ENGINE_FAILED) fprintf(stderr, "%s\n", e->error->message);
}

static dt_status run(dt_engine *engine, job *j, bool keeps)
{
    const dt_engine_event *events;
    int64_t next = 0, n;

    while (next < N_TEXTS || dt_engine_is_busy(engine)) {
        if (next < N_TEXTS) DT_TRY(submit(engine, j, next++)); /* one more joins the others */
        DT_TRY(dt_engine_step(engine, &events, &n));
        for (int64_t i = 0; i < n && keeps; i++) keep(j, &events[i]);
    }
    return DT_OK;
}

static dt_status print(const job *j, const dt_engine *engine)
{
    dt_engine_counts counts;
    char *text;
    size_t n;

    for (int64_t i = 0; i < N_TEXTS; i++) {
        DT_TRY(dt_tokenizer_decode(j->tokenizer, j->texts[i], (size_t)j->n[i], true, &text, &n));
        printf("%s%s\n", prompts[i], text);
        dt_tokenizer_free(text);
    }
    DT_TRY(dt_engine_count(engine, &counts));
    printf("%lld passes, %lld of %lld blocks are used\n", (long long)counts.passes,
           (long long)counts.used_blocks, (long long)counts.blocks);
    return DT_OK;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    dt_engine_options options = DT_ENGINE_OPTIONS_INIT;
    const bool keeps = dt_runtime_rank(rt) == 0;
    dt_engine *engine = NULL;
    dt_model *model = NULL;
    dt_mesh *mesh = NULL;
    job *j = arg;
    dt_status st;

    options.pool_tokens = 8 * 128;
    options.latency_s = 0; /* prompts are read at once, so passes do not depend on the machine */
    st = dt_mesh_create(rt, "tp=2", &mesh);
    if (st == DT_OK) st = dt_model_load(mesh, j->folder, NULL, &model);
    if (st == DT_OK) st = dt_engine_create(model, &options, &engine);
    if (st == DT_OK) st = run(engine, j, keeps);
    if (st == DT_OK && keeps) st = print(j, engine);
    dt_engine_release(&engine);
    dt_model_release(&model);
    dt_mesh_release(&mesh);
    return st;
}

int main(int argc, char **argv)
{
    job j = { .folder = argc > 1 ? argv[1] : "examples/checkpoint" };
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    dt_status st;

    options.n_ranks = 2;
    st = dt_tokenizer_open(j.folder, &j.tokenizer);
    if (st == DT_OK) st = dt_run(&options, rank_main, &j);
    dt_tokenizer_release(&j.tokenizer);
    if (st != DT_OK) fprintf(stderr, "%s\n", dt_last_error()->message);
    return st == DT_OK ? 0 : 1;
}
