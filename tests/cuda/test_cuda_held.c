/* SPDX-License-Identifier: Apache-2.0
 *
 * A call that is held back: whatever asks for its result, changes its operands or ends its tape
 * finds it made, and who hears of its failure hears its name. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <string.h>

#include "dtensor/ops/fusion.h"
#include "dtensor/tensor_internal.h"
#include "mesh/gpu.h"
#include "tests/support/cuda.h"

enum { N = 700 };

/* x = 0, 1, 2, ... and a sum x + x that is held. */
typedef struct sums {
    const dti_cuda_place *gpu;
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *x, *sum;
    int64_t n_before;
} sums;

static const int64_t length[] = { N };

static void end_sums(sums *s)
{
    dt_tensor_release(&s->sum);
    dt_tensor_release(&s->x);
    dt_tape_release(&s->tape);
}

/* Makes another sum, which is the caller's, and sees that it waits. */
static dt_status hold_sum(sums *s)
{
    dt_tensor_release(&s->sum);
    dt_tape_reset(s->tape);
    DT_TRY(dt_fill_arange(s->x, (dt_steps){ 0, 1 }));
    s->n_before = s->gpu->module->launches(s->gpu->cuda);
    s->sum = dt_tensor_retain(dt_add(s->tape, s->x, s->x));
    DT_TRY(dt_tape_status(s->tape));
    DT_EXPECT(s->gpu->module->launches(s->gpu->cuda) == s->n_before, "the sum is not held");
    return DT_OK;
}

static dt_status expect_values(dt_tensor *x, float factor, const char *what)
{
    static _Thread_local float got[N];
    dt_tensor *full = NULL;
    dt_status st;

    DT_TRY(dt_full_tensor(x, &full));
    st = dt_tensor_read(full, got, sizeof got);
    dt_tensor_release(&full);
    for (int i = 0; st == DT_OK && i < N; i++)
        DT_EXPECT(got[i] == factor * (float)i, "%s: element %d is %g, not %g", what, i,
                  (double)got[i], (double)(factor * (float)i));
    return st;
}

static dt_status read_it(sums *s)
{
    return expect_values(s->sum, 2, "read");
}

/* An operand is changed behind the call: the sum is of what was there. */
static dt_status fill_operand(sums *s)
{
    DT_TRY(dt_fill(s->x, 7));
    return expect_values(s->sum, 2, "an operand filled");
}

static dt_status write_operand(sums *s)
{
    static const float zeros[N];

    DT_TRY(dt_tensor_write(s->x, zeros, dti_tensor_bytes(s->x)));
    return expect_values(s->sum, 2, "an operand written");
}

static dt_status copy_from_it(sums *s)
{
    DT_TRY(dti_tensor_copy_bytes(s->x, 0, s->sum, 0, (int64_t)dti_tensor_bytes(s->x)));
    return expect_values(s->x, 2, "copied");
}

static dt_status cast_it(sums *s)
{
    dt_tensor *y = NULL;
    dt_status st = dti_tensor_cast(s->sum, DT_F32, &y);

    if (st == DT_OK) st = expect_values(y, 2, "cast");
    dt_tensor_release(&y);
    return st;
}

static dt_status gather_it(sums *s)
{
    const dt_placement whole = DT_REPLICATE;
    dt_tensor *y = dt_move(s->tape, s->sum, &whole);

    DT_TRY(dt_tape_status(s->tape));
    return expect_values(y, 2, "moved");
}

static dt_status reset_tape(sums *s)
{
    dt_tape_reset(s->tape);
    DT_EXPECT(s->gpu->module->launches(s->gpu->cuda) == s->n_before + 1, "a reset starts it");
    return expect_values(s->sum, 2, "reset");
}

static dt_status other_tape(sums *s)
{
    dt_tape *other;
    dt_tensor *y;
    dt_status st;

    DT_TRY(dt_tape_create(dt_mesh_runtime(s->mesh), &other));
    y = dt_mul_scalar(other, s->sum, 2.0);
    st = y != NULL ? expect_values(y, 4, "another tape") : dt_tape_status(other);
    dt_tape_release(&other);
    return st;
}

/* In memory of a GPU or of the host: twice the operand. */
static dt_status own_on_gpu(const dt_kargs *args)
{
    const dti_cuda_place *gpu = *(const dti_cuda_place *const *)args->attr;
    const size_t bytes = (size_t)args->in[0].shape[0] * sizeof(float);

    DT_EXPECT(gpu->module->copy(gpu->cuda, args->out[0].data, args->in[0].data, bytes,
                                DTI_CUDA_WITHIN) == 0,
              "%s", gpu->module->why());
    return DT_OK;
}

static dt_status own_on_host(const dt_kargs *args)
{
    memcpy(args->out[0].data, args->in[0].data, (size_t)args->in[0].shape[0] * sizeof(float));
    return DT_OK;
}

static const dt_op on_device = { .name = "on_device",
                                 .axes = "... -> ...",
                                 .types = "f>f",
                                 .cpu = own_on_host,
                                 .cuda = own_on_gpu,
                                 .attr_bytes = sizeof(void *) };
static const dt_op on_host = {
    .name = "on_host", .axes = "... -> ...", .types = "f>f", .cpu = own_on_host
};

static dt_status own_rows(sums *s)
{
    dt_tensor *y = dt_apply(s->tape, &on_device, &s->gpu, 1, &s->sum);

    DT_TRY(dt_tape_status(s->tape));
    DT_TRY(expect_values(y, 2, "a row of one's own"));
    DT_TRY(hold_sum(s));
    y = dt_apply(s->tape, &on_host, NULL, 1, &s->sum);
    DT_TRY(dt_tape_status(s->tape));
    return expect_values(y, 2, "a row of the host");
}

static dt_status between(dt_mesh *mesh, const void *arg)
{
    static dt_status (*const all[])(sums *) = { read_it,      fill_operand, write_operand,
                                                copy_from_it, cast_it,      gather_it,
                                                reset_tape,   other_tape,   own_rows };
    const dt_placement place[] = { dt_mesh_n_ranks(mesh) > 1 ? DT_SHARD(0) : DT_REPLICATE };
    DT_ENDS(end_sums) sums s = { .gpu = dti_runtime_gpu(dt_mesh_runtime(mesh)), .mesh = mesh };

    (void)arg;
    DT_TRY(dt_empty(mesh, place, DT_F32, 1, length, &s.x));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &s.tape));
    for (size_t i = 0; i < DT_COUNT(all); i++) {
        if (place[0].kind == DT_PLACE_SHARD && (all[i] == write_operand)) continue; /* of a piece */
        DT_TRY(hold_sum(&s));
        DT_TRY(all[i](&s));
    }
    return DT_OK;
}

DT_TEST(cuda_held, what_comes_between_finds_results_made)
{
    dt_test_on_gpus("tp=1", between, NULL);
    dt_test_on_gpus("tp=2", between, NULL);
}

/* What was called before a recording is no part of it, what is called within is. */
static dt_status record(dt_mesh *mesh, const void *arg)
{
    const dti_cuda_place *gpu = dti_runtime_gpu(dt_mesh_runtime(mesh));
    const dt_placement whole = DT_REPLICATE;
    sums s = { .gpu = gpu, .mesh = mesh };
    dt_tensor *twice = NULL;
    void *recording = NULL;
    dt_status st = DT_OK;
    dti_device *d;
    dti_comm *comm;

    (void)arg;
    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &d));
    DT_TRY(dti_mesh_comm(mesh, 1u, &comm));
    DT_TRY(dt_empty(mesh, &whole, DT_F32, 1, length, &s.x));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &s.tape));
    DT_TRY_TO(done, st, hold_sum(&s));
    twice = dt_tensor_retain(dt_add(s.tape, s.x, s.x)); /* memory for the one that is recorded */
    dt_tensor_release(&twice);
    DT_TRY_TO(done, st, hold_sum(&s));
    DT_TRY_TO(done, st, d->ops->record_begin(d));
    DT_EXPECT_TO(done, st, gpu->module->launches(gpu->cuda) == s.n_before + 1, "started before");
    twice = dt_tensor_retain(dt_add(s.tape, s.sum, s.sum));
    DT_TRY_TO(done, st, d->ops->record_end(d, &recording));
    DT_TRY_TO(done, st, dt_tape_status(s.tape));
    DT_EXPECT_TO(done, st, gpu->module->launches(gpu->cuda) == s.n_before + 2, "recorded");
    DT_TRY_TO(done, st, dt_fill(twice, 0));
    DT_TRY_TO(done, st, d->ops->play(d, comm, recording));
    st = expect_values(twice, 4, "played");
done:
    if (recording != NULL) d->ops->forget(d, recording);
    dt_tensor_release(&twice);
    end_sums(&s);
    return st;
}

DT_TEST(cuda_held, recordings_hold_what_was_called_within)
{
    dt_test_on_gpus("tp=1", record, NULL);
}

/* Kernels are fused, what is noted is rows: s = 2 x and its norm are one kernel, the gradient of
 * the sum of s s with respect to x is 4 s. */
static dt_status record_rows(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    sums s = { .gpu = dti_runtime_gpu(dt_mesh_runtime(mesh)), .mesh = mesh };
    dt_gradients *g = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY(dt_arange(mesh, &whole, DT_F32, 1, length, (dt_steps){ 0, 1 }, &s.x));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &s.tape));
    DT_TRY_TO(done, st, dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY_TO(done, st, dt_gradients_watch(g, s.x));
    dt_tape_record(s.tape, g);
    s.n_before = s.gpu->module->launches(s.gpu->cuda);
    s.sum = dt_tensor_retain(dt_add(s.tape, s.x, s.x));
    (void)dt_rms_norm(s.tape, s.sum, s.x, 1e-5f);
    DT_EXPECT_TO(done, st, s.gpu->module->launches(s.gpu->cuda) == s.n_before + 1, "one kernel");
    dt_backward(s.tape, dt_sum(s.tape, dt_mul(s.tape, s.sum, s.sum), DT_ALL_AXES), NULL);
    DT_TRY_TO(done, st, dt_tape_status(s.tape));
    DT_TRY_TO(done, st, dt_gradients_settle(g, s.tape));
    st = expect_values(dt_gradient(g, s.x), 8, "a gradient");
done:
    end_sums(&s);
    dt_gradients_release(&g);
    return st;
}

DT_TEST(cuda_held, a_tape_that_records_notes_single_rows)
{
    dt_test_on_gpus("tp=1", record_rows, NULL);
}

/* The simulated device refuses memory of the host when a kernel is started. *arg: whether the tape
 * is reset before anybody hears of it. */
static dt_status fail(dt_mesh *mesh, const void *arg)
{
    static float host[N];
    const dt_placement whole = DT_REPLICATE;
    DT_ENDS(end_sums) sums s = { .gpu = dti_runtime_gpu(dt_mesh_runtime(mesh)), .mesh = mesh };
    dt_status read;
    void *data;

    if (strcmp(s.gpu->module->name, "simulated") != 0) return DT_OK;
    DT_TRY(dt_empty(mesh, &whole, DT_F32, 1, length, &s.x));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &s.tape));
    DT_TRY(hold_sum(&s));
    data = s.x->local.data;
    s.x->local.data = host;
    if (*(const bool *)arg) dt_tape_reset(s.tape); /* cannot fail */
    read = dt_tensor_read(s.sum, host, sizeof host);
    s.x->local.data = data;
    DT_EXPECT(read == DT_ERR_DEVICE && strstr(dt_last_error()->message,
                                              "earlier work, add, could not be started: ") != NULL,
              "%s", dt_last_error()->message);
    return DT_OK;
}

DT_TEST(cuda_held, failures_name_the_row)
{
    dt_test_on_gpus("tp=1", fail, &(bool){ false });
}

DT_TEST(cuda_held, failures_that_nobody_could_hear_are_told_later)
{
    dt_test_on_gpus("tp=1", fail, &(bool){ true });
}

/* Calls of a tape that outlives the run are dropped with the device. */
static dt_status leave(dt_runtime *rt, void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(tensor) *x = NULL;
    dt_tape **t = arg;

    DT_TRY(dt_mesh_create(rt, "tp=1", &mesh));
    DT_TRY(dt_ones(mesh, &whole, DT_F32, 1, length, &x));
    DT_TRY(dt_tape_create(rt, t));
    (void)dt_add(*t, x, x);
    return dt_tape_status(*t);
}

DT_TEST(cuda_held, a_run_may_end_with_calls_held)
{
    dt_run_options options = dt_test_cuda_options();
    DT_HELD(tape) *t = NULL;

    DT_ASSERT_OK(dt_run(&options, leave, &t));
}
