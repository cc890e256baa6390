/* SPDX-License-Identifier: Apache-2.0
 *
 * A Hugging Face folder, two ranks, streamed text:  03_generate [folder [prompt]] */
#include <dtensor.h>
#include <dtensor/tokenizer.h>
#include <stdio.h>
#include <string.h>

typedef struct job {
    const char *folder;
    const char *prompt;
    dt_tokenizer *tokenizer;
} job;

/* Rank 0 prints what each token completes. */
static bool print_token(void *arg, int64_t n, int32_t id)
{
    const char *text;
    size_t bytes;

    (void)n;
    if (arg == NULL) return true;
    if (dt_tokenizer_stream_push(arg, id, &text, &bytes) == DT_OK) {
        fwrite(text, 1, bytes, stdout);
        fflush(stdout);
    }
    return true;
}

static dt_status generate(dt_model *model, const job *j, dt_tokenizer_stream *stream)
{
    dt_generate_options options = DT_GENERATE_OPTIONS_INIT;
    dt_state *state = NULL;
    int32_t *ids = NULL;
    size_t n;
    dt_status st;

    options.max_new_tokens = 40;
    options.on_token = print_token;
    options.arg = stream;
    st = dt_tokenizer_encode(j->tokenizer, j->prompt, strlen(j->prompt), DT_ENCODE_ADD_SPECIAL,
                             &ids, &n);
    if (st == DT_OK) st = dt_state_create(model, 1, (int64_t)n + options.max_new_tokens, &state);
    if (st == DT_OK) st = dt_generate(model, state, ids, (int64_t)n, &options, NULL, NULL);
    dt_state_release(&state);
    dt_tokenizer_free(ids);
    return st;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const job *j = arg;
    dt_tokenizer_stream *stream = NULL;
    dt_model *model = NULL;
    dt_mesh *mesh = NULL;
    const char *rest;
    size_t bytes;
    dt_status st;

    st = dt_mesh_create(rt, "tp=2", &mesh);
    if (st == DT_OK) st = dt_model_load(mesh, j->folder, NULL, &model);
    if (st == DT_OK && dt_runtime_rank(rt) == 0) {
        st = dt_tokenizer_stream_create(j->tokenizer, true, &stream);
        printf("%s", j->prompt);
    }
    if (st == DT_OK) st = generate(model, j, stream);
    if (st == DT_OK && stream != NULL) {
        st = dt_tokenizer_stream_flush(stream, &rest, &bytes);
        if (st == DT_OK) printf("%.*s\n", (int)bytes, rest);
    }
    dt_tokenizer_stream_release(&stream);
    dt_model_release(&model);
    dt_mesh_release(&mesh);
    return st;
}

int main(int argc, char **argv)
{
    job j = { argc > 1 ? argv[1] : "examples/checkpoint", argc > 2 ? argv[2] : "ROMEO:", NULL };
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    dt_status st;

    options.n_ranks = 2;
    st = dt_tokenizer_open(j.folder, &j.tokenizer);
    if (st == DT_OK) st = dt_run(&options, rank_main, &j);
    dt_tokenizer_release(&j.tokenizer);
    if (st != DT_OK) fprintf(stderr, "%s\n", dt_last_error()->message);
    return st == DT_OK ? 0 : 1;
}
