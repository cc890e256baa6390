/* SPDX-License-Identifier: Apache-2.0
 *
 * Two operators of one's own. The first has two results: the RMS norm of rows, and the scale that
 * each row was multiplied by. Its letters say all that is said about ranks; the kernel sees local
 * pieces only, shares them out to the rank's threads and sums in scratch memory. On two ranks, with
 * the rows cut over them, it has to give what it gives on one, and what the library's norm gives.
 *
 * The second repeats each element. Letters cannot say how long its result is, nor that a cut of the
 * one is a cut of the other: it brings a function for the extents and a list of placements. */
#include <dtensor.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 5, WIDTH = 6 };

static const float eps = 1e-5f;

/* x [rows, d], w [d] -> y [rows, d], scale [rows]; sums [rows] of squares are scratch. */
typedef struct norm_job {
    const float *x, *w;
    float *y, *scale;
    double *sums;
    int64_t rows, d;
} norm_job;

/* The rows of one thread. */
static void norm_rows(void *arg, int worker, int n_workers)
{
    const norm_job *j = arg;
    int64_t begin, end;

    dt_kernel_share(j->rows, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *x = j->x + r * j->d;
        j->sums[r] = 0;
        for (int64_t i = 0; i < j->d; i++) j->sums[r] += (double)x[i] * (double)x[i];
        j->scale[r] = (float)(1.0 / sqrt(j->sums[r] / (double)j->d + (double)eps));
        for (int64_t i = 0; i < j->d; i++) j->y[r * j->d + i] = j->w[i] * (x[i] * j->scale[r]);
    }
}

/* Shapes, dtypes and placements were checked by the row below. */
static dt_status norm_kernel(const dt_kargs *args)
{
    const dt_local *x = &args->in[0];
    norm_job j = { .x = x->data,
                   .w = args->in[1].data,
                   .y = args->out[0].data,
                   .scale = args->out[1].data,
                   .rows = x->shape[0],
                   .d = x->shape[1] };
    void *scratch;

    DT_TRY(dt_kernel_scratch(args, (size_t)j.rows * sizeof *j.sums, &scratch));
    j.sums = scratch;
    dt_kernel_run(args, j.rows * j.d * (int64_t)sizeof *j.x, norm_rows, &j);
    return DT_OK;
}

/* d must be whole on every rank; a cut of r reaches both results. */
static const dt_op norm_and_scale = {
    .name = "norm_and_scale",
    .axes = "r[d], [d] -> r[d], r",
    .types = "ff>ff",
    .cpu = norm_kernel,
    .cost = "4 rd",
};

/* x [n] -> [times n] */
typedef struct repeat_attr {
    int64_t times;
} repeat_attr;

static dt_status repeat_extents(dt_op_shapes *call)
{
    const repeat_attr *attr = call->attr;

    DT_CHECK(attr->times >= 1, DT_ERR_ARG, "repeat: %d times", (int)attr->times);
    call->out[0].extent[0] = attr->times * call->in[0].extent[0];
    return DT_OK;
}

static dt_status repeat_kernel(const dt_kargs *args)
{
    const int64_t times = ((const repeat_attr *)args->attr)->times;
    const float *x = args->in[0].data;
    float *y = args->out[0].data;

    for (int64_t i = 0; i < args->out[0].shape[0]; i++) y[i] = x[i / times];
    return DT_OK;
}

static const char *const repeat_accepts[] = { "S(0) -> S(0)", NULL };

static const dt_op repeat = {
    .name = "repeat",
    .axes = "n -> m", /* no operand has m */
    .types = "f>f",
    .extents = repeat_extents,
    .accepts = repeat_accepts,
    .cpu = repeat_kernel,
    .attr_bytes = sizeof(repeat_attr),
    .cost = "0",
};

/* Runs the operator with x lying as `place`, and gathers both results. */
static dt_status run(dt_mesh *mesh, dt_placement place, float y[ROWS * WIDTH], float scale[ROWS])
{
    const dt_placement whole = DT_REPLICATE;
    const int64_t shape[] = { ROWS, WIDTH };
    dt_tensor *in[2] = { NULL, NULL }, *out[2], *full[2] = { NULL, NULL };
    dt_tape *tape = NULL;
    dt_status st;

    DT_TRY_TO(done, st, dt_arange(mesh, &place, DT_F32, 2, shape, (dt_steps){ -7, 0.5 }, &in[0]));
    DT_TRY_TO(done, st, dt_arange(mesh, &whole, DT_F32, 1, shape + 1, (dt_steps){ 1, 1 }, &in[1]));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &tape));
    dt_apply_n(tape, &norm_and_scale, NULL, 2, in, 2, out);
    DT_TRY_TO(done, st, dt_tape_status(tape));
    for (int i = 0; i < 2; i++) DT_TRY_TO(done, st, dt_full_tensor(out[i], &full[i]));
    memcpy(y, dt_tensor_local(full[0])->data, ROWS * WIDTH * sizeof *y);
    memcpy(scale, dt_tensor_local(full[1])->data, ROWS * sizeof *scale);

    dt_tensor_release(&full[0]);
    DT_TRY_TO(done, st, dt_full_tensor(dt_rms_norm(tape, in[0], in[1], eps), &full[0]));
    for (int i = 0; i < ROWS * WIDTH; i++)
        DT_CHECK_TO(done, st,
                    fabsf(y[i] - ((float *)dt_tensor_local(full[0])->data)[i]) <=
                        1e-5f * fabsf(y[i]),
                    DT_ERR_INTERNAL, "element %d differs from dt_rms_norm()", i);
done:
    for (int i = 0; i < 2; i++) dt_tensor_release(&full[i]);
    dt_tape_release(&tape);
    for (int i = 0; i < 2; i++) dt_tensor_release(&in[i]);
    return st;
}

/* Each of 0 to 7 three times; a cut of the operand is a cut of the result, and costs no move. */
static dt_status run_repeat(dt_mesh *mesh)
{
    const dt_placement cut = DT_SHARD(0);
    const int64_t n[] = { 8 };
    dt_tensor *x = NULL, *y, *full = NULL;
    dt_tape *tape = NULL;
    dt_status st;

    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &tape));
    DT_TRY_TO(done, st, dt_arange(mesh, &cut, DT_F32, 1, n, (dt_steps){ 0, 1 }, &x));
    y = dt_apply(tape, &repeat, &(repeat_attr){ 3 }, 1, &x);
    DT_TRY_TO(done, st, dt_tape_status(tape));
    DT_TRY_TO(done, st, dt_full_tensor(y, &full));
    DT_CHECK_TO(done, st, dt_tensor_extent(full, 0) == 24, DT_ERR_INTERNAL, "24 elements");
    for (int i = 0; i < 24; i++)
        DT_CHECK_TO(done, st, ((float *)dt_tensor_local(full)->data)[i] == (float)(i / 3),
                    DT_ERR_INTERNAL, "element %d", i);
done:
    dt_tensor_release(&full);
    dt_tensor_release(&x);
    dt_tape_release(&tape);
    return st;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    float cut[ROWS * WIDTH], whole[ROWS * WIDTH], cut_scale[ROWS], whole_scale[ROWS];
    dt_mesh *mesh = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY(dt_mesh_create(rt, "dp=2", &mesh));
    DT_TRY_TO(done, st, run(mesh, DT_SHARD(0), cut, cut_scale));
    DT_TRY_TO(done, st, run(mesh, DT_REPLICATE, whole, whole_scale));
    DT_CHECK_TO(done, st,
                memcmp(cut, whole, sizeof cut) == 0 &&
                    memcmp(cut_scale, whole_scale, sizeof cut_scale) == 0,
                DT_ERR_INTERNAL, "rows that are cut give other values");
    DT_TRY_TO(done, st, run_repeat(mesh));
    if (dt_runtime_rank(rt) == 0)
        printf("norm_and_scale: both results are the same with rows cut over 2 ranks\n");
done:
    dt_mesh_release(&mesh);
    return st;
}

int main(void)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;

    options.n_ranks = 2;
    if (dt_run(&options, rank_main, NULL) == DT_OK) return 0;
    fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
