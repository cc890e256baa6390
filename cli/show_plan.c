/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor plan: how a model would lie on a mesh, and what a run would send and hold. Dry passes
 * find it from config.json alone. */
#include "cli/show_plan.h"

#include <stdio.h>
#include <string.h>

#include "cli/plan.h"
#include "cli/report.h"
#include "cli/session.h"
#include "mesh/runtime.h"

enum { DEFAULT_SEQUENCE = 2048 };

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

static int64_t received(const dti_pass_cost *c)
{
    int64_t bytes = 0;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) bytes += c->total[k].bytes;
    return bytes;
}

static cli_rank_cost cost_of(const dti_prediction *p)
{
    return (cli_rank_cost){ .weight_bytes = p->weight_bytes,
                            .cache_bytes = p->cache_bytes,
                            .activation_bytes = p->activation_bytes,
                            .prompt_bytes = received(&p->prefill),
                            .step_bytes = received(&p->decode) };
}

static int64_t count_params(const dt_model *m)
{
    dt_layers *layers = dt_model_layers(m);
    int64_t all = 0;

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            const dt_param_info info = dt_layer_param_info(layer, p);
            int64_t n = 1;
            if (p == DT_PARAM_WEIGHT && dt_layer_tied_to(layer) != NULL) continue;
            for (int a = 0; a < info.n_axes; a++) n *= info.axis[a].extent;
            all += n;
        }
    }
    return all;
}

/* Dims on which no layer has a style hold copies: all their coordinates cost the same. */
static uint32_t dims_with_styles(const dti_prediction *p)
{
    dt_layers *layers = dt_model_layers(p->model);
    uint32_t dims = 0;

    for (int i = 0; i < dt_layers_count(layers); i++)
        for (int d = 0; d < dt_mesh_n_dims(p->mesh); d++)
            if (dt_layer_style_on(dt_layers_at(layers, i), d) != NULL) dims |= 1u << d;
    return dims;
}

/* The first rank that has rank's coordinates on `dims`. */
static int like_rank(const dt_mesh *mesh, int rank, uint32_t dims)
{
    int stride = 1, like = 0;

    for (int d = dt_mesh_n_dims(mesh) - 1; d >= 0; d--) {
        const int size = dt_mesh_dim_size(mesh, d);
        if ((dims >> d & 1u) != 0) like += rank / stride % size * stride;
        stride *= size;
    }
    return like;
}

static dt_status predict_all(const dti_predict_options *options, cli_resolved *r)
{
    dti_predict_options o = *options;
    uint32_t dims;

    DT_TRY(dti_predict(r->folder, &o, &r->first));
    r->n_ranks = dt_mesh_n_ranks(r->first.mesh);
    r->n_params = count_params(r->first.model);
    DT_TRY(dti_alloc_array((size_t)r->n_ranks, sizeof *r->ranks, (void **)&r->ranks));
    r->ranks[0] = cost_of(&r->first);
    dims = dims_with_styles(&r->first);
    o.log = NULL; /* said once */
    for (o.rank = 1; o.rank < r->n_ranks; o.rank++) {
        const int like = like_rank(r->first.mesh, o.rank, dims);
        dti_prediction p;
        dt_status st;
        if (like != o.rank) {
            r->ranks[o.rank] = r->ranks[like];
            continue;
        }
        st = dti_predict(r->folder, &o, &p);
        r->ranks[o.rank] = cost_of(&p);
        dti_prediction_free(&p);
        if (st != DT_OK) dti_error_prefix("seen from rank %d", o.rank);
        DT_TRY(st);
    }
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

    if (st == DT_OK) st = dt_runtime_create_dry(&run, 0, NULL, &rt);
    if (st != DT_OK) dti_error_prefix("--mesh \"%s\"", o->mesh);
    DT_TRY(st);
    DT_TRY_TO(done, st, dt_mesh_create(rt, o->mesh, &mesh));
    DT_TRY_TO(done, st, dt_model_check(mesh, r->folder, o->load));
    DT_TRY_TO(done, st, dti_describe(r->folder, &d));
    info = d.info;
    if (o->sequence == 0)
        o->sequence = info.max_positions < DEFAULT_SEQUENCE ? info.max_positions : DEFAULT_SEQUENCE;
    DT_CHECK_TO(done, st, o->sequence <= info.max_positions, DT_ERR_ARG,
                "--sequence %lld exceeds the model's context of %lld (%s/config.json)",
                (long long)o->sequence, (long long)info.max_positions, r->folder);
done:
    dti_described_free(&d);
    dt_mesh_release(&mesh);
    dt_runtime_release_dry(&rt);
    return st;
}

static dt_status resolve(const cli_args *args, const cli_console *console, cli_plan *plan,
                         cli_resolved *r)
{
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dti_predict_options o = { .mesh = r->mesh,
                              .batch = args->batch > 0 ? args->batch : 1,
                              .sequence = args->sequence,
                              .load = &load,
                              .log = cli_log,
                              .log_arg = (void *)console };

    DT_TRY(cli_read_dtype(args->dtype, &load));
    if (args->plan != NULL) {
        DT_TRY(cli_plan_read(args->plan, plan));
        load.plan = plan->plan;
    }
    DT_TRY(check(&o, r));
    r->batch = o.batch;
    r->sequence = o.sequence;
    DT_TRY(predict_all(&o, r));
    return DT_OK;
}

static dt_status show_plan(const cli_args *args, const cli_env *env, const cli_console *console)
{
    cli_resolved r = { .folder = args->folder,
                       .mesh = args->mesh != NULL ? args->mesh : "tp=1",
                       .plan = args->plan };
    cli_plan plan = { 0 };
    dt_status st = DT_OK;

    (void)env;
    DT_CHECK(args->folder != NULL, DT_ERR_ARG,
             "no model; give --model DIR, a Hugging Face folder with a config.json");
    DT_TRY_TO(done, st, resolve(args, console, &plan, &r));
    if (args->json)
        DT_TRY_TO(done, st, cli_resolved_json(&r));
    else
        cli_resolved_print(&r);
    DT_TRY_TO(done, st, cli_flush());
done:
    dti_prediction_free(&r.first);
    dti_free(r.ranks);
    cli_plan_free(&plan);
    return st;
}

const cli_command cli_show_plan = {
    .name = "plan",
    .bit = CLI_PLAN,
    .usage = "--model DIR --mesh MESH [OPTION]...",
    .summary = "shows how a model would lie on a mesh, and what a run would send and hold",
    .details =
        "Needs the folder's config.json and no weights; the mesh may have any size. For every\n"
        "parameter its style, placement and the piece of rank 0; for every layer its collectives,\n"
        "with the bytes that rank 0 receives in the pass over a prompt of --sequence tokens and "
        "in\n"
        "a step of one token; for every rank the bytes of weights, of caches for that many tokens\n"
        "and of temporaries, without the scratch memory of kernels. A plan that cannot work is\n"
        "refused.",
    .run = show_plan,
};
