/* SPDX-License-Identifier: Apache-2.0
 *
 * All-gathers: every rank to every other, at once. */
#include "mesh/comm/call.h"
#include "mesh/comm/mpi_internal.h"

void dti_mpi_gather_begin(dti_mpi_comm *c)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const size_t bytes = dt_dtype_size(call->dtype);
    const int me = c->head.rank;

    for (int m = 0; m < c->head.size; m++) {
        void *to = dti_element(call->recv, dti_block_at(call->counts, call->displs, m), bytes);
        const dti_mpi_transfer out = dti_mpi_flat(c, DTI_MPI_COPY, call->send, call->counts[me]);
        const dti_mpi_transfer in = dti_mpi_flat(c, DTI_MPI_COPY, to, call->counts[m]);
        if (m == me) {
            dti_mpi_copy(to, call->send, call->counts[me], bytes);
            continue;
        }
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, true, m, &out);
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, false, m, &in);
    }
}
