/* SPDX-License-Identifier: Apache-2.0
 *
 * What the first rank of a mesh found out, or the first that found a fault, told to the others. */
#include <stdio.h>
#include <string.h>

#include "mesh/comm/comm.h"
#include "mesh/runtime_internal.h"

/* On its way to the other ranks. */
typedef struct verdict {
    int32_t status, rank;
    char message[DT_ERROR_MESSAGE_BYTES];
} verdict;

/* The record stays that rank's: whoever reports it names that, and other processes leave it to
 * the one in which it happened, which is what a frame without a line says. */
static dt_status pass_on(const verdict *v, const char *who)
{
    dt_error e = { .code = (dt_status)v->status, .rank = v->rank, .n_frames = 1 };

    memcpy(e.message, v->message, sizeof e.message);
    e.frames[0] = (dt_error_frame){ who, "there", 0 };
    dti_error_restore(&e);
    return dti_error_frame(e.code, __func__, __FILE__, __LINE__);
}

static verdict verdict_of(dt_status mine)
{
    verdict v = { (int32_t)mine, (int32_t)dt_last_error()->rank, "" };

    if (mine != DT_OK) (void)snprintf(v.message, sizeof v.message, "%s", dt_last_error()->message);
    return v;
}

dt_status dti_first_of_comm_says(dti_comm *comm, bool first, dt_status mine)
{
    verdict v = { DT_OK, 0, "" };

    if (first) v = verdict_of(mine);
    DT_TRY(dti_broadcast(comm, &v, (int64_t)sizeof v, DT_U8, 0));
    if (first) return mine;
    return v.status == DT_OK ? DT_OK : pass_on(&v, "the first rank");
}

dt_status dti_first_says(dt_mesh *mesh, dt_status mine)
{
    dti_comm *comm;

    if (dt_mesh_n_ranks(mesh) == 1) return mine;
    DT_TRY(dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, &comm));
    return dti_first_of_comm_says(comm, dti_mesh_place(mesh) == 0, mine);
}

/* The message is sent when somebody has one. */
dt_status dti_all_say(dt_mesh *mesh, dt_status mine)
{
    const int n = dt_mesh_n_ranks(mesh), me = dti_mesh_place(mesh);
    const int32_t bad = mine != DT_OK ? n - me : 0;
    verdict v = verdict_of(mine);
    int32_t first = bad;
    dti_comm *comm;

    if (n == 1) return mine;
    DT_TRY(dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, &comm));
    DT_TRY(dti_all_reduce(comm, &bad, &first, 1, DT_I32, DT_MAX));
    if (first == 0) return DT_OK;
    DT_TRY(dti_broadcast(comm, &v, (int64_t)sizeof v, DT_U8, n - first));
    return first == bad ? mine : pass_on(&v, "another rank of the mesh");
}
