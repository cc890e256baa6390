/* SPDX-License-Identifier: Apache-2.0
 *
 * What every carrier of memory of devices has to do: the table of comm.h on devices that are late
 * (tests/support/queued_device.h), in place, uneven, displaced, mixed with operations of hosts. */
#include <stdio.h>
#include <string.h>

#include "mesh/runtime.h"
#include "tests/support/comm_model.h"
#include "tests/support/dt_test.h"
#include "tests/support/queued_device.h"

static dt_status all_dims_comm(dt_mesh *mesh, dti_comm **out)
{
    return dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, out);
}

/* Each carrier that can join the ranks: of several processes here only one. */
static void on_all_carriers(dt_status (*body)(dt_mesh *mesh, const dti_cuda_place *place),
                            const char *const *meshes)
{
    static const struct {
        const char *wish;
        int n_devices;
    } settings[] = { { "cuda_local", 1 },      { "cuda_local", 3 }, { "cuda_local_spin", 1 },
                     { "cuda_local_spin", 8 }, { "nccl", 8 },       { "staged", 2 } };

    for (; *meshes != NULL; meshes++)
        for (size_t i = 0; i < DT_COUNT(settings); i++) {
            const comm_devices d = { queued_module(), settings[i].wish, settings[i].n_devices,
                                     body };
            if (dt_test_processes() > 1 && strcmp(d.wish, "staged") != 0) continue;
            dt_test_on_ranks(*meshes, comm_on_devices, &d);
        }
}

DT_TEST(comm_cuda, every_operation_dtype_and_count)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", NULL };

    on_all_carriers(comm_device_table, meshes);
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
    static const char *const meshes[] = { "tp=3", NULL };

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

/* Members wait in different orders for messages on two communicators; their streams must not wait
 * for each other in a circle. */
static dt_status play_crossed(dti_comm *all, dti_comm *pair, const dti_cuda_place *place)
{
    const comm_case k = { .op = DTI_COMM_SEND, .dtype = DT_F32, .n = 50, .place = place };
    comm_trial of_pair = { .send = NULL }, of_all = { .send = NULL };

    if (pair != NULL) DT_TRY(comm_trial_start(pair, &k, &of_pair));
    if (all->rank == 1) DT_TRY(comm_trial_finish(pair, &of_pair));
    DT_TRY(comm_trial_start(all, &k, &of_all));
    DT_TRY(comm_trial_finish(all, &of_all));
    if (all->rank == 0) DT_TRY(comm_trial_finish(pair, &of_pair));
    return DT_OK;
}

static dt_status crossed_messages(dt_mesh *mesh, const dti_cuda_place *place)
{
    dti_comm *all, *pair = NULL;
    dt_status st = DT_OK;

    DT_TRY(all_dims_comm(mesh, &all));
    if (all->rank < 2) DT_TRY(dti_comm_group(all, (int[]){ 0, 1 }, 2, "pair", &pair));
    for (int i = 0; i < 3 && st == DT_OK; i++) st = play_crossed(all, pair, place);
    if (pair != NULL) dti_comm_close(pair);
    return st;
}

DT_TEST(comm_cuda, messages_on_two_communicators_waited_for_in_different_orders)
{
    static const char *const meshes[] = { "tp=3", NULL };

    on_all_carriers(crossed_messages, meshes);
}
