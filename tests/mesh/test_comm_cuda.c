/* SPDX-License-Identifier: Apache-2.0
 *
 * What every carrier of memory of devices has to do: the table of comm.h on devices that are late
 * (tests/support/queued_device.h), in place, uneven, displaced, mixed with operations of hosts. */
#include <stdio.h>
#include <string.h>

#include "mesh/runtime.h"
#include "tests/mesh/comm_model.h"
#include "tests/support/dt_test.h"
#include "tests/support/queued_device.h"

/* How ranks come by devices: rank r has number r modulo n_devices. */
typedef struct setting {
    const char *wish;
    int n_devices;
    dt_status (*body)(dt_mesh *mesh, const dti_cuda_place *place);
} setting;

static dt_status all_dims_comm(dt_mesh *mesh, dti_comm **out)
{
    return dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, out);
}

static dt_status on_device(dt_mesh *mesh, const void *arg)
{
    const setting *s = arg;
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dti_cuda_place place = { .module = queued_module() };
    dti_comm *early;
    dt_status st;

    DT_TRY(all_dims_comm(mesh, &early)); /* communicators from before take calls as well */
    place.device = dt_runtime_rank(rt) % s->n_devices;
    DT_EXPECT(place.module->open(place.device, &place.cuda) == 0, "%s", place.module->why());
    st = dti_runtime_use_cuda(rt, &place, s->wish);
    if (st == DT_OK) st = s->body(mesh, &place);
    if (dti_runtime_cuda(rt) != NULL) dti_runtime_leave_cuda(rt);
    place.module->close(place.cuda);
    return st;
}

/* The carriers, each on the meshes that it can have. */
static void on_all_carriers(dt_status (*body)(dt_mesh *mesh, const dti_cuda_place *place),
                            const char *const *meshes)
{
    static const struct {
        const char *wish;
        int n_devices;
    } settings[] = { { "cuda_local", 1 }, { "cuda_local", 3 }, { "nccl", 8 }, { "staged", 2 } };

    for (; *meshes != NULL; meshes++)
        for (size_t i = 0; i < DT_COUNT(settings); i++) {
            const setting s = { settings[i].wish, settings[i].n_devices, body };
            dt_test_on_ranks(*meshes, on_device, &s);
        }
}

/* --- the table -------------------------------------------------------------------------------- */

/* Each operation, dtype and count in one form on each number of ranks, others for the next dtype.
 */
static dt_status table_holds(dt_mesh *mesh, const dti_cuda_place *place)
{
    static const int64_t counts[] = { 0, 1, 7, 301, 1500 };
    dti_comm *c;

    DT_TRY(all_dims_comm(mesh, &c));
    for (int op = 0; op < DTI_COMM_N_OPS; op++)
        for (int dtype = 0; dtype < DT_N_DTYPES; dtype++)
            for (size_t i = 0; i < DT_COUNT(counts); i++) {
                const bool reduces = op == DTI_COMM_ALL_REDUCE || op == DTI_COMM_REDUCE_SCATTER;
                const uint32_t salt = (uint32_t)(op * 1000 + dtype * 100 + (int)i * 10);
                const int form = dtype + 3 * (int)i + c->size;
                comm_case k = { .op = (dti_comm_op)op,
                                .dtype = (dt_dtype)dtype,
                                .reduce = (dt_reduce)((op + dtype + (int)i) % DT_N_REDUCES),
                                .root = (int)i % c->size,
                                .n = counts[i],
                                .place = place };
                if (reduces && dtype == DT_U8) continue;
                k.salt = salt;
                k.uneven = form & 1;
                k.displaced = form & 2;
                k.in_place = form & 4;
                DT_TRY(comm_trial_run(c, &k));
            }
    return DT_OK;
}

DT_TEST(comm_cuda, every_operation_dtype_and_count)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", NULL };

    on_all_carriers(table_holds, meshes);
}

/* What NCCL adds by itself, what it gathers in slices, and broadcasts that all ranks hand on. */
static dt_status large_buffers(dt_mesh *mesh, const dti_cuda_place *place)
{
    static const comm_case cases[] = {
        { .op = DTI_COMM_ALL_REDUCE, .dtype = DT_F32, .n = (256 << 10) + 13, .in_place = true },
        { .op = DTI_COMM_REDUCE_SCATTER, .dtype = DT_F32, .n = 150001 },
        { .op = DTI_COMM_REDUCE_SCATTER, .dtype = DT_F32, .n = 290001, .uneven = true },
        { .op = DTI_COMM_ALL_REDUCE, .dtype = DT_BF16, .n = 70001, .in_place = true },
        { .op = DTI_COMM_BROADCAST, .dtype = DT_BF16, .root = 1, .n = 140001, .in_place = true },
        { .op = DTI_COMM_BROADCAST, .dtype = DT_U8, .root = 0, .n = 280001 },
    };
    dti_comm *c;

    DT_TRY(all_dims_comm(mesh, &c));
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        comm_case k = cases[i];
        k.place = place;
        DT_TRY(comm_trial_run(c, &k));
    }
    return DT_OK;
}

DT_TEST(comm_cuda, large_buffers)
{
    static const char *const meshes[] = { "tp=2", "tp=3", NULL };

    on_all_carriers(large_buffers, meshes);
}

static dt_status mixed_steps(dt_mesh *mesh, const dti_cuda_place *place)
{
    return comm_random_steps(mesh, 4711, 150, place);
}

DT_TEST(comm_cuda, random_operations_of_hosts_and_devices_waited_for_in_any_order)
{
    static const char *const meshes[] = { "tp=2", "dp=2,tp=2", "tp=3", NULL };

    on_all_carriers(mixed_steps, meshes);
}
