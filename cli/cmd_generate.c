/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor generate: streams the prompt and what the model makes of it. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/expert_report.h"
#include "cli/print_report.h"
#include "cli/prompt.h"
#include "cli/session.h"
#include "cli/texts.h"
#include "cli/wish_checks.h"

/* One run. Ranks read the upper half; the lower half is rank 0's. */
typedef struct generation {
    const cli_session *session;
    const cli_prompts *prompts; /* the first of them */
    const cli_wishes *wishes;

    cli_progress *progress;      /* of the prompt */
    dt_tokenizer_stream *stream; /* NULL: ids are printed */
    char *text;                  /* with --json: the generated text so far */
    size_t text_bytes, text_capacity;
    bool begun, ends_line; /* something was printed, and a newline came last */
    int32_t *tokens;       /* [max_new] */
    int64_t n_tokens;
    int64_t begin_ns, first_ns, end_ns; /* the prompt goes in, the first token, the last */
    dt_expert_load load;                /* the most uneven; its texts are copied below */
    char load_layer[CLI_PATH_BYTES];
    json_t *loads; /* of all; NULL: none are counted */
} generation;

/* --- output -------------------------------------------------------------------------------------
 */

static dt_status keep(generation *g, const char *text, size_t n)
{
    DT_TRY(dti_grow((void **)&g->text, &g->text_capacity, g->text_bytes + n, 1));
    memcpy(g->text + g->text_bytes, text, n);
    g->text_bytes += n;
    return DT_OK;
}

/* Each piece reaches the reader at once. With --json what was generated is kept instead. */
static dt_status put_text(generation *g, const char *text, size_t n, bool generated)
{
    if (n == 0) return DT_OK;
    if (g->session->args->json) {
        if (generated) DT_TRY(keep(g, text, n));
        return DT_OK;
    }
    cli_print_text(stdout, text, n);
    g->begun = true;
    g->ends_line = text[n - 1] == '\n';
    DT_TRY(cli_flush());
    return DT_OK;
}

static dt_status put_token(generation *g, int32_t id, bool generated)
{
    const char *text;
    char digits[16];
    size_t n;

    if (g->stream != NULL) {
        DT_TRY(dt_tokenizer_stream_push(g->stream, id, &text, &n));
        DT_TRY(put_text(g, text, n, generated));
        return DT_OK;
    }
    if (g->session->args->json) return DT_OK;
    n = (size_t)snprintf(digits, sizeof digits, "%s%" PRId32, g->begun ? " " : "", id);
    DT_TRY(put_text(g, digits, n, generated));
    return DT_OK;
}

static dt_status put_prompt(generation *g)
{
    const dt_ids *prompt = g->prompts->list;

    for (int64_t i = 0; i < prompt->n; i++) DT_TRY(put_token(g, prompt->ids[i], false));
    return DT_OK;
}

static dt_status put_end(generation *g)
{
    const char *text;
    size_t n;

    if (g->stream != NULL) {
        DT_TRY(dt_tokenizer_stream_flush(g->stream, &text, &n));
        DT_TRY(put_text(g, text, n, true));
    }
    if (!g->session->args->json && g->begun && !g->ends_line) DT_TRY(put_text(g, "\n", 1, true));
    return DT_OK;
}

/* --- on the ranks -------------------------------------------------------------------------------
 */

typedef struct listener {
    generation *g;
    bool speaks;
    dt_status st;
} listener;

/* Stopping alone, when the output cannot be written, is no disagreement: the rank then fails, which
 * ends the others too. */
static bool on_token(void *arg, int64_t n, int32_t id)
{
    listener *l = arg;

    if (!l->speaks) return true;
    l->g->end_ns = cli_now_ns();
    if (n == 0) { /* not before: a model that cannot run prints nothing */
        cli_progress_end(l->g->progress);
        l->g->first_ns = l->g->end_ns;
        l->st = put_prompt(l->g);
        if (l->st != DT_OK) return false;
    }
    l->st = put_token(l->g, id, true);
    return l->st == DT_OK;
}

/* The model is gone when the report is made. */
static dt_status keep_loads(generation *g, dt_model *model, bool speaks)
{
    dt_expert_load worst;

    DT_TRY(cli_loads_sum(model, &worst));
    if (!speaks || worst.n_experts == 0) return DT_OK;
    g->load = worst;
    (void)snprintf(g->load_layer, sizeof g->load_layer, "%s", worst.layer);
    g->load.layer = g->load_layer;
    g->load.tokens = NULL;
    g->loads = cli_loads_json(model);
    return DT_OK;
}

static dt_status generate_on_rank(void *arg, dt_model *model, bool speaks)
{
    generation *g = arg;
    listener l = { g, speaks, DT_OK };
    const dt_ids *prompt = g->prompts->list;
    dt_generate_options options = g->wishes->options;
    dt_state *state = NULL;
    dt_status st = DT_OK;
    int64_t n = 0;

    options.on_token = on_token;
    options.arg = &l;
    DT_TRY(cli_loads_begin(model));
    DT_TRY(dt_state_create(model, 1, prompt->n + options.max_new_tokens, &state));
    if (speaks) {
        dt_state_set_progress(state, cli_progress_prompt, g->progress);
        g->begin_ns = cli_now_ns();
    }
    DT_TRY_TO(
        done, st,
        dt_generate(model, state, prompt->ids, prompt->n, &options, speaks ? g->tokens : NULL, &n));
    DT_TRY_TO(done, st, l.st);
    DT_TRY_TO(done, st, keep_loads(g, model, speaks));
    if (speaks) {
        g->n_tokens = n;
        if (n == 0) DT_TRY_TO(done, st, put_prompt(g));
        DT_TRY_TO(done, st, put_end(g));
    }
done:
    if (speaks) cli_progress_end(g->progress);
    dt_state_release(&state);
    return st;
}

/* --- afterwards ---------------------------------------------------------------------------------
 */

static double seconds(int64_t ns)
{
    return (double)ns * 1e-9;
}

static double per_second(int64_t n, int64_t ns)
{
    return ns > 0 ? (double)n / seconds(ns) : 0;
}

/* The first token comes out of the prompt's own pass; the rate of the others is that of decoding.
 */
static void print_times(const generation *g)
{
    const int64_t prompt = g->first_ns - g->begin_ns, rest = g->end_ns - g->first_ns;

    (void)fprintf(stderr, "prompt     %5" PRId64 " tokens in %.3f s, %.1f tokens/s\n",
                  g->prompts->list->n, seconds(prompt), per_second(g->prompts->list->n, prompt));
    (void)fprintf(stderr, "generation %5" PRId64 " tokens in %.3f s", g->n_tokens, seconds(rest));
    if (g->n_tokens > 1)
        (void)fprintf(stderr, ", %.1f tokens/s", per_second(g->n_tokens - 1, rest));
    (void)fputc('\n', stderr);
    cli_loads_print(&g->load);
}

static json_t *json_timing(const generation *g)
{
    const int64_t prompt = g->first_ns - g->begin_ns, rest = g->end_ns - g->first_ns;

    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "load_s", seconds(g->session->loading_ns),
                     "prompt_s", seconds(prompt), "prompt_tokens_per_s",
                     per_second(g->prompts->list->n, prompt), "generation_s", seconds(rest),
                     "generation_tokens_per_s", per_second(g->n_tokens - 1, rest));
}

static dt_status print_json(const generation *g)
{
    const dt_end end = cli_end_of(&g->wishes->options, &g->session->info, g->tokens, g->n_tokens);
    json_t *text =
        g->stream == NULL ? json_null() : json_stringn(g->text_bytes ? g->text : "", g->text_bytes);
    json_t *all = json_pack("{s:o, s:o, s:o, s:s, s:o}", "prompt_tokens",
                            cli_json_ids(g->prompts->list->ids, g->prompts->list->n), "tokens",
                            cli_json_ids(g->tokens, g->n_tokens), "text", text, "stop",
                            cli_end_name(end), "timing", json_timing(g));

    if (g->loads != NULL) (void)json_object_set(all, "experts", g->loads);
    return cli_session_put_json(g->session, all, 6);
}

/* --- before -------------------------------------------------------------------------------------
 */

static dt_status run_session(cli_session *s, const cli_prompts *prompts, const cli_wishes *wishes)
{
    cli_progress progress = { .console = s->console };
    generation g = { .session = s, .prompts = prompts, .wishes = wishes, .progress = &progress };
    dt_status st = DT_OK;

    DT_TRY(dti_alloc_array((size_t)wishes->options.max_new_tokens, sizeof *g.tokens,
                           (void **)&g.tokens));
    if (prompts->tokenizer != NULL)
        DT_TRY_TO(done, st, dt_tokenizer_stream_create(prompts->tokenizer, true, &g.stream));
    DT_TRY_TO(done, st, cli_session_run(s, generate_on_rank, &g));
    if (s->console->process > 0) goto done; /* rank 0 is elsewhere, and so is the result */
    if (s->args->json) DT_TRY_TO(done, st, print_json(&g));
    if (!s->console->quiet) print_times(&g);
done:
    if (st != DT_OK && g.begun && !g.ends_line) (void)putchar('\n'); /* the message begins a line */
    dt_tokenizer_stream_release(&g.stream);
    json_decref(g.loads);
    dti_free(g.tokens);
    dti_free(g.text);
    return st;
}

static dt_status generate(const cli_args *args, const cli_env *env, const cli_console *console)
{
    cli_prompts prompts = { 0 };
    cli_wishes wishes = { 0 };
    dt_status st = DT_OK;
    cli_session s;

    DT_TRY_TO(done, st, cli_session_open(args, env, console, &s));
    if (cli_knob(args, "ignore_eos") == NULL)
        DT_TRY_TO(done, st, dt_model_inspect_generation(args->folder, &s.info));
    if (cli_knob(args, "ignore_eos") == NULL)
        DT_TRY_TO(done, st,
                  dt_checkpoint_remarks(args->registry, args->folder, false, true, cli_remark,
                                        (void *)console));
    DT_TRY_TO(done, st, cli_prompts_read(&s, &prompts));
    DT_TRY_TO(done, st, cli_wishes_read(&s, &prompts, &wishes));
    if (wishes.many) DT_TRY_TO(done, st, cli_wishes_check_many(&s, &prompts, &wishes));
    if (wishes.many)
        DT_TRY_TO(done, st, cli_generate_texts(&s, &prompts, &wishes));
    else
        DT_TRY_TO(done, st, run_session(&s, &prompts, &wishes));
done:
    cli_wishes_free(&wishes);
    cli_prompts_free(&prompts);
    cli_session_close(&s);
    return st;
}

const cli_command cli_generate = {
    .name = "generate",
    .bit = CLI_GENERATE,
    .usage = "--model DIR (--prompt TEXT | --prompt-file FILE | --tokens IDS) [OPTION]...",
    .runs = true,
    .summary = "lets a model go on from a prompt",
    .details =
        "Streams the prompt and the generated text to standard output; a folder without tokenizer\n"
        "answers in token ids. Each step takes the most likely token, or draws one if\n"
        "generation_config.json or an option says so. Beams, several prompts and several texts of "
        "a\n"
        "prompt are printed when all are there, with --- between them. Which ranks, cores and\n"
        "kernels are used, and tokens per second at the end, go to standard error.",
    .run = generate,
};
