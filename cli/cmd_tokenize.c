/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor tokenize and detokenize: a folder's tokenizer alone, without its model. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/make_tokens.h"
#include "cli/print_report.h"
#include "cli/prompt.h"

static dt_status open_tokenizer(const cli_args *args, dt_tokenizer **out)
{
    dt_status st;

    DT_CHECK(args->folder != NULL, DT_ERR_ARG,
             "no tokenizer; give --model DIR, a folder with tokenizer.json");
    st = dt_tokenizer_open(args->folder, out);
    if (st == DT_ERR_IO && access(args->folder, F_OK) != 0) dti_error_prefix("--model");
    DT_TRY(st);
    return DT_OK;
}

/* The ids in one line, as --tokens takes them; with --verbose each with what the file calls it. */
static dt_status print_ids(const cli_args *args, const dt_tokenizer *tok, const int32_t *ids,
                           size_t n)
{
    if (args->json)
        return cli_put_json(json_pack("{s:o}", "tokens", cli_json_ids(ids, (int64_t)n)),
                            JSON_COMPACT);
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        const char *piece = dt_tokenizer_piece(tok, ids[i], &bytes);
        if (!args->verbose) {
            (void)printf("%s%" PRId32, i > 0 ? "," : "", ids[i]);
            continue;
        }
        (void)printf("%" PRId32 "\t", ids[i]);
        cli_print_text(stdout, piece != NULL ? piece : "", bytes);
        (void)putchar('\n');
    }
    if (!args->verbose) (void)putchar('\n');
    DT_TRY(cli_flush());
    return DT_OK;
}

static dt_status tokenize(const cli_args *args, const cli_env *env, const cli_console *console)
{
    const unsigned flags = args->no_special ? 0 : DT_ENCODE_ADD_SPECIAL | DT_ENCODE_PARSE_SPECIAL;
    dt_tokenizer *tok = NULL;
    int32_t *ids = NULL;
    char *file = NULL;
    const char *text;
    dt_status st = DT_OK;
    size_t bytes, n = 0;

    (void)env;
    if (args->output != NULL || args->n_files > 0) return cli_make_tokens(args, console);
    DT_CHECK(args->format == NULL && args->separator == NULL && args->key == NULL &&
                 !args->append_eos && !args->json_lines,
             DT_ERR_ARG,
             "--format, --append-eos, --separator, --key and --json-lines are of files of tokens; "
             "give --output NAME.bin FILE...");
    DT_TRY(cli_text_read(args, &text, &bytes, &file));
    DT_TRY_TO(done, st, open_tokenizer(args, &tok));
    DT_TRY_TO(done, st, dt_tokenizer_encode(tok, text, bytes, flags, &ids, &n));
    DT_TRY_TO(done, st, print_ids(args, tok, ids, n));
done:
    dt_tokenizer_free(ids);
    dt_tokenizer_release(&tok);
    dti_free(file);
    return st;
}

static dt_status detokenize(const cli_args *args, const cli_env *env, const cli_console *console)
{
    dt_tokenizer *tok = NULL;
    int32_t *ids = NULL;
    char *text = NULL;
    dt_status st = DT_OK;
    size_t bytes;
    int64_t n;

    (void)env;
    (void)console;
    DT_CHECK(args->tokens != NULL, DT_ERR_ARG, "no tokens; give --tokens 1,2,3");
    DT_TRY_TO(done, st, open_tokenizer(args, &tok));
    DT_TRY_TO(done, st,
              cli_ids_read(args->tokens,
                           &(cli_id_list){ "--tokens", dt_tokenizer_vocab_size(tok), false, 0 },
                           &ids, &n));
    DT_TRY_TO(done, st,
              dt_tokenizer_decode(tok, ids, (size_t)n, !args->keep_special, &text, &bytes));
    if (args->json) {
        DT_TRY_TO(
            done, st,
            cli_put_json(json_pack("{s:o}", "text", json_stringn(text, bytes)), JSON_COMPACT));
        goto done;
    }
    cli_print_text(stdout, text, bytes);
    (void)putchar('\n');
    DT_TRY_TO(done, st, cli_flush());
done:
    dt_tokenizer_free(text);
    dt_tokenizer_release(&tok);
    dti_free(ids);
    return st;
}

const cli_command cli_tokenize = {
    .name = "tokenize",
    .bit = CLI_TOKENIZE,
    .many = true,
    .usage = "--model DIR (--prompt TEXT | --prompt-file FILE | --output NAME.bin FILE...) "
             "[OPTION]...",
    .summary = "turns a text into the model's token ids",
    .details =
        "Prints the ids with commas, as --tokens takes them; with --verbose one per line and "
        "what\nthe tokenizer calls it. Only the tokenizer's files are needed.\n\n"
        "With --output it makes a file of tokens to train on. Each FILE is a text, or JSON lines\n"
        "(.jsonl): {\"text\": ...}, or {\"messages\": [...]} with a chat template, of which the\n"
        "answers alone are learned. NAME.bin.json and, of chats, NAME.bin.mask lie beside it.",
    .run = tokenize,
};

const cli_command cli_detokenize = {
    .name = "detokenize",
    .bit = CLI_DETOKENIZE,
    .usage = "--model DIR --tokens IDS [OPTION]...",
    .summary = "turns token ids into the text that they stand for",
    .details = "Special tokens have no text unless --keep-special is given.",
    .run = detokenize,
};
