/* SPDX-License-Identifier: Apache-2.0
 *
 * What the first rank of a mesh found out, told to the others. */
#include <stdio.h>

#include "mesh/comm/comm.h"
#include "mesh/runtime.h"

/* On its way to the other ranks. */
typedef struct verdict {
    int32_t status;
    char message[DT_ERROR_MESSAGE_BYTES];
} verdict;

dt_status dti_first_says(dt_mesh *mesh, dt_status mine)
{
    verdict v = { DT_OK, "" };
    dti_comm *comm;

    if (dt_mesh_n_ranks(mesh) == 1) return mine;
    if (dti_mesh_place(mesh) == 0) {
        v.status = (int32_t)mine;
        if (mine != DT_OK)
            (void)snprintf(v.message, sizeof v.message, "%s", dt_last_error()->message);
    }
    DT_TRY(dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, &comm));
    DT_TRY(dti_broadcast(comm, &v, (int64_t)sizeof v, DT_U8, 0));
    if (dti_mesh_place(mesh) == 0) return mine;
    DT_CHECK(v.status == DT_OK, (dt_status)v.status, "%s", v.message);
    return DT_OK;
}
