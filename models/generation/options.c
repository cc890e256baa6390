/* SPDX-License-Identifier: Apache-2.0
 *
 * Options of a run: what is possible, and what is left open. */
#include <math.h>
#include <string.h>

#include "models/generation/rules.h"

enum { DEFAULT_NEW_TOKENS = 20 };

static dt_status check_ids(const char *name, dt_ids list, int64_t vocab)
{
    DT_CHECK(list.n >= 0 && (list.ids != NULL || list.n == 0), DT_ERR_ARG,
             "%s: a list of %lld tokens%s", name, (long long)list.n,
             list.ids == NULL ? " that is NULL" : "");
    for (int64_t i = 0; i < list.n; i++)
        DT_CHECK(list.ids[i] >= 0 && list.ids[i] < vocab, DT_ERR_ARG,
                 "%s: token %d is outside the vocabulary: ids are 0 to %lld", name, list.ids[i],
                 (long long)vocab - 1);
    return DT_OK;
}

/* Fractions that may be zero. */
static dt_status check_share(const char *name, double value)
{
    DT_CHECK(value >= 0 && value <= 1, DT_ERR_ARG, "%s is %g, must be from 0 to 1", name, value);
    return DT_OK;
}

static const double LEAST_TEMPERATURE = 1e-30;

static dt_status check_count(const char *name, int64_t value)
{
    DT_CHECK(value >= 0, DT_ERR_ARG, "%s is %lld, must be 0 or more", name, (long long)value);
    return DT_OK;
}

static dt_status check_sampling(const dt_generate_options *o)
{
    if (!o->do_sample) return DT_OK;
    DT_CHECK(o->temperature > 0 && isfinite(o->temperature), DT_ERR_ARG,
             "temperature is %g, must be above 0; do_sample false always takes the best token",
             o->temperature);
    DT_CHECK(o->temperature >= LEAST_TEMPERATURE, DT_ERR_ARG,
             "temperature is %g: logits divided by less than %g overflow; do_sample false always "
             "takes the best token",
             o->temperature, LEAST_TEMPERATURE);
    DT_TRY(check_count("top_k", o->top_k));
    DT_TRY(check_share("top_p", o->top_p));
    DT_TRY(check_share("min_p", o->min_p));
    DT_CHECK(o->typical_p > 0 && o->typical_p <= 1, DT_ERR_ARG,
             "typical_p is %g, must be above 0 and at most 1", o->typical_p);
    DT_CHECK(o->epsilon_cutoff >= 0 && o->epsilon_cutoff < 1, DT_ERR_ARG,
             "epsilon_cutoff is %g, must be from 0 to below 1", o->epsilon_cutoff);
    DT_CHECK(o->eta_cutoff >= 0 && o->eta_cutoff < 1, DT_ERR_ARG,
             "eta_cutoff is %g, must be from 0 to below 1", o->eta_cutoff);
    return DT_OK;
}

static dt_status check_tokens(const dt_generate_options *o, int64_t vocab)
{
    DT_CHECK(o->n_bad_words == 0 || (o->n_bad_words > 0 && o->bad_words != NULL), DT_ERR_ARG,
             "bad_words: %lld lists%s", (long long)o->n_bad_words,
             o->bad_words == NULL ? " that are NULL" : "");
    for (int64_t i = 0; i < o->n_bad_words; i++) {
        DT_CHECK(o->bad_words[i].n > 0, DT_ERR_ARG, "bad_words: list %lld is empty", (long long)i);
        DT_TRY(check_ids("bad_words", o->bad_words[i], vocab));
    }
    DT_TRY(check_ids("forced_eos", o->forced_eos, vocab));
    DT_TRY(check_ids("suppress_tokens", o->suppress_tokens, vocab));
    DT_TRY(check_ids("begin_suppress_tokens", o->begin_suppress_tokens, vocab));
    DT_CHECK(o->forced_bos >= -1 && o->forced_bos < vocab, DT_ERR_ARG,
             "forced_bos: token %d is outside the vocabulary: ids are 0 to %lld, -1 is none",
             o->forced_bos, (long long)vocab - 1);
    DT_CHECK(o->pad >= -1 && o->pad < vocab, DT_ERR_ARG,
             "pad: token %d is outside the vocabulary: ids are 0 to %lld, -1 is the first eos",
             o->pad, (long long)vocab - 1);
    return DT_OK;
}

static dt_status check_strings(const dt_generate_options *o)
{
    DT_CHECK(o->n_stop_strings == 0 || (o->n_stop_strings > 0 && o->stop_strings != NULL),
             DT_ERR_ARG, "stop_strings: %lld strings%s", (long long)o->n_stop_strings,
             o->stop_strings == NULL ? " that are NULL" : "");
    for (int64_t i = 0; i < o->n_stop_strings; i++)
        DT_CHECK(o->stop_strings[i] != NULL && o->stop_strings[i][0] != '\0', DT_ERR_ARG,
                 "stop_strings: string %lld is empty", (long long)i);
    DT_CHECK(o->n_stop_strings == 0 || o->tokenizer != NULL, DT_ERR_ARG,
             "stop_strings are found in text: set options.tokenizer");
    return DT_OK;
}

static dt_status check_many(const dt_generate_options *o)
{
    DT_CHECK(o->num_return_sequences >= 1, DT_ERR_ARG,
             "num_return_sequences is %lld, must be 1 or "
             "more",
             (long long)o->num_return_sequences);
    DT_CHECK(o->num_beams >= 1, DT_ERR_ARG, "num_beams is %lld, must be 1 or more",
             (long long)o->num_beams);
    DT_CHECK(isfinite(o->length_penalty), DT_ERR_ARG, "length_penalty is %g", o->length_penalty);
    DT_CHECK((int)o->early_stopping >= 0 && o->early_stopping <= DT_EARLY_STOPPING_NEVER,
             DT_ERR_ARG, "early_stopping is %d", (int)o->early_stopping);
    return DT_OK;
}

static dt_status check(const dt_generate_options *o, const dt_model_info *info)
{
    DT_CHECK(o->max_new_tokens >= -1, DT_ERR_ARG,
             "max_new_tokens is %lld, must be 0 or more, or -1 for max_length",
             (long long)o->max_new_tokens);
    DT_TRY(check_count("max_length", o->max_length));
    DT_TRY(check_count("min_length", o->min_length));
    DT_TRY(check_count("min_new_tokens", o->min_new_tokens));
    DT_TRY(check_count("no_repeat_ngram_size", o->no_repeat_ngram_size));
    DT_CHECK(o->repetition_penalty > 0 && isfinite(o->repetition_penalty), DT_ERR_ARG,
             "repetition_penalty is %g, must be above 0, 1 is none (options start from "
             "DT_GENERATE_OPTIONS_INIT)",
             o->repetition_penalty);
    DT_CHECK(o->eos.n >= 0 && (o->eos.ids != NULL || o->eos.n == 0), DT_ERR_ARG,
             "eos: a list of %lld tokens that is NULL", (long long)o->eos.n);
    DT_CHECK(o->ignore_eos || o->eos.ids != NULL || info->n_eos >= 0, DT_ERR_FORMAT,
             "generation_config.json could not be read when the model was loaded, so it is unknown "
             "which tokens end a text; mend it, or set ignore_eos");
    DT_TRY(check_tokens(o, info->vocab_size));
    DT_TRY(check_sampling(o));
    DT_TRY(check_strings(o));
    DT_TRY(check_many(o));
    return DT_OK;
}

/* A sum of two counts; no context holds more than the largest number. */
static int64_t sum_or_most(int64_t a, int64_t b)
{
    return b > INT64_MAX - a ? INT64_MAX : a + b;
}

/* max_new_tokens, or else max_length, or else 20 tokens if there is room for them. */
static dt_status settle_lengths(dti_rules *u, const dt_model_info *info)
{
    const dt_generate_options *o = &u->o;
    const int64_t room = info->max_positions - u->n_prompt;

    u->max_length = o->max_length;
    if (o->max_new_tokens >= 0)
        u->max_length = sum_or_most(u->n_prompt, o->max_new_tokens);
    else if (o->max_length == 0)
        u->max_length = u->n_prompt + (room < DEFAULT_NEW_TOKENS ? room : DEFAULT_NEW_TOKENS);
    DT_CHECK(u->max_length >= u->n_prompt &&
                 (o->max_length == 0 || o->max_new_tokens >= 0 || u->max_length > u->n_prompt),
             DT_ERR_ARG,
             "a prompt of %lld tokens leaves nothing of max_length %lld; it counts the prompt too, "
             "max_new_tokens does not",
             (long long)u->n_prompt, (long long)o->max_length);
    u->min_length =
        o->min_new_tokens > 0 ? sum_or_most(u->n_prompt, o->min_new_tokens) : o->min_length;
    return DT_OK;
}

static bool processes(const dti_rules *u)
{
    const dt_generate_options *o = &u->o;

    return o->do_sample || o->repetition_penalty != 1 || o->no_repeat_ngram_size > 0 ||
           o->n_bad_words > 0 || u->min_length > u->n_prompt || o->forced_bos >= 0 ||
           o->forced_eos.n > 0 || o->remove_invalid_values || o->suppress_tokens.n > 0 ||
           o->begin_suppress_tokens.n > 0 || o->renormalize_logits || o->on_scores != NULL;
}

dt_status dti_rules_make(dti_rules *u, const dt_model_info *info, const dt_generate_options *o,
                         int64_t n_prompt)
{
    *u = (dti_rules){ .o = *o, .vocab = info->vocab_size, .n_prompt = n_prompt, .keep = 1 };
    DT_TRY(check(o, info));
    if (!o->ignore_eos) u->eos = o->eos;
    if (!o->ignore_eos && o->eos.ids == NULL) u->eos = (dt_ids){ info->eos, info->n_eos };
    DT_TRY(settle_lengths(u, info));
    u->processes = processes(u);
    return DT_OK;
}

void dti_rules_free(dti_rules *u)
{
    dti_free(u->limits);
    dti_free(u->values);
    dti_free(u->norms);
    dti_free(u->seen);
    dti_free(u->window);
    u->limits = u->values = NULL;
    u->norms = NULL;
    u->seen = NULL;
    u->window = NULL;
}
