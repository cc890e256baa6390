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
        DT_ASSERT_OK(dti_mpi_region_open(&p->region[i], i, true, &p->card[i]));
    if (p->region[0].file < 0) dt_test_skip("%s", p->region[0].why);
}

static void reach(pair *p)
{
    for (int i = 0; i < 2; i++) {
        DT_ASSERT(dti_mpi_region_try(&p->region[i], 1 - i, &p->card[1 - i]));
        for (int k = 0; k < 2; k++) DT_ASSERT_OK(dti_mpi_region_add(&p->region[i], k, &p->card[k]));
        DT_ASSERT_OK(dti_mpi_region_reach(&p->region[i], 1 - i));
        DT_ASSERT_OK(dti_mpi_region_reach(&p->region[i], 1 - i)); /* it is mapped already */
        DT_ASSERT(dti_mpi_region_is_near(&p->region[i], 1 - i));
        DT_ASSERT(!dti_mpi_region_is_near(&p->region[i], 2));
    }
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
            (char *)p.region[1].near[0].region +
                ((char *)dti_mpi_region_find(&p.region[0], 0, 5 + i * MOST) - p.region[0].own));
    DT_ASSERT(dti_mpi_region_lay(&p.region[1], 1, (size_t)1 << 40) == NULL);
    DT_ASSERT(dti_mpi_region_large(&p.region[1], (size_t)1 << 40) == NULL);
}

DT_TEST(region, one_that_cannot_be_opened_is_told_with_the_reason)
{
    DT_ENDS(close_pair) pair p;

    open_pair(&p);
    p.card[0].token++; /* another file has its number by now */
    DT_ASSERT(!dti_mpi_region_try(&p.region[1], 0, &p.card[0]));
    DT_ASSERT(strstr(p.region[1].why, "is another file") != NULL);
    p.card[0].file = 4095; /* nothing there */
    DT_ASSERT(!dti_mpi_region_try(&p.region[1], 0, &p.card[0]));
    DT_ASSERT(strstr(p.region[1].why, "/fd/4095: ") != NULL);
    DT_ASSERT_OK(dti_mpi_region_add(&p.region[1], 0, &p.card[0])); /* it was there when tried */
    DT_ASSERT_STATUS(dti_mpi_region_reach(&p.region[1], 0), DT_ERR_COMM,
                     "the memory of process 0 cannot be opened any more");
}

DT_TEST(region, one_that_does_not_share_is_left_alone)
{
    DT_ENDS(close_pair) pair p;

    open_pair(&p);
    dti_mpi_region_close(&p.region[0]);
    DT_ASSERT_OK(dti_mpi_region_open(&p.region[0], 0, false, &p.card[0]));
    DT_ASSERT(!dti_mpi_region_try(&p.region[0], 1, &p.card[1]));
    DT_ASSERT(!dti_mpi_region_try(&p.region[1], 0, &p.card[0]));
    DT_ASSERT(p.region[0].own == NULL);
    DT_ASSERT_EQ_STR(p.region[1].why, "process 0 has no region");
}
