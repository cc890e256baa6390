/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool of temporaries: what it keeps, and that it gives back. */
#include "tests/support/dt_test.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "dtensor/device/device_memory.h"

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
    DT_ENDS(dti_memory_destroy) dti_memory *m = NULL;
    size_t held;

    DT_ASSERT_OK(dti_memory_create(false, NULL, &m));
    for (size_t i = 0; i < DT_COUNT(sizes); i++) use(m, sizes[i]);
    held = dti_memory_held(m);
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < DT_COUNT(sizes); i++) use(m, sizes[i]);
        DT_ASSERT(dti_memory_held(m) == held);
    }
    DT_ASSERT(dti_memory_used(m) == 0);
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
        for (size_t bytes = MIB; bytes <= largest; bytes += bytes / 4) {
            use(m, bytes);
            DT_ASSERT(dti_memory_held(m) <= 300 * MIB + 5 * bytes / 4 + 64 * MIB);
        }
        DT_ASSERT(dti_memory_used(m) == weights->bytes);
        dti_storage_release(weights);
        DT_ASSERT(dti_memory_held(m) <= 5 * largest / 4 + 64 * MIB);
        dti_memory_destroy(&m);
    }
}

/* Blocks of two steps that take turns, idle or in use, are no more than 64 MiB above the peak. */
DT_TEST(memory, the_pool_holds_its_peak_and_64_mib)
{
    const size_t most = (256 + 64) * MIB;
    dti_storage *a, *b;
    DT_ENDS(dti_memory_destroy) dti_memory *m = NULL;

    DT_ASSERT_OK(dti_memory_create(true, NULL, &m));
    use(m, 256 * MIB);
    DT_ASSERT_OK(dti_storage_create(m, 224 * MIB, true, &a));
    DT_ASSERT(dti_memory_held(m) <= most);
    dti_storage_release(a);
    DT_ASSERT_OK(dti_storage_create(m, 160 * MIB, true, &a));
    DT_ASSERT_OK(dti_storage_create(m, 96 * MIB, true, &b));
    DT_ASSERT(dti_memory_held(m) <= most);
    dti_storage_release(a);
    dti_storage_release(b);
    DT_ASSERT(dti_memory_held(m) <= most && dti_memory_held(m) >= 96 * MIB);
}

static void count_call(void *arg, void *data)
{
    (void)data;
    ++*(int *)arg;
}

/* Who lends memory has it back once: from the last reference, at the end, or from a failure. */
DT_TEST(memory, a_lender_hears_once)
{
    dti_storage *a, *b, *c = NULL;
    int calls[3] = { 0, 0, 0 };
    DT_ENDS(dti_memory_destroy) dti_memory *m = NULL;
    float values[4];

    DT_ASSERT_OK(dti_memory_create(false, NULL, &m));
    DT_ASSERT_OK(dti_storage_lend(m, values, (dti_lender){ count_call, &calls[0] }, &a));
    DT_ASSERT_OK(dti_storage_lend(m, values, (dti_lender){ count_call, &calls[1] }, &b));
    DT_ASSERT(a->data == values && dti_memory_held(m) == 0 && dti_memory_used(m) == 0);
    dti_storage_release(dti_storage_retain(a));
    DT_ASSERT_EQ_INT(calls[0], 0);
    dti_storage_release(a);
    DT_ASSERT_EQ_INT(calls[0], 1);
    dti_memory_end(m);
    DT_ASSERT_EQ_INT(calls[1], 1);
    DT_ASSERT(b->data == NULL);
    dti_storage_release(b);
    DT_ASSERT_STATUS(dti_storage_lend(m, values, (dti_lender){ count_call, &calls[2] }, &c),
                     DT_ERR_ARG, "has ended");
    DT_ASSERT(calls[0] == 1 && calls[1] == 1 && calls[2] == 1 && c == NULL);
}

/* A memory within another counts there too, as its kind, and nowhere after it has gone. */
DT_TEST(memory, kinds_and_parts_add_up)
{
    dti_storage *weights, *cache, *values, *recorded;
    DT_ENDS(dti_memory_destroy) dti_memory *m = NULL;
    dti_memory *part;
    size_t sum = 0;

    DT_ASSERT_OK(dti_memory_create(false, NULL, &m));
    DT_ASSERT_OK(dti_memory_create(false, NULL, &part));
    dti_memory_part_of(part, m, DTI_KIND_RECORDED);
    DT_ASSERT_OK(dti_storage_create(m, 1000, false, &weights));
    dti_storage_set_kind(weights, DTI_KIND_WEIGHTS);
    DT_ASSERT_OK(dti_storage_create(m, 300, false, &cache));
    dti_storage_set_kind(cache, DTI_KIND_CACHES);
    DT_ASSERT_OK(dti_storage_create(m, 256, true, &values));
    DT_ASSERT_OK(dti_storage_create(part, 512, true, &recorded));
    dti_storage_set_kind(recorded, DTI_KIND_CACHES);
    DT_ASSERT_EQ_INT(dti_memory_of_kind(m, DTI_KIND_WEIGHTS), 1000);
    DT_ASSERT_EQ_INT(dti_memory_of_kind(m, DTI_KIND_CACHES), 300);
    DT_ASSERT_EQ_INT(dti_memory_of_kind(m, DTI_KIND_VALUES), 256);
    DT_ASSERT_EQ_INT(dti_memory_of_kind(m, DTI_KIND_RECORDED), 512);
    DT_ASSERT_EQ_INT(dti_memory_of_kind(part, DTI_KIND_CACHES), 512);
    for (int k = 0; k < DTI_N_KINDS; k++) sum += dti_memory_of_kind(m, (dti_memory_kind)k);
    DT_ASSERT_EQ_INT(dti_memory_used(m), sum);
    DT_ASSERT_EQ_INT(dti_memory_peak(m), 2068);
    DT_ASSERT_EQ_INT(dti_memory_held(m), 2068);
    DT_ASSERT_EQ_INT(dti_memory_used(part), 512);
    dti_storage_release(recorded);
    DT_ASSERT_EQ_INT(dti_memory_of_kind(m, DTI_KIND_RECORDED), 0);
    DT_ASSERT_EQ_INT(dti_memory_held(m), 2068); /* kept for reuse */
    DT_ASSERT_OK(dti_storage_create(part, 512, true, &recorded));
    DT_ASSERT_EQ_INT(dti_memory_of_kind(part, DTI_KIND_VALUES), 512); /* used anew */
    dti_storage_release(recorded);
    dti_memory_destroy(&part);
    DT_ASSERT_EQ_INT(dti_memory_held(m), 1556);
    dti_storage_release(weights);
    dti_storage_release(cache);
    dti_storage_release(values);
    for (int k = 0; k < DTI_N_KINDS; k++)
        DT_ASSERT_EQ_INT(dti_memory_of_kind(m, (dti_memory_kind)k), 0);
}

/* Counts what is taken; there are no bytes. */
static dt_status take_counted(void *arg, size_t bytes, void **out)
{
    (void)bytes;
    *out = arg;
    ++*(int *)arg;
    return DT_OK;
}

static void give_nothing(void *arg, void *data, size_t bytes)
{
    (void)arg;
    (void)data;
    (void)bytes;
}

/* A step of training: what the forward pass keeps goes one by one on the way back while gradients
 * of other sizes come. The blocks of all sizes together are more than the pool may keep. */
DT_TEST(memory, a_step_of_training_finds_its_blocks)
{
    enum { N = 64 };
    static const size_t kept[] = { 6, 5, 2 };
    dti_storage *forward[N], *backward[N], *logits[2];
    DT_ENDS(dti_memory_destroy) dti_memory *m = NULL;
    int taken = 0;

    DT_ASSERT_OK(
        dti_memory_create(false, &(dti_allocator){ take_counted, give_nothing, &taken }, &m));
    for (int step = 0; step < 5; step++) {
        const int before = taken;
        for (int i = 0; i < N; i++)
            DT_ASSERT_OK(dti_storage_create(m, kept[i % 3] * MIB, true, &forward[i]));
        for (int i = 0; i < 2; i++) DT_ASSERT_OK(dti_storage_create(m, 32 * MIB, true, &logits[i]));
        for (int i = 0; i < 2; i++) dti_storage_release(logits[i]);
        for (int i = N - 1; i >= 0; i--) {
            dti_storage_release(forward[i]);
            if (i % 2 == 0) DT_ASSERT_OK(dti_storage_create(m, 3 * MIB, true, &backward[i]));
        }
        for (int i = 0; i < N; i += 2) dti_storage_release(backward[i]);
        DT_ASSERT(step < 2 || taken == before);
        DT_ASSERT(dti_memory_held(m) <= dti_memory_peak(m) + 64 * MIB);
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
    DT_ENDS(dti_memory_destroy) dti_memory *m = NULL;

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
}
#endif
