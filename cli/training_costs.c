/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/training_costs.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/print_report.h"

enum { DIMS_BYTES = 128 };

/* A mesh, for the names of its dims. */
typedef struct dims {
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n, n_ranks;
} dims;

static dt_status read_dims(const cli_costs *c, dims *out)
{
    DT_TRY(dt_mesh_parse(c->predict->mesh, &out->n, out->names, out->sizes, &out->n_ranks));
    return DT_OK;
}

/* "dp,tp" */
static const char *dims_text(const dims *d, uint32_t set, char text[DIMS_BYTES])
{
    size_t used = 0;

    text[0] = '\0';
    for (int m = 0; m < d->n; m++)
        if (dti_has(set, m))
            used += (size_t)snprintf(text + used, DIMS_BYTES - used, "%s%s", used > 0 ? "," : "",
                                     d->names[m]);
    return text;
}

static dt_status predict(cli_costs *c, int rank, dt_training_cost *out)
{
    DT_TRY(
        dt_predict_training(c->args->registry, c->args->folder, c->predict, &c->step, rank, out));
    c->flops[rank].forward = out->forward.work.flops;
    c->flops[rank].backward = out->backward.work.flops;
    return DT_OK;
}

static int64_t received(const dt_training_part *part)
{
    int64_t n = 0;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) n += part->comm[k].bytes;
    return n;
}

static double flops_of(const dt_training_cost *c)
{
    return c->forward.work.flops + c->backward.work.flops + c->gradients.work.flops +
           c->update.work.flops;
}

/* --- as JSON ---------------------------------------------------------------------------------- */

static json_t *part_json(const dt_training_part *part)
{
    json_t *o =
        json_pack("{s:f, s:I}", "flops", part->work.flops, "bytes", (json_int_t)received(part));

    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        (void)json_object_set_new(o, dt_comm_kind_name((dt_comm_kind)k),
                                  json_pack("{s:I, s:I}", "calls", (json_int_t)part->comm[k].calls,
                                            "bytes", (json_int_t)part->comm[k].bytes));
    return o;
}

static json_t *traffic_json(const dt_training_cost *c, const dims *d)
{
    json_t *all = json_array();
    char text[DIMS_BYTES];

    for (int i = 0; i < c->n_traffic; i++) {
        const dt_dims_traffic *t = &c->traffic[i];
        json_t *o = json_pack("{s:s, s:s, s:I, s:I}", "dims", dims_text(d, t->dims, text), "kind",
                              dt_comm_kind_name(t->kind), "calls", (json_int_t)t->count.calls,
                              "bytes", (json_int_t)t->count.bytes);
        if (t->most_bytes > t->count.bytes)
            (void)json_object_set_new(o, "most_bytes", json_integer(t->most_bytes));
        (void)json_array_append_new(all, o);
    }
    return all;
}

static json_t *rank_json(const cli_costs *costs, const dt_training_cost *c, const dims *d, int rank)
{
    json_t *o =
        json_pack("{s:i, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:o}", "rank", rank, "weight_bytes",
                  (json_int_t)c->weight_bytes, "gradient_bytes", (json_int_t)c->gradient_bytes,
                  "kept_bytes", (json_int_t)c->kept_bytes, "peak_bytes", (json_int_t)c->peak_bytes,
                  "flops", flops_of(c), "forward", part_json(&c->forward), "backward",
                  part_json(&c->backward), "traffic", traffic_json(c, d));

    if (costs->step.optimizer == NULL) {
        (void)json_object_set_new(o, "gradients", part_json(&c->gradients));
        return o;
    }
    (void)json_object_set_new(o, "state_bytes", json_integer(c->state_bytes));
    (void)json_object_set_new(o, "update", part_json(&c->update));
    return o;
}

/* The largest F of a rank takes 1. */
static dt_status pipeline_json(cli_costs *costs, json_t **out)
{
    const dt_pipeline_schedule *s = costs->step.schedule;
    dt_pipeline_timing *timing;
    json_t *ranks = json_array();
    dt_pipeline_total total;

    DT_TRY(cli_pipeline_time(costs, &timing));
    total = dt_pipeline_timing_total(timing);
    for (int r = 0; r < dt_pipeline_schedule_ranks(s); r++) {
        const dt_pipeline_rank *k = dt_pipeline_timing_rank(timing, r);
        (void)json_array_append_new(ranks,
                                    json_pack("{s:f, s:f, s:i, s:i}", "busy", k->busy, "idle",
                                              k->idle, "live", k->live, "postponed", k->postponed));
    }
    *out = json_pack("{s:s, s:i, s:i, s:f, s:f, s:o}", "schedule", dt_pipeline_schedule_name(s),
                     "stages", dt_pipeline_schedule_stages(s), "microbatches",
                     dt_pipeline_schedule_microbatches(s), "makespan", total.makespan, "bubble",
                     total.bubble, "ranks", ranks);
    dt_pipeline_timing_release(&timing);
    return DT_OK;
}

dt_status cli_costs_json(cli_costs *costs, json_t **out)
{
    char folder[DT_ERROR_MESSAGE_BYTES];
    json_t *ranks = json_array(), *pipeline = NULL;
    dt_training_cost c = { 0 };
    dt_status st = DT_OK;
    dims d;

    DT_TRY_TO(fail, st, read_dims(costs, &d));
    for (int r = 0; r < d.n_ranks && r < CLI_SHOWN_RANKS; r++) {
        DT_TRY_TO(fail, st, predict(costs, r, &c));
        (void)json_array_append_new(ranks, rank_json(costs, &c, &d, r));
    }
    if (costs->step.schedule != NULL) DT_TRY_TO(fail, st, pipeline_json(costs, &pipeline));
    *out = json_pack("{s:s, s:s, s:I, s:I, s:I, s:i, s:o, s:o*}", "model",
                     dti_printable(costs->args->folder, folder, sizeof folder), "mesh",
                     costs->predict->mesh, "batch", (json_int_t)costs->predict->batch, "sequence",
                     (json_int_t)c.sequence, "microbatches", (json_int_t)costs->step.microbatches,
                     "n_ranks", d.n_ranks, "ranks", ranks, "pipeline", pipeline);
    return DT_OK;

fail:
    json_decref(ranks);
    return st;
}

/* --- as text ---------------------------------------------------------------------------------- */

static void print_part(const char *name, const dt_training_part *part)
{
    (void)printf("  %-10s %10.3f GFLOP", name, part->work.flops * 1e-9);
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        if (part->comm[k].calls > 0)
            (void)printf(", %s x%" PRId64 " %" PRId64 " bytes", dt_comm_kind_name((dt_comm_kind)k),
                         part->comm[k].calls, part->comm[k].bytes);
    (void)puts("");
}

static void print_traffic(const dt_training_cost *c, const dims *d)
{
    char text[DIMS_BYTES];

    for (int i = 0; i < c->n_traffic; i++) {
        const dt_dims_traffic *t = &c->traffic[i];
        (void)printf("%s%s: %s x%" PRId64 " %" PRId64 " bytes", i > 0 ? "; " : "  over ",
                     dims_text(d, t->dims, text), dt_comm_kind_name(t->kind), t->count.calls,
                     t->count.bytes);
        if (t->most_bytes > t->count.bytes)
            (void)printf(" (average; at most %" PRId64 ")", t->most_bytes);
    }
    if (c->n_traffic > 0) (void)puts("");
}

static void print_rank(const cli_costs *costs, const dt_training_cost *c, const dims *d, int rank)
{
    const bool steps = costs->step.optimizer != NULL;

    (void)printf("rank %d: weights %" PRId64 ", gradients %" PRId64, rank, c->weight_bytes,
                 c->gradient_bytes);
    if (steps) (void)printf(", optimizer %" PRId64, c->state_bytes);
    (void)printf(", kept %" PRId64 ", at most %" PRId64 " bytes\n", c->kept_bytes, c->peak_bytes);
    print_part("forward", &c->forward);
    print_part("backward", &c->backward);
    print_part(steps ? "update" : "gradients", steps ? &c->update : &c->gradients);
    print_traffic(c, d);
}

static dt_status print_text(cli_costs *costs)
{
    const int64_t batch = costs->predict->batch, passes = costs->step.microbatches;
    dt_training_cost c;
    dims d;

    DT_TRY(read_dims(costs, &d));
    for (int r = 0; r < d.n_ranks && r < CLI_SHOWN_RANKS; r++) {
        DT_TRY(predict(costs, r, &c));
        if (r == 0)
            (void)printf("a training step of %" PRId64 " x %" PRId64
                         " tokens%s on mesh %s, %d rank%s\n",
                         batch, c.sequence, passes > 1 ? " in several passes" : "",
                         costs->predict->mesh, d.n_ranks, d.n_ranks == 1 ? "" : "s");
        print_rank(costs, &c, &d, r);
    }
    if (d.n_ranks > CLI_SHOWN_RANKS)
        (void)printf("ranks %d to %d are not shown\n", CLI_SHOWN_RANKS, d.n_ranks - 1);
    if (costs->step.schedule != NULL) DT_TRY(cli_pipeline_draw(costs));
    DT_TRY(cli_flush());
    return DT_OK;
}

dt_status cli_costs_print(cli_costs *costs)
{
    json_t *object = NULL;

    if (!costs->args->json) return print_text(costs);
    DT_TRY(cli_costs_json(costs, &object));
    DT_TRY(cli_put_json(object, JSON_INDENT(1)));
    return DT_OK;
}
