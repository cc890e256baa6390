/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor bench: how fast a folder runs on a mesh, beside what the same ranks and threads reach
 * when they do nothing else. Decoding reads every weight once per token, so its limit is reading
 * these bytes, on a GPU copying as many; a prompt is bound by products, so its limit is one large
 * product. Limits are measured right before and after each round, because machines change their
 * speed. Where decoding plays passes that were recorded, it is measured without that, too. Several
 * sequences at once are bound by reading or by multiply-adds, whichever takes longer. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "cli/bench_figures.h"
#include "cli/bench_serve.h"
#include "cli/cli.h"
#include "cli/print_report.h"
#include "cli/session.h"

/* A step is recorded once it has run twice. */
enum { SHORT_PROMPT = 8, N_PROMPT = 512, N_NEW = 32, N_ROUNDS = 5, UNTIL_RECORDED = 4 };

/* Ranks read the upper half; the lower half is rank 0's. */
typedef struct benching {
    const cli_session *session;
    int64_t batch; /* a sequence for each rank along the dim that batches are cut over */
    int64_t n_prompt, n_new, n_rounds;
    int64_t n_before; /* tokens that decoding begins behind */
    int32_t *ids;     /* [batch, n_prompt or n_before] */

    cli_figures prompt, decode, unrecorded;
    bool recorded; /* decoding was: `unrecorded` has figures, too */
    const char *of_bytes;
    double *numbers;                    /* the figures' */
    cli_batch batches[CLI_MAX_BATCHES]; /* of --batch, in the place of prompt and decode */
    int n_batches;
} benching;

/* Sequences that go through the model together: all, or on several stages a group of them. */
typedef struct lane {
    dt_state *state;
    dt_tape *tape;
    int64_t first; /* of all sequences */
} lane;

/* What a round needs on one rank. */
typedef struct worker {
    benching *b;
    dt_model *model;
    lane *lanes;
    int n_lanes;
    int32_t *next; /* [sequences] */
    dt_limits *limits;
    double operations; /* of multiply_add() */
    int at;            /* which of the batches */
    bool speaks;
} worker;

/* --- one round -------------------------------------------------------------------------------- */

typedef dt_status (*work_fn)(worker *w);

/* Seconds until the slowest rank is done. */
static dt_status time_it(worker *w, work_fn work, double *seconds)
{
    dt_mesh *mesh = dt_model_mesh(w->model);
    int64_t begin;

    DT_TRY(dt_barrier(mesh, NULL));
    begin = cli_now_ns();
    DT_TRY(work(w));
    DT_TRY(dt_barrier(mesh, NULL));
    *seconds = (double)(cli_now_ns() - begin) * 1e-9;
    return DT_OK;
}

/* n tokens of each sequence: ids [sequences, n]. */
static dt_status begin(worker *w, const lane *l, const int32_t *ids, int64_t n)
{
    dt_tape_reset(l->tape);
    dt_model_forward_begin(l->tape, w->model, l->state, ids + l->first * n, n, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(l->tape));
    return DT_OK;
}

static void rewind_to(worker *w, int64_t n)
{
    for (int i = 0; i < w->n_lanes; i++) dt_state_rewind(w->lanes[i].state, n);
}

static dt_status read_prompt(worker *w)
{
    rewind_to(w, 0);
    for (int i = 0; i < w->n_lanes; i++) DT_TRY(begin(w, &w->lanes[i], w->b->ids, w->b->n_prompt));
    for (int i = 0; i < w->n_lanes; i++) {
        (void)dt_model_forward_end(w->lanes[i].tape, w->model, w->lanes[i].state);
        DT_TRY(dt_tape_status(w->lanes[i].tape));
    }
    DT_TRY(dt_device_finish(dt_mesh_runtime(dt_model_mesh(w->model))));
    return DT_OK;
}

/* The best tokens after these; then those after them. */
static dt_status generate(worker *w, int64_t n, int64_t n_new)
{
    for (int i = 0; i < w->n_lanes; i++) DT_TRY(begin(w, &w->lanes[i], w->b->ids, n));
    for (int64_t k = 1; k <= n_new; k++)
        for (int i = 0; i < w->n_lanes; i++) {
            const lane *l = &w->lanes[i];
            DT_TRY(dt_choose_best(l->tape, dt_model_forward_end(l->tape, w->model, l->state),
                                  w->next + l->first));
            if (k < n_new) DT_TRY(begin(w, l, w->next, 1));
        }
    return DT_OK;
}

/* Every round decodes at the same positions. What lies before them is read again where the state
 * does not hold it any more. */
static dt_status start_again(worker *w)
{
    const int64_t n = w->b->n_before;

    rewind_to(w, n - 1);
    if (dt_state_length(w->lanes[0].state) == n - 1) return generate(w, 1, 1);
    rewind_to(w, 0);
    return generate(w, n, 1);
}

static dt_status decode(worker *w)
{
    return generate(w, 1, w->b->n_new);
}

static dt_status multiply(worker *w)
{
    return dt_limits_multiply(w->limits);
}

static dt_status read_weights(worker *w)
{
    return dt_limits_read(w->limits);
}

static dt_status multiply_add(worker *w)
{
    return dt_limits_peak(w->limits, &w->operations);
}

/* Work between two times of its limit. `limit_work` is what the limit does in one go. */
static dt_status round_of(worker *w, work_fn work, work_fn limit, double limit_work, cli_figures *f,
                          int64_t i)
{
    double before, seconds, after;

    DT_TRY(time_it(w, limit, &before));
    DT_TRY(time_it(w, work, &seconds));
    DT_TRY(time_it(w, limit, &after));
    if (!w->speaks || i < 0) return DT_OK; /* the first time fills caches and counts for nothing */
    f->seconds[i] = seconds;
    f->limit[i] = 2 * limit_work / (before + after);
    f->ratio[i] = f->work / seconds / f->limit[i];
    return DT_OK;
}

/* Decoding in rounds of its own, because a round begins by going back. */
static dt_status run_decode(worker *w, double bytes, cli_figures *f, int64_t i)
{
    DT_TRY(start_again(w));
    return round_of(w, decode, read_weights, bytes, f, i);
}

/* What the first passes of a state do once. */
static dt_status warm_up(worker *w)
{
    for (int64_t passes = 0; passes < UNTIL_RECORDED; passes += w->b->n_new) {
        DT_TRY(start_again(w));
        DT_TRY(decode(w));
    }
    return DT_OK;
}

/* Ranks agree on what is recorded: every rank takes the same turns here. */
static dt_status run_rounds(worker *w)
{
    benching *b = w->b;
    double bytes, products, flops;
    bool recorded;

    DT_TRY(dt_limits_count(w->limits, b->n_prompt, &bytes, &products, &flops));
    DT_TRY(warm_up(w));
    recorded = dt_state_is_recorded(w->lanes[0].state); /* never of stages: one lane */
    if (w->speaks) {
        b->recorded = recorded;
        b->decode.work = b->unrecorded.work = bytes * (double)b->n_new;
        b->prompt.work = flops * (double)b->batch;
    }
    for (int64_t i = -1; i < b->n_rounds; i++)
        DT_TRY(round_of(w, read_prompt, multiply, products, &b->prompt, i));
    for (int64_t i = -1; i < b->n_rounds; i++) {
        DT_TRY(run_decode(w, bytes, &b->decode, i));
        if (!recorded) continue;
        dt_state_set_recording(w->lanes[0].state, false);
        DT_TRY(run_decode(w, bytes, &b->unrecorded, i));
        dt_state_set_recording(w->lanes[0].state, true);
    }
    return DT_OK;
}

/* --- several sequences at once ---------------------------------------------------------------- */

/* Adds what a pass takes at the least: two operations with each weight for each sequence. */
static dt_status time_bound(worker *w, double weights, double *reading, double *multiplying)
{
    const double n = (double)w->b->batches[w->at].n;
    double seconds;

    DT_TRY(time_it(w, read_weights, &seconds));
    *reading += seconds;
    DT_TRY(time_it(w, multiply_add, &seconds));
    *multiplying += seconds * 2 * weights * n / w->operations;
    return DT_OK;
}

static dt_status run_batch(worker *w)
{
    double weights;

    DT_TRY(dt_limits_weights(w->limits, &weights));
    DT_TRY(warm_up(w));
    for (int64_t i = 0; i < w->b->n_rounds; i++) {
        double reading = 0, multiplying = 0, seconds;
        DT_TRY(start_again(w));
        DT_TRY(time_bound(w, weights, &reading, &multiplying));
        DT_TRY(time_it(w, decode, &seconds));
        DT_TRY(time_bound(w, weights, &reading, &multiplying));
        if (w->speaks)
            cli_batch_add(&w->b->batches[w->at], i, seconds, reading / 2, multiplying / 2);
    }
    return DT_OK;
}

/* --- all of them ------------------------------------------------------------------------------ */

static dt_status with_states(worker *w, int64_t batch, int64_t capacity, work_fn run)
{
    dt_runtime *rt = dt_mesh_runtime(dt_model_mesh(w->model));
    dt_status st = DT_OK;

    w->n_lanes = dt_model_groups(w->model, batch);
    DT_TRY_TO(done, st, dti_alloc_array((size_t)w->n_lanes, sizeof *w->lanes, (void **)&w->lanes));
    for (int i = 0; i < w->n_lanes; i++) {
        lane *l = &w->lanes[i];
        l->first = batch * i / w->n_lanes;
        DT_TRY_TO(done, st,
                  dt_state_create(w->model, batch * (i + 1) / w->n_lanes - l->first, capacity,
                                  &l->state));
        DT_TRY_TO(done, st, dt_tape_create(rt, &l->tape));
    }
    DT_TRY_TO(done, st, dti_alloc_array((size_t)batch, sizeof *w->next, (void **)&w->next));
    DT_TRY_TO(done, st, run(w));
done:
    for (int i = 0; i < w->n_lanes && w->lanes != NULL; i++) {
        dt_tape_release(&w->lanes[i].tape);
        dt_state_release(&w->lanes[i].state);
    }
    dti_free(w->lanes);
    dti_free(w->next);
    w->lanes = NULL;
    w->next = NULL;
    return st;
}

static dt_status bench_on_rank(void *arg, dt_model *model, bool speaks)
{
    benching *b = arg;
    const int64_t decoded = b->n_before + b->n_new, most = dti_max(b->n_prompt, decoded);
    worker w = { .b = b, .model = model, .speaks = speaks };
    dt_status st = DT_OK;

    DT_TRY_TO(done, st, dt_limits_open(model, b->session->args->folder, b->n_prompt, &w.limits));
    if (speaks) b->of_bytes = dt_limits_of_bytes(w.limits);
    if (b->n_batches == 0) DT_TRY_TO(done, st, with_states(&w, b->batch, most, run_rounds));
    for (; w.at < b->n_batches; w.at++)
        DT_TRY_TO(done, st, with_states(&w, b->batches[w.at].n, decoded, run_batch));
done:
    dt_limits_close(&w.limits);
    return st;
}

/* --- afterwards ------------------------------------------------------------------------------- */

static dt_status print_batches(benching *b)
{
    const bool gpu = strcmp(b->session->ranks[0].device, "cpu") != 0;
    json_t *rows = b->session->args->json ? json_array() : NULL;

    for (int i = 0; i < b->n_batches; i++)
        if (rows != NULL)
            (void)json_array_append_new(rows, cli_batch_json(&b->batches[i]));
        else
            cli_batch_print(&b->batches[i], b->of_bytes,
                            gpu ? "one large product" : "multiply-adds alone");
    if (rows == NULL) return DT_OK;
    return cli_session_put_json(b->session,
                                json_pack("{s:o, s:I, s:s}", "batches", rows, "rounds",
                                          (json_int_t)b->n_rounds, "device",
                                          b->session->ranks[0].device),
                                6);
}

static dt_status print_json(benching *b)
{
    return cli_session_put_json(
        b->session,
        json_pack("{s:o, s:o, s:b, s:o, s:I, s:s}", "prompt", cli_figures_json(&b->prompt),
                  "decode", cli_figures_json(&b->decode), "decode_recorded", (int)b->recorded,
                  "decode_unrecorded", b->recorded ? cli_figures_json(&b->unrecorded) : json_null(),
                  "rounds", (json_int_t)b->n_rounds, "device", b->session->ranks[0].device),
        6);
}

static void print_lines(benching *b)
{
    const int width = b->recorded ? 10 : 7;

    cli_figures_print(&b->prompt,
                      &(cli_figures_words){ "prompt", width, "GFLOP/s", "one large product" });
    cli_figures_print(&b->decode, &(cli_figures_words){ "decode", width, "GB/s", b->of_bytes });
    if (b->recorded)
        cli_figures_print(&b->unrecorded,
                          &(cli_figures_words){ "unrecorded", width, "GB/s", b->of_bytes });
}

/* --- before ----------------------------------------------------------------------------------- */

static dt_status read_sizes(const cli_session *s, benching *b)
{
    const int64_t most = s->info.max_positions;

    b->n_prompt = s->args->sequence > 0 ? s->args->sequence : N_PROMPT < most ? N_PROMPT : most;
    /* a token has to have room behind the least of contexts, too */
    if (s->args->sequence == 0 && b->n_prompt <= SHORT_PROMPT && b->n_prompt == most && most > 1)
        b->n_prompt = most - 1;
    b->n_new = s->args->max_new_tokens > 0 ? s->args->max_new_tokens : N_NEW;
    b->n_rounds = s->args->rounds > 0 ? s->args->rounds : N_ROUNDS;
    DT_CHECK(b->n_prompt <= most, DT_ERR_ARG,
             "--sequence %lld: the model's context has %lld tokens", (long long)b->n_prompt,
             (long long)most);
    b->n_before = b->n_prompt < SHORT_PROMPT ? b->n_prompt : SHORT_PROMPT;
    if (s->args->behind > 0) b->n_before = s->args->behind;
    DT_CHECK(s->args->behind < most, DT_ERR_ARG,
             "--behind %lld: the model's context of %lld tokens has room for none behind them",
             (long long)b->n_before, (long long)most);
    if (s->args->max_new_tokens == 0 && b->n_new > most - b->n_before)
        b->n_new = most - b->n_before;
    DT_CHECK(b->n_new >= 1 && b->n_new <= most - b->n_before, DT_ERR_ARG,
             "--max-new-tokens %lld: the model's context of %lld tokens has room for %lld behind a "
             "prompt of %lld",
             (long long)b->n_new, (long long)most, (long long)(most - b->n_before),
             (long long)b->n_before);
    b->batch = cli_batch_ranks(s);
    if (s->args->batches != NULL)
        DT_TRY(cli_batches_read(s->args->batches, b->batches, &b->n_batches));
    for (int i = 0; i < b->n_batches; i++) b->batch = dti_max(b->batch, b->batches[i].n);
    b->prompt.tokens = b->batch * b->n_prompt;
    b->decode.tokens = b->unrecorded.tokens = b->batch * b->n_new;
    return DT_OK;
}

/* Any tokens do: the time does not depend on them, but for experts. */
static dt_status make_room(const cli_session *s, benching *b)
{
    cli_figures *all[3 + CLI_MAX_BATCHES] = { &b->prompt, &b->decode, &b->unrecorded };
    const int64_t n = b->batch * dti_max(b->n_prompt, b->n_before);

    for (int i = 0; i < b->n_batches; i++) {
        all[3 + i] = &b->batches[i].passes;
        all[3 + i]->tokens = b->batches[i].n * b->n_new;
        all[3 + i]->work = (double)b->n_new;
    }

    DT_TRY(dti_alloc_array((size_t)n, sizeof *b->ids, (void **)&b->ids));
    for (int64_t i = 0; i < n; i++) b->ids[i] = (int32_t)((i * 7919 + 5) % s->info.vocab_size);
    DT_TRY(dti_alloc_array((size_t)(b->n_rounds * CLI_FIGURES_LISTS * (3 + b->n_batches)),
                           sizeof *b->numbers, (void **)&b->numbers));
    for (int i = 0; i < 3 + b->n_batches; i++)
        cli_figures_open(all[i], b->n_rounds, b->numbers + i * CLI_FIGURES_LISTS * b->n_rounds);
    return DT_OK;
}

static dt_status bench(const cli_args *args, const cli_env *env, const cli_console *console)
{
    dt_status st = DT_OK;
    benching b = { 0 };
    cli_session s;

    DT_CHECK(args->serving.url != NULL ||
                 (args->serving.clients == NULL && args->serving.rate == NULL &&
                  args->serving.requests == 0),
             DT_ERR_ARG, "--clients, --rate and --requests are of --serve URL");
    if (args->serving.url != NULL)
        return console->process == 0 ? cli_bench_serve(args, env, console) : DT_OK;
    DT_TRY_TO(done, st, cli_session_open(args, env, console, &s));
    b.session = &s;
    DT_TRY_TO(done, st, read_sizes(&s, &b));
    DT_TRY_TO(done, st, make_room(&s, &b));
    DT_TRY_TO(done, st, cli_session_run(&s, bench_on_rank, &b));
    if (console->process > 0) goto done; /* rank 0 is elsewhere, and so is the result */
    if (b.n_batches > 0) {
        DT_TRY_TO(done, st, print_batches(&b));
    } else if (args->json) {
        DT_TRY_TO(done, st, print_json(&b));
    } else {
        print_lines(&b);
    }
    DT_TRY_TO(done, st, cli_flush());
done:
    dti_free(b.ids);
    dti_free(b.numbers);
    cli_session_close(&s);
    return st;
}

const cli_command cli_bench = {
    .name = "bench",
    .bit = CLI_BENCH,
    .usage = "(--model DIR | --serve URL) [OPTION]...",
    .runs = true,
    .summary = "measures how fast a model reads a prompt and generates",
    .details =
        "Reads a prompt and generates tokens, several times, and prints medians. Beside them "
        "stands\n"
        "what the same ranks and threads reach right before and after when they only multiply one\n"
        "large matrix, or only read the weights that a token needs (on GPUs: copy as many bytes);\n"
        "the last number is the share of that, with the least and the largest of all rounds. "
        "Where\n"
        "a GPU decodes by a recorded pass, decoding without it is measured as well.\n"
        "Over the mesh dim dp as many sequences run at once as it has ranks.\n"
        "With --batch only decoding is measured, of so many sequences at once, which over the\n"
        "mesh dim pp follow each other through the stages in groups. A pass stands beside its\n"
        "bound: the longer of reading the weights once and of its operations at the rate of\n"
        "multiply-adds that do nothing else.\n"
        "With --serve a server is measured: clients that ask again when they have their answer, "
        "or\n"
        "requests at random times; prompts of --sequence tokens (default 128), answers of\n"
        "--max-new-tokens (default 128). --model names one of the server's models.",
    .run = bench,
};
