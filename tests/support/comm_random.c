/* SPDX-License-Identifier: Apache-2.0
 *
 * Random operations on a mesh and all its dims at once. */
#include "base/memory.h"
#include "mesh/runtime.h"
#include "tests/support/comm_model.h"
#include "tests/support/dt_test.h"

enum { UNDER_WAY = 24 };

typedef struct pending {
    dti_comm *comm; /* NULL: free */
    comm_trial trial;
} pending;

/* Everything that all ranks must do alike comes from `step`, the order of waits from `rank` too. */
static comm_case random_case(uint64_t step, int size)
{
    const uint64_t h = comm_hash(step, 17, (uint64_t)size);
    static const int64_t most[] = { 3, 40, 300, 1500 };
    comm_case k = { .op = (dti_comm_op)(h % DTI_COMM_N_OPS),
                    .dtype = (dt_dtype)(h / 16 % DT_N_DTYPES),
                    .reduce = (dt_reduce)(h / 128 % DT_N_REDUCES),
                    .root = (int)(h / 1024 % (uint64_t)size),
                    .n = (int64_t)(h >> 20) % most[h >> 40 & 3],
                    .uneven = h >> 50 & 1,
                    .displaced = h >> 51 & 1,
                    .in_place = h >> 52 & 1,
                    .salt = (uint32_t)step };

    if (k.dtype == DT_U8 && (k.op == DTI_COMM_ALL_REDUCE || k.op == DTI_COMM_REDUCE_SCATTER))
        k.dtype = DT_F32;
    return k;
}

static dt_status finish_some(pending *p, int rank, uint64_t step, int keep)
{
    int under_way = 0;

    for (int i = 0; i < UNDER_WAY; i++) under_way += p[i].comm != NULL;
    for (uint64_t i = 0; under_way > keep; i++) { /* each rank in an order of its own */
        pending *one = &p[comm_hash(step, (uint64_t)rank, i) % UNDER_WAY];
        if (one->comm == NULL) continue;
        DT_TRY(comm_trial_finish(one->comm, &one->trial));
        one->comm = NULL;
        under_way--;
    }
    return DT_OK;
}

static pending *free_place(pending *p)
{
    while (p->comm != NULL) p++;
    return p;
}

dt_status comm_random_steps(dt_mesh *mesh, uint64_t seed, int n_steps, const dti_cuda_place *place)
{
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    const uint32_t n_groups = (1u << dt_mesh_n_dims(mesh)) - 1;
    dt_status st = DT_OK;
    pending *p = NULL;

    DT_TRY(dti_alloc_array(UNDER_WAY, sizeof *p, (void **)&p));
    for (uint64_t step = seed; step < seed + (uint64_t)n_steps; step++) {
        const uint64_t h = comm_hash(step, 99, 0);
        const int keep = (int)((h >> 8) % UNDER_WAY);
        pending *one = free_place(p);
        comm_case k;
        dti_comm *c;
        DT_TRY_TO(done, st, dti_mesh_comm(mesh, 1 + (uint32_t)h % n_groups, &c));
        k = random_case(step, c->size);
        if (h >> 20 & 1) k.place = place;
        one->comm = c;
        DT_TRY_TO(done, st, comm_trial_start(c, &k, &one->trial));
        DT_TRY_TO(done, st, finish_some(p, rank, step, keep));
    }
    DT_TRY_TO(done, st, finish_some(p, rank, 0, 0));
done:
    for (int i = 0; i < UNDER_WAY; i++) comm_trial_free(&p[i].trial);
    dti_free(p);
    return st;
}
