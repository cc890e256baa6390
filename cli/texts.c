/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/texts.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/print_report.h"

/* What the ranks share; the lower half is rank 0's. */
typedef struct several {
    const cli_session *session;
    const cli_prompts *prompts;
    const cli_wishes *wishes;

    int64_t n, per_prompt, room;
    int32_t *ids; /* [n, room] */
    int64_t *n_ids;
    dt_end *ends;
    double *scores;
    int64_t ns;
} several;

const char *cli_end_name(dt_end end)
{
    static const char *const names[] = { [DT_END_NONE] = "none",
                                         [DT_END_EOS] = "eos",
                                         [DT_END_STRING] = "string",
                                         [DT_END_LENGTH] = "length",
                                         [DT_END_CANCELLED] = "cancelled" };

    return names[end];
}

dt_end cli_end_of(const dt_generate_options *o, const dt_model_info *info, const int32_t *tokens,
                  int64_t n)
{
    const dt_ids eos = o->eos.ids != NULL ? o->eos : (dt_ids){ info->eos, info->n_eos };

    if (n == 0) return DT_END_NONE;
    for (int64_t i = 0; i < eos.n && !o->ignore_eos; i++)
        if (eos.ids[i] == tokens[n - 1]) return DT_END_EOS;
    return n == o->max_new_tokens ? DT_END_LENGTH : DT_END_STRING;
}

static void keep(several *x, const dt_generated *g)
{
    for (int64_t i = 0; i < x->n; i++) {
        const dt_ids ids = dt_generated_ids(g, i);
        if (ids.n > 0) memcpy(x->ids + i * x->room, ids.ids, (size_t)ids.n * sizeof *x->ids);
        x->n_ids[i] = ids.n;
        x->ends[i] = dt_generated_end(g, i);
        x->scores[i] = dt_generated_score(g, i);
    }
}

static dt_status generate_on_rank(void *arg, dt_model *model, bool speaks)
{
    several *x = arg;
    const int64_t begin = cli_now_ns();
    dt_generated *g;

    DT_TRY(dt_generate_batch(model, x->prompts->list, x->prompts->n, &x->wishes->options, &g));
    if (speaks) {
        keep(x, g);
        x->ns = cli_now_ns() - begin;
    }
    dt_generated_release(&g);
    return DT_OK;
}

/* --- output ------------------------------------------------------------------------------------
 */

static dt_status print_ids(const dt_tokenizer *tok, const int32_t *ids, int64_t n)
{
    char *text;
    size_t bytes;

    if (tok == NULL) {
        for (int64_t i = 0; i < n; i++) (void)printf("%s%" PRId32, i > 0 ? " " : "", ids[i]);
        return DT_OK;
    }
    DT_TRY(dt_tokenizer_decode(tok, ids, (size_t)n, true, &text, &bytes));
    cli_print_text(stdout, text, bytes);
    dt_tokenizer_free(text);
    return DT_OK;
}

/* Prompt and text, decoded together; a line of dashes between texts. */
static dt_status print_plain(const several *x)
{
    for (int64_t i = 0; i < x->n; i++) {
        const dt_ids *p = &x->prompts->list[i / x->per_prompt];
        const size_t n = (size_t)(p->n + x->n_ids[i]);
        int32_t *all;
        dt_status st;
        DT_TRY(dti_alloc_array(n, sizeof *all, (void **)&all));
        memcpy(all, p->ids, (size_t)p->n * sizeof *all);
        memcpy(all + p->n, x->ids + i * x->room, (size_t)x->n_ids[i] * sizeof *all);
        if (i > 0) (void)puts("---");
        st = print_ids(x->prompts->tokenizer, all, (int64_t)n);
        dti_free(all);
        DT_TRY(st);
        (void)putchar('\n');
    }
    DT_TRY(cli_flush());
    return DT_OK;
}

static dt_status json_text(const several *x, int64_t i, json_t **out)
{
    const dt_ids *p = &x->prompts->list[i / x->per_prompt];
    const int32_t *ids = x->ids + i * x->room;
    json_t *text = json_null();
    size_t bytes;
    char *plain;

    if (x->prompts->tokenizer != NULL) {
        DT_TRY(dt_tokenizer_decode(x->prompts->tokenizer, ids, (size_t)x->n_ids[i], true, &plain,
                                   &bytes));
        text = json_stringn(plain, bytes);
        dt_tokenizer_free(plain);
    }
    *out =
        json_pack("{s:I, s:o, s:o, s:o, s:s}", "prompt", (json_int_t)(i / x->per_prompt),
                  "prompt_tokens", cli_json_ids(p->ids, p->n), "tokens",
                  cli_json_ids(ids, x->n_ids[i]), "text", text, "stop", cli_end_name(x->ends[i]));
    DT_CHECK(*out != NULL, DT_ERR_MEMORY, "the JSON result does not fit into memory");
    if (x->wishes->options.num_beams > 1)
        (void)json_object_set_new(*out, "score", json_real(x->scores[i]));
    return DT_OK;
}

static dt_status print_json(const several *x)
{
    json_t *texts = json_array(), *one;
    dt_status st = DT_OK;

    for (int64_t i = 0; i < x->n; i++) {
        DT_TRY_TO(done, st, json_text(x, i, &one));
        (void)json_array_append_new(texts, one);
    }
    DT_TRY_TO(done, st,
              cli_session_put_json(
                  x->session,
                  json_pack("{s:O, s:f}", "texts", texts, "generation_s", (double)x->ns * 1e-9),
                  9));
done:
    json_decref(texts);
    return st;
}

static void print_times(const several *x)
{
    const double seconds = (double)x->ns * 1e-9;
    int64_t n = 0;

    for (int64_t i = 0; i < x->n; i++) n += x->n_ids[i];
    (void)fprintf(stderr, "%" PRId64 " texts, %" PRId64 " new tokens in %.3f s, %.1f tokens/s\n",
                  x->n, n, seconds, seconds > 0 ? (double)n / seconds : 0);
}

dt_status cli_generate_texts(cli_session *s, const cli_prompts *prompts, const cli_wishes *wishes)
{
    several x = { .session = s,
                  .prompts = prompts,
                  .wishes = wishes,
                  .per_prompt = wishes->options.num_return_sequences,
                  .room = wishes->options.max_new_tokens };
    dt_status st = DT_OK;
    size_t n;

    x.n = prompts->n * (x.per_prompt > 0 ? x.per_prompt : 1);
    n = (size_t)x.n;
    DT_TRY_TO(done, st, dti_alloc_array(n * (size_t)x.room + 1, sizeof *x.ids, (void **)&x.ids));
    DT_TRY_TO(done, st, dti_alloc_array(n, sizeof *x.n_ids, (void **)&x.n_ids));
    DT_TRY_TO(done, st, dti_alloc_array(n, sizeof *x.ends, (void **)&x.ends));
    DT_TRY_TO(done, st, dti_alloc_array(n, sizeof *x.scores, (void **)&x.scores));
    DT_TRY_TO(done, st, cli_session_run(s, generate_on_rank, &x));
    if (s->console->process > 0) goto done; /* rank 0 is elsewhere, and so is the result */
    DT_TRY_TO(done, st, s->args->json ? print_json(&x) : print_plain(&x));
    if (!s->console->quiet) print_times(&x);
done:
    dti_free(x.ids);
    dti_free(x.n_ids);
    dti_free(x.ends);
    dti_free(x.scores);
    return st;
}
