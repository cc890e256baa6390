/* SPDX-License-Identifier: Apache-2.0
 *
 * What the model reads first: --prompt, --prompt-file or --tokens, as ids. */
#ifndef DTI_CLI_PROMPT_H
#define DTI_CLI_PROMPT_H

#include <dtensor/tokenizer.h>

#include "cli/session.h"

typedef struct cli_prompt {
    dt_tokenizer *tokenizer; /* NULL: the folder has none, output is ids */
    int32_t *ids;
    int64_t n;
} cli_prompt;

/* Reads and encodes the prompt, and checks that its ids are in the vocabulary and that it fits into
 * the model's context. A tokenizer is opened if the prompt is text or the answer should be. Zeroed
 * before; freed with cli_prompt_free() in any case. */
dt_status cli_prompt_read(cli_session *s, bool answers_text, cli_prompt *out) DT_MUST_USE;
void cli_prompt_free(cli_prompt *prompt);

/* The option that the prompt comes from: "--tokens". */
const char *cli_prompt_option(const cli_args *args);

/* Several prompts. */
typedef struct cli_prompts {
    dt_tokenizer *tokenizer; /* NULL: the folder has none, output is ids */
    dt_ids *list;            /* [n] */
    int64_t n;
} cli_prompts;

/* The prompts of --prompts-file, or the one that cli_prompt_read() reads. Zeroed before; freed with
 * cli_prompts_free() in any case. */
dt_status cli_prompts_read(cli_session *s, cli_prompts *out) DT_MUST_USE;
void cli_prompts_free(cli_prompts *prompts);

/* The text of --prompt or --prompt-file. *file is freed with dti_free(). */
dt_status cli_text_read(const cli_args *args, const char **text, size_t *bytes,
                        char **file) DT_MUST_USE;

/* The text of a file that an option names, of bounded size, "-": standard input; without the
 * newline that ends it, and "\r\n" as "\n". *text is freed with dti_free(), also after an error. */
dt_status cli_file_read(const char *option, const char *path, char **text,
                        size_t *bytes) DT_MUST_USE;

/* What a list of ids is read as. */
typedef struct cli_id_list {
    const char *option; /* "--tokens" */
    int64_t vocab;      /* ids are below it */
    bool labels;        /* or -100: ignored */
    int64_t row;        /* its number in messages, from 1 on; 0: there are no rows */
} cli_id_list;

/* A list of ids as --tokens has it; *ids is freed with dti_free(), also after an error. */
dt_status cli_ids_read(const char *text, const cli_id_list *how, int32_t **ids,
                       int64_t *n) DT_MUST_USE;

#endif
