/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run reads: files of tokens as they are, texts as tokens of the model's tokenizer in the
 * folder of the run. */
#include <dtensor/token_files.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/numbers.h"
#include "cli/make_tokens.h"
#include "cli/train.h"

/* "RUN/data-0-5f3a90c1.bin", of the text and the tokenizer; freed with dti_free(). */
static dt_status name_tokens(const cli_run_of *run, const char *what, int i, const char *text,
                             char **out)
{
    const uint64_t of = dti_hash_text(run->plan->data.tokenizer, text);
    char name[40], path[CLI_PATH_BYTES];

    (void)snprintf(name, sizeof name, "%s-%d-%08" PRIx32 ".bin", what, i, (uint32_t)(of >> 32));
    DT_TRY(cli_run_path(run->folder, name, path));
    DT_TRY(dti_strdup(path, out));
    return DT_OK;
}

/* Whether tokens are newer than the text that they were made of: of a run that goes on. */
static bool is_made(const char *tokens, const char *text)
{
    struct stat made, from;

    return stat(tokens, &made) == 0 && stat(text, &from) == 0 &&
           made.st_mtim.tv_sec > from.st_mtim.tv_sec;
}

static dt_status tokenize(const cli_run_of *run, const char *text, const char *tokens)
{
    const char *folder = run->session->args->folder;
    dt_tokenize_options how = DT_TOKENIZE_OPTIONS_INIT;
    dt_tokenizer *tokenizer = NULL;
    dt_chat *chat = NULL;
    dt_status st = DT_OK;

    if (is_made(tokens, text)) return DT_OK;
    st = dt_tokenizer_open(folder, &tokenizer);
    if (st != DT_OK) dti_error_prefix("%s is a text, and needs the model's tokenizer", text);
    DT_TRY(st);
    DT_TRY_TO(done, st, cli_run_make(run->folder));
    DT_TRY_TO(done, st, cli_open_chat(folder, &chat));
    how.format = DT_TOKENS_MEGATRON; /* it knows documents */
    how.chat = chat;
    DT_TRY_TO(done, st, dt_tokenize_files(&text, 1, tokenizer, &how, tokens, NULL));
done:
    dt_chat_release(&chat);
    dt_tokenizer_release(&tokenizer);
    return st;
}

static dt_status find(cli_run_of *run, const char *option, const char *what, int i,
                      const dt_data_source *given, dt_data_source *out)
{
    char *tokens;
    dt_status st = DT_OK;

    *out = *given;
    if (access(given->path, R_OK) == 0 && !dt_is_token_file(given->path)) {
        DT_TRY(name_tokens(run, what, i, given->path, &tokens));
        run->made[run->n_made++] = tokens;
        out->path = tokens;
        if (run->session->console->process == 0) st = tokenize(run, given->path, tokens);
    }
    if (st != DT_OK) dti_error_prefix("%s", option);
    DT_TRY(st);
    return DT_OK;
}

/* Every token, so that none turns out wrong in the middle of the run. */
static dt_status check(const char *option, const dt_data_source *sources, int n,
                       const dt_data_options *how)
{
    dt_data *data = NULL;
    dt_status st = dt_data_open(sources, n, how, &data);

    if (st == DT_OK) st = dt_data_check(data);
    dt_data_release(&data);
    if (st != DT_OK) dti_error_prefix("%s", option);
    DT_TRY(st);
    return DT_OK;
}

dt_status cli_train_data(cli_run_of *run)
{
    const cli_training *plan = run->plan;
    const dt_data_source validation = { plan->args->training.validate, 0 };
    dt_data_options how = plan->data;

    for (int i = 0; i < plan->n_sources; i++)
        DT_TRY(find(run, "--data", "data", i, &plan->sources[i], &run->sources[i]));
    if (validation.path != NULL)
        DT_TRY(find(run, "--validate", "validation", 0, &validation, &run->validation));
    if (run->session->console->process > 0) return DT_OK;
    DT_TRY(check("--data", run->sources, plan->n_sources, &how));
    how.order = DT_ORDER_STORED;
    how.documents = false;
    if (validation.path != NULL) DT_TRY(check("--validate", &run->validation, 1, &how));
    return DT_OK;
}

void cli_train_data_free(cli_run_of *run)
{
    while (run->n_made > 0) dti_free(run->made[--run->n_made]);
}
