/* SPDX-License-Identifier: Apache-2.0
 *
 * A tensor trained on four ranks goes to two others that serve it: copies between meshes.
 * Build: cc 07_copy_to.c $(pkg-config --cflags --libs dtensor) */
#include <dtensor.h>
#include <stdio.h>

/* One line of each member of the mesh; lines come in any order. */
static void tell(const char *what, const dt_tensor *x)
{
    const dt_mesh *mesh = dt_tensor_mesh(x);
    const dt_local *l = dt_tensor_local(x);
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));

    if (!dt_mesh_is_member(mesh)) return;
    printf("%s: rank %d holds rows %d to %d of q and as many of k: %d x %d values, first %g\n",
           what, rank, (int)l->offset[0], (int)(l->offset[0] + l->shape[0] / 2) - 1,
           (int)l->shape[0], (int)l->shape[1], (double)((const float *)l->data)[0]);
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    /* q | k of 12 rows each, every block cut on its own; on the trainers over two mesh dims */
    const dt_placement trained[] = { DT_SHARD(1), DT_SHARD_PACKED(0, 12, 12) };
    const dt_placement served[] = { DT_SHARD_PACKED(0, 12, 12) };
    const int servers[] = { 5, 4 };
    const int64_t shape[] = { 24, 6 };
    dt_mesh *train = NULL, *serve = NULL;
    dt_tensor *x = NULL, *y = NULL, *back = NULL;
    float values[24 * 6];
    dt_status st;

    (void)arg;
    for (int i = 0; i < 24 * 6; i++) values[i] = (float)i;
    st = dt_mesh_create(rt, "dp=2,tp=2", &train); /* ranks 0 to 3 */
    if (st == DT_OK) st = dt_mesh_create_ranks(rt, "tp=2", servers, &serve);
    /* All ranks make the handle; ranks 4 and 5 hold its metadata only. */
    if (st == DT_OK)
        st = dt_distribute(train, trained, DT_F32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES },
                           &x);
    if (st == DT_OK) st = dt_copy_to(x, serve, served, &y);
    if (st == DT_OK) tell("served", y);
    if (st == DT_OK) st = dt_copy_to(y, train, trained, &back);
    if (st == DT_OK) tell("back", back);
    dt_tensor_release(&back);
    dt_tensor_release(&y);
    dt_tensor_release(&x);
    dt_mesh_release(&serve);
    dt_mesh_release(&train);
    return st;
}

int main(void)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;

    options.n_ranks = 6;
    if (dt_run(&options, rank_main, NULL) == DT_OK) return 0;
    fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
