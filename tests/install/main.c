/* SPDX-License-Identifier: Apache-2.0
 *
 * A user's program: two ranks form a mesh. */
#include <dtensor.h>
#include <stdio.h>
#include <string.h>

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    dt_mesh *mesh = NULL;
    dt_status st = dt_mesh_create(rt, "tp=2", &mesh);

    (void)arg;
    if (st != DT_OK) return st;
    if (dt_mesh_coord(mesh, 0) != dt_runtime_rank(rt)) st = DT_ERR_INTERNAL;
    dt_mesh_release(&mesh);
    return st;
}

int main(void)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    char header[32];

    snprintf(header, sizeof header, "%d.%d.%d", DT_VERSION_MAJOR, DT_VERSION_MINOR,
             DT_VERSION_PATCH);
    options.n_ranks = 2;
    if (dt_run(&options, rank_main, NULL) != DT_OK) {
        fprintf(stderr, "%s\n", dt_last_error()->message);
        return 1;
    }
    printf("dtensor %s\n", dt_version());
    return strcmp(header, dt_version()) != 0;
}
