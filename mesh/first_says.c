/* SPDX-License-Identifier: Apache-2.0
 *
 * What the first rank of a mesh found out, told to the others. */
#include <stdio.h>
#include <string.h>

#include "mesh/comm/comm.h"
#include "mesh/runtime.h"

/* On its way to the other ranks. */
typedef struct verdict {
    int32_t status, rank;
    char message[DT_ERROR_MESSAGE_BYTES];
} verdict;

/* The record stays the first rank's: whoever reports it names that, and other processes leave it to
 * the one in which it happened, which is what a frame without a line says. */
static dt_status pass_on(const verdict *v)
{
    dt_error e = { .code = (dt_status)v->status, .rank = v->rank, .n_frames = 1 };

    memcpy(e.message, v->message, sizeof e.message);
    e.frames[0] = (dt_error_frame){ "the first rank of the mesh", "there", 0 };
    dti_error_restore(&e);
    return dti_error_frame(e.code, __func__, __FILE__, __LINE__);
}

dt_status dti_first_says(dt_mesh *mesh, dt_status mine)
{
    verdict v = { DT_OK, 0, "" };
    dti_comm *comm;

    if (dt_mesh_n_ranks(mesh) == 1) return mine;
    if (dti_mesh_place(mesh) == 0) {
        v.status = (int32_t)mine;
        v.rank = (int32_t)dt_last_error()->rank;
        if (mine != DT_OK)
            (void)snprintf(v.message, sizeof v.message, "%s", dt_last_error()->message);
    }
    DT_TRY(dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, &comm));
    DT_TRY(dti_broadcast(comm, &v, (int64_t)sizeof v, DT_U8, 0));
    if (dti_mesh_place(mesh) == 0) return mine;
    return v.status == DT_OK ? DT_OK : pass_on(&v);
}
