/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io_status.h"
#include "base/numbers.h"
#include "cli/print_report.h"

enum { MAX_FILE_BYTES = 1 << 28, READ_BYTES = 1 << 16 };

const char *cli_prompt_option(const cli_args *a)
{
    if (a->prompts_file != NULL) return "--prompts-file";
    if (a->prompt_file != NULL) return "--prompt-file";
    return a->tokens != NULL ? "--tokens" : "--prompt";
}

/* Ids can be answered with ids: there a tokenizer that is not understood costs only the text. */
static dt_status open_tokenizer(const cli_session *s, bool needed, cli_prompt *p)
{
    const char *folder = s->args->folder;
    dt_status st;

    if (dt_tokenizer_files(folder) == NULL) {
        DT_CHECK(!needed, DT_ERR_FORMAT,
                 "%s: has no tokenizer.json, so text cannot become tokens; give ids with --tokens",
                 folder);
        return DT_OK;
    }
    st = dt_tokenizer_open(folder, &p->tokenizer);
    if (st != DT_OK && st != DT_ERR_MEMORY && !needed) {
        cli_warn(s->console, dt_last_error()->message);
        cli_warn(s->console, "the tokenizer cannot be used; output is token ids");
        return DT_OK;
    }
    DT_TRY(st);
    return DT_OK;
}

/* --- ids ----------------------------------------------------------------------------------------
 */

enum { PLACE_BYTES = 64, IGNORED = -100 };

/* "item 3", "row 2, item 3" */
static const char *place(const cli_id_list *how, int64_t item, char text[PLACE_BYTES])
{
    if (how->row == 0)
        (void)snprintf(text, PLACE_BYTES, "item %lld", (long long)item);
    else
        (void)snprintf(text, PLACE_BYTES, "row %lld, item %lld", (long long)how->row,
                       (long long)item);
    return text;
}

/* One id of the list at *text, which moves behind it and its comma. */
static dt_status parse_id(const char **text, int64_t item, const cli_id_list *how, int32_t *out)
{
    const char *p = *text, *what = how->labels ? "label" : "token id";
    const size_t blanks = strspn(p, " "), n = strcspn(p, ","), shown = n < 40 ? n : 40;
    const size_t sign = how->labels && p[blanks] == '-';
    char at[PLACE_BYTES], *end;
    long long id;

    errno = 0;
    id = strtoll(p + blanks, &end, 10);
    while (*end == ' ') end++;
    DT_CHECK(end == p + n && n > blanks && strspn(p + blanks + sign, "0123456789") > 0, DT_ERR_ARG,
             "%s: \"%.*s\" (%s) is not a %s; write ids with commas: 1,2,3", how->option, (int)shown,
             p, place(how, item, at), what);
    DT_CHECK(errno == 0 && id < how->vocab && (id >= 0 || id == IGNORED), DT_ERR_ARG,
             "%s: %s %.*s (%s) is outside the model's vocabulary, 0..%lld%s", how->option, what,
             (int)(shown - blanks), p + blanks, place(how, item, at), (long long)how->vocab - 1,
             how->labels ? "; -100 is ignored" : "");
    *out = (int32_t)id;
    *text = p + n + (p[n] == ',');
    return DT_OK;
}

dt_status cli_ids_read(const char *text, const cli_id_list *how, int32_t **ids, int64_t *n)
{
    const bool empty = text[strspn(text, " ")] == '\0';
    int64_t room = 1;

    *n = 0;
    DT_CHECK(!empty || how->row == 0, DT_ERR_ARG, "%s: row %lld is empty", how->option,
             (long long)how->row);
    DT_CHECK(!empty, DT_ERR_ARG,
             "%s: the prompt is empty; the model needs at least one token to start from",
             how->option);
    for (const char *c = text; *c != '\0'; c++) room += *c == ',';
    DT_TRY(dti_alloc_array((size_t)room, sizeof **ids, (void **)ids));
    for (; *n < room; (*n)++) DT_TRY(parse_id(&text, *n + 1, how, &(*ids)[*n]));
    return DT_OK;
}

/* --- text ---------------------------------------------------------------------------------------
 */

static dt_status read_stream(FILE *f, const char *option, const char *path, char **text,
                             size_t *bytes)
{
    size_t capacity = 0, got;

    *bytes = 0;
    do {
        DT_TRY(dti_grow((void **)text, &capacity, *bytes + READ_BYTES, 1));
        got = fread(*text + *bytes, 1, READ_BYTES, f);
        *bytes += got;
        DT_CHECK(*bytes <= MAX_FILE_BYTES, DT_ERR_IO, "%s: %s has more than %d bytes", option, path,
                 MAX_FILE_BYTES);
    } while (got == READ_BYTES);
    DT_CHECK(!ferror(f), dti_io_status(errno), "%s: %s: %s", option, path, strerror(errno));
    return DT_OK;
}

/* "\r\n" is the end of a line, as for Python's open(); returns how many bytes are left. */
static size_t plain_newlines(char *text, size_t bytes)
{
    size_t n = 0;

    for (size_t i = 0; i < bytes; i++)
        if (text[i] != '\r' || i + 1 == bytes || text[i + 1] != '\n') text[n++] = text[i];
    return n;
}

dt_status cli_file_read(const char *option, const char *path, char **text, size_t *bytes)
{
    const bool standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "rb");
    dt_status st;

    DT_CHECK(!standard || dt_launch_size() == 1, DT_ERR_ARG,
             "%s: launchers give standard input to one process only; name a file", option);
    DT_CHECK(f != NULL, dti_io_status(errno), "%s: %s: %s", option, path, strerror(errno));
    st = read_stream(f, option, standard ? "standard input" : path, text, bytes);
    if (!standard) (void)fclose(f);
    DT_TRY(st);
    *bytes = plain_newlines(*text, *bytes);
    /* Editors end a file with a newline that nobody means. */
    if (*bytes > 0 && (*text)[*bytes - 1] == '\n') (*bytes)--;
    return DT_OK;
}

static dt_status encode(const cli_session *s, const char *text, size_t bytes, cli_prompt *p)
{
    char left_out[DT_LEFT_OUT_BYTES], warning[DT_ERROR_MESSAGE_BYTES];
    int32_t *ids = NULL;
    size_t n = 0;
    dt_status st = DT_OK;

    DT_TRY(dt_tokenizer_encode_checked(p->tokenizer, text, bytes,
                                       DT_ENCODE_ADD_SPECIAL | DT_ENCODE_PARSE_SPECIAL, &ids, &n,
                                       left_out));
    if (left_out[0] != '\0') {
        (void)snprintf(warning, sizeof warning,
                       "%s: its tokenizer has no token for characters of the prompt, the first is "
                       "%s: the model does not see them",
                       s->args->folder, left_out);
        cli_warn(s->console, warning);
    }
    for (size_t i = 0; i < n; i++)
        DT_CHECK_TO(done, st, ids[i] < s->info.vocab_size, DT_ERR_FORMAT,
                    "%s: its tokenizer made token id %d of the prompt, but the model's vocabulary "
                    "is 0..%lld; the tokenizer belongs to another model",
                    s->args->folder, (int)ids[i], (long long)s->info.vocab_size - 1);
    DT_CHECK_TO(done, st, n > 0, DT_ERR_ARG,
                "%s: the prompt is empty once it is tokenized; the model needs at least one token",
                cli_prompt_option(s->args));
    DT_TRY_TO(done, st, dti_alloc_array(n, sizeof *p->ids, (void **)&p->ids));
    memcpy(p->ids, ids, n * sizeof *ids);
    p->n = (int64_t)n;
done:
    dt_tokenizer_free(ids);
    return st;
}

dt_status cli_text_read(const cli_args *a, const char **text, size_t *bytes, char **file)
{
    const char *option = a->prompt != NULL ? "--prompt" : "--prompt-file";

    *file = NULL;
    DT_CHECK((a->prompt != NULL) != (a->prompt_file != NULL), DT_ERR_ARG,
             "%s; give one of --prompt TEXT, --prompt-file FILE (- is standard input)",
             a->prompt == NULL ? "no text" : "more than one text");
    *text = a->prompt;
    *bytes = a->prompt != NULL ? strlen(a->prompt) : 0;
    if (a->prompt == NULL) {
        dt_status st = cli_file_read("--prompt-file", a->prompt_file, file, bytes);
        *text = *file;
        if (st != DT_OK) {
            dti_free(*file);
            *file = NULL;
        }
        DT_TRY(st);
    }
    if (*bytes == 0) {
        dti_free(*file);
        *file = NULL;
        DT_FAIL(DT_ERR_ARG, "%s: the prompt is empty; the model needs a text to start from",
                option);
    }
    return DT_OK;
}

static dt_status read_text(const cli_session *s, cli_prompt *p)
{
    const char *text;
    size_t bytes;
    char *file;
    dt_status st;

    DT_TRY(cli_text_read(s->args, &text, &bytes, &file));
    st = encode(s, text, bytes, p);
    dti_free(file);
    return st;
}

static dt_status check_length(const cli_session *s, int64_t n)
{
    DT_CHECK(n <= s->info.max_positions, DT_ERR_ARG,
             "%s: the prompt has %lld tokens, the model's context is %lld (%s/config.json); "
             "shorten it",
             cli_prompt_option(s->args), (long long)n, (long long)s->info.max_positions,
             s->args->folder);
    return DT_OK;
}

static void remember(cli_session *s, const int32_t *ids, int64_t n)
{
    s->read = dti_hash_bytes(s->read, ids, (size_t)n * sizeof *ids) | 1;
}

dt_status cli_prompt_read(cli_session *s, bool answers_text, cli_prompt *out)
{
    const cli_args *a = s->args;
    const int given = (a->prompt != NULL) + (a->prompt_file != NULL) + (a->tokens != NULL);

    DT_CHECK(given == 1, DT_ERR_ARG,
             "%s; give one of --prompt TEXT, --prompt-file FILE (- is standard input), --tokens "
             "IDS",
             given == 0 ? "no prompt" : "more than one prompt");
    if (a->tokens == NULL || answers_text) DT_TRY(open_tokenizer(s, a->tokens == NULL, out));
    if (a->tokens != NULL)
        DT_TRY(cli_ids_read(a->tokens, &(cli_id_list){ "--tokens", s->info.vocab_size, false, 0 },
                            &out->ids, &out->n));
    else
        DT_TRY(read_text(s, out));
    DT_TRY(check_length(s, out->n));
    remember(s, out->ids, out->n);
    return DT_OK;
}

void cli_prompt_free(cli_prompt *prompt)
{
    dt_tokenizer_release(&prompt->tokenizer);
    dti_free(prompt->ids);
    *prompt = (cli_prompt){ 0 };
}

/* --- several -----------------------------------------------------------------------------------
 */

static dt_status add_prompt(const cli_session *s, const char *text, size_t bytes, size_t *room,
                            cli_prompts *out)
{
    cli_prompt one = { .tokenizer = out->tokenizer };

    DT_TRY(dti_grow((void **)&out->list, room, (size_t)out->n + 1, sizeof *out->list));
    DT_TRY(encode(s, text, bytes, &one));
    if (one.n > s->info.max_positions) dti_free(one.ids);
    DT_TRY(check_length(s, one.n));
    out->list[out->n++] = (dt_ids){ one.ids, one.n };
    return DT_OK;
}

/* One prompt per line; empty lines are none. */
static dt_status read_lines(const cli_session *s, const char *text, size_t bytes, cli_prompts *out)
{
    size_t room = 0;
    int64_t number = 1;

    for (size_t begin = 0, end; begin < bytes; begin = end + 1, number++) {
        const char *line = text + begin, *newline = memchr(line, '\n', bytes - begin);
        dt_status st = DT_OK;

        end = newline != NULL ? (size_t)(newline - text) : bytes;
        if (end > begin) st = add_prompt(s, line, end - begin, &room, out);
        if (st != DT_OK) dti_error_prefix("%s line %lld", s->args->prompts_file, (long long)number);
        DT_TRY(st);
    }
    DT_CHECK(out->n > 0, DT_ERR_ARG, "--prompts-file: %s has no prompt; write one per line",
             s->args->prompts_file);
    return DT_OK;
}

static dt_status read_several(cli_session *s, cli_prompts *out)
{
    const cli_args *a = s->args;
    cli_prompt opened = { 0 };
    char *text = NULL;
    dt_status st = DT_OK;
    size_t bytes;

    DT_CHECK(a->prompt == NULL && a->prompt_file == NULL && a->tokens == NULL, DT_ERR_ARG,
             "more than one prompt; give one of --prompt TEXT, --prompt-file FILE, --tokens IDS, "
             "--prompts-file FILE");
    DT_TRY_TO(done, st, open_tokenizer(s, true, &opened));
    out->tokenizer = opened.tokenizer;
    DT_TRY_TO(done, st, cli_file_read("--prompts-file", a->prompts_file, &text, &bytes));
    DT_TRY_TO(done, st, read_lines(s, text, bytes, out));
    for (int64_t i = 0; i < out->n; i++) remember(s, out->list[i].ids, out->list[i].n);
done:
    dti_free(text);
    return st;
}

dt_status cli_prompts_read(cli_session *s, cli_prompts *out)
{
    cli_prompt one = { 0 };
    dt_status st = DT_OK;

    if (s->args->prompts_file != NULL) return read_several(s, out);
    DT_TRY_TO(done, st, cli_prompt_read(s, true, &one));
    DT_TRY_TO(done, st, dti_alloc_array(1, sizeof *out->list, (void **)&out->list));
    out->list[out->n++] = (dt_ids){ one.ids, one.n };
    out->tokenizer = one.tokenizer;
    one = (cli_prompt){ 0 };
done:
    cli_prompt_free(&one);
    return st;
}

void cli_prompts_free(cli_prompts *prompts)
{
    dt_tokenizer_release(&prompts->tokenizer);
    for (int64_t i = 0; i < prompts->n; i++) dti_free((void *)(uintptr_t)prompts->list[i].ids);
    dti_free(prompts->list);
    *prompts = (cli_prompts){ 0 };
}
