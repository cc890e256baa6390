/* SPDX-License-Identifier: Apache-2.0
 *
 * Running a schedule: a rank's row from its first action to its last. The next message of every
 * other stage is asked for long before its action begins, and what goes to others is on its way
 * while the next actions run; it may lie here until they ask for it. */
#include <dtensor/channels.h>
#include <dtensor/collectives.h>
#include <dtensor/pipeline_training.h>
#include <dtensor/timeline.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/options.h"
#include "dtensor/create.h"
#include "mesh/runtime.h"
#include "training/counts.h"
#include "training/optimizer.h"

/* A microbatch of a stage of this rank. */
typedef struct live {
    dt_tape *tape;  /* with its record; NULL: it has not begun, or has ended */
    dt_tensor *in;  /* the tape's */
    dt_tensor *out; /* a reference; of the last stage its loss, which stays until the run ends */
    dt_tensor *x;   /* what a stage of this rank has made for it; a reference */
    dt_tensor *dy;  /* and its gradient of `out`; a reference */
    int64_t kept_bytes;       /* by the tape's record, when it was looked at last */
    dt_training_part counted; /* of the tape, as far as it has been added to the result */
} live;

/* What comes to a stage from another rank's, microbatch by microbatch. */
typedef struct source {
    dt_channel *channel; /* NULL: there is none, or it is this rank's too */
    dt_parcel *next;     /* asked for */
} source;

typedef struct stage {
    source x, dy;             /* what is computed, and gradients */
    dt_channel *x_to, *dy_to; /* NULL: there is none, or it is this rank's too */
    live *live;               /* [n_microbatches]; NULL of a stage of another rank */
} stage;

struct dt_pipeline {
    dt_mesh *mesh;
    const char *dim; /* the mesh's own text */
    dt_pipeline_schedule *schedule;
    dt_optimizer *optimizer;
    dt_pipeline_options options;
    int rank, n_stages, n_microbatches;
    const dt_action *row;
    int n_actions;
    stage *stages;    /* [n_stages] */
    dt_mesh **meshes; /* [ranks] of the stages of each */
    int n_meshes;

    dt_tape **idle; /* [n_actions] tapes without a record */
    int n_idle;
    dt_parcel **sent; /* [n_actions] on their way */
    int n_sent;
    int n_live, n_postponed;
    int64_t kept_bytes; /* by the records of all that are live */
    dt_pipeline_result result;
};

/* --- making one ------------------------------------------------------------------------------- */

static dt_status expect(const dt_pipeline *p, int s, dt_channel *channel)
{
    const dt_tensor_kind x = p->options.input(p->options.arg, s);

    DT_TRY(dt_channel_expect(channel, x.dtype, x.n_axes, x.shape, x.place));
    return DT_OK;
}

static dt_status open_channels(dt_pipeline *p)
{
    for (int s = 1; s < p->n_stages; s++) {
        const int a = dt_pipeline_schedule_rank_of(p->schedule, s - 1);
        const int b = dt_pipeline_schedule_rank_of(p->schedule, s);
        stage *from = &p->stages[s - 1], *to = &p->stages[s];
        const bool sends = a == p->rank;
        char name[48];
        if (a == b || (!sends && b != p->rank)) continue;
        (void)snprintf(name, sizeof name, "%s, stage %d to %d", p->dim, s - 1, s);
        DT_TRY(dt_channel_create(p->meshes[a], p->meshes[b], name,
                                 sends ? &from->x_to : &to->x.channel));
        (void)snprintf(name, sizeof name, "%s, stage %d to %d", p->dim, s, s - 1);
        DT_TRY(dt_channel_create(p->meshes[b], p->meshes[a], name,
                                 sends ? &from->dy.channel : &to->dy_to));
        if (!dt_runtime_is_dry(dt_mesh_runtime(p->mesh))) continue;
        DT_TRY(expect(p, s, sends ? from->dy.channel : to->x.channel));
    }
    return DT_OK;
}

static dt_status make(dt_pipeline *p, int dim)
{
    const int n_ranks = dt_mesh_dim_size(p->mesh, dim);

    DT_TRY(dti_alloc_array((size_t)n_ranks, sizeof(dt_mesh *), (void **)&p->meshes));
    for (; p->n_meshes < n_ranks; p->n_meshes++)
        DT_TRY(dt_mesh_stage(p->mesh, p->dim, p->n_meshes, &p->meshes[p->n_meshes]));
    DT_TRY(dti_alloc_array((size_t)p->n_stages, sizeof *p->stages, (void **)&p->stages));
    if (!dt_mesh_is_member(p->mesh)) return DT_OK;
    p->rank = dt_mesh_coord(p->mesh, dim);
    p->row = dt_pipeline_schedule_row(p->schedule, p->rank, &p->n_actions);
    for (int s = 0; s < p->n_stages; s++)
        if (dt_pipeline_schedule_rank_of(p->schedule, s) == p->rank)
            DT_TRY(dti_alloc_array((size_t)p->n_microbatches, sizeof(live),
                                   (void **)&p->stages[s].live));
    DT_TRY(dti_alloc_array((size_t)p->n_actions, sizeof(dt_tape *), (void **)&p->idle));
    DT_TRY(dti_alloc_array((size_t)p->n_actions, sizeof(dt_parcel *), (void **)&p->sent));
    return open_channels(p);
}

dt_status dt_pipeline_create(dt_mesh *mesh, const char *dim, dt_pipeline_schedule *schedule,
                             dt_optimizer *optimizer, const dt_pipeline_options *options,
                             dt_pipeline **out)
{
    dt_pipeline_options o = DT_PIPELINE_OPTIONS_INIT;
    dt_pipeline *p;
    dt_status st;
    int d;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && dim != NULL && schedule != NULL && optimizer != NULL, DT_ERR_ARG,
             "mesh, dim, schedule or optimizer is NULL");
    DT_TRY(dti_options_read("dt_pipeline_options", "start from DT_PIPELINE_OPTIONS_INIT", options,
                            &o, sizeof o));
    DT_CHECK(o.forward != NULL, DT_ERR_ARG, "options.forward is NULL: it computes the stages");
    DT_CHECK(o.input != NULL || !dt_runtime_is_dry(dt_mesh_runtime(mesh)), DT_ERR_ARG,
             "options.input is NULL: on a dry mesh nothing says what comes to a stage");
    DT_CHECK(dt_mesh_runtime(mesh) == dt_mesh_runtime(optimizer->mesh), DT_ERR_ARG,
             "the mesh is of another run than the optimizer's layers");
    DT_CHECK(dt_mesh_n_ranks(mesh) == dt_mesh_n_ranks(optimizer->mesh), DT_ERR_ARG,
             "the mesh has %d rank%s, that of the optimizer's layers has %d", dt_mesh_n_ranks(mesh),
             dt_mesh_n_ranks(mesh) == 1 ? "" : "s", dt_mesh_n_ranks(optimizer->mesh));
    d = dt_mesh_find_dim(mesh, dim);
    DT_CHECK(d >= 0, DT_ERR_ARG, "the mesh has no dim \"%s\"", dim);
    DT_CHECK(dt_pipeline_schedule_ranks(schedule) == dt_mesh_dim_size(mesh, d), DT_ERR_ARG,
             "schedule \"%s\" is for %d ranks, mesh dim \"%s\" has %d",
             dt_pipeline_schedule_name(schedule), dt_pipeline_schedule_ranks(schedule), dim,
             dt_mesh_dim_size(mesh, d));
    DT_TRY(dti_new(sizeof *p, &p));
    p->mesh = dt_mesh_retain(mesh);
    p->dim = dt_mesh_dim_name(mesh, d);
    p->schedule = dt_pipeline_schedule_retain(schedule);
    p->optimizer = optimizer;
    p->options = o;
    p->n_stages = dt_pipeline_schedule_stages(schedule);
    p->n_microbatches = dt_pipeline_schedule_microbatches(schedule);
    st = make(p, d);
    if (st == DT_OK)
        *out = p;
    else
        dt_pipeline_release(&p);
    return dti_runtime_alone(dt_mesh_runtime(mesh), st);
}

static void end_live(dt_pipeline *p, live *l)
{
    if (l->tape != NULL) {
        dt_tape_reset(l->tape);
        p->idle[p->n_idle++] = l->tape;
    }
    dt_tensor_release(&l->x);
    dt_tensor_release(&l->dy);
    dt_tensor_release(&l->out);
    *l = (live){ 0 };
}

/* What a run has left, also one that has failed. */
static void tidy(dt_pipeline *p)
{
    for (int i = 0; i < p->n_sent; i++) dt_parcel_release(&p->sent[i]);
    p->n_sent = 0;
    for (int s = 0; s < p->n_stages; s++) {
        dt_parcel_release(&p->stages[s].x.next);
        dt_parcel_release(&p->stages[s].dy.next);
        for (int m = 0; m < p->n_microbatches && p->stages[s].live != NULL; m++)
            end_live(p, &p->stages[s].live[m]);
    }
    p->n_live = p->n_postponed = 0;
    p->kept_bytes = 0;
}

void dt_pipeline_release(dt_pipeline **pipeline)
{
    dt_pipeline *p = pipeline != NULL ? *pipeline : NULL;

    if (p == NULL) return;
    *pipeline = NULL;
    if (p->stages != NULL) tidy(p);
    for (int s = 0; s < p->n_stages && p->stages != NULL; s++) {
        dt_channel_release(&p->stages[s].x.channel);
        dt_channel_release(&p->stages[s].x_to);
        dt_channel_release(&p->stages[s].dy.channel);
        dt_channel_release(&p->stages[s].dy_to);
        dti_free(p->stages[s].live);
    }
    for (int i = 0; i < p->n_idle; i++) dt_tape_release(&p->idle[i]);
    for (int i = 0; i < p->n_meshes; i++) dt_mesh_release(&p->meshes[i]);
    dti_free((void *)p->idle);
    dti_free((void *)p->sent);
    dti_free((void *)p->meshes);
    dti_free(p->stages);
    dt_pipeline_schedule_release(&p->schedule);
    dt_mesh_release(&p->mesh);
    dti_free(p);
}

/* --- messages --------------------------------------------------------------------------------- */

static dt_status ask(source *from)
{
    if (from->channel != NULL) DT_TRY(dt_channel_recv(from->channel, NULL, &from->next));
    return DT_OK;
}

static dt_status ask_for_first(dt_pipeline *p)
{
    for (int s = 0; s < p->n_stages; s++) {
        DT_TRY(ask(&p->stages[s].x));
        DT_TRY(ask(&p->stages[s].dy));
    }
    return DT_OK;
}

/* The cell that makes what an action waits for, before the message of an error. */
static void say_awaited(const dt_pipeline *p, const dt_action *a)
{
    const bool is_f = a->kind == DT_ACTION_F;
    const int maker = is_f ? a->stage - 1 : a->stage + 1;
    const int rank = dt_pipeline_schedule_rank_of(p->schedule, maker);
    char text[DT_ACTION_BYTES];
    int n;
    const dt_action *row = dt_pipeline_schedule_row(p->schedule, rank, &n);

    for (int i = 0; i < n; i++)
        if (row[i].stage == maker && row[i].microbatch == a->microbatch &&
            row[i].kind != DT_ACTION_W && (row[i].kind == DT_ACTION_F) == is_f)
            dti_error_prefix("waits for %s, cell %d of rank %d", dt_action_text(&row[i], text),
                             dt_pipeline_schedule_column(p->schedule, rank, i), rank);
}

/* What an action needs, from another rank or *here; the tape has it then. NULL: nothing. */
static dt_status await(dt_pipeline *p, const dt_action *a, dt_tape *t, dt_tensor **here,
                       dt_tensor **out)
{
    stage *own = &p->stages[a->stage];
    source *from = a->kind == DT_ACTION_F ? &own->x : &own->dy;
    dt_status st;

    *out = NULL;
    if (from->channel != NULL) {
        *out = dt_parcel_take(t, &from->next);
    } else if (*here != NULL) {
        *out = dti_tape_push(t, *here);
        *here = NULL;
    }
    st = dt_tape_status(t);
    if (st != DT_OK && from->channel != NULL) say_awaited(p, a);
    DT_TRY(st);
    return a->microbatch + 1 < p->n_microbatches ? ask(from) : DT_OK;
}

/* Hands x on to another rank, or to *here. */
static dt_status hand_on(dt_pipeline *p, dt_channel *channel, dt_tensor *x, dt_tensor **here)
{
    if (channel == NULL) {
        *here = dt_tensor_retain(x);
        return DT_OK;
    }
    DT_TRY(dt_channel_send(channel, x, &p->sent[p->n_sent]));
    p->n_sent++;
    return DT_OK;
}

static dt_status await_sent(dt_pipeline *p)
{
    while (p->n_sent > 0) {
        DT_TRY(dt_parcel_wait(&p->sent[p->n_sent - 1], NULL));
        p->n_sent--;
    }
    return DT_OK;
}

/* --- actions ---------------------------------------------------------------------------------- */

static dt_status take_tape(dt_pipeline *p, live *l)
{
    if (p->n_idle > 0)
        l->tape = p->idle[--p->n_idle];
    else
        DT_TRY(dt_tape_create(dt_mesh_runtime(p->mesh), &l->tape));
    p->result.live = (int)dti_max(p->result.live, ++p->n_live);
    return DT_OK;
}

/* What the records of all microbatches keep now, of which this one's has changed. */
static void measure(dt_pipeline *p, live *l)
{
    const int64_t bytes = l->tape != NULL ? dt_tape_kept_bytes(l->tape) : 0;

    p->kept_bytes += bytes - l->kept_bytes;
    l->kept_bytes = bytes;
    p->result.kept_bytes = dti_max(p->result.kept_bytes, p->kept_bytes);
}

static dt_status forward(dt_pipeline *p, const dt_action *a, live *l)
{
    const bool ends = a->stage == p->n_stages - 1;
    stage *own = &p->stages[a->stage];
    dt_tensor *x, *y;

    DT_TRY(take_tape(p, l));
    dt_tape_record(l->tape, dt_optimizer_gradients(p->optimizer));
    DT_TRY(await(p, a, l->tape, &l->x, &x));
    if (x != NULL) l->in = dt_tape_input(l->tape, x);
    dt_scope_begin(l->tape, "stage"); /* what is not kept goes with it, not with the tape */
    y = p->options.forward(p->options.arg, l->tape, a->stage, a->microbatch, l->in);
    y = dt_scope_end(l->tape, y);
    DT_TRY(dt_tape_status(l->tape));
    DT_CHECK(y != NULL, DT_ERR_ARG, "the stage returned NULL and no error");
    l->out = dt_tensor_retain(y);
    dti_count_since(l->tape, &l->counted, &p->result.forward);
    if (!ends)
        DT_TRY(hand_on(p, own->x_to, y,
                       own->x_to == NULL ? &p->stages[a->stage + 1].live[a->microbatch].x : NULL));
    return DT_OK;
}

/* No other pass of the step adds to the gradients of the stage. */
static bool is_last(const dt_pipeline *p, const dt_action *a)
{
    return a->microbatch == p->n_microbatches - 1;
}

/* The whole of a backward pass, or as much as the stage before waits for. */
static dt_status backward(dt_pipeline *p, const dt_action *a, live *l)
{
    stage *own = &p->stages[a->stage];
    dt_backward_options options = { .half = a->kind == DT_ACTION_I ? DT_BACKWARD_INPUTS
                                                                   : DT_BACKWARD_WHOLE };
    dt_tensor *dx;

    DT_TRY(await(p, a, l->tape, &l->dy, &options.seed));
    dt_optimizer_backward(p->optimizer, l->tape, l->out, is_last(p, a), &options);
    DT_TRY(dt_tape_status(l->tape));
    if (a->stage == 0) return DT_OK;
    dx = dt_tape_input_gradient(l->tape, l->in);
    DT_TRY(dt_tape_status(l->tape));
    DT_CHECK(dx != NULL, DT_ERR_ARG, "the stage's result does not depend on its input");
    DT_TRY(hand_on(p, own->dy_to, dx,
                   own->dy_to == NULL ? &p->stages[a->stage - 1].live[a->microbatch].dy : NULL));
    return DT_OK;
}

/* The loss of the last stage is read when all is done. */
static void end_microbatch(dt_pipeline *p, const dt_action *a, live *l)
{
    dt_tensor *loss = a->stage == p->n_stages - 1 ? dt_tensor_retain(l->out) : NULL;

    dti_count_since(l->tape, &l->counted, &p->result.backward);
    p->kept_bytes -= l->kept_bytes;
    end_live(p, l);
    l->out = loss;
    p->n_live--;
}

/* The rest of it. */
static dt_status backward_weights(dt_pipeline *p, const dt_action *a, live *l)
{
    const dt_backward_options options = { .half = DT_BACKWARD_WEIGHTS };

    dt_optimizer_backward(p->optimizer, l->tape, NULL, is_last(p, a), &options);
    DT_TRY(dt_tape_status(l->tape));
    p->n_postponed--;
    return DT_OK;
}

static dt_status act(dt_pipeline *p, const dt_action *a)
{
    live *l = &p->stages[a->stage].live[a->microbatch];

    if (a->kind == DT_ACTION_F) {
        DT_TRY(forward(p, a, l));
        measure(p, l);
        return DT_OK;
    }
    if (a->kind == DT_ACTION_W) {
        DT_TRY(backward_weights(p, a, l));
    } else {
        DT_TRY(backward(p, a, l));
    }
    if (a->kind != DT_ACTION_I) {
        end_microbatch(p, a, l);
        return DT_OK;
    }
    p->result.postponed = (int)dti_max(p->result.postponed, ++p->n_postponed);
    measure(p, l);
    return DT_OK;
}

static const char *const spans[] = { "forward", "backward", "backward of inputs",
                                     "backward of weights" };

static dt_status run_row(dt_pipeline *p)
{
    dt_runtime *rt = dt_mesh_runtime(p->mesh);
    char text[DT_ACTION_BYTES], cell[DT_ACTION_BYTES + 32];
    dt_status st = ask_for_first(p);

    if (st != DT_OK) dti_error_prefix("rank %d of the pipeline, before its first cell", p->rank);
    DT_TRY(st);
    for (int i = 0; i < p->n_actions; i++) {
        const dt_action *a = &p->row[i];
        (void)snprintf(cell, sizeof cell, "cell %d, %s",
                       dt_pipeline_schedule_column(p->schedule, p->rank, i),
                       dt_action_text(a, text));
        dti_runtime_doing(rt, cell);
        if (p->options.told != NULL) p->options.told(p->options.arg, a, false);
        dt_timeline_begin(rt, spans[a->kind]);
        st = act(p, a);
        dt_timeline_end(rt);
        if (st != DT_OK) dti_error_prefix("rank %d of the pipeline, %s", p->rank, cell);
        DT_TRY(st);
        if (p->options.told != NULL) p->options.told(p->options.arg, a, true);
    }
    dti_runtime_doing(rt, "");
    st = await_sent(p);
    if (st != DT_OK) dti_error_prefix("rank %d of the pipeline, behind its last cell", p->rank);
    return st;
}

/* --- the loss --------------------------------------------------------------------------------- */

static dt_status add_losses(dt_pipeline *p, double *loss)
{
    const stage *last = &p->stages[p->n_stages - 1];

    if (dt_runtime_is_dry(dt_mesh_runtime(p->mesh))) return DT_OK;
    for (int m = 0; m < p->n_microbatches && last->live != NULL; m++) {
        dt_tensor *x = last->live[m].out, *whole;
        float value;
        dt_status st;
        DT_CHECK(dt_tensor_dtype(x) == DT_F32, DT_ERR_ARG, "the loss is %s, not f32",
                 dt_dtype_name(dt_tensor_dtype(x)));
        DT_TRY(dt_full_tensor(x, &whole)); /* ranks may have parts of the sum */
        st = dt_tensor_read(whole, &value, sizeof value);
        dt_tensor_release(&whole);
        DT_TRY(st);
        *loss += (double)value;
    }
    return DT_OK;
}

/* From the first rank of the last stage to all. */
static dt_status tell_loss(dt_pipeline *p)
{
    const dt_mesh *last = p->meshes[dt_pipeline_schedule_rank_of(p->schedule, p->n_stages - 1)];
    double loss = 0;
    dt_collective call = { .op = DT_CALL_BROADCAST, .dtype = DT_F64, .count = 1, .on_host = true };
    int root = 0;

    DT_TRY(add_losses(p, &loss));
    while (dt_mesh_rank_at(p->mesh, root) != dt_mesh_rank_at(last, 0)) root++;
    call.peer = root;
    call.recv = &loss;
    DT_TRY(dt_collective_run(p->mesh, NULL, &call));
    p->result.loss = loss;
    return DT_OK;
}

dt_status dt_pipeline_run(dt_pipeline *p, dt_pipeline_result *result)
{
    dt_runtime *rt;
    dt_status st;

    DT_CHECK(p != NULL, DT_ERR_ARG, "pipeline is NULL");
    rt = dt_mesh_runtime(p->mesh);
    p->result = (dt_pipeline_result){ 0 };
    if (!dt_mesh_is_member(p->mesh)) return DT_OK;
    st = run_row(p);
    if (st == DT_OK) st = tell_loss(p);
    tidy(p);
    if (result != NULL) *result = p->result;
    if (st != DT_OK) dti_runtime_abort(rt); /* other stages do not find it, and would wait */
    return st;
}
