/* SPDX-License-Identifier: Apache-2.0
 *
 * One random matrix, made by 1, 2, 3 and 4 ranks under different placements: always the same bits.
 * Build: cc 05_random.c $(pkg-config --cflags --libs dtensor) */
#include <dtensor.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 5, COLUMNS = 7 };

typedef struct job {
    const char *mesh;
    dt_placement place[2];
    float values[ROWS * COLUMNS]; /* written by rank 0 */
} job;

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const int64_t shape[] = { ROWS, COLUMNS };
    dt_random generator = { .seed = 2026, .stream = 0 };
    dt_tensor *x = NULL, *full = NULL;
    dt_mesh *mesh = NULL;
    job *j = arg;
    dt_status st = dt_mesh_create(rt, j->mesh, &mesh);

    if (st == DT_OK)
        st = dt_randn(mesh, j->place, DT_F32, 2, shape, dt_random_next(&generator), &x);
    if (st == DT_OK) st = dt_full_tensor(x, &full);
    if (st == DT_OK && dt_runtime_rank(rt) == 0)
        memcpy(j->values, dt_tensor_local(full)->data, sizeof j->values);
    dt_tensor_release(&full);
    dt_tensor_release(&x);
    dt_mesh_release(&mesh);
    return st;
}

int main(void)
{
    job jobs[] = {
        { .mesh = "tp=1", .place = { DT_REPLICATE } },
        { .mesh = "tp=2", .place = { DT_SHARD(0) } },
        { .mesh = "tp=3", .place = { DT_SHARD(1) } },
        { .mesh = "dp=2,tp=2", .place = { DT_SHARD(1), DT_SHARD(0) } },
    };
    const int n_jobs = (int)(sizeof jobs / sizeof jobs[0]);

    for (int i = 0; i < n_jobs; i++) {
        dt_run_options options = DT_RUN_OPTIONS_INIT;
        options.n_ranks = i + 1;
        if (dt_run(&options, rank_main, &jobs[i]) != DT_OK) {
            fprintf(stderr, "%s\n", dt_last_error()->message);
            return 1;
        }
        printf("%-9s  %+.6f %+.6f ... %+.6f\n", jobs[i].mesh, (double)jobs[i].values[0],
               (double)jobs[i].values[1], (double)jobs[i].values[ROWS * COLUMNS - 1]);
        if (memcmp(jobs[i].values, jobs[0].values, sizeof jobs[0].values) != 0) return 1;
    }
    return 0;
}
