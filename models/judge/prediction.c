/* SPDX-License-Identifier: Apache-2.0
 *
 * A prediction for all ranks of a mesh, from options that are judged first. */
#include "models/judge/prediction.h"

#include <math.h>
#include <stdio.h>

#include "base/options.h"
#include "models/describe/describe.h"

enum { DEFAULT_SEQUENCE = 2048, MAX_RANKS = 1 << 20 /* of a dry runtime */ };

/* What a message calls an option. */
typedef struct option_name {
    char text[DT_OPTION_NAME_BYTES];
} option_name;

static option_name called(const dt_predict_options *o, const char *field)
{
    option_name name;

    if (o->names != NULL)
        o->names->name(o->names->arg, field, name.text);
    else
        (void)snprintf(name.text, sizeof name.text, "%s", field);
    return name;
}

/* Bytes are 63-bit numbers. A token leaves less than 64 bytes per row and column of the weights in
 * caches, temporaries and messages; a step that is cut over ranks receives a row from each. */
static dt_status check_sizes(const dt_predict_options *o, const dti_described *d, int n_ranks)
{
    double each = 0.0, most;

    for (int i = 0; i < d->builder.n; i++) {
        const dt_layer_spec *spec = &d->builder.specs[i];
        each += (double)spec->axis[0].extent + (double)spec->axis[1].extent;
    }
    each *= 64.0 * (double)o->sequence > 8.0 * n_ranks ? 64.0 * (double)o->sequence : 8.0 * n_ranks;
    most = floor(0x1p62 / each);
    DT_CHECK(most >= 1.0, DT_ERR_ARG,
             "%s %lld: this model's bytes on %d ranks are beyond what can be counted",
             called(o, "sequence").text, (long long)o->sequence, n_ranks);
    DT_CHECK((double)o->batch <= most, DT_ERR_ARG,
             "%s %lld: with %s %lld on %d rank%s this model's bytes can be counted for %s up to "
             "%.0f",
             called(o, "batch").text, (long long)o->batch, called(o, "sequence").text,
             (long long)o->sequence, n_ranks, n_ranks == 1 ? "" : "s", called(o, "batch").text,
             most);
    return DT_OK;
}

/* The context bounds the sequence. */
static dt_status settle_sequence(dt_runtime *rt, const char *dir, dt_predict_options *o,
                                 int n_ranks)
{
    dti_described d;
    dt_status st = DT_OK;
    int64_t most;

    DT_TRY(dti_describe(rt, dir, &d));
    most = d.info.max_positions;
    if (o->sequence == 0) o->sequence = most < DEFAULT_SEQUENCE ? most : DEFAULT_SEQUENCE;
    DT_CHECK_TO(done, st, o->sequence >= 1 && o->sequence <= most, DT_ERR_ARG,
                "%s %lld exceeds the model's context of %lld (%s/config.json)",
                called(o, "sequence").text, (long long)o->sequence, (long long)most, dir);
    DT_TRY_TO(done, st, check_sizes(o, &d, n_ranks));
done:
    dti_described_free(&d);
    return st;
}

dt_status dti_predict_settle(dt_runtime *rt, const char *dir, dt_predict_options *o, int *n_ranks)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims;
    dt_status st;

    DT_CHECK(dir != NULL && o->mesh != NULL, DT_ERR_ARG, "dir or options.mesh is NULL");
    DT_CHECK(o->batch >= 1, DT_ERR_ARG, "%s %lld: must be 1 or more", called(o, "batch").text,
             (long long)o->batch);
    st = dt_mesh_parse(o->mesh, &n_dims, names, sizes, n_ranks);
    if (st != DT_OK) dti_error_prefix("%s", called(o, "mesh").text);
    DT_TRY(st);
    DT_CHECK(*n_ranks <= MAX_RANKS, DT_ERR_ARG,
             "%s: \"%s\" has %d ranks; a plan is made for at most %d", called(o, "mesh").text,
             o->mesh, *n_ranks, (int)MAX_RANKS);
    DT_TRY(dt_model_check_dry(rt, dir, o->mesh, o->load)); /* with rule, parameter and remedy */
    DT_TRY(settle_sequence(rt, dir, o, *n_ranks));
    return DT_OK;
}

dt_status dt_predict(dt_runtime *rt, const char *dir, const dt_predict_options *options,
                     dt_prediction **out)
{
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dti_predict_options how;
    dt_prediction *p;
    dt_status st = DT_OK;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dti_options_read("dt_predict_options", "start from DT_PREDICT_OPTIONS_INIT", options, &o,
                            sizeof o));
    DT_TRY(dti_new(sizeof *p, &p));
    DT_TRY_TO(fail, st, dti_predict_settle(rt, dir, &o, &p->n_ranks));
    p->batch = o.batch;
    p->sequence = o.sequence;
    how = (dti_predict_options){ .mesh = o.mesh,
                                 .batch = o.batch,
                                 .sequence = o.sequence,
                                 .load = o.load,
                                 .like = rt,
                                 .log = o.log,
                                 .log_arg = o.log_arg,
                                 .device = o.device };
    DT_TRY_TO(fail, st, dti_predict_ranks(dir, &how, &p->first, &p->ranks));
    DT_TRY_TO(fail, st, dti_predict_experts(dir, &how, p->first.model, &p->experts));
    *out = p;
    return DT_OK;

fail:
    dt_prediction_release(&p);
    return st;
}

void dt_prediction_release(dt_prediction **prediction)
{
    dt_prediction *p = prediction != NULL ? *prediction : NULL;

    if (p == NULL) return;
    *prediction = NULL;
    dti_prediction_free(&p->first);
    dti_free(p->ranks);
    dti_free(p);
}

dt_model *dt_prediction_model(const dt_prediction *p)
{
    return p != NULL ? p->first.model : NULL;
}

int64_t dt_prediction_batch(const dt_prediction *p)
{
    return p != NULL ? p->batch : 0;
}

int64_t dt_prediction_sequence(const dt_prediction *p)
{
    return p != NULL ? p->sequence : 0;
}

const dt_pass_cost *dt_prediction_prompt(const dt_prediction *p)
{
    return p != NULL ? &p->first.prefill : NULL;
}

const dt_pass_cost *dt_prediction_step(const dt_prediction *p)
{
    return p != NULL ? &p->first.decode : NULL;
}

const dt_rank_cost *dt_prediction_rank(const dt_prediction *p, int rank)
{
    return p != NULL && rank >= 0 && rank < p->n_ranks ? &p->ranks[rank] : NULL;
}

const dt_expert_forms *dt_prediction_experts(const dt_prediction *p)
{
    return p != NULL ? &p->experts : NULL;
}
