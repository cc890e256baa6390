/* SPDX-License-Identifier: Apache-2.0
 *
 * An operator of one's own, with two results: the RMS norm of rows, and the scale that each row was
 * multiplied by. Its letters say all that is said about ranks; the kernel sees local pieces only,
 * shares them out to the rank's threads and sums in scratch memory. On two ranks, with the rows cut
 * over them, it has to give what it gives on one, and what the library's norm gives. */
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
    dt_status st = dt_kernel_scratch(args, (size_t)j.rows * sizeof *j.sums, &scratch);

    if (st != DT_OK) return st;
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
};

/* Runs the operator with x lying as `place`, and gathers both results. */
static dt_status run(dt_mesh *mesh, dt_placement place, float y[ROWS * WIDTH], float scale[ROWS])
{
    const dt_placement whole = DT_REPLICATE;
    const int64_t shape[] = { ROWS, WIDTH };
    dt_tensor *in[2] = { NULL, NULL }, *out[2], *full[2] = { NULL, NULL };
    dt_tape *tape = NULL;
    dt_status st;

    st = dt_arange(mesh, &place, DT_F32, 2, shape, (dt_steps){ -7, 0.5 }, &in[0]);
    if (st == DT_OK) st = dt_arange(mesh, &whole, DT_F32, 1, shape + 1, (dt_steps){ 1, 1 }, &in[1]);
    if (st == DT_OK) st = dt_tape_create(dt_mesh_runtime(mesh), &tape);
    if (st == DT_OK) {
        dt_apply_n(tape, &norm_and_scale, NULL, 2, in, 2, out);
        st = dt_tape_status(tape);
    }
    for (int i = 0; i < 2 && st == DT_OK; i++) st = dt_full_tensor(out[i], &full[i]);
    if (st == DT_OK) memcpy(y, dt_tensor_local(full[0])->data, ROWS * WIDTH * sizeof *y);
    if (st == DT_OK) memcpy(scale, dt_tensor_local(full[1])->data, ROWS * sizeof *scale);

    for (int i = 0; i < 2 && st == DT_OK; i++) dt_tensor_release(&full[i]);
    if (st == DT_OK) st = dt_full_tensor(dt_rms_norm(tape, in[0], in[1], eps), &full[0]);
    for (int i = 0; i < ROWS * WIDTH && st == DT_OK; i++)
        if (fabsf(y[i] - ((float *)dt_tensor_local(full[0])->data)[i]) > 1e-5f * fabsf(y[i]))
            st = dt_fail(DT_ERR_INTERNAL, "element %d differs from dt_rms_norm()", i);

    for (int i = 0; i < 2; i++) dt_tensor_release(&full[i]);
    dt_tape_release(&tape);
    for (int i = 0; i < 2; i++) dt_tensor_release(&in[i]);
    return st;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    float cut[ROWS * WIDTH], whole[ROWS * WIDTH], cut_scale[ROWS], whole_scale[ROWS];
    dt_mesh *mesh = NULL;
    dt_status st = dt_mesh_create(rt, "dp=2", &mesh);

    (void)arg;
    if (st == DT_OK) st = run(mesh, DT_SHARD(0), cut, cut_scale);
    if (st == DT_OK) st = run(mesh, DT_REPLICATE, whole, whole_scale);
    if (st == DT_OK && (memcmp(cut, whole, sizeof cut) != 0 ||
                        memcmp(cut_scale, whole_scale, sizeof cut_scale) != 0))
        st = dt_fail(DT_ERR_INTERNAL, "rows that are cut give other values");
    if (st == DT_OK && dt_runtime_rank(rt) == 0)
        printf("norm_and_scale: both results are the same with rows cut over 2 ranks\n");
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
