/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool of temporaries: what it keeps, and that it gives back. */
#include "tests/support/dt_test.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "dtensor/device/memory.h"

static const size_t MIB = (size_t)1 << 20;

static void use(dti_memory *m, size_t bytes)
{
    dti_storage *s;

    DT_ASSERT_OK(dti_storage_create(m, bytes, true, &s));
    if (s->data != NULL) memset(s->data, 1, 64);
    dti_storage_release(s);
}

DT_TEST(memory, a_step_that_repeats_finds_its_blocks)
{
    static const size_t sizes[] = { 100, 5000, 64 << 10, 1 << 20, 3 << 20 };
    dti_memory *m;
    size_t held;

    DT_ASSERT_OK(dti_memory_create(false, NULL, &m));
    for (size_t i = 0; i < DT_COUNT(sizes); i++) use(m, sizes[i]);
    held = dti_memory_held(m);
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < DT_COUNT(sizes); i++) use(m, sizes[i]);
        DT_ASSERT(dti_memory_held(m) == held);
    }
    DT_ASSERT(dti_memory_used(m) == 0);
    dti_memory_destroy(&m);
}

/* A block of every size class up to 1 GiB would be more than 5 GiB. Weights do not widen the bound:
 * they are no temporaries. */
DT_TEST(memory, idle_blocks_are_bounded)
{
    for (int dry = 0; dry < 2; dry++) {
        const size_t largest = dry ? 1024 * MIB : 128 * MIB;
        dti_storage *weights;
        dti_memory *m;
        DT_ASSERT_OK(dti_memory_create(dry, NULL, &m));
        DT_ASSERT_OK(dti_storage_create(m, 300 * MIB, false, &weights));
        for (size_t bytes = MIB; bytes <= largest; bytes += bytes / 4) use(m, bytes);
        DT_ASSERT(dti_memory_held(m) <= 300 * MIB + 2 * largest);
        DT_ASSERT(dti_memory_used(m) == weights->bytes);
        dti_storage_release(weights);
        DT_ASSERT(dti_memory_held(m) <= 2 * largest);
        dti_memory_destroy(&m);
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static size_t address_space(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;

    DT_ASSERT(f != NULL && fscanf(f, "%lu", &pages) == 1);
    (void)fclose(f);
    return (size_t)pages * 4096;
}

/* What is kept for reuse is not kept from who needs it. */
DT_TEST(memory, idle_blocks_go_before_a_request_fails)
{
    struct rlimit before, limit;
    dti_storage *s;
    dti_memory *m;

    DT_ASSERT_OK(dti_memory_create(false, NULL, &m));
    use(m, 256 * MIB);
    DT_ASSERT(dti_memory_held(m) >= 256 * MIB);
    DT_ASSERT(getrlimit(RLIMIT_AS, &before) == 0);
    limit = before;
    limit.rlim_cur = address_space() + 128 * MIB;
    DT_ASSERT(setrlimit(RLIMIT_AS, &limit) == 0);
    DT_ASSERT_OK(dti_storage_create(m, 300 * MIB, true, &s));
    dti_storage_release(s);
    DT_ASSERT(dti_storage_create(m, 4096 * MIB, true, &s) == DT_ERR_MEMORY);
    DT_ASSERT(setrlimit(RLIMIT_AS, &before) == 0);
    DT_ASSERT(dti_memory_used(m) == 0);
    dti_memory_destroy(&m);
}
#endif
