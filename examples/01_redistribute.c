/* SPDX-License-Identifier: Apache-2.0
 *
 * Four ranks, a 2 x 2 mesh, one tensor on its way through three layouts.
 * Build: cc 01_redistribute.c $(pkg-config --cflags --libs dtensor) */
#include <dtensor.h>
#include <stdio.h>

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const dt_placement rows[] = { DT_REPLICATE, DT_SHARD(0) };
    const dt_placement tiles[] = { DT_SHARD(0), DT_SHARD(1) };
    const int64_t shape[] = { 5, 7 }; /* sizes need not divide */
    dt_tensor *x = NULL, *y = NULL, *full = NULL;
    const dt_local *mine;
    dt_mesh *mesh = NULL;
    float values[35];
    dt_status st = DT_OK;

    (void)arg;
    for (int i = 0; i < 35; i++) values[i] = (float)i;
    DT_TRY_TO(done, st, dt_mesh_create(rt, "dp=2,tp=2", &mesh));
    DT_TRY_TO(
        done, st,
        dt_distribute(mesh, rows, DT_F32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES }, &x));
    DT_TRY_TO(done, st, dt_redistribute(x, tiles, &y)); /* one exchange */
    DT_TRY_TO(done, st, dt_full_tensor(y, &full));
    mine = dt_tensor_local(y);
    printf("rank %d holds rows %d-%d and columns %d-%d; the last of 35 values is %g\n",
           dt_runtime_rank(rt), (int)mine->offset[0], (int)(mine->offset[0] + mine->shape[0]) - 1,
           (int)mine->offset[1], (int)(mine->offset[1] + mine->shape[1]) - 1,
           (double)((const float *)dt_tensor_local(full)->data)[34]);
done:
    dt_tensor_release(&full);
    dt_tensor_release(&y);
    dt_tensor_release(&x);
    dt_mesh_release(&mesh);
    return st;
}

int main(void)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;

    options.n_ranks = 4;
    if (dt_run(&options, rank_main, NULL) == DT_OK) return 0;
    fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
