/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/gpu.h"
#include "tests/support/comm_model.h"
#include "tests/support/dt_test.h"

static dt_status all_dims_comm(dt_mesh *mesh, dti_comm **out)
{
    return dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, out);
}

dt_status comm_on_devices(dt_mesh *mesh, const void *arg)
{
    const comm_devices *d = arg;
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dti_cuda_place place = dti_gpu_place(d->module, dt_runtime_rank(rt) % d->n_devices);
    dti_comm *early;
    dt_status st;

    DT_TRY(all_dims_comm(mesh, &early)); /* communicators from before take calls as well */
    DT_EXPECT(place.module->open(place.device, &place.cuda) == 0, "%s", place.module->why());
    st = dti_runtime_use_cuda(rt, &place, d->wish);
    if (st == DT_OK) st = d->body(mesh, &place);
    if (dti_runtime_cuda(rt) != NULL) dti_runtime_leave_cuda(rt);
    place.module->close(place.cuda);
    return st;
}

dt_status comm_device_table(dt_mesh *mesh, const dti_cuda_place *place)
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
