/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/comm/mpi_bell.h"

void dti_mpi_bell_doze(dti_mpi_bell *b, int64_t timeout_ns)
{
    if (atomic_load(&b->asleep) == 0)
        atomic_store(&b->asleep, 1);
    else
        dti_futex_wait_shared(&b->asleep, 1, timeout_ns);
}

void dti_mpi_bell_awake(dti_mpi_bell *b)
{
    if (atomic_load_explicit(&b->asleep, memory_order_relaxed) != 0) atomic_store(&b->asleep, 0);
}

void dti_mpi_bell_ring(dti_mpi_bell *b)
{
    if (atomic_load_explicit(&b->asleep, memory_order_relaxed) == 0) return;
    if (atomic_exchange(&b->asleep, 0) != 0) dti_futex_wake_all_shared(&b->asleep);
}
