/* SPDX-License-Identifier: Apache-2.0
 *
 * What a user sees of a run: a line for a step now and then, on a terminal one that stays. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/train.h"

#define ERASE_LINE "\r\033[K"

enum { MINUTE = 60, HOUR = 3600, TIME_BYTES = 32, LIVE_NS = 200 * 1000 * 1000 };

/* "0:07", "1:02:03" */
static const char *time_text(double seconds, char text[TIME_BYTES])
{
    const int64_t s = (int64_t)fmin(fmax(seconds, 0), 1e9);

    if (s < HOUR)
        (void)snprintf(text, TIME_BYTES, "%" PRId64 ":%02" PRId64, s / MINUTE, s % MINUTE);
    else
        (void)snprintf(text, TIME_BYTES, "%" PRId64 ":%02" PRId64 ":%02" PRId64, s / HOUR,
                       s / MINUTE % MINUTE, s % MINUTE);
    return text;
}

void cli_show_begin(const cli_run_of *run)
{
    const dt_model_info *info = &run->session->info;
    const cli_training *plan = run->plan;
    char weights[DTI_NUMBER_BYTES], folder[DT_ERROR_MESSAGE_BYTES];

    if (run->session->console->quiet) return;
    if (run->begun_at > 0)
        (void)fprintf(stderr, "goes on after step %" PRId64 " of %s\n", run->begun_at,
                      dti_printable(run->folder, folder, sizeof folder));
    (void)fprintf(stderr,
                  "%" PRId64 " step%s of %" PRId64 " sequences of %" PRId64 " tokens%s\n"
                  "share of peak: (6 N + 12 L H T) operations a token, with N = %s weights that a "
                  "token meets, L = %" PRId64 " blocks, H = %" PRId64 " for all heads, T = %" PRId64
                  ", of %.1f GFLOP/s that one large product reaches on these ranks\n",
                  plan->steps, plan->steps == 1 ? "" : "s", plan->batch, plan->sequence,
                  plan->pipeline.microbatches > 1 ? " in microbatches" : "",
                  dti_count_text((int64_t)run->weights, weights), info->n_layers,
                  info->n_heads * info->head_dim, plan->sequence, run->peak * 1e-9);
}

static void put_step(const cli_run_of *run, const cli_metric *m)
{
    const cli_training *plan = run->plan;
    const double tokens = (double)(plan->batch * plan->sequence) / m->seconds;
    const int64_t done = m->step - run->begun_at;
    const double mean = (double)(cli_now_ns() - run->begin_ns) * 1e-9 / (double)done;
    char left[TIME_BYTES];

    (void)fprintf(stderr,
                  "step %*" PRId64 "/%" PRId64 "  loss %.4f  norm %.4f  lr %.3g  %.0f tokens/s  "
                  "%.1f %% of peak  %s left",
                  plan->steps < 1000 ? 3 : 6, m->step, plan->steps, m->loss, m->grad_norm, m->lr,
                  tokens, 100 * tokens * run->flops_of_token / run->peak,
                  time_text(mean * (double)(plan->steps - m->step), left));
    if (isnan(m->loss) && m->grad_norm == 0) (void)fputs("  none of its tokens is learned", stderr);
    if (isfinite(m->validation_loss))
        (void)fprintf(stderr, "  validation loss %.4f, perplexity %.4g", m->validation_loss,
                      exp(m->validation_loss));
    if (m->skipped)
        (void)fputs("  skipped: gradients overflowed, the loss scale is halved", stderr);
}

void cli_show_step(cli_run_of *run, const cli_metric *m)
{
    const cli_console *console = run->session->console;
    const bool stays = m->step == run->begun_at + 1 || m->step == run->plan->steps ||
                       m->step % run->plan->log_every == 0 || isfinite(m->validation_loss) ||
                       m->skipped;

    if (console->quiet) return;
    if (!stays && (!console->terminal || cli_now_ns() - run->shown_ns < LIVE_NS)) return;
    if (run->live) (void)fputs(ERASE_LINE, stderr);
    put_step(run, m);
    if (stays) (void)fputc('\n', stderr);
    run->live = !stays;
    run->shown_ns = cli_now_ns();
}

/* --- at the end ------------------------------------------------------------------------------- */

static const char *signal_name(int number)
{
    return number == SIGTERM ? "SIGTERM" : number == SIGHUP ? "SIGHUP" : "SIGINT";
}

static json_t *result_json(const cli_run_of *run)
{
    const cli_metric *m = &run->last;
    char folder[DT_ERROR_MESSAGE_BYTES];

    return json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:I, s:f, s:s?, s:s?}", "run",
                     dti_printable(run->folder, folder, sizeof folder), "step", (json_int_t)m->step,
                     "steps", (json_int_t)run->plan->steps, "loss", cli_json_number(m->loss),
                     "grad_norm", cli_json_number(m->grad_norm), "validation_loss",
                     cli_json_number(m->validation_loss), "tokens", (json_int_t)m->tokens,
                     "seconds", (double)(cli_now_ns() - run->begin_ns) * 1e-9, "stopped",
                     run->signal != 0 ? signal_name(run->signal) : NULL, "exported",
                     run->model[0] != '\0' ? run->model : NULL);
}

dt_status cli_show_end(const cli_run_of *run)
{
    const cli_metric *m = &run->last;
    char took[TIME_BYTES], folder[DT_ERROR_MESSAGE_BYTES];

    (void)dti_printable(run->folder, folder, sizeof folder);
    if (run->live) (void)fputc('\n', stderr);
    if (run->session->args->json) {
        DT_TRY(cli_session_put_json(run->session, result_json(run), 17));
        return DT_OK;
    }
    if (run->signal != 0)
        (void)printf("stopped by %s after step %" PRId64 " of %" PRId64
                     ", which is saved; go on with: dtensor train --output %s --resume\n",
                     signal_name(run->signal), m->step, run->plan->steps, folder);
    else if (run->begun_at >= run->plan->steps)
        (void)printf("nothing to do: %" PRId64 " of %" PRId64
                     " steps are done%s%s%s; more of them: --steps\n",
                     run->begun_at, run->plan->steps,
                     run->model[0] != '\0' ? "; the model was missing and is in " : "",
                     run->model[0] != '\0' ? folder : "", run->model[0] != '\0' ? " now" : "");
    else
        (void)printf("%" PRId64
                     " step%s in %s, loss %.4f; checkpoints, metrics and the model are in "
                     "%s, see \"dtensor report %s\"\n",
                     m->step - run->begun_at, m->step - run->begun_at == 1 ? "" : "s",
                     time_text((double)(cli_now_ns() - run->begin_ns) * 1e-9, took), m->loss,
                     folder, folder);
    DT_TRY(cli_flush());
    return DT_OK;
}
