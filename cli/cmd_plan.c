/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor plan: how a model would lie on a mesh, and what a run would send and hold. Dry passes
 * find it from config.json alone. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/print_report.h"
#include "cli/session.h"

/* What was asked for, and what was found. */
typedef struct planning {
    const cli_args *args;
    dt_plan *plan; /* of --plan, or NULL */
    dt_prediction *found;
} planning;

static void name_option(void *arg, const char *field, char text[DT_OPTION_NAME_BYTES])
{
    (void)arg;
    (void)snprintf(text, DT_OPTION_NAME_BYTES, "--%s", field);
}

static const dt_option_names names = { name_option, NULL };

/* What both kinds of plan are predicted with; o->load is set. */
static dt_status read_options(const cli_console *console, planning *p, dt_load_options *load,
                              dt_predict_options *o)
{
    const cli_args *args = p->args;

    if (args->mesh != NULL) o->mesh = args->mesh;
    if (args->batch > 0) o->batch = args->batch;
    o->sequence = args->sequence;
    o->load = load;
    o->log = cli_log;
    o->log_arg = (void *)console;
    o->names = &names;
    DT_TRY(cli_read_dtype(args->dtype, load));
    DT_TRY(cli_read_plan(args, &p->plan, load));
    DT_TRY(cli_check_dims(o->mesh, load));
    return DT_OK;
}

static dt_status predict(const cli_console *console, planning *p)
{
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;

    DT_CHECK(p->args->recompute == NULL && p->args->chunk == 0, DT_ERR_ARG,
             "--%s is of a training step; give --train as well",
             p->args->recompute != NULL ? "recompute" : "chunk");
    DT_TRY(read_options(console, p, &load, &o));
    DT_TRY(dt_predict(p->args->registry, p->args->folder, &o, &p->found));
    return DT_OK;
}

/* All of it, freed with free(). */
static dt_status printed(const planning *p, bool json, char **out)
{
    const int n = dt_prediction_print(p->found, json, NULL, 0);

    DT_CHECK(n < INT32_MAX && (*out = malloc((size_t)n + 1)) != NULL, DT_ERR_MEMORY,
             "the result does not fit into memory");
    (void)dt_prediction_print(p->found, json, *out, (size_t)n + 1);
    return DT_OK;
}

/* --- as text ---------------------------------------------------------------------------------- */

static dt_status print_text(const planning *p)
{
    const dt_model *model = dt_prediction_model(p->found);
    const dt_model_info *info = dt_model_info_of(model);
    const dt_mesh *mesh = dt_model_mesh(model);
    const int64_t batch = dt_prediction_batch(p->found);
    const char *plan = p->args->plan;
    char number[DTI_NUMBER_BYTES], *text;

    DT_TRY(printed(p, false, &text));
    (void)printf("%s, %s parameters in %s, mesh %s of %d rank%s, %" PRId64 " sequence%s of %" PRId64
                 " tokens%s%s%s\n\n%s",
                 info->model_type, dti_count_text(cli_count_params(model), number),
                 dt_dtype_name(info->dtype), p->args->mesh != NULL ? p->args->mesh : "tp=1",
                 dt_mesh_n_ranks(mesh), dt_mesh_n_ranks(mesh) == 1 ? "" : "s", batch,
                 batch == 1 ? "" : "s", dt_prediction_sequence(p->found),
                 plan != NULL ? ", plan " : "", plan != NULL ? plan : "",
                 p->args->sequence_parallel ? ", tokens cut" : "", text);
    free(text);
    return DT_OK;
}

/* --- as JSON ---------------------------------------------------------------------------------- */

/* A rule that no file gave is one of the checkpoint's own plan. */
static void name_source(const planning *p, json_t *layers)
{
    json_t *layer;
    size_t i;

    json_array_foreach(layers, i, layer)
    {
        const char *from = json_string_value(json_object_get(layer, "from"));
        if (from != NULL && strcmp(from, "plan") == 0 && !cli_has_plan_file(p->args->plan))
            (void)json_object_set_new(layer, "from", json_string("checkpoint"));
    }
}

static dt_status print_json(const planning *p)
{
    const dt_model *model = dt_prediction_model(p->found);
    const dt_model_info *info = dt_model_info_of(model);
    json_t *head, *rest;
    char *text;

    DT_TRY(printed(p, true, &text));
    rest = json_loads(text, 0, NULL);
    free(text);
    name_source(p, json_object_get(rest, "layout"));
    name_source(p, json_object_get(rest, "points"));
    head = json_pack("{s:s, s:s, s:s, s:s, s:s?, s:b, s:I, s:I, s:I}", "model", p->args->folder,
                     "model_type", info->model_type, "dtype", dt_dtype_name(info->dtype), "mesh",
                     p->args->mesh != NULL ? p->args->mesh : "tp=1", "plan", p->args->plan,
                     "sequence_parallel", (int)p->args->sequence_parallel, "parameters",
                     (json_int_t)cli_count_params(model), "batch",
                     (json_int_t)dt_prediction_batch(p->found), "sequence",
                     (json_int_t)dt_prediction_sequence(p->found));
    if (head == NULL || rest == NULL || json_object_update(head, rest) != 0) {
        json_decref(head);
        json_decref(rest);
        DT_FAIL(DT_ERR_MEMORY,
                "the result cannot be written as JSON: memory, or a name that is not UTF-8");
    }
    json_decref(rest);
    DT_TRY(cli_put_json(head, JSON_INDENT(1)));
    return DT_OK;
}

/* --- a training step -------------------------------------------------------------------------- */

enum { SHOWN_RANKS = 16 };

static int64_t received(const dt_training_part *part)
{
    int64_t n = 0;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) n += part->comm[k].bytes;
    return n;
}

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

static void print_part(const char *name, const dt_training_part *part)
{
    (void)printf("  %-10s %10.3f GFLOP", name, part->work.flops * 1e-9);
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        if (part->comm[k].calls > 0)
            (void)printf(", %s x%" PRId64 " %" PRId64 " bytes", dt_comm_kind_name((dt_comm_kind)k),
                         part->comm[k].calls, part->comm[k].bytes);
    (void)puts("");
}

static void print_rank(const dt_training_cost *c, int rank)
{
    (void)printf("rank %d: weights %" PRId64 ", gradients %" PRId64 ", kept %" PRId64
                 ", at most %" PRId64 " bytes\n",
                 rank, c->weight_bytes, c->gradient_bytes, c->kept_bytes, c->peak_bytes);
    print_part("forward", &c->forward);
    print_part("backward", &c->backward);
    print_part("gradients", &c->gradients);
}

static json_t *rank_json(const dt_training_cost *c, int rank)
{
    return json_pack("{s:i, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "rank", rank, "weight_bytes",
                     (json_int_t)c->weight_bytes, "gradient_bytes", (json_int_t)c->gradient_bytes,
                     "kept_bytes", (json_int_t)c->kept_bytes, "peak_bytes",
                     (json_int_t)c->peak_bytes, "forward", part_json(&c->forward), "backward",
                     part_json(&c->backward), "gradients", part_json(&c->gradients));
}

/* Rank by rank, of large meshes the first ones. */
static dt_status show_training(const cli_console *console, planning *p)
{
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_loss_options loss = DT_LOSS_OPTIONS_INIT;
    char dims[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims, n_ranks;
    json_t *ranks = json_array();
    dt_training_cost cost = { 0 };
    dt_status st = DT_OK;

    loss.chunk = p->args->chunk;
    DT_TRY_TO(done, st, cli_read_recompute(p->args->recompute, &loss.recompute));
    DT_TRY_TO(done, st, read_options(console, p, &load, &o));
    DT_TRY_TO(done, st, dt_mesh_parse(o.mesh, &n_dims, dims, sizes, &n_ranks));
    for (int r = 0; r < n_ranks && r < SHOWN_RANKS; r++) {
        DT_TRY_TO(done, st,
                  dt_predict_training(p->args->registry, p->args->folder, &o, &loss, r, &cost));
        if (r == 0 && !p->args->json)
            (void)printf("a training step of %" PRId64 " x %" PRId64
                         " tokens on mesh %s, %d rank%s\n",
                         o.batch, cost.sequence, o.mesh, n_ranks, n_ranks == 1 ? "" : "s");
        if (p->args->json)
            (void)json_array_append_new(ranks, rank_json(&cost, r));
        else
            print_rank(&cost, r);
    }
    if (p->args->json)
        st = cli_put_json(json_pack("{s:s, s:s, s:I, s:I, s:i, s:O}", "model", p->args->folder,
                                    "mesh", o.mesh, "batch", (json_int_t)o.batch, "sequence",
                                    (json_int_t)cost.sequence, "n_ranks", n_ranks, "ranks", ranks),
                          JSON_INDENT(1));
    else if (n_ranks > SHOWN_RANKS)
        (void)printf("ranks %d to %d are not shown\n", SHOWN_RANKS, n_ranks - 1);
done:
    json_decref(ranks);
    return st;
}

/* --- the command ------------------------------------------------------------------------------ */

static dt_status show_plan(const cli_args *args, const cli_env *env, const cli_console *console)
{
    planning p = { .args = args };
    dt_status st = DT_OK;

    (void)env;
    DT_CHECK(args->folder != NULL, DT_ERR_ARG,
             "no model; give --model DIR, a Hugging Face folder with a config.json");
    DT_TRY(cli_check_model(args));
    if (args->train) {
        DT_TRY_TO(done, st, show_training(console, &p));
    } else {
        DT_TRY_TO(done, st, predict(console, &p));
        DT_TRY_TO(done, st, args->json ? print_json(&p) : print_text(&p));
    }
    DT_TRY_TO(done, st, cli_flush());
done:
    dt_prediction_release(&p.found);
    dt_plan_release(&p.plan);
    return st;
}

const cli_command cli_show_plan = {
    .name = "plan",
    .bit = CLI_PLAN,
    .usage = "--model DIR --mesh MESH [OPTION]...",
    .summary = "shows how a model would lie on a mesh, and what a run would send and hold",
    .details =
        "Needs the folder's config.json and no weights; the mesh may have up to 1048576 ranks. "
        "For\n"
        "every parameter its style, placement and the piece of rank 0; for every layer its\n"
        "collectives, with the bytes that rank 0 receives in the pass over a prompt of --sequence\n"
        "tokens and in a step of one token; for every rank the bytes of weights, of caches for\n"
        "that many tokens and of temporaries, without the scratch memory of kernels. Ranks that\n"
        "hold and receive the same are one line. A plan that cannot work is refused. With --train\n"
        "a training step instead: weights, f32 gradients, what is kept for the way back, the most\n"
        "that is held, operations and collectives of forward, backward and of the gradients' own\n"
        "reductions, rank by rank.",
    .run = show_plan,
};
