/* SPDX-License-Identifier: Apache-2.0
 *
 * A program of many processes for scripts that do something to it: says who and where its ranks
 * are, then sums for a while.
 *
 *   loop SECONDS [RANKS]
 *   loop away              the last process does not come: it says so, and exits with 7
 *
 * Prints "rank R of N pid P" when a rank begins, "sum S" on rank 0 at the end, and
 * "rank R: MESSAGE" for every rank that fails, on standard error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sync.h"
#include "mesh/runtime.h"

enum { N = 40000, NS_PER_S = 1000000000 };

/* Rank 0 decides whether there is another round, so that all make the same number. */
static dt_status sum_rounds(dti_comm *world, int64_t end_ns, float *x, float *sum)
{
    int32_t again = 1;

    while (again) {
        for (int i = 0; i < N; i++) x[i] = (float)world->rank;
        DT_TRY(dti_all_reduce(world, x, x, N, DT_F32, DT_SUM));
        DT_TRY(dti_all_reduce(world, x, x, 8, DT_F32, DT_MAX));
        *sum = x[N - 1];
        again = dti_now_ns() < end_ns;
        DT_TRY(dti_broadcast(world, &again, 1, DT_I32, 0));
    }
    return DT_OK;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const int64_t end_ns = dti_now_ns() + *(const int64_t *)arg * NS_PER_S;
    dti_comm *world = dti_runtime_world(rt);
    float *x = malloc(N * sizeof *x), sum = 0;
    dt_status st;

    if (x == NULL) return dt_fail(DT_ERR_MEMORY, "no memory");
    (void)printf("rank %d of %d pid %ld\n", world->rank, world->size, (long)getpid());
    (void)fflush(stdout);
    st = sum_rounds(world, end_ns, x, &sum);
    if (st != DT_OK)
        (void)fprintf(stderr, "rank %d: %s\n", world->rank, dt_last_error()->message);
    else if (world->rank == 0)
        (void)printf("sum %g\n", (double)sum);
    free(x);
    return st;
}

static int stay_away(void)
{
    dt_launch_give_up("no file here");
    (void)printf("process %d: no file here\n", dt_launch_process()); /* into a buffer */
    return 7;
}

int main(int argc, char **argv)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;
    int64_t seconds = argc > 1 ? atoll(argv[1]) : 1;

    if (argc > 2) o.n_ranks = atoi(argv[2]);
    if (argc > 1 && strcmp(argv[1], "away") == 0) {
        if (dt_launch_process() + 1 == dt_launch_size()) return stay_away();
        seconds = 60;
    }
    o.bind = DT_BIND_NONE;
    if (dt_run(&o, rank_main, &seconds) == DT_OK) return 0;
    (void)fprintf(stderr, "process %d: %s\n", dt_launch_process(), dt_last_error()->message);
    return 1;
}
