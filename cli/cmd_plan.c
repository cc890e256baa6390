/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor plan: how a model would lie on a mesh, and what a run would send and hold. Dry passes
 * find it from config.json alone. */
#include "cli/show_plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/print_report.h"
#include "cli/session.h"
#include "models/describe/describe.h"
#include "parallel_styles/layer_rules.h"

enum { DEFAULT_SEQUENCE = 2048, MAX_RANKS = 1 << 20 /* of a dry runtime */ };

const char *cli_dims_text(const dt_mesh *mesh, uint32_t dims, char text[CLI_DIMS_BYTES])
{
    size_t used = 0;

    text[0] = '\0';
    for (int d = 0; d < dt_mesh_n_dims(mesh) && used < CLI_DIMS_BYTES; d++)
        if ((dims >> d & 1u) != 0)
            used += (size_t)snprintf(text + used, CLI_DIMS_BYTES - used, used ? ",%s" : "%s",
                                     dt_mesh_dim_name(mesh, d));
    return text;
}

int cli_dims_ranks(const dt_mesh *mesh, uint32_t dims)
{
    int n = 1;

    for (int d = 0; d < dt_mesh_n_dims(mesh); d++)
        if ((dims >> d & 1u) != 0) n *= dt_mesh_dim_size(mesh, d);
    return n;
}

/* Whether a rule of a plan chose the style of the layer on some dim. */
static bool has_rule(const cli_resolved *r, const dt_layer *layer)
{
    for (int d = 0; layer != NULL && d < dt_mesh_n_dims(r->first.mesh); d++)
        if (dt_layer_rule_on(layer, d) >= 0) return true;
    return false;
}

/* The layer that shares the weight of `layer`, in either direction; NULL: none does. */
static const dt_layer *partner_of(const cli_resolved *r, const dt_layer *layer)
{
    dt_layers *layers = dt_model_layers(r->first.model);

    if (dt_layer_tied_to(layer) != NULL) return dt_layer_tied_to(layer);
    for (int i = 0; i < dt_layers_count(layers); i++)
        if (dt_layer_tied_to(dt_layers_at(layers, i)) == layer) return dt_layers_at(layers, i);
    return NULL;
}

const char *cli_plan_source(const cli_resolved *r, const dt_layer *layer)
{
    if (has_rule(r, layer) || has_rule(r, partner_of(r, layer)))
        return cli_has_plan_file(r->plan) ? "plan" : "checkpoint";
    return r->manual ? "manual" : "built-in";
}

/* Bytes are 63-bit numbers. A token leaves less than 64 bytes per row and column of the weights in
 * caches, temporaries and messages; a step that is cut over ranks receives a row from each. */
static dt_status check_sizes(const dti_predict_options *o, const dti_described *d, int n_ranks)
{
    double each = 0.0, most;

    for (int i = 0; i < d->builder.n; i++) {
        const dt_layer_spec *spec = &d->builder.specs[i];
        each += (double)spec->axis[0].extent + (double)spec->axis[1].extent;
    }
    each *= 64.0 * (double)o->sequence > 8.0 * n_ranks ? 64.0 * (double)o->sequence : 8.0 * n_ranks;
    most = floor(0x1p62 / each);
    DT_CHECK(most >= 1.0, DT_ERR_ARG,
             "--sequence %lld: this model's bytes on %d ranks are beyond what can be counted",
             (long long)o->sequence, n_ranks);
    DT_CHECK(
        (double)o->batch <= most, DT_ERR_ARG,
        "--batch %lld: with --sequence %lld on %d rank%s this model's bytes can be counted for "
        "--batch up to %.0f",
        (long long)o->batch, (long long)o->sequence, n_ranks, n_ranks == 1 ? "" : "s", most);
    return DT_OK;
}

/* A refusal with its rule, parameter and remedy; then the context, which bounds the sequence. */
static dt_status check(dti_predict_options *o, cli_resolved *r)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims;
    dt_model_info info;
    dt_runtime *rt = NULL;
    dt_mesh *mesh = NULL;
    dti_described d = { 0 };
    dt_status st = dt_mesh_parse(o->mesh, &n_dims, names, sizes, &run.n_ranks);

    if (st != DT_OK) dti_error_prefix("--mesh");
    DT_TRY(st);
    DT_CHECK(run.n_ranks <= MAX_RANKS, DT_ERR_ARG,
             "--mesh: \"%s\" has %d ranks; this command plans for at most %d", o->mesh, run.n_ranks,
             (int)MAX_RANKS);
    DT_TRY(dt_runtime_create_dry(&run, 0, o->like, &rt));
    DT_TRY_TO(done, st, dt_mesh_create(rt, o->mesh, &mesh));
    DT_TRY_TO(done, st, dt_model_check(mesh, r->folder, o->load));
    DT_TRY_TO(done, st, dti_describe(o->like, r->folder, &d));
    info = d.info;
    if (o->sequence == 0)
        o->sequence = info.max_positions < DEFAULT_SEQUENCE ? info.max_positions : DEFAULT_SEQUENCE;
    DT_CHECK_TO(done, st, o->sequence <= info.max_positions, DT_ERR_ARG,
                "--sequence %lld exceeds the model's context of %lld (%s/config.json)",
                (long long)o->sequence, (long long)info.max_positions, r->folder);
    DT_TRY_TO(done, st, check_sizes(o, &d, run.n_ranks));
done:
    dti_described_free(&d);
    dt_mesh_release(&mesh);
    dt_runtime_release_dry(&rt);
    return st;
}

static dt_status resolve(const cli_args *args, const cli_console *console, dt_plan **plan,
                         cli_resolved *r)
{
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dti_predict_options o = { .mesh = r->mesh,
                              .batch = args->batch > 0 ? args->batch : 1,
                              .sequence = args->sequence,
                              .load = &load,
                              .like = args->registry,
                              .log = cli_log,
                              .log_arg = (void *)console };

    DT_TRY(cli_read_dtype(args->dtype, &load));
    DT_TRY(cli_read_plan(args, plan, &load));
    DT_TRY(cli_check_dims(r->mesh, &load));
    DT_TRY(check(&o, r));
    r->manual = *plan != NULL ? (*plan)->manual : load.plan_name != NULL;
    r->batch = o.batch;
    r->sequence = o.sequence;
    DT_TRY(dti_predict_ranks(r->folder, &o, &r->first, &r->ranks));
    r->n_ranks = dt_mesh_n_ranks(r->first.mesh);
    r->n_params = cli_count_params(r->first.model);
    return DT_OK;
}

static dt_status show_plan(const cli_args *args, const cli_env *env, const cli_console *console)
{
    cli_resolved r = { .folder = args->folder,
                       .mesh = args->mesh != NULL ? args->mesh : "tp=1",
                       .plan = args->plan,
                       .sequence_parallel = args->sequence_parallel };
    dt_plan *plan = NULL;
    dt_status st = DT_OK;

    (void)env;
    DT_CHECK(args->folder != NULL, DT_ERR_ARG,
             "no model; give --model DIR, a Hugging Face folder with a config.json");
    DT_TRY(cli_check_model(args));
    DT_TRY_TO(done, st, resolve(args, console, &plan, &r));
    if (args->json)
        DT_TRY_TO(done, st, cli_resolved_json(&r));
    else
        DT_TRY_TO(done, st, cli_resolved_print(&r));
    DT_TRY_TO(done, st, cli_flush());
done:
    dti_prediction_free(&r.first);
    dti_free(r.ranks);
    dt_plan_release(&plan);
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
        "hold and receive the same are one line. A plan that cannot work is refused.",
    .run = show_plan,
};
