/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run reads: files of tokens as they are, texts as tokens of the model's tokenizer in the
 * folder of the run. */
#include <dirent.h>
#include <dtensor/token_files.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io_status.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "cli/make_tokens.h"
#include "cli/option_file.h"
#include "cli/train.h"

enum { BLOCK_BYTES = 1 << 20 };

/* Of the files of a set of tokens, in the place of ".bin". */
static const char *const endings[] = { ".bin", ".bin.json", ".idx", ".bin.mask" };
enum { ALWAYS_THERE = 3 };

/* Adds the bytes of a file. */
static dt_status hash_file(const char *path, uint64_t *hash)
{
    FILE *f;
    char *block = NULL;
    size_t n = 1;
    dt_status st = DT_OK;

    DT_TRY(cli_check_file(path));
    f = fopen(path, "rb");
    DT_CHECK(f != NULL, dti_io_status(errno), "%s: %s", path, strerror(errno));
    DT_TRY_TO(done, st, dti_alloc(BLOCK_BYTES, (void **)&block));
    while ((n = fread(block, 1, BLOCK_BYTES, f)) > 0) *hash = dti_hash_bytes(*hash, block, n);
    DT_CHECK_TO(done, st, !ferror(f), dti_io_status(errno), "%s: %s", path, strerror(errno));
done:
    dti_free(block);
    (void)fclose(f);
    return st;
}

/* Of what tokens are made of: the text, the tokenizer and, of JSON lines, the chat template. */
static dt_status hash_source(const cli_run_of *run, const char *text, uint64_t *hash)
{
    static const char *const templates[] = { "chat_template.jinja", "chat_template.json",
                                             "tokenizer_config.json" };
    const char *ending = strrchr(text, '.');

    *hash = run->plan->data.tokenizer;
    DT_TRY(hash_file(text, hash));
    if (ending == NULL || strcmp(ending, ".jsonl") != 0) return DT_OK;
    for (size_t i = 0; i < DT_COUNT(templates); i++) {
        char path[CLI_PATH_BYTES];
        DT_TRY(cli_run_path(run->session->args->folder, templates[i], path));
        *hash = dti_hash_text(*hash, templates[i]);
        if (access(path, F_OK) == 0) DT_TRY(hash_file(path, hash));
    }
    return DT_OK;
}

/* "RUN/data-0-5f3a90c1d2e4b6a8.bin": files of that name have the tokens of this text, and are
 * whole. Freed with dti_free(). */
static dt_status name_tokens(const cli_run_of *run, const char *what, int i, const char *text,
                             char **out)
{
    char name[48], path[CLI_PATH_BYTES];
    uint64_t hash;

    DT_TRY(hash_source(run, text, &hash));
    (void)snprintf(name, sizeof name, "%s-%d-%016" PRIx64 ".bin", what, i, hash);
    DT_TRY(cli_run_path(run->folder, name, path));
    DT_TRY(dti_strdup(path, out));
    return DT_OK;
}

static void name_of_set(const cli_tokens *tokens, size_t e, char path[CLI_PATH_BYTES + 8])
{
    (void)snprintf(path, CLI_PATH_BYTES + 8, "%.*s%s", (int)strlen(tokens->path) - 4, tokens->path,
                   endings[e]);
}

static bool is_whole(const cli_tokens *tokens)
{
    char path[CLI_PATH_BYTES + 8];
    size_t e = 0;

    for (; e < ALWAYS_THERE; e++) {
        name_of_set(tokens, e, path);
        if (access(path, F_OK) != 0) return false;
    }
    return true;
}

static void remove_set(const cli_tokens *tokens)
{
    char path[CLI_PATH_BYTES + 8];

    for (size_t e = 0; e < DT_COUNT(endings); e++) {
        name_of_set(tokens, e, path);
        (void)unlink(path);
    }
}

/* What is there by these names is the run's, and damaged: others' is not written over. */
static dt_status tokenize(const cli_run_of *run, const cli_tokens *tokens)
{
    const char *folder = run->session->args->folder;
    dt_tokenize_options how = DT_TOKENIZE_OPTIONS_INIT;
    dt_tokenizer *tokenizer = NULL;
    dt_chat *chat = NULL;
    dt_tokenized told = { 0 };
    dt_status st = DT_OK;

    st = dt_tokenizer_open(folder, &tokenizer);
    if (st != DT_OK)
        dti_error_prefix("%s is a text, and needs the model's tokenizer", tokens->text);
    DT_TRY(st);
    DT_TRY_TO(done, st, cli_open_chat(folder, &chat));
    remove_set(tokens);
    how.format = DT_TOKENS_MEGATRON; /* it knows documents */
    how.chat = chat;
    DT_TRY_TO(done, st, dt_tokenize_files(&tokens->text, 1, tokenizer, &how, tokens->path, &told));
    cli_warn_of_broken(run->session->console, tokens->text, &told);
done:
    dt_chat_release(&chat);
    dt_tokenizer_release(&tokenizer);
    return st;
}

/* Of an error: it names the run's folder or a file of it, and is no fault of what was given. */
static bool is_of_run(const cli_run_of *run)
{
    const char *said = dt_last_error()->message;
    size_t n = strlen(run->folder);

    while (n > 1 && run->folder[n - 1] == '/') n--;
    return strncmp(said, run->folder, n) == 0 && (said[n] == '/' || said[n] == ':');
}

/* A text is gone that the run has tokens of: the error, and which these are. */
static dt_status refuse_lost(const cli_run_of *run, const char *what, int i, const char *text)
{
    const int error = errno;
    char pattern[48], kept[CLI_PATH_BYTES] = "";
    DIR *folder = opendir(run->folder);
    const struct dirent *item;

    (void)snprintf(pattern, sizeof pattern, "%s-%d-????????????????.bin", what, i);
    while (folder != NULL && (item = readdir(folder)) != NULL)
        if (fnmatch(pattern, item->d_name, 0) == 0 &&
            cli_run_path(run->folder, item->d_name, kept) != DT_OK)
            kept[0] = '\0';
    if (folder != NULL) (void)closedir(folder);
    DT_CHECK(kept[0] != '\0', dti_io_status(error), "%s: %s", text, strerror(error));
    DT_FAIL(dti_io_status(error),
            "%s: %s; the run has tokens that it made of this option's text: give it %s", text,
            strerror(error), kept);
}

static dt_status find(cli_run_of *run, const char *option, const char *what, int i,
                      const dt_data_source *given, dt_data_source *out)
{
    cli_tokens *tokens = &run->made[run->n_made];
    dt_status st = DT_OK;

    *out = *given;
    if (dt_is_token_file(given->path)) return DT_OK;
    if (access(given->path, R_OK) != 0) {
        st = refuse_lost(run, what, i, given->path);
    } else {
        tokens->text = given->path;
        st = name_tokens(run, what, i, given->path, &tokens->path);
        run->n_made += st == DT_OK;
        out->path = tokens->path;
        if (st == DT_OK && run->session->console->process == 0) {
            DT_TRY(cli_run_make(run->folder));
            tokens->fresh = !is_whole(tokens);
            if (tokens->fresh) st = tokenize(run, tokens);
        }
    }
    if (st != DT_OK && !is_of_run(run)) dti_error_prefix("%s", option);
    DT_TRY(st);
    return DT_OK;
}

static dt_status check_tokens(const dt_data_source *sources, int n, const dt_data_options *how)
{
    dt_data *data = NULL;
    dt_status st = dt_data_open(sources, n, how, &data);

    if (st == DT_OK) st = dt_data_check(data);
    dt_data_release(&data);
    return st;
}

/* Sets of the folder that are not what was written into it are made anew: their texts are there,
 * and are those that they are named by. */
static dt_status mend(cli_run_of *run, bool *mended)
{
    dt_data_options how = DT_DATA_OPTIONS_INIT;

    how.sequence = 1;
    how.tokenizer = run->plan->data.tokenizer;
    how.vocab_size = run->plan->data.vocab_size;
    for (int i = 0; i < run->n_made; i++) {
        cli_tokens *tokens = &run->made[i];
        char line[DT_ERROR_MESSAGE_BYTES];
        dt_status st;

        if (tokens->fresh) continue;
        st = check_tokens(&(dt_data_source){ tokens->path, 0 }, 1, &how);
        if (st == DT_OK || st == DT_ERR_ARG) continue;
        if (st == DT_ERR_MEMORY) return st;
        (void)snprintf(line, sizeof line, "%.400s; they are made of %.250s once more",
                       dt_last_error()->message, tokens->text);
        cli_warn(run->session->console, line);
        tokens->fresh = *mended = true;
        DT_TRY(tokenize(run, tokens));
    }
    return DT_OK;
}

/* Every token, so that none turns out wrong in the middle of the run. */
static dt_status check(cli_run_of *run, const char *option, const dt_data_source *sources, int n,
                       const dt_data_options *how)
{
    dt_status st = check_tokens(sources, n, how);
    bool mended = false;

    if (st != DT_OK) {
        const dt_error why = *dt_last_error();
        DT_TRY(mend(run, &mended));
        dti_error_restore(&why);
    }
    if (mended) st = check_tokens(sources, n, how);
    if (st != DT_OK && how->end_token < 0 && (how->documents || how->order == DT_ORDER_PACKED))
        dti_error_prefix("there is no --end-token");
    for (int i = 0; st != DT_OK && i < run->n_made; i++)
        if (strstr(dt_last_error()->message, run->made[i].path) != NULL)
            dti_error_prefix("%s", run->made[i].text);
    if (st != DT_OK) dti_error_prefix("%s", option);
    DT_TRY(st);
    return DT_OK;
}

dt_status cli_train_data(cli_run_of *run)
{
    const cli_training *plan = run->plan;
    const dt_data_source validation = { plan->args->training.validate, 0 };
    const size_t n = (size_t)plan->n_sources + 1;
    dt_data_options how = plan->data;

    DT_TRY(dti_alloc_array(n, sizeof *run->sources, (void **)&run->sources));
    DT_TRY(dti_alloc_array(n, sizeof *run->made, (void **)&run->made));
    for (int i = 0; i < plan->n_sources; i++)
        DT_TRY(find(run, "--data", "data", i, &plan->sources[i], &run->sources[i]));
    if (validation.path != NULL)
        DT_TRY(find(run, "--validate", "validation", 0, &validation, &run->validation));
    if (run->session->console->process > 0) return DT_OK;
    DT_TRY(check(run, "--data", run->sources, plan->n_sources, &how));
    how.order = DT_ORDER_STORED;
    if (validation.path != NULL) DT_TRY(check(run, "--validate", &run->validation, 1, &how));
    return DT_OK;
}

void cli_train_data_undo(const cli_run_of *run)
{
    char options[CLI_PATH_BYTES];

    if (run->folder == NULL || cli_run_is_busy(run->folder) ||
        (!run->plan->args->training.resume &&
         (cli_run_path(run->folder, CLI_RUN_OPTIONS, options) != DT_OK ||
          access(options, F_OK) == 0)))
        return; /* another run has begun there meanwhile */
    for (int i = 0; i < run->n_made; i++)
        if (run->made[i].fresh) remove_set(&run->made[i]);
    if (run->new_folder) (void)rmdir(run->folder);
}

void cli_train_data_free(cli_run_of *run)
{
    while (run->n_made > 0) dti_free(run->made[--run->n_made].path);
    dti_free(run->made);
    dti_free(run->sources);
}

/* --- what samples follow from ----------------------------------------------------------------- */

static const char tokenizer[] = "tokenizer"; /* of --model: no option of its own */

static json_t *weights_of(const cli_training *plan)
{
    json_t *list = json_array();

    for (int i = 0; i < plan->n_sources; i++)
        (void)json_array_append_new(list, json_real(plan->sources[i].weight));
    return list;
}

char *cli_train_facts(const cli_training *plan, const dt_data *data)
{
    static const char *const orders[] = { "shuffled", "stored", "packed" };
    const dt_data_options *o = &plan->data;
    const bool ends = o->documents || o->order == DT_ORDER_PACKED;
    char hash[DTI_NUMBER_BYTES], seed[DTI_NUMBER_BYTES], words[DTI_NUMBER_BYTES], *text;
    json_t *all;

    (void)snprintf(hash, sizeof hash, "%016" PRIx64, dt_data_look(data).hash);
    (void)snprintf(seed, sizeof seed, "%" PRIu64, o->seed);
    (void)snprintf(words, sizeof words, "%016" PRIx64, o->tokenizer);
    all =
        json_pack("{s:{s:s*, s:s, s:o, s:I, s:s, s:s?, s:b, s:o}}", "data", tokenizer,
                  o->tokenizer != 0 ? words : NULL, "data", hash, "data-weights", weights_of(plan),
                  "sequence", (json_int_t)o->sequence, "order", orders[o->order], "seed",
                  o->order == DT_ORDER_STORED ? NULL : seed, "documents", (int)o->documents,
                  "end-token", ends ? json_integer(o->end_token) : json_null());
    text = all != NULL ? json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(all);
    return text;
}

/* Keys are options, and the tokenizer. Whoever kept none is of an earlier version. */
static dt_status compare(const json_t *kept, const json_t *now, int64_t samples)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)now, key, v)
    {
        const json_t *was = json_object_get(kept, key);
        const bool model = strcmp(key, tokenizer) == 0;
        char *before, *here;
        dt_status st;
        if (was == NULL || json_equal(was, v)) continue;
        before = json_dumps(was, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
        here = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
        st = dt_fail(DT_ERR_ARG,
                     "--resume: %s%s is another than that of the %" PRId64
                     " samples which the run has used (%s%s, not %s): the next ones would not "
                     "follow on them; leave it as it was, or add --new-data to read these data "
                     "from their beginning",
                     model ? "the tokenizer of --model" : "--", model ? "" : key, samples,
                     model                      ? "hash "
                     : strcmp(key, "data") == 0 ? "hash of the tokens "
                                                : "",
                     here, before);
        free(before);
        free(here);
        return st;
    }
    return DT_OK;
}

dt_status cli_train_compare(const cli_trainer *t, const char *kept, int64_t samples, bool *other)
{
    json_t *before = json_loads(kept, 0, NULL), *now = json_loads(t->facts, 0, NULL);
    dt_status st = compare(json_object_get(before, "data"), json_object_get(now, "data"), samples);

    json_decref(before);
    json_decref(now);
    *other = st != DT_OK && t->run->plan->args->training.new_data;
    if (*other) dti_error_clear();
    if (*other) st = DT_OK;
    DT_TRY(st);
    return DT_OK;
}
