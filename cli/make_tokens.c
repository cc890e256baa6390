/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/make_tokens.h"

#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/interrupts.h"
#include "cli/outputs.h"
#include "cli/print_report.h"

enum { SHOWN_NS = 200000000 };

/* "eos_token" of a JSON file: a text, or an object with its content. NULL: it has none. */
static char *read_end_token(const char *folder, const char *name)
{
    char path[CLI_PATH_BYTES], *text = NULL;
    json_t *root, *value;

    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return NULL;
    root = json_load_file(path, 0, NULL);
    value = json_object_get(root, "eos_token");
    if (json_is_object(value)) value = json_object_get(value, "content");
    if (json_is_string(value) && dti_strdup(json_string_value(value), &text) != DT_OK) text = NULL;
    json_decref(root);
    return text;
}

dt_status cli_end_token(const char *folder, const dt_tokenizer *tok, int32_t *out)
{
    char *text = read_end_token(folder, "tokenizer_config.json");

    *out = -1;
    if (text == NULL) text = read_end_token(folder, "special_tokens_map.json");
    DT_CHECK(text != NULL, DT_ERR_FORMAT,
             "%s: neither tokenizer_config.json nor special_tokens_map.json has an eos_token",
             folder);
    *out = dt_tokenizer_id(tok, text, strlen(text));
    if (*out < 0) {
        char shown[DTI_SHOWN_BYTES];
        (void)dti_printable(text, shown, sizeof shown);
        dti_free(text);
        DT_FAIL(DT_ERR_FORMAT, "%s: its eos_token \"%s\" is no token of its tokenizer", folder,
                shown);
    }
    dti_free(text);
    return DT_OK;
}

dt_status cli_open_chat(const char *folder, dt_chat **out)
{
    const dt_status st = dt_chat_open(folder, out);

    if (st != DT_ERR_IO) return st;
    *out = NULL; /* there is none */
    dti_error_clear();
    return DT_OK;
}

/* A line that is written over, on a terminal; and whether to go on. */
typedef struct line {
    const cli_console *console;
    int64_t shown_ns;
    bool any;
} line;

static bool show(void *arg, int64_t bytes, int64_t all_bytes, int64_t tokens)
{
    char text[3][DTI_NUMBER_BYTES];
    line *l = arg;

    if (l->console->quiet || !l->console->terminal || cli_now_ns() - l->shown_ns < SHOWN_NS)
        return cli_interrupted() == 0;
    l->shown_ns = cli_now_ns();
    l->any = true;
    (void)fprintf(stderr, "\r%s of %s, %s tokens\033[K", dti_bytes_text(bytes, text[0]),
                  dti_bytes_text(all_bytes, text[1]), dti_count_text(tokens, text[2]));
    return cli_interrupted() == 0;
}

void cli_warn_of_broken(const cli_console *console, const char *files, const dt_tokenized *told)
{
    char text[DT_ERROR_MESSAGE_BYTES];

    if (told->broken == 0) return;
    (void)snprintf(text, sizeof text,
                   "%.500s: %" PRId64 " of %" PRId64
                   " bytes are no UTF-8, and are read as U+FFFD: another encoding, or no text?",
                   files, told->broken, told->bytes);
    cli_warn(console, text);
}

static dt_status print(const cli_args *a, const cli_console *console, const dt_tokenized *told)
{
    char output[DT_ERROR_MESSAGE_BYTES]; /* names of files need not be UTF-8, JSON has to be */

    cli_warn_of_broken(console, a->n_files == 1 ? a->files[0] : "the files", told);
    if (told->last_only > 0) {
        char text[200];
        (void)snprintf(text, sizeof text,
                       "%" PRId64 " conversations: the last answer alone is learned, because the "
                       "template writes earlier ones otherwise than it wrote them when they were "
                       "last",
                       told->last_only);
        cli_warn(console, text);
    }
    if (a->json)
        return cli_put_json(json_pack("{s:s, s:I, s:I, s:I, s:I}", "output",
                                      dti_printable(a->output, output, sizeof output), "tokens",
                                      (json_int_t)told->tokens, "documents",
                                      (json_int_t)told->documents, "masked",
                                      (json_int_t)told->masked, "bytes", (json_int_t)told->bytes),
                            JSON_COMPACT);
    (void)printf("%s: %" PRId64 " tokens of %" PRId64 " document%s", a->output, told->tokens,
                 told->documents, told->documents == 1 ? "" : "s");
    if (told->masked > 0) (void)printf(", %" PRId64 " of them prompts", told->masked);
    (void)putchar('\n');
    return cli_flush();
}

/* The tokens and what lies beside them. */
static dt_status check_outputs(const cli_args *a)
{
    static const char *const endings[] = { ".bin", ".bin.json", ".bin.mask", ".idx" };
    const size_t n = strlen(a->output) - (strlen(a->output) > 4 ? 4 : 0);
    char path[CLI_PATH_BYTES];

    if (strcmp(a->output + n, endings[0]) != 0) return DT_OK; /* refused later */
    for (size_t i = 0; i < DT_COUNT(endings); i++) {
        DT_CHECK(snprintf(path, sizeof path, "%.*s%s", (int)n, a->output, endings[i]) <
                     CLI_PATH_BYTES,
                 DT_ERR_ARG, "--output: more than %d bytes", CLI_PATH_BYTES - 1);
        DT_TRY(cli_check_place("--output", path, a));
    }
    return DT_OK;
}

static dt_status check(const cli_args *a, dt_tokenize_options *o)
{
    DT_CHECK(a->output != NULL, DT_ERR_ARG,
             "\"%s\": a text to tokenize into a file needs --output NAME.bin; --prompt or "
             "--prompt-file prints ids",
             a->files[0]);
    DT_CHECK(a->prompt == NULL && a->prompt_file == NULL, DT_ERR_ARG,
             "--output is made of FILEs; leave %s out",
             a->prompt != NULL ? "--prompt" : "--prompt-file");
    DT_CHECK(a->n_files > 0, DT_ERR_ARG, "--output %s: of what? give one FILE or more", a->output);
    DT_TRY(check_outputs(a));
    DT_CHECK(a->separator == NULL || a->separator[0] != '\0', DT_ERR_ARG, "--separator is empty");
    if (a->format != NULL && dt_token_format_named(a->format, &o->format) != DT_OK) {
        dti_error_prefix("--format");
        return DT_ERR_ARG;
    }
    o->separator = a->separator;
    if (a->key != NULL) o->key = a->key;
    o->plain = a->no_special;
    o->kind = a->json_lines ? DT_TEXT_JSON_LINES : DT_TEXT_BY_NAME;
    return DT_OK;
}

/* Of an error: it names the file of tokens or what lies beside it. That it could be made was looked
 * at before: a disk that is full, or broke. */
static bool is_of_output(const cli_args *a)
{
    const char *said = dt_last_error()->message;
    const size_t n = strlen(a->output) - 4;

    return strncmp(said, a->output, n) == 0 &&
           (strncmp(said + n, ".bin", 4) == 0 || strncmp(said + n, ".idx", 4) == 0);
}

dt_status cli_make_tokens(const cli_args *a, const cli_console *console)
{
    dt_tokenize_options o = DT_TOKENIZE_OPTIONS_INIT;
    line l = { .console = console };
    dt_tokenizer *tok = NULL;
    dt_tokenized told = { 0 };
    dt_chat *chat = NULL;
    dt_status st = DT_OK;

    DT_TRY(check(a, &o));
    DT_CHECK(a->folder != NULL, DT_ERR_ARG,
             "no tokenizer; give --model DIR, a folder with tokenizer.json");
    DT_TRY(dt_tokenizer_open(a->folder, &tok));
    DT_TRY_TO(done, st, cli_open_chat(a->folder, &chat));
    if (a->append_eos) DT_TRY_TO(done, st, cli_end_token(a->folder, tok, &o.end_token));
    o.chat = chat;
    o.progress = show;
    o.progress_arg = &l;
    DT_TRY_TO(done, st, cli_interrupts_catch(true));
    st = dt_tokenize_files((const char *const *)a->files, a->n_files, tok, &o, a->output, &told);
    if (l.any) (void)fputs("\r\033[K", stderr);
    if (st != DT_OK && cli_interrupted() != 0) { /* half a file is gone, now the signal counts */
        (void)signal(cli_interrupted(), SIG_DFL);
        (void)raise(cli_interrupted());
    }
    if (st == DT_ERR_IO && is_of_output(a)) *console->failed_output = true;
    if (st == DT_OK) st = print(a, console, &told);
done:
    dt_chat_release(&chat);
    dt_tokenizer_release(&tok);
    return st;
}
