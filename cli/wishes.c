/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/wishes.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/wish_checks.h"

enum { DEFAULT_NEW_TOKENS = 100 };
#define BAD_WORDS "--bad-words-ids"

/* --- one option --------------------------------------------------------------------------------
 */

static dt_status parse_seed(const char *text, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    DT_CHECK(strspn(text, "0123456789") == strlen(text) && errno == 0, DT_ERR_ARG,
             "--seed: \"%s\" is not a number from 0 to 18446744073709551615", text);
    return DT_OK;
}

static dt_status parse_early_stopping(const char *text, dt_early_stopping *out)
{
    static const char *const names[] = { "false", "true", "never" };

    for (size_t i = 0; i < DT_COUNT(names); i++) {
        *out = (dt_early_stopping)i;
        if (strcmp(text, names[i]) == 0) return DT_OK;
    }
    DT_FAIL(DT_ERR_ARG, "--early-stopping: \"%s\" is unknown; choose false, true or never", text);
}

/* --- lists of tokens ---------------------------------------------------------------------------
 */

/* One id at *text, which moves behind it. Whether it is in the vocabulary is the library's matter.
 */
static dt_status parse_id(const char *what, const char **text, int32_t *out)
{
    char *end;
    long long id;

    errno = 0;
    id = strtoll(*text, &end, 10);
    DT_CHECK(isdigit((unsigned char)(*text)[strspn(*text, " ")]) && errno == 0 && id >= 0 &&
                 id <= INT32_MAX,
             DT_ERR_ARG, "%s: \"%s\" is not a list of token ids; write %s", what, *text,
             strcmp(what, BAD_WORDS) == 0 ? "5,6;7 for the words 5,6 and 7" : "1,2,3");
    *out = (int32_t)id;
    *text = end;
    return DT_OK;
}

/* "1,2,3" up to the end or a semicolon. Ids go to *to, which moves behind them. */
static dt_status parse_list(const char *what, const char **text, int32_t **to, dt_ids *out)
{
    *out = (dt_ids){ *to, 0 };
    for (;;) {
        DT_TRY(parse_id(what, text, (*to)++));
        out->n++;
        if (**text == '\0' || **text == ';') return DT_OK;
        DT_CHECK(**text == ',', DT_ERR_ARG, "%s: \"%s\" does not go on with a comma", what, *text);
        (*text)++;
    }
}

static dt_status parse_ids(const char *what, const char *text, int32_t **to, dt_ids *out)
{
    DT_TRY(parse_list(what, &text, to, out));
    DT_CHECK(*text == '\0', DT_ERR_ARG, "%s: one list of ids is possible, not \"%s\"", what, text);
    return DT_OK;
}

/* "1,2;3": sequences of tokens. */
static dt_status parse_words(const char *text, int32_t **to, dt_ids *words, dt_generate_options *o)
{
    if (text == NULL) return DT_OK;
    o->bad_words = words;
    for (o->n_bad_words = 0;; text++) {
        DT_TRY(parse_list(BAD_WORDS, &text, to, &words[o->n_bad_words++]));
        if (*text == '\0') return DT_OK;
    }
}

/* Lists of tokens: the texts have room for no more ids than letters. */
static dt_status parse_lists(const cli_args *a, cli_wishes *w)
{
    int n_knobs;
    const dt_knob *knobs = dt_generate_knobs(&n_knobs);
    size_t room = 1;
    int32_t *to;

    for (int i = 0; i < n_knobs; i++)
        if (a->knob[i] != NULL) room += strlen(a->knob[i]) + 1;
    DT_TRY(dti_alloc_array(room, sizeof *w->ids, (void **)&w->ids));
    DT_TRY(dti_alloc_array(room, sizeof *w->words, (void **)&w->words));
    to = w->ids;
    for (int i = 0; i < n_knobs; i++) {
        char what[CLI_OPTION_BYTES];
        if (a->knob[i] == NULL || knobs[i].kind != DT_KNOB_TOKENS) continue;
        (void)snprintf(what, sizeof what, "--%s", knobs[i].option);
        DT_TRY(parse_ids(what, a->knob[i], &to, (void *)((char *)&w->options + knobs[i].at)));
    }
    return parse_words(cli_knob(a, "bad_words"), &to, w->words, &w->options);
}

/* --- all of them -------------------------------------------------------------------------------
 */

/* One setting that is no list. */
static dt_status parse_knob(const dt_knob *k, const char *text, dt_generate_options *o)
{
    void *field = (char *)o + k->at;
    char what[CLI_OPTION_BYTES];
    int64_t id = -1;

    (void)snprintf(what, sizeof what, "--%s", k->option);
    switch (k->kind) {
    case DT_KNOB_FLAG:
        *(bool *)field = true;
        return DT_OK;
    case DT_KNOB_NUMBER:
        return cli_parse_number(what, text, field);
    case DT_KNOB_COUNT:
        return cli_parse_int(what, text, 0, INT32_MAX, field);
    case DT_KNOB_SEED:
        return parse_seed(text, field);
    case DT_KNOB_STOPPING:
        return parse_early_stopping(text, field);
    case DT_KNOB_TOKEN:
        DT_TRY(cli_parse_int(what, text, 0, INT32_MAX, &id));
        *(int32_t *)field = (int32_t)id;
        return DT_OK;
    default:
        return DT_OK;
    }
}

/* In the library a number of new tokens counts before a length. A length that the user gives counts
 * before a number that the file has. Who gives a temperature wants it to count. */
static dt_status parse_options(const cli_args *a, dt_generate_options *o)
{
    int n;
    const dt_knob *knobs = dt_generate_knobs(&n);

    if (cli_knob(a, "max_length") != NULL) o->max_new_tokens = -1;
    if (cli_knob(a, "min_length") != NULL) o->min_new_tokens = 0;
    for (int i = 0; i < n; i++)
        if (a->knob[i] != NULL) DT_TRY(parse_knob(&knobs[i], a->knob[i], o));
    if (cli_wishes_draw(a)) o->do_sample = true;
    if (a->greedy) o->do_sample = false;
    if (a->stop.n > 0) {
        o->stop_strings = a->stop.items;
        o->n_stop_strings = a->stop.n;
    }
    return DT_OK;
}

/* Before weights are read, which may take minutes. Which tokens end a text is known by then. */
static dt_status check_rules(const cli_session *s, const dt_generate_options *o, int64_t prompt)
{
    const dt_option_names names = cli_wish_names(s->args);

    DT_TRY(dt_generate_check(o, &s->info, prompt, &names));
    return DT_OK;
}

static dt_status check_max_length(const cli_session *s, int64_t prompt, int64_t length)
{
    const int64_t context = s->info.max_positions;

    DT_CHECK(length > prompt && length <= context, DT_ERR_ARG,
             "--max-length %lld: it counts the prompt, which has %lld token%s, and the model's "
             "context is %lld (%s/config.json); give %lld to %lld",
             (long long)length, (long long)prompt, prompt == 1 ? "" : "s", (long long)context,
             s->args->folder, (long long)prompt + 1, (long long)context);
    return DT_OK;
}

/* As Transformers does: what the file says of a length is no hint that a long prompt overrules. */
static dt_status check_own_length(const cli_session *s, int64_t prompt, int64_t room,
                                  const dt_generate_options *o)
{
    DT_CHECK(o->max_new_tokens >= 0 || o->max_length == 0 || o->max_length > prompt, DT_ERR_ARG,
             "%s/generation_config.json: max_length %lld counts the prompt, which has %lld "
             "token%s: nothing is left for new ones; give --max-new-tokens, which counts before "
             "it, 1 to %lld",
             s->args->folder, (long long)o->max_length, (long long)prompt, prompt == 1 ? "" : "s",
             (long long)room);
    return DT_OK;
}

/* A default gives way to the context, a wish that cannot be met is refused. */
static dt_status settle_length(const cli_session *s, int64_t prompt, dt_generate_options *o)
{
    const cli_args *a = s->args;
    const int64_t context = s->info.max_positions, room = context - prompt;
    int64_t wanted = DEFAULT_NEW_TOKENS;

    DT_CHECK(room > 0, DT_ERR_ARG,
             "%s: the prompt has %lld tokens and fills the model's context of %lld "
             "(%s/config.json); shorten it",
             cli_prompt_option(a), (long long)prompt, (long long)context, a->folder);
    DT_CHECK(a->max_new_tokens <= room, DT_ERR_ARG,
             "--max-new-tokens %lld after a prompt of %lld token%s exceeds the model's context of "
             "%lld (%s/config.json); ask for at most %lld",
             (long long)a->max_new_tokens, (long long)prompt, prompt == 1 ? "" : "s",
             (long long)context, a->folder, (long long)room);
    if (cli_knob(a, "max_length") != NULL) DT_TRY(check_max_length(s, prompt, o->max_length));
    if (a->max_new_tokens > 0) o->max_new_tokens = a->max_new_tokens;
    DT_TRY(check_own_length(s, prompt, room, o));
    if (o->max_length > 0) wanted = o->max_length - prompt;
    if (o->max_new_tokens >= 0) wanted = o->max_new_tokens;
    o->max_new_tokens = wanted < room ? wanted : room;
    return DT_OK;
}

static dt_status check_strings(const cli_session *s, const dt_generate_options *o)
{
    char name[DT_OPTION_NAME_BYTES];

    if (o->n_stop_strings == 0 || o->tokenizer != NULL) return DT_OK;
    cli_wish_names(s->args).name((void *)s->args, "stop_strings", name);
    DT_FAIL(DT_ERR_ARG, "%s: %s has no tokenizer, so there is no text to find strings in", name,
            s->args->folder);
}

dt_status cli_wishes_read(const cli_session *s, const cli_prompts *prompts, cli_wishes *out)
{
    dt_generate_options *o = &out->options;
    int64_t longest = 0;

    DT_TRY(cli_wishes_agree(s->args));
    DT_TRY(dt_checkpoint_open(s->args->registry, s->args->folder, &out->folder));
    if (dt_checkpoint_generate_options(out->folder, o) != DT_OK) /* --ignore-eos does without */
        *o = (dt_generate_options)DT_GENERATE_OPTIONS_INIT;
    if (out->talks) {
        o->max_length = 0;
        o->max_new_tokens = s->info.max_positions;
        o->num_beams = o->num_return_sequences = 1; /* one answer, which is shown as it comes */
    }
    DT_TRY(parse_options(s->args, o));
    DT_TRY(parse_lists(s->args, out));
    for (int64_t i = 0; i < prompts->n; i++)
        if (prompts->list[i].n > longest) longest = prompts->list[i].n;
    DT_TRY(settle_length(s, longest, o));
    o->tokenizer = prompts->tokenizer;
    DT_TRY(check_strings(s, o));
    DT_TRY(cli_wishes_make_sense(s, o, longest));
    DT_TRY(check_rules(s, o, longest));
    out->many = prompts->n > 1 || o->num_beams > 1 || o->num_return_sequences > 1;
    return DT_OK;
}

void cli_wishes_free(cli_wishes *w)
{
    dt_checkpoint_close(&w->folder);
    dti_free(w->ids);
    dti_free(w->words);
    *w = (cli_wishes){ 0 };
}
