/* SPDX-License-Identifier: Apache-2.0
 *
 * What the body of a request asks for, as values of C: nothing of JSON goes further than here. */
#ifndef DTI_HTTP_WISH_H
#define DTI_HTTP_WISH_H

#include <dtensor/generation.h>

#include "base/memory.h"
#include "service/http/call_form.h"

/* Whose field a row of the table is. */
enum { DTI_API_TEXT = 1, DTI_API_CHAT = 2, DTI_API_TOKENIZE = 4, DTI_API_DETOKENIZE = 8 };

enum {
    DTI_MOST_NESTING = 64,
    DTI_MOST_PROMPTS = 128,
    DTI_MOST_CHOICES = 128, /* prompts times n */
    DTI_MOST_STOPS = 4,
    DTI_MOST_STOP_BYTES = 1024,
    DTI_MOST_STOP_IDS = 128,
    DTI_MOST_BIASES = 1024,
    DTI_MOST_TOP = 20
};

/* A text or ids. */
typedef struct dti_prompt {
    const char *text; /* NULL: ids */
    size_t n_bytes;
    dt_ids ids;
} dti_prompt;

typedef enum dti_tool_choice {
    DTI_TOOLS_AUTO,
    DTI_TOOLS_NONE,
    DTI_TOOLS_FORCED /* the answer is a call */
} dti_tool_choice;

typedef struct dti_wish {
    unsigned api;
    int64_t vocab;       /* of the model, known before ids are read */
    dti_call_form calls; /* of its chat template; arguments NULL: not known */

    const char *model; /* NULL: not said */
    dt_generate_options o;
    bool has_temperature, has_seed, has_top_k; /* said */
    bool samples;
    int64_t seed, n, max_tokens; /* -1: not said */
    dt_ids stop_ids;
    bool stream, include_usage, echo;
    bool logprobs;
    int64_t n_top; /* of logprobs; -1: none */

    dti_prompt *prompts; /* [n_prompts] */
    int64_t n_prompts;
    const char *variables; /* of the chat template, as a JSON object */
    bool add_generation_prompt, has_tools;
    dti_tool_choice tool_choice;
    const char *tool_name; /* the one that is forced; NULL: any */

    /* tokenize, detokenize */
    bool add_special, parse_special, with_pieces, with_prompt;

    dti_arena arena; /* of all that is pointed to */
    /* why it was refused: 400, or another */
    int status;
    char param[64], message[320];
} dti_wish;

/* Says why; returns false. */
bool dti_wish_refuse(dti_wish *w, const char *param, const char *fmt, ...) DT_PRINTF(3, 4);
bool dti_wish_no_memory(dti_wish *w);

/* Reads a body over the defaults in *w, whose api, o and vocab are set. False: refused. */
bool dti_wish_read(dti_wish *w, const char *body, size_t n);
void dti_wish_free(dti_wish *w);

struct json_t;

/* A body's tree, or NULL: refused. */
struct json_t *dti_wish_parse(dti_wish *w, const char *body, size_t n);
bool dti_wish_read_tree(dti_wish *w, const struct json_t *tree);

/* Answers are values of this schema; false: one that cannot be kept to. */
bool dti_wish_take_schema(dti_wish *w, const char *name, const struct json_t *schema);

/* Answers are kept to a schema with it and without: but it is true, false, null or not there. */
bool dti_wish_check_strict(dti_wish *w, const char *name, const struct json_t *within);

/* The answer is a call of one of these (force_tools.c). */
bool dti_wish_force_tool(dti_wish *w, const struct json_t *tools);

/* messages, tools and what else a template is given (messages.c). */
bool dti_wish_read_messages(dti_wish *w, const struct json_t *messages, const struct json_t *tools,
                            const struct json_t *more);

#endif
