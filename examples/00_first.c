/* SPDX-License-Identifier: Apache-2.0
 *
 * A first program: a product y = x w^T whose weight is cut by rows, so each rank makes some columns
 * of y. The same source runs on one rank and on many:  00_first [ranks]
 * Build: cc 00_first.c $(pkg-config --cflags --libs dtensor) */
#include <dtensor.h>
#include <stdio.h>
#include <stdlib.h>

/* What each rank runs. What it makes, it releases before it returns. */
static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const dt_placement whole[] = { DT_REPLICATE }, rows[] = { DT_SHARD(0) };
    const int64_t x_shape[] = { 2, 4 }, w_shape[] = { 6, 4 }; /* as if there were one rank */
    dt_tensor *x = NULL, *w = NULL, *y, *full = NULL;
    dt_tape *tape = NULL;
    dt_mesh *mesh = NULL;
    char spec[16], drawing[512];
    dt_status st = DT_OK;

    (void)arg;
    (void)snprintf(spec, sizeof spec, "tp=%d", dt_runtime_size(rt));
    DT_TRY_TO(done, st, dt_mesh_create(rt, spec, &mesh));
    DT_TRY_TO(done, st, dt_ones(mesh, whole, DT_F32, 2, x_shape, &x));
    DT_TRY_TO(done, st, dt_arange(mesh, rows, DT_F32, 2, w_shape, (dt_steps){ 0, 1 }, &w));
    DT_TRY_TO(done, st, dt_tape_create(rt, &tape));

    y = dt_linear(tape, x, w, NULL); /* its columns lie as the rows of w do; nothing is sent */
    DT_TRY_TO(done, st, dt_tape_status(tape));

    DT_TRY_TO(done, st, dt_visualize(y, DT_DRAW_TEXT, drawing, sizeof drawing, NULL));
    DT_TRY_TO(done, st, dt_full_tensor(y, &full)); /* now it is */
    if (dt_runtime_rank(rt) == 0) {
        const float *row = dt_tensor_local(full)->data;
        printf("%s", drawing);
        for (int i = 0; i < 6; i++) printf("%g%s", (double)row[i], i < 5 ? " " : "\n");
    }
done:
    dt_tensor_release(&full);
    dt_tape_release(&tape); /* and y, which is the tape's */
    dt_tensor_release(&w);
    dt_tensor_release(&x);
    dt_mesh_release(&mesh);
    return st;
}

int main(int argc, char **argv)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;

    options.n_ranks = argc > 1 ? atoi(argv[1]) : 2;
    if (dt_run(&options, rank_main, NULL) == DT_OK) return 0;
    fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
