/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/lane.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "dtensor/ops/op_rules.h"
#include "mesh/runtime.h"

/* How often a rank that waits for its lane looks after what peers want of itself. */
enum { LOOK_NS = 1000 * 1000 };

typedef enum step_kind { STEP_COMM, STEP_COPY, STEP_BOX, STEP_DIVIDE, STEP_CAST } step_kind;

typedef struct job_step {
    struct job_step *next;
    step_kind kind;
    void *to;
    const void *from;
    size_t bytes; /* COPY: of all; BOX: of an element */
    dti_box to_box, from_box;
    dt_local in, out; /* CAST; DIVIDE: out */
    int64_t divisor;
    dti_comm *comm; /* COMM: the rank's, whose ranks are meant */
    int64_t timeout_ms;
    dti_comm_call call;
} job_step;

struct dti_job {
    dti_job *next;
    dti_arena arena;
    job_step *first, **end;
    bool done; /* this and what follows under the lane's lock */
    dt_status status;
    dt_error error;
};

/* The lane's communicator for one of the rank's. */
typedef struct lane_comm {
    const dti_comm *of;
    dti_comm *comm;
} lane_comm;

struct dti_lane {
    dt_runtime *rt;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    dti_job *first, **end; /* not yet done */
    bool closing;

    /* The thread's own. */
    dti_device device; /* its kernels, without other threads */
    dti_comm *world;
    lane_comm *comms;
    size_t n_comms, comms_capacity;
    dt_status status; /* of the first job that failed: those after it do, too */
    dt_error error;
};

/* --- writing down ----------------------------------------------------------------------------- */

dt_status dti_job_create(dti_job **out)
{
    DT_TRY(dti_new(sizeof **out, out));
    (*out)->end = &(*out)->first;
    return DT_OK;
}

void dti_job_free(dti_job **job)
{
    if (*job == NULL) return;
    dti_arena_free(&(*job)->arena);
    dti_free(*job);
    *job = NULL;
}

static dt_status add_step(dti_device *d, step_kind kind, job_step **out)
{
    dti_job *j = d->job;

    DT_TRY(dti_arena_alloc(&j->arena, sizeof **out, (void **)out));
    (*out)->kind = kind;
    *j->end = *out;
    j->end = &(*out)->next;
    return DT_OK;
}

/* A copy of the caller's array that the job keeps; NULL stays NULL. */
static const void *keep(dti_job *j, const void *array, size_t n, size_t bytes, dt_status *st)
{
    void *copy = NULL;

    if (array == NULL || *st != DT_OK) return NULL;
    *st = dti_arena_alloc(&j->arena, n * bytes, &copy);
    if (*st == DT_OK) memcpy(copy, array, n * bytes);
    return copy;
}

static dt_status later_communicate(dti_device *d, dti_comm *comm, const dti_comm_call *call)
{
    const size_t n = (size_t)comm->size, each = sizeof(int64_t);
    dt_status st = DT_OK;
    dti_comm_call *c;
    job_step *s;

    DT_TRY(add_step(d, STEP_COMM, &s));
    s->comm = comm;
    s->timeout_ms = comm->timeout_ms;
    s->call = *call;
    c = &s->call;
    c->counts = keep(d->job, c->counts, c->op == DTI_COMM_ALL_REDUCE ? 1 : n, each, &st);
    c->displs = keep(d->job, c->displs, n, each, &st);
    c->send_boxes = keep(d->job, c->send_boxes, n, sizeof(dti_box), &st);
    c->recv_boxes = keep(d->job, c->recv_boxes, n, sizeof(dti_box), &st);
    c->about = keep(d->job, c->about, 1, sizeof(dti_comm_note), &st);
    DT_ASSERT(c->send_counts == NULL && (c->op == DTI_COMM_EXCHANGE || c->send_displs == NULL));
    return st;
}

static dt_status later_copy(dti_device *d, void *to, const void *from, size_t bytes)
{
    job_step *s;

    DT_TRY(add_step(d, STEP_COPY, &s));
    s->to = to;
    s->from = from;
    s->bytes = bytes;
    return DT_OK;
}

static dt_status later_copy_box(dti_device *d, void *to, const dti_box *to_box, const void *from,
                                const dti_box *from_box, size_t element_bytes)
{
    job_step *s;

    DT_TRY(add_step(d, STEP_BOX, &s));
    s->to = to;
    s->to_box = *to_box;
    s->from = from;
    s->from_box = *from_box;
    s->bytes = element_bytes;
    return DT_OK;
}

static dt_status later_divide(dti_device *d, dt_local *x, int64_t divisor)
{
    job_step *s;

    DT_TRY(add_step(d, STEP_DIVIDE, &s));
    s->out = *x;
    s->divisor = divisor;
    return DT_OK;
}

static dt_status later_run(dti_device *d, const dt_op *op, dt_kargs *args)
{
    job_step *s;

    DT_CHECK(op == &dti_op_cast, DT_ERR_INTERNAL, "%s is no part of a move", op->name);
    DT_TRY(add_step(d, STEP_CAST, &s));
    s->in = args->in[0];
    s->out = args->out[0];
    return DT_OK;
}

const dti_device_ops dti_device_later = {
    .name = "cpu",
    .host_visible = true,
    .copy = later_copy,
    .copy_box = later_copy_box,
    .divide = later_divide,
    .run = later_run,
    .communicate = later_communicate,
};

/* --- doing ------------------------------------------------------------------------------------ */

static dt_status comm_of(dti_lane *l, const dti_comm *of, dti_comm **out)
{
    *out = NULL;
    for (size_t i = 0; i < l->n_comms; i++)
        if (l->comms[i].of == of) *out = l->comms[i].comm;
    if (*out != NULL) return DT_OK;
    DT_TRY(dti_grow((void **)&l->comms, &l->comms_capacity, l->n_comms + 1, sizeof *l->comms));
    DT_TRY(dti_comm_group(l->world, of->world_ranks, of->size, of->name, out));
    l->comms[l->n_comms++] = (lane_comm){ of, *out };
    return DT_OK;
}

static dt_status communicate(dti_lane *l, const job_step *s)
{
    dti_comm *comm;

    DT_TRY(comm_of(l, s->comm, &comm));
    comm->timeout_ms = s->timeout_ms;
    DT_TRY(dti_comm_run(comm, &s->call));
    return DT_OK;
}

static dt_status cast(dti_lane *l, job_step *s)
{
    const dti_dtype_attr attr = { s->out.dtype };
    dt_kargs args = { .in = &s->in, .out = &s->out, .attr = &attr, .n_in = 1, .n_out = 1 };

    return dti_device_cpu.run(&l->device, &dti_op_cast, &args);
}

static dt_status do_step(dti_lane *l, job_step *s)
{
    switch (s->kind) {
    case STEP_COMM:
        return communicate(l, s);
    case STEP_COPY:
        return dti_device_cpu.copy(&l->device, s->to, s->from, s->bytes);
    case STEP_BOX:
        return dti_device_cpu.copy_box(&l->device, s->to, &s->to_box, s->from, &s->from_box,
                                       s->bytes);
    case STEP_DIVIDE:
        return dti_device_cpu.divide(&l->device, &s->out, s->divisor);
    default:
        return cast(l, s);
    }
}

/* A failure ends the lane, and with it the rank's part in the run. */
static void fail(dti_lane *l, dt_status st)
{
    l->status = st;
    l->error = *dt_last_error();
    if (l->world != NULL && st != DT_ERR_COMM)
        l->world->ops->abort(l->world, l->world->rank, l->error.message);
}

static void do_job(dti_lane *l, const dti_job *j)
{
    for (job_step *s = j->first; s != NULL && l->status == DT_OK; s = s->next) {
        const dt_status st = do_step(l, s);
        if (st != DT_OK) fail(l, dti_error_frame(st, __func__, __FILE__, __LINE__));
    }
}

static dt_status open_lane(dti_lane *l)
{
    dti_isa isa;

    l->device.rt = l->rt;
    l->device.ops = &dti_device_cpu;
    DT_TRY(dti_runtime_open_lane(l->rt, &l->world));
    DT_TRY(dti_isa_parse(dti_runtime_isa(l->rt), &isa));
    DT_TRY(dti_cpu_create(isa, NULL, &l->device.cpu));
    return DT_OK;
}

static void close_lane(dti_lane *l)
{
    for (size_t i = l->n_comms; i > 0; i--) dti_comm_close(l->comms[i - 1].comm);
    dti_free(l->comms);
    dti_cpu_destroy(&l->device.cpu);
    dti_comm_close(l->world);
}

static void *lane_main(void *arg)
{
    dti_lane *l = arg;
    dt_status st;

    dti_error_set_rank(dt_runtime_rank(l->rt));
    st = open_lane(l);
    if (st != DT_OK) fail(l, st);
    (void)pthread_mutex_lock(&l->lock);
    for (;;) {
        dti_job *j = l->first;
        if (j == NULL && l->closing) break;
        if (j == NULL) {
            (void)pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&l->lock);
        do_job(l, j);
        (void)pthread_mutex_lock(&l->lock);
        l->first = j->next;
        if (l->first == NULL) l->end = &l->first;
        j->status = l->status;
        if (l->status != DT_OK) j->error = l->error;
        j->done = true;
        (void)pthread_cond_signal(&l->done);
    }
    (void)pthread_mutex_unlock(&l->lock);
    close_lane(l);
    return NULL;
}

/* --- the rank's side -------------------------------------------------------------------------- */

dt_status dti_lane_of(dti_device *d, dti_lane **out)
{
    dti_lane *l = d->lane;

    *out = l;
    if (l != NULL || d->dry || !d->ops->host_visible || !dti_runtime_has_lanes(d->rt)) return DT_OK;
    DT_TRY(dti_new(sizeof *l, &l));
    l->rt = d->rt;
    l->end = &l->first;
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_cond_init(&l->work, NULL);
    (void)pthread_cond_init(&l->done, NULL);
    *out = d->lane = l;
    return DT_OK;
}

dt_status dti_lane_do(dti_lane *l, dti_job *j)
{
    if (!l->started) {
        const int error = pthread_create(&l->thread, NULL, lane_main, l);
        DT_CHECK(error == 0, DT_ERR_MEMORY, "the thread that moves for rank %d did not start (%s)",
                 dt_runtime_rank(l->rt), strerror(error));
        l->started = true;
    }
    (void)pthread_mutex_lock(&l->lock);
    *l->end = j;
    l->end = &j->next;
    (void)pthread_cond_signal(&l->work);
    (void)pthread_mutex_unlock(&l->lock);
    return DT_OK;
}

bool dti_lane_is_done(dti_lane *l, const dti_job *j)
{
    bool done;

    (void)pthread_mutex_lock(&l->lock);
    done = j->done;
    (void)pthread_mutex_unlock(&l->lock);
    return done;
}

/* j NULL: all that was handed in. */
static bool is_over(const dti_lane *l, const dti_job *j)
{
    return j != NULL ? j->done : l->first == NULL;
}

/* Until it is over or a little later. */
static bool wait_a_little(dti_lane *l, const dti_job *j)
{
    struct timespec until;
    bool done;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&l->lock);
    if (!is_over(l, j)) (void)pthread_cond_timedwait(&l->done, &l->lock, &until);
    done = is_over(l, j);
    (void)pthread_mutex_unlock(&l->lock);
    return done;
}

/* An abort ends jobs as well, with the better message. */
static void wait_for(dti_lane *l, const dti_job *j)
{
    dti_comm *world = dti_runtime_world(l->rt);
    const dti_comm_request nothing = { .call = { .op = DTI_COMM_BARRIER } };

    while (!wait_a_little(l, j)) (void)world->ops->check(world, &nothing);
}

dt_status dti_lane_await(dti_lane *l, const dti_job *j)
{
    wait_for(l, j);
    if (j->status == DT_OK) return DT_OK;
    dti_error_restore(&j->error);
    return dti_error_frame(j->status, __func__, __FILE__, __LINE__);
}

void dti_lane_drain(dti_lane *l)
{
    wait_for(l, NULL);
}

void dti_lane_close(dti_lane **lane)
{
    dti_lane *l = *lane;

    if (l == NULL) return;
    *lane = NULL;
    (void)pthread_mutex_lock(&l->lock);
    l->closing = true;
    (void)pthread_cond_signal(&l->work);
    (void)pthread_mutex_unlock(&l->lock);
    if (l->started) (void)pthread_join(l->thread, NULL);
    (void)pthread_mutex_destroy(&l->lock);
    (void)pthread_cond_destroy(&l->work);
    (void)pthread_cond_destroy(&l->done);
    dti_free(l);
}
