/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that processes share. Two regions of one process stand for two processes: they open each
 * other's file as strangers would. */
#include <string.h>

#include "mesh/comm/mpi_region.h"
#include "tests/support/dt_test.h"

typedef struct pair {
    dti_mpi_region region[2];
    dti_mpi_region_card card[2];
} pair;

static void open_pair(pair *p)
{
    for (int i = 0; i < 2; i++)
        DT_ASSERT_OK(dti_mpi_region_open(&p->region[i], i, 2, true, &p->card[i]));
    if (p->region[0].file < 0) dt_test_skip("%s", p->region[0].why);
}

static void reach(pair *p)
{
    for (int i = 0; i < 2; i++) dti_mpi_region_reach(&p->region[i], 1 - i, &p->card[1 - i]);
    for (int i = 0; i < 2; i++) dti_mpi_region_tell(&p->region[i]);
    for (int i = 0; i < 2; i++) DT_ASSERT_EQ_INT(dti_mpi_region_agree(&p->region[i]), -1);
}

static void close_pair(pair *p)
{
    for (int i = 0; i < 2; i++) dti_mpi_region_close(&p->region[i]);
}

DT_TEST(region, what_one_lays_down_the_other_finds)
{
    DT_ENDS(close_pair) pair p;
    char *mine, *theirs;

    open_pair(&p);
    reach(&p);
    DT_ASSERT(dti_mpi_region_find(&p.region[1], 0, 77) == NULL);
    mine = dti_mpi_region_lay(&p.region[0], 77, 1000);
    DT_ASSERT(mine != NULL && mine[0] == 0 && mine[999] == 0);
    theirs = dti_mpi_region_find(&p.region[1], 0, 77);
    DT_ASSERT(theirs != NULL && theirs != mine);
    (void)strcpy(theirs, "hello");
    DT_ASSERT_EQ_STR(mine, "hello");
    DT_ASSERT(dti_mpi_region_find(&p.region[1], 1, 77) == NULL); /* names belong to a process */
    DT_ASSERT(dti_mpi_region_find(&p.region[0], 0, 77) == mine);
}

/* Names that meet in the directory, and more of them than fit. */
DT_TEST(region, a_full_directory_refuses)
{
    enum { MOST = 1 << 17 };
    DT_ENDS(close_pair) pair p;
    uint64_t n = 0;

    open_pair(&p);
    reach(&p);
    while (n < MOST && dti_mpi_region_lay(&p.region[0], 5 + n * MOST, 64) != NULL) n++;
    DT_ASSERT(n > MOST / 2 && n < MOST);
    for (uint64_t i = 0; i < n; i += 97)
        DT_ASSERT(
            dti_mpi_region_find(&p.region[1], 0, 5 + i * MOST) ==
            (char *)p.region[1].peers[0] +
                ((char *)dti_mpi_region_find(&p.region[0], 0, 5 + i * MOST) - p.region[0].own));
    DT_ASSERT(dti_mpi_region_lay(&p.region[1], 1, (size_t)1 << 40) == NULL);
    DT_ASSERT(dti_mpi_region_large(&p.region[1], (size_t)1 << 40) == NULL);
}

DT_TEST(region, two_that_do_not_reach_each_other_both_know)
{
    DT_ENDS(close_pair) pair p;

    open_pair(&p);
    p.card[0].token++; /* another file has its number by now */
    reach(&p);
    DT_ASSERT(p.region[0].peers[1] == NULL && p.region[1].peers[0] == NULL);
    DT_ASSERT(strstr(p.region[1].why, "is another file") != NULL);
    DT_ASSERT_EQ_STR(p.region[0].why, "process 1 does not reach this one");
    close_pair(&p);

    open_pair(&p);
    p.card[0].file = 4095; /* nothing there */
    reach(&p);
    DT_ASSERT(p.region[0].peers[1] == NULL && p.region[1].peers[0] == NULL);
    DT_ASSERT(strstr(p.region[1].why, "/fd/4095: ") != NULL);
}

DT_TEST(region, one_that_does_not_share_is_left_alone)
{
    DT_ENDS(close_pair) pair p;

    open_pair(&p);
    dti_mpi_region_close(&p.region[0]);
    DT_ASSERT_OK(dti_mpi_region_open(&p.region[0], 0, 2, false, &p.card[0]));
    reach(&p);
    DT_ASSERT(p.region[0].own == NULL && p.region[1].peers[0] == NULL);
    DT_ASSERT_EQ_STR(p.region[1].why, "process 0 has no region");
}

/* A process that has not said yet whom it reaches is waited for. */
DT_TEST(region, agreement_waits_for_the_other)
{
    DT_ENDS(close_pair) pair p;

    open_pair(&p);
    dti_mpi_region_reach(&p.region[0], 1, &p.card[1]);
    dti_mpi_region_tell(&p.region[0]);
    DT_ASSERT_EQ_INT(dti_mpi_region_agree(&p.region[0]), 1);
    dti_mpi_region_reach(&p.region[1], 0, &p.card[0]);
    dti_mpi_region_tell(&p.region[1]);
    DT_ASSERT_EQ_INT(dti_mpi_region_agree(&p.region[0]), -1);
    DT_ASSERT(p.region[0].peers[1] != NULL);
}
