/* SPDX-License-Identifier: Apache-2.0
 *
 * Options of a run: what is possible, and what is left open. */
#include <math.h>
#include <string.h>

#include "base/options.h"
#include "base/text.h"
#include "models/generation/json_text.h"

enum { DEFAULT_NEW_TOKENS = 20, MOST_LOGPROBS = 1024 };

/* Options that are checked, and what they are called. */
typedef struct asked {
    const dt_generate_options *o;
    const dt_model_info *info;
    const dt_option_names *names;
    char name[DT_OPTION_NAME_BYTES];
    char number[DTI_NUMBER_BYTES];
} asked;

static const char *number(asked *a, double x)
{
    return dti_number_text(x, a->number);
}

static const char *named(asked *a, const char *field)
{
    if (a->names == NULL) return field;
    a->names->name(a->names->arg, field, a->name);
    return a->name;
}

static dt_status check_ids(asked *a, const char *field, dt_ids list)
{
    const int64_t vocab = a->info->vocab_size;

    DT_CHECK(list.n >= 0 && (list.ids != NULL || list.n == 0), DT_ERR_ARG,
             "%s: a list of %lld tokens%s", named(a, field), (long long)list.n,
             list.ids == NULL ? " that is NULL" : "");
    for (int64_t i = 0; i < list.n; i++)
        DT_CHECK(list.ids[i] >= 0 && list.ids[i] < vocab, DT_ERR_ARG,
                 "%s: token %d is outside the vocabulary: ids are 0 to %lld", named(a, field),
                 list.ids[i], (long long)vocab - 1);
    return DT_OK;
}

/* Fractions that may be zero. */
static dt_status check_share(asked *a, const char *field, double value)
{
    DT_CHECK(value >= 0 && value <= 1, DT_ERR_ARG, "%s is %s, must be from 0 to 1", named(a, field),
             number(a, value));
    return DT_OK;
}

static dt_status check_cutoff(asked *a, const char *field, double value)
{
    DT_CHECK(value >= 0 && value < 1, DT_ERR_ARG, "%s is %s, must be from 0 to below 1",
             named(a, field), number(a, value));
    return DT_OK;
}

static const double LEAST_TEMPERATURE = 1e-30, MOST_PENALTY = 1e9, MOST_ADDED = 1e3;

static dt_status check_count(asked *a, const char *field, int64_t value, int64_t least)
{
    DT_CHECK(value >= least, DT_ERR_ARG, "%s is %lld, must be %lld or more", named(a, field),
             (long long)value, (long long)least);
    return DT_OK;
}

/* How to be without a setting of draws, in the words that it was set with. */
static const char *without_draws(const char *name)
{
    return strncmp(name, "--", 2) == 0 ? "--greedy" : "do_sample false";
}

static dt_status check_sampling(asked *a)
{
    const dt_generate_options *o = a->o;
    const char *name = named(a, "temperature");

    if (!o->do_sample) return DT_OK;
    DT_CHECK(o->temperature > 0 && isfinite(o->temperature), DT_ERR_ARG,
             "%s is %s, must be above 0; %s always takes the best token", name,
             number(a, o->temperature), without_draws(name));
    DT_CHECK(o->temperature >= LEAST_TEMPERATURE, DT_ERR_ARG,
             "%s is %s: logits divided by less than %g overflow; %s always takes the best token",
             name, number(a, o->temperature), LEAST_TEMPERATURE, without_draws(name));
    DT_TRY(check_count(a, "top_k", o->top_k, 0));
    DT_TRY(check_share(a, "top_p", o->top_p));
    DT_TRY(check_share(a, "min_p", o->min_p));
    DT_CHECK(o->typical_p > 0 && o->typical_p <= 1, DT_ERR_ARG,
             "%s is %s, must be above 0 and at most 1", named(a, "typical_p"),
             number(a, o->typical_p));
    DT_TRY(check_cutoff(a, "epsilon_cutoff", o->epsilon_cutoff));
    DT_TRY(check_cutoff(a, "eta_cutoff", o->eta_cutoff));
    return DT_OK;
}

static dt_status check_penalty(asked *a, const char *field, double value)
{
    DT_CHECK(value >= -MOST_ADDED && value <= MOST_ADDED, DT_ERR_ARG,
             "%s is %s, must be from %g to %g, 0 is none", named(a, field), number(a, value),
             -MOST_ADDED, MOST_ADDED);
    return DT_OK;
}

static dt_status check_tokens(asked *a)
{
    const int64_t vocab = a->info->vocab_size;
    const dt_generate_options *o = a->o;

    DT_CHECK(o->n_bad_words == 0 || (o->n_bad_words > 0 && o->bad_words != NULL), DT_ERR_ARG,
             "%s: %lld lists%s", named(a, "bad_words"), (long long)o->n_bad_words,
             o->bad_words == NULL ? " that are NULL" : "");
    for (int64_t i = 0; i < o->n_bad_words; i++) {
        DT_CHECK(o->bad_words[i].n > 0, DT_ERR_ARG, "%s: list %lld is empty", named(a, "bad_words"),
                 (long long)i);
        DT_TRY(check_ids(a, "bad_words", o->bad_words[i]));
    }
    DT_CHECK(o->n_sequence_bias == 0 || (o->n_sequence_bias > 0 && o->sequence_bias != NULL),
             DT_ERR_ARG, "%s: %lld lists%s", named(a, "sequence_bias"),
             (long long)o->n_sequence_bias, o->sequence_bias == NULL ? " that are NULL" : "");
    for (int64_t i = 0; i < o->n_sequence_bias; i++) {
        const dt_bias *b = &o->sequence_bias[i];
        DT_CHECK(b->ids.n > 0 && isfinite(b->bias), DT_ERR_ARG, "%s: list %lld is %s",
                 named(a, "sequence_bias"), (long long)i, b->ids.n > 0 ? "not finite" : "empty");
        DT_TRY(check_ids(a, "sequence_bias", b->ids));
    }
    DT_TRY(check_ids(a, "forced_eos", o->forced_eos));
    DT_TRY(check_ids(a, "suppress_tokens", o->suppress_tokens));
    DT_TRY(check_ids(a, "begin_suppress_tokens", o->begin_suppress_tokens));
    DT_CHECK(o->forced_bos >= -1 && o->forced_bos < vocab, DT_ERR_ARG,
             "%s: token %d is outside the vocabulary: ids are 0 to %lld, -1 is none",
             named(a, "forced_bos"), o->forced_bos, (long long)vocab - 1);
    return DT_OK;
}

static dt_status check_strings(asked *a)
{
    const dt_generate_options *o = a->o;

    DT_CHECK(o->n_stop_strings == 0 || (o->n_stop_strings > 0 && o->stop_strings != NULL),
             DT_ERR_ARG, "%s: %lld strings%s", named(a, "stop_strings"),
             (long long)o->n_stop_strings, o->stop_strings == NULL ? " that are NULL" : "");
    for (int64_t i = 0; i < o->n_stop_strings; i++)
        DT_CHECK(o->stop_strings[i] != NULL && o->stop_strings[i][0] != '\0', DT_ERR_ARG,
                 "%s: string %lld is empty", named(a, "stop_strings"), (long long)i);
    return DT_OK;
}

static bool writes_json(const dt_generate_options *o)
{
    return o->json_object || o->json_schema != NULL;
}

static dt_status check_many(asked *a)
{
    static const char many[] = "num_return_sequences";
    const dt_generate_options *o = a->o;

    DT_TRY(check_count(a, many, o->num_return_sequences, 1));
    DT_TRY(check_count(a, "num_beams", o->num_beams, 1));
    DT_CHECK(o->num_return_sequences <= INT32_MAX && o->num_beams <= INT32_MAX, DT_ERR_ARG,
             "%s is %lld, more than %d", named(a, o->num_beams > INT32_MAX ? "num_beams" : many),
             (long long)(o->num_beams > INT32_MAX ? o->num_beams : o->num_return_sequences),
             INT32_MAX);
    DT_CHECK(isfinite(o->length_penalty), DT_ERR_ARG, "%s is %s, must be finite",
             named(a, "length_penalty"), number(a, o->length_penalty));
    DT_CHECK((int)o->early_stopping >= 0 && o->early_stopping <= DT_EARLY_STOPPING_NEVER,
             DT_ERR_ARG, "%s is %d", named(a, "early_stopping"), (int)o->early_stopping);
    return DT_OK;
}

dt_status dti_options_check(const dt_generate_options *o, const dt_model_info *info,
                            const dt_option_names *names)
{
    asked a = { .o = o, .info = info, .names = names };

    DT_CHECK(o->max_new_tokens >= -1, DT_ERR_ARG,
             "%s is %lld, must be 0 or more, or -1 for max_length", named(&a, "max_new_tokens"),
             (long long)o->max_new_tokens);
    DT_TRY(check_count(&a, "max_length", o->max_length, 0));
    DT_TRY(check_count(&a, "min_length", o->min_length, 0));
    DT_TRY(check_count(&a, "min_new_tokens", o->min_new_tokens, 0));
    DT_TRY(check_count(&a, "no_repeat_ngram_size", o->no_repeat_ngram_size, 0));
    DT_CHECK(o->repetition_penalty > 0 && isfinite(o->repetition_penalty), DT_ERR_ARG,
             "%s is %s, must be above 0, 1 is none%s", named(&a, "repetition_penalty"),
             number(&a, o->repetition_penalty),
             names == NULL ? " (options start from DT_GENERATE_OPTIONS_INIT)" : "");
    DT_CHECK(o->repetition_penalty >= 1 / MOST_PENALTY && o->repetition_penalty <= MOST_PENALTY,
             DT_ERR_ARG,
             "%s is %s: logits times or divided by it may overflow; give %g to %g, 1 is none",
             named(&a, "repetition_penalty"), number(&a, o->repetition_penalty), 1 / MOST_PENALTY,
             MOST_PENALTY);
    DT_TRY(check_penalty(&a, "presence_penalty", o->presence_penalty));
    DT_TRY(check_penalty(&a, "frequency_penalty", o->frequency_penalty));
    DT_CHECK(o->n_logprobs >= -1 && o->n_logprobs <= MOST_LOGPROBS, DT_ERR_ARG,
             "%s is %lld, must be from 0 to %d, or -1 for none", named(&a, "n_logprobs"),
             (long long)o->n_logprobs, (int)MOST_LOGPROBS);
    DT_CHECK(!writes_json(o) || o->num_beams == 1, DT_ERR_ARG,
             "%s is set, and num_beams is %lld: beams are not made to write JSON",
             named(&a, o->json_schema != NULL ? "json_schema" : "json_object"),
             (long long)o->num_beams);
    DT_CHECK(o->n_logprobs < 0 || o->num_beams == 1, DT_ERR_ARG,
             "%s is %lld: beam search has none, num_beams is %lld", named(&a, "n_logprobs"),
             (long long)o->n_logprobs, (long long)o->num_beams);
    DT_CHECK(o->eos.n >= 0 && (o->eos.ids != NULL || o->eos.n == 0), DT_ERR_ARG,
             "%s: a list of %lld tokens that is NULL", named(&a, "eos"), (long long)o->eos.n);
    DT_CHECK(o->ignore_eos || o->eos.ids != NULL || info->n_eos >= 0, DT_ERR_FORMAT,
             "generation_config.json could not be read when the model was loaded, so it is unknown "
             "which tokens end a text; mend it, or set %s",
             named(&a, "ignore_eos"));
    DT_TRY(check_tokens(&a));
    DT_TRY(check_sampling(&a));
    DT_TRY(check_strings(&a));
    DT_TRY(check_many(&a));
    return DT_OK;
}

dt_status dti_texts_check(const dt_generate_options *o, const dt_model_info *info,
                          const dt_option_names *names)
{
    asked a = { .o = o, .info = info, .names = names };
    const int64_t vocab = info->vocab_size;

    DT_CHECK(o->num_return_sequences == 1 || o->do_sample || o->num_beams > 1, DT_ERR_ARG,
             "%s is %lld, but the best token is always the same; set do_sample or num_beams",
             named(&a, "num_return_sequences"), (long long)o->num_return_sequences);
    DT_CHECK(o->num_beams == 1 || o->num_return_sequences <= o->num_beams, DT_ERR_ARG,
             "%s is %lld, more than num_beams, %lld", named(&a, "num_return_sequences"),
             (long long)o->num_return_sequences, (long long)o->num_beams);
    DT_CHECK(o->num_beams == 1 || vocab > o->num_beams, DT_ERR_ARG,
             "%s is %lld, more than the %lld tokens of the vocabulary allow",
             named(&a, "num_beams"), (long long)o->num_beams, (long long)vocab);
    /* what one text alone has no use for */
    DT_CHECK(o->pad >= -1 && o->pad < vocab, DT_ERR_ARG,
             "%s: token %d is outside the vocabulary: ids are 0 to %lld, -1 is the first eos",
             named(&a, "pad"), o->pad, (long long)vocab - 1);
    return DT_OK;
}

/* A sum of two counts; no context holds more than the largest number. */
static int64_t sum_or_most(int64_t a, int64_t b)
{
    return b > INT64_MAX - a ? INT64_MAX : a + b;
}

/* max_new_tokens, or else max_length, or else 20 tokens if there is room for them. */
static dt_status settle_lengths(dti_text_rules *u, const dt_model_info *info)
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

/* Scores change by what the tokens are. */
static bool processes_tokens(const dti_text_rules *u)
{
    const dt_generate_options *o = &u->o;

    return o->repetition_penalty != 1 || o->no_repeat_ngram_size > 0 || o->n_bad_words > 0 ||
           u->min_length > u->n_prompt || o->forced_bos >= 0 || o->forced_eos.n > 0 ||
           o->n_sequence_bias > 0 || o->presence_penalty != 0 || o->frequency_penalty != 0 ||
           o->n_logprobs >= 0 || writes_json(o) || o->remove_invalid_values ||
           o->suppress_tokens.n > 0 || o->begin_suppress_tokens.n > 0;
}

static bool processes(const dti_text_rules *u)
{
    const dt_generate_options *o = &u->o;

    return processes_tokens(u) || o->do_sample || o->renormalize_logits || o->on_scores != NULL;
}

/* A draw needs no more than the k best where the first thing that is done to scores, but for the
 * temperature, is top_k. Logits of models in bf16 are often equal: there is room for as many again,
 * and 64. */
static dti_top top_of(const dti_text_rules *u)
{
    enum { MORE = 64 };
    const dt_generate_options *o = &u->o;
    const int64_t k = o->top_k > u->keep ? o->top_k : u->keep;
    dti_top top = { 0, k, (float)o->temperature };

    if (o->do_sample && o->num_beams == 1 && !processes_tokens(u) && o->on_scores == NULL &&
        o->top_k > 0 && k <= DTI_TOP_K_MOST && k < u->vocab)
        top.n = 2 * k + MORE;
    return top;
}

static dt_status make_schema(dti_text_rules *u)
{
    dti_json_schema *schema;
    dt_status st;

    DT_TRY(dti_new(sizeof *schema, &schema));
    st = dti_json_schema_make(schema, u->o.json_schema);
    if (st == DT_OK)
        u->schema = schema;
    else
        dti_free(schema);
    DT_TRY(st);
    return DT_OK;
}

dt_status dti_rules_make(dti_text_rules *u, const dt_model_info *info, const dt_generate_options *o,
                         int64_t n_prompt)
{
    *u = (dti_text_rules){
        .o = *o, .vocab = info->vocab_size, .n_prompt = n_prompt, .keep = 1, .n_texts = 1
    };
    DT_TRY(dti_options_check(o, info, NULL));
    DT_CHECK((o->n_stop_strings == 0 && !writes_json(o)) || o->tokenizer != NULL, DT_ERR_ARG,
             "%s found in text: set options.tokenizer",
             o->n_stop_strings > 0 ? "stop_strings are" : "what is JSON is");
    if (!o->ignore_eos) u->eos = o->eos;
    if (!o->ignore_eos && o->eos.ids == NULL) u->eos = (dt_ids){ info->eos, info->n_eos };
    DT_TRY(settle_lengths(u, info));
    u->processes = processes(u);
    u->top = top_of(u);
    if (writes_json(o)) DT_TRY(make_schema(u));
    return DT_OK;
}

void dti_rules_free(dti_text_rules *u)
{
    dti_free(u->limits);
    dti_free(u->values);
    dti_free(u->norms);
    dti_free(u->seen);
    dti_free(u->window);
    if (u->schema != NULL) dti_json_schema_free(u->schema);
    dti_free(u->schema);
    u->schema = NULL;
    if (u->json != NULL) dti_json_memory_free(u->json);
    dti_free(u->json);
    u->json = NULL;
    u->texts = NULL;
    u->limits = u->values = NULL;
    u->norms = NULL;
    u->seen = NULL;
    u->window = NULL;
}

static dt_status read_options(const dt_generate_options *options, const dt_model_info *info,
                              dt_generate_options *own)
{
    DT_CHECK(options != NULL && info != NULL, DT_ERR_ARG, "options or info is NULL");
    DT_TRY(dti_options_read("dt_generate_options", "start from DT_GENERATE_OPTIONS_INIT", options,
                            own, sizeof *own));
    return DT_OK;
}

dt_status dt_generate_check(const dt_generate_options *options, const dt_model_info *info,
                            int64_t n_prompt, const dt_option_names *names)
{
    dt_generate_options own = DT_GENERATE_OPTIONS_INIT;
    dti_text_rules rules;
    dt_model_info known;

    DT_TRY(read_options(options, info, &own));
    known = *info;
    if (known.n_eos < 0) known.n_eos = 0;
    DT_TRY(dti_options_check(&own, &known, names));
    DT_TRY(dti_rules_make(&rules, &known, &own, n_prompt));
    dti_rules_free(&rules);
    return DT_OK;
}

dt_status dt_generate_batch_check(const dt_generate_options *options, const dt_model_info *info,
                                  const dt_option_names *names)
{
    dt_generate_options own = DT_GENERATE_OPTIONS_INIT;

    DT_TRY(read_options(options, info, &own));
    DT_TRY(dti_texts_check(&own, info, names));
    return DT_OK;
}
