/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of two processes wake each other through memory that both have mapped. */
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sync.h"
#include "mesh/comm/mpi_bell.h"
#include "tests/support/dt_test.h"

enum { ROUNDS = 300, LONG_MS = 2000, NS_PER_MS = 1000 * 1000 };

typedef struct table {
    dti_mpi_bell bell[2];
    _Alignas(DTI_LINE_BYTES) _Atomic uint32_t round;
} table;

/* Sleeps until it is this player's turn. */
static void await_turn(table *t, int me, uint32_t round)
{
    while (atomic_load(&t->round) < round)
        dti_mpi_bell_doze(&t->bell[me], (int64_t)LONG_MS * NS_PER_MS);
    dti_mpi_bell_awake(&t->bell[me]);
}

/* Player 0 makes rounds odd, player 1 even. */
static void play(table *t, int me)
{
    for (uint32_t round = (uint32_t)me; round < ROUNDS; round += 2) {
        await_turn(t, me, round);
        atomic_store(&t->round, round + 1);
        dti_mpi_bell_ring(&t->bell[1 - me]);
    }
}

/* Each turn would take two seconds if nobody were woken; now and then one may be missed. */
DT_TEST(bell, wakes_a_rank_of_another_process)
{
    table *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const int64_t begin = dti_now_ns();
    int status = 1;
    pid_t child;

    DT_ASSERT(t != MAP_FAILED);
    child = fork();
    if (child == 0) {
        play(t, 1);
        _exit(0);
    }
    DT_ASSERT(child > 0);
    play(t, 0);
    DT_ASSERT(waitpid(child, &status, 0) == child && status == 0);
    DT_ASSERT_EQ_INT(atomic_load(&t->round), ROUNDS);
    DT_ASSERT(dti_now_ns() - begin < (int64_t)10 * LONG_MS * NS_PER_MS);
    (void)munmap(t, sizeof *t);
}

DT_TEST(bell, the_first_call_only_says_so_and_a_bell_that_rang_holds_nobody)
{
    dti_mpi_bell b;
    const int64_t begin = dti_now_ns();

    memset(&b, 0, sizeof b);
    dti_mpi_bell_ring(&b); /* awake: nothing happens */
    DT_ASSERT_EQ_INT(atomic_load(&b.asleep), 0);
    dti_mpi_bell_doze(&b, (int64_t)LONG_MS * NS_PER_MS);
    DT_ASSERT_EQ_INT(atomic_load(&b.asleep), 1);
    dti_mpi_bell_ring(&b);
    dti_mpi_bell_doze(&b, (int64_t)LONG_MS * NS_PER_MS);
    dti_mpi_bell_awake(&b);
    DT_ASSERT_EQ_INT(atomic_load(&b.asleep), 0);
    DT_ASSERT(dti_now_ns() - begin < (int64_t)LONG_MS * NS_PER_MS);
    dti_mpi_bell_doze(&b, NS_PER_MS);
    dti_mpi_bell_doze(&b, NS_PER_MS); /* nobody rings: it ends by itself */
}
