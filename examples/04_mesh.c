/* SPDX-License-Identifier: Apache-2.0
 *
 * Eight ranks as one mesh, seen in several ways: slices, a flattened pair of dims, a split dim, and
 * slices put together again. Build: cc 04_mesh.c $(pkg-config --cflags --libs dtensor) */
#include <dtensor.h>
#include <stdio.h>

enum { N_VIEWS = 6 };
static const char *const dp_tp[] = { "dp", "tp" }, *const pp[] = { "pp" };

/* Number k of the meshes that can be made of `world`. */
static dt_status view(dt_mesh *world, int k, dt_mesh **out)
{
    dt_mesh *parts[2] = { NULL, NULL };
    dt_status st;

    switch (k) {
    case 0: /* the mesh itself */
        *out = dt_mesh_retain(world);
        return DT_OK;
    case 1: /* the stages that this rank belongs to */
        return dt_mesh_slice(world, pp, 1, out);
    case 2: /* dims that are no neighbours */
        return dt_mesh_slice(world, dp_tp, 2, out);
    case 3: /* the same ranks as one dim */
        return dt_mesh_flatten(world, dp_tp, 2, "batch", out);
    case 4: /* a dim of four as two dims */
        return dt_mesh_unflatten(world, "tp", "ep=2,tp=1", out);
    default: /* slices that cross in this rank */
        st = dt_mesh_slice(world, pp, 1, &parts[0]);
        if (st == DT_OK) st = dt_mesh_slice(world, dp_tp, 2, &parts[1]);
        if (st == DT_OK) st = dt_mesh_concatenate(parts, 2, out);
        dt_mesh_release(&parts[0]);
        dt_mesh_release(&parts[1]);
        return st;
    }
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const int speaker = *(const int *)arg;
    dt_mesh *world, *mesh = NULL;
    dt_status st = dt_mesh_create(rt, "dp=2,pp=2,tp=2", &world);
    char text[200];

    if (st != DT_OK) return st;
    for (int k = 0; k < N_VIEWS && st == DT_OK; k++) {
        st = view(world, k, &mesh);
        if (st != DT_OK) break;
        (void)dt_mesh_print(mesh, text, sizeof text);
        if (dt_runtime_rank(rt) == speaker) printf("rank %d sees %s\n", speaker, text);
        dt_mesh_release(&mesh);
    }
    dt_mesh_release(&world);
    return st;
}

int main(void)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    int speaker = 5;

    options.n_ranks = 8;
    if (dt_run(&options, rank_main, &speaker) == DT_OK) return 0;
    fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
