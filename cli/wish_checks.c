/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/wish_checks.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/option_table.h"

static void name_wish(void *arg, const char *field, char text[DT_OPTION_NAME_BYTES])
{
    const cli_args *a = arg;
    const dt_knob *knob = dt_generate_knob(field);

    if (cli_knob(a, field) != NULL || strcmp(field, "ignore_eos") == 0)
        (void)snprintf(text, DT_OPTION_NAME_BYTES, "--%s", knob->option);
    else
        dt_generation_key((void *)(uintptr_t)a->folder, field, text);
}

dt_option_names cli_wish_names(const cli_args *args)
{
    return (dt_option_names){ name_wish, (void *)(uintptr_t)args };
}

/* --- contradictions --------------------------------------------------------------------------- */

bool cli_wishes_draw(const cli_args *a)
{
    static const char *const fields[] = { "do_sample",      "temperature", "top_k",
                                          "top_p",          "min_p",       "typical_p",
                                          "epsilon_cutoff", "eta_cutoff",  "seed" };

    for (size_t i = 0; i < DT_COUNT(fields); i++)
        if (cli_knob(a, fields[i]) != NULL) return true;
    return false;
}

dt_status cli_wishes_agree(const cli_args *a)
{
    const char *max_length = cli_knob(a, "max_length"), *eos = cli_knob(a, "eos");
    const char *min_length = cli_knob(a, "min_length"), *min_new = cli_knob(a, "min_new_tokens");
    const bool ignore_eos = cli_knob(a, "ignore_eos") != NULL;

    DT_CHECK(!a->greedy || !cli_wishes_draw(a), DT_ERR_ARG,
             "--greedy takes the best token always; leave it out, or --sample, --seed, "
             "--temperature, --top-k, --top-p, --min-p, --typical-p, --epsilon-cutoff and "
             "--eta-cutoff");
    DT_CHECK(max_length == NULL || a->max_new_tokens == 0, DT_ERR_ARG,
             "--max-length %s and --max-new-tokens %lld both say where a text ends; give one",
             max_length, (long long)a->max_new_tokens);
    DT_CHECK(min_length == NULL || min_new == NULL, DT_ERR_ARG,
             "--min-length %s and --min-new-tokens %s both say when a text may end; give one",
             min_length, min_new);
    DT_CHECK(!ignore_eos || eos == NULL, DT_ERR_ARG,
             "--ignore-eos goes on after every token that --eos-ids %s names; give one", eos);
    DT_CHECK(!ignore_eos || (min_length == NULL && min_new == NULL), DT_ERR_ARG,
             "--ignore-eos never ends a text, so %s %s changes nothing; give one",
             min_length != NULL ? "--min-length" : "--min-new-tokens",
             min_length != NULL ? min_length : min_new);
    return DT_OK;
}

/* Of options that only beams look at. */
static void warn_without_beams(const cli_session *s, const char *field)
{
    const char *value = cli_knob(s->args, field);
    char text[DT_ERROR_MESSAGE_BYTES];

    if (value == NULL) return;
    (void)snprintf(text, sizeof text,
                   "--%s %s changes nothing: it is of beam search, and there are no beams; add "
                   "--num-beams",
                   dt_generate_knob(field)->option, value);
    cli_warn(s->console, text);
}

/* Tokens that a text must have, and those that it may have. */
static void warn_of_lengths(const cli_session *s, const dt_generate_options *o, int64_t prompt)
{
    const char *min_length = cli_knob(s->args, "min_length");
    const bool length = min_length != NULL;
    const char *least = length ? min_length : cli_knob(s->args, "min_new_tokens");
    const int64_t most = o->max_new_tokens + (length ? prompt : 0);
    char text[DT_ERROR_MESSAGE_BYTES];

    if (least == NULL || (length ? o->min_length : o->min_new_tokens) <= most) return;
    (void)snprintf(text, sizeof text,
                   "%s %s is more than the %lld %stokens that a text has at most: no end of "
                   "sequence is generated",
                   length ? "--min-length" : "--min-new-tokens", least, (long long)most,
                   length ? "" : "new ");
    cli_warn(s->console, text);
}

dt_status cli_wishes_make_sense(const cli_session *s, const dt_generate_options *o, int64_t prompt)
{
    const char *temperature = cli_knob(s->args, "temperature");
    const char *penalty = cli_knob(s->args, "repetition_penalty");
    const char *several = cli_knob(s->args, "num_return_sequences");

    DT_CHECK(temperature == NULL || o->temperature > 0, DT_ERR_ARG,
             "--temperature %s: must be above 0; --greedy takes the best token always",
             temperature);
    DT_CHECK(penalty == NULL || o->repetition_penalty > 0, DT_ERR_ARG,
             "--repetition-penalty %s: must be above 0; 1 is none", penalty);
    DT_CHECK(several == NULL || o->num_return_sequences <= 1 || o->do_sample || o->num_beams > 1,
             DT_ERR_ARG,
             "--num-return-sequences %s: the best token is always the same; add --sample or "
             "--num-beams",
             several);
    /* of the file's, such tokens are only warned of: they are somebody else's mistake */
    for (int64_t i = 0; cli_knob(s->args, "eos") != NULL && i < o->eos.n; i++)
        DT_CHECK(o->eos.ids[i] < s->info.vocab_size, DT_ERR_ARG,
                 "--eos-ids: token %d is outside the vocabulary: ids are 0 to %lld", o->eos.ids[i],
                 (long long)s->info.vocab_size - 1);
    if (o->num_beams == 1) warn_without_beams(s, "length_penalty");
    if (o->num_beams == 1) warn_without_beams(s, "early_stopping");
    warn_of_lengths(s, o, prompt);
    return DT_OK;
}

/* --- several texts ---------------------------------------------------------------------------- */

/* What a sequence needs at least: its caches, what layers carry of it, and a row of logits. */
static double bytes_of_one(const cli_session *s, int64_t n_tokens)
{
    const double caches = (double)dt_model_cache_bytes(&s->info, s->dtype, 1);

    return caches * (double)n_tokens + (double)s->info.carried_bytes +
           4.0 * (double)s->info.vocab_size;
}

/* Of the machines of all processes, as if none shared one. GPUs know their own limits: 0. */
static double bytes_of_machines(const cli_session *s)
{
    const char *device = s->run.device;
    const double pages = (double)sysconf(_SC_PHYS_PAGES);

    if (strcmp(device, "cpu") != 0 && dt_device_check("cuda") == DT_OK) return 0;
    return pages > 0 ? pages * (double)sysconf(_SC_PAGESIZE) * (double)s->console->n_processes : 0;
}

/* "--num-beams 100000", or how many prompts there are. */
static void name_count(const cli_session *s, int64_t n_prompts, int64_t width, bool beams,
                       char *text, size_t bytes)
{
    char name[DT_OPTION_NAME_BYTES];

    name_wish((void *)(uintptr_t)s->args, beams ? "num_beams" : "num_return_sequences", name);
    if (width == 1)
        (void)snprintf(text, bytes, "--prompts-file with %lld prompts", (long long)n_prompts);
    else
        (void)snprintf(text, bytes, "%s %lld of %lld prompt%s", name, (long long)width,
                       (long long)n_prompts, n_prompts == 1 ? "" : "s");
}

dt_status cli_wishes_check_many(const cli_session *s, const cli_prompts *prompts,
                                const cli_wishes *wishes)
{
    const dt_generate_options *o = &wishes->options;
    const dt_option_names names = cli_wish_names(s->args);
    const bool beams = o->num_beams > 1;
    const int64_t width = beams ? o->num_beams : o->num_return_sequences;
    char what[DT_OPTION_NAME_BYTES + 64], need[DTI_NUMBER_BYTES], have[DTI_NUMBER_BYTES];
    const double n = (double)prompts->n * (double)width, machines = bytes_of_machines(s);
    int64_t longest = 0;
    double one, most;

    for (int64_t i = 0; i < prompts->n; i++)
        if (prompts->list[i].n > longest) longest = prompts->list[i].n;
    one = bytes_of_one(s, longest + o->max_new_tokens);
    most = machines > 0 && machines / one < DT_MAX_SEQUENCES ? machines / one : DT_MAX_SEQUENCES;
    name_count(s, prompts->n, width, beams, what, sizeof what);
    DT_CHECK(n <= DT_MAX_SEQUENCES, DT_ERR_ARG,
             "%s: %.0f sequences at once, at most %d are possible", what, n, DT_MAX_SEQUENCES);
    DT_CHECK(n <= most, DT_ERR_ARG,
             "%s: %.0f sequences of up to %lld tokens need %s at least for caches and logits, "
             "there are %s of memory; ask for at most %.0f sequences, or for shorter ones",
             what, n, (long long)(longest + o->max_new_tokens),
             dti_bytes_text((int64_t)(n * one < 0x1p62 ? n * one : 0x1p62), need),
             dti_bytes_text((int64_t)machines, have), most >= 1 ? most : 1);
    DT_TRY(dt_generate_batch_check(o, &s->info, &names));
    return DT_OK;
}
