/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/wishes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "models/generation/config.h"
#include "models/generation/rules.h"

enum { DEFAULT_NEW_TOKENS = 100 };
#define BAD_WORDS "--bad-words-ids"

/* --- one option --------------------------------------------------------------------------------
 */

static dt_status parse_count(const char *what, const char *text, int64_t *out)
{
    if (text == NULL) return DT_OK;
    DT_TRY(cli_parse_int(what, text, 0, INT32_MAX, out));
    return DT_OK;
}

static dt_status parse_seed(const char *text, uint64_t *out)
{
    char *end;

    if (text == NULL) return DT_OK;
    errno = 0;
    *out = strtoull(text, &end, 10);
    DT_CHECK(strspn(text, "0123456789") == strlen(text) && errno == 0, DT_ERR_ARG,
             "--seed: \"%s\" is not a number from 0 to 18446744073709551615", text);
    return DT_OK;
}

static dt_status parse_early_stopping(const char *text, dt_early_stopping *out)
{
    static const char *const names[] = { "false", "true", "never" };

    if (text == NULL) return DT_OK;
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
    DT_CHECK(end != *text && errno == 0 && id >= 0 && id <= INT32_MAX, DT_ERR_ARG,
             "%s: \"%s\" is not a list of token ids; write %s", what, *text,
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
    if (text == NULL) return DT_OK;
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

static dt_status parse_lists(const cli_args *a, cli_wishes *w)
{
    const char *const texts[] = { a->eos_ids, a->suppress_ids, a->begin_suppress_ids,
                                  a->forced_eos_ids, a->bad_words_ids };
    dt_generate_options *o = &w->options;
    size_t n = 1;
    int32_t *to;

    for (size_t i = 0; i < DT_COUNT(texts); i++) n += texts[i] != NULL ? strlen(texts[i]) + 1 : 0;
    DT_TRY(dti_alloc_array(n, sizeof *w->ids, (void **)&w->ids));
    DT_TRY(dti_alloc_array(n, sizeof *w->words, (void **)&w->words));
    to = w->ids;
    DT_TRY(parse_ids("--eos-ids", a->eos_ids, &to, &o->eos));
    DT_TRY(parse_ids("--suppress-ids", a->suppress_ids, &to, &o->suppress_tokens));
    DT_TRY(
        parse_ids("--begin-suppress-ids", a->begin_suppress_ids, &to, &o->begin_suppress_tokens));
    DT_TRY(parse_ids("--forced-eos-ids", a->forced_eos_ids, &to, &o->forced_eos));
    DT_TRY(parse_words(a->bad_words_ids, &to, w->words, o));
    return DT_OK;
}

/* --- all of them -------------------------------------------------------------------------------
 */

/* Who gives a temperature wants it to count. */
static dt_status settle_sampling(const cli_args *a, dt_generate_options *o)
{
    const bool meant = a->temperature != NULL || a->top_k != NULL || a->top_p != NULL ||
                       a->min_p != NULL || a->typical_p != NULL || a->epsilon_cutoff != NULL ||
                       a->eta_cutoff != NULL || a->seed != NULL;

    DT_CHECK(!a->greedy || (!a->sample && !meant), DT_ERR_ARG,
             "--greedy takes the best token always; leave it out, or --sample, --seed, "
             "--temperature, --top-k, --top-p, --min-p, --typical-p, --epsilon-cutoff and "
             "--eta-cutoff");
    if (a->sample || meant) o->do_sample = true;
    if (a->greedy) o->do_sample = false;
    return DT_OK;
}

static dt_status parse_token(const char *what, const char *text, int32_t *out)
{
    int64_t id = -1;

    if (text == NULL) return DT_OK;
    DT_TRY(cli_parse_int(what, text, 0, INT32_MAX, &id));
    *out = (int32_t)id;
    return DT_OK;
}

/* In the library a number of new tokens counts before a length. A length that the user gives counts
 * before a number that the file has; two answers of the user to one question are refused. */
static dt_status parse_lengths(const cli_args *a, dt_generate_options *o)
{
    DT_CHECK(a->max_length == NULL || a->max_new_tokens == 0, DT_ERR_ARG,
             "--max-length %s and --max-new-tokens %lld both say where a text ends; give one",
             a->max_length, (long long)a->max_new_tokens);
    DT_CHECK(a->min_length == NULL || a->min_new_tokens == NULL, DT_ERR_ARG,
             "--min-length %s and --min-new-tokens %s both say when a text may end; give one",
             a->min_length, a->min_new_tokens);
    if (a->max_length != NULL) o->max_new_tokens = -1;
    if (a->min_length != NULL) o->min_new_tokens = 0;
    DT_TRY(parse_count("--max-length", a->max_length, &o->max_length));
    DT_TRY(parse_count("--min-length", a->min_length, &o->min_length));
    DT_TRY(parse_count("--min-new-tokens", a->min_new_tokens, &o->min_new_tokens));
    return DT_OK;
}

static dt_status parse_options(const cli_args *a, dt_generate_options *o)
{
    DT_TRY(settle_sampling(a, o));
    DT_TRY(parse_seed(a->seed, &o->seed));
    DT_TRY(cli_parse_number("--temperature", a->temperature, &o->temperature));
    DT_TRY(parse_count("--top-k", a->top_k, &o->top_k));
    DT_TRY(cli_parse_number("--top-p", a->top_p, &o->top_p));
    DT_TRY(cli_parse_number("--min-p", a->min_p, &o->min_p));
    DT_TRY(cli_parse_number("--typical-p", a->typical_p, &o->typical_p));
    DT_TRY(cli_parse_number("--epsilon-cutoff", a->epsilon_cutoff, &o->epsilon_cutoff));
    DT_TRY(cli_parse_number("--eta-cutoff", a->eta_cutoff, &o->eta_cutoff));
    if (a->renormalize_logits) o->renormalize_logits = true;
    if (a->remove_invalid_values) o->remove_invalid_values = true;
    DT_TRY(cli_parse_number("--repetition-penalty", a->repetition_penalty, &o->repetition_penalty));
    DT_TRY(
        parse_count("--no-repeat-ngram-size", a->no_repeat_ngram_size, &o->no_repeat_ngram_size));
    DT_TRY(parse_lengths(a, o));
    DT_TRY(parse_token("--forced-bos-id", a->forced_bos_id, &o->forced_bos));
    DT_TRY(parse_count("--num-beams", a->num_beams, &o->num_beams));
    DT_TRY(
        parse_count("--num-return-sequences", a->num_return_sequences, &o->num_return_sequences));
    DT_TRY(cli_parse_number("--length-penalty", a->length_penalty, &o->length_penalty));
    DT_TRY(parse_early_stopping(a->early_stopping, &o->early_stopping));
    if (a->stop.n > 0) {
        o->stop_strings = a->stop.items;
        o->n_stop_strings = a->stop.n;
    }
    o->ignore_eos = a->ignore_eos;
    return DT_OK;
}

/* What the library refuses as well, in words of the command. */
static dt_status check_options(const cli_args *a, const dt_generate_options *o)
{
    DT_CHECK(a->temperature == NULL || o->temperature > 0, DT_ERR_ARG,
             "--temperature %s: must be above 0; --greedy takes the best token always",
             a->temperature);
    DT_CHECK(a->repetition_penalty == NULL || o->repetition_penalty > 0, DT_ERR_ARG,
             "--repetition-penalty %s: must be above 0; 1 is none", a->repetition_penalty);
    DT_CHECK(a->num_return_sequences == NULL || o->num_return_sequences == 1 || o->do_sample ||
                 o->num_beams > 1,
             DT_ERR_ARG,
             "--num-return-sequences %s: the best token is always the same; add --sample or "
             "--num-beams",
             a->num_return_sequences);
    return DT_OK;
}

/* Before weights are read, which may take minutes. Which tokens end a text is known by then. */
static dt_status check_rules(const cli_session *s, const dt_generate_options *o, int64_t prompt)
{
    dt_model_info info = s->info;
    dti_rules rules;

    if (info.n_eos < 0) info.n_eos = 0;
    DT_TRY(dti_rules_make(&rules, &info, o, prompt));
    dti_rules_free(&rules);
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

/* A default gives way to the context, a wish that cannot be met is refused. */
static dt_status settle_length(const cli_session *s, int64_t prompt, dt_generate_options *o)
{
    const cli_args *a = s->args;
    const int64_t context = s->info.max_positions, room = context - prompt;
    int64_t wanted = DEFAULT_NEW_TOKENS;

    DT_CHECK(room > 0, DT_ERR_ARG,
             "the prompt has %lld tokens and fills the model's context of %lld (%s/config.json); "
             "shorten it",
             (long long)prompt, (long long)context, a->folder);
    DT_CHECK(a->max_new_tokens <= room, DT_ERR_ARG,
             "--max-new-tokens %lld after a prompt of %lld token%s exceeds the model's context of "
             "%lld (%s/config.json); ask for at most %lld",
             (long long)a->max_new_tokens, (long long)prompt, prompt == 1 ? "" : "s",
             (long long)context, a->folder, (long long)room);
    if (a->max_length != NULL) DT_TRY(check_max_length(s, prompt, o->max_length));
    if (o->max_length > prompt) wanted = o->max_length - prompt;
    if (o->max_new_tokens >= 0) wanted = o->max_new_tokens;
    if (wanted > room) wanted = room;
    o->max_new_tokens = a->max_new_tokens > 0 ? a->max_new_tokens : wanted;
    return DT_OK;
}

dt_status cli_wishes_read(const cli_session *s, const cli_prompts *prompts, cli_wishes *out)
{
    dt_generate_options *o = &out->options;
    int64_t longest = 0;

    *o = (dt_generate_options)DT_GENERATE_OPTIONS_INIT;
    DT_TRY(dti_describe(NULL, s->args->folder, &out->folder));
    if (out->folder.generation != NULL) *o = out->folder.generation->options;
    DT_TRY(parse_options(s->args, o));
    DT_TRY(parse_lists(s->args, out));
    for (int64_t i = 0; i < prompts->n; i++)
        if (prompts->list[i].n > longest) longest = prompts->list[i].n;
    DT_TRY(settle_length(s, longest, o));
    o->tokenizer = prompts->tokenizer;
    DT_CHECK(o->n_stop_strings == 0 || o->tokenizer != NULL, DT_ERR_ARG,
             "--stop: %s has no tokenizer, so there is no text to find strings in",
             s->args->folder);
    DT_TRY(check_options(s->args, o));
    DT_TRY(check_rules(s, o, longest));
    out->many = prompts->n > 1 || o->num_beams > 1 || o->num_return_sequences > 1;
    return DT_OK;
}

void cli_wishes_free(cli_wishes *w)
{
    dti_described_free(&w->folder);
    dti_free(w->ids);
    dti_free(w->words);
    *w = (cli_wishes){ 0 };
}
