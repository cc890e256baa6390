/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/dt_test.h"

#include "base/memory.h"

#include <string.h>

#define BIG ((size_t)2 << 20) /* from here on blocks are large pages */

static bool all_zero(const void *p, size_t bytes)
{
    const unsigned char *b = p;

    for (size_t i = 0; i < bytes; i++)
        if (b[i] != 0) return false;
    return true;
}

DT_TEST(memory, blocks_are_zeroed_and_counted)
{
    const uint64_t count = dti_alloc_count();
    const int64_t live = dti_alloc_live();
    void *a, *b, *c;
    char *text;

    DT_ASSERT_OK(dti_alloc(100, &a));
    DT_ASSERT_OK(dti_alloc(0, &b));
    DT_ASSERT_OK(dti_alloc_array(10, 12, &c));
    DT_ASSERT_OK(dti_strdup("tp", &text));
    DT_ASSERT(b != NULL && all_zero(a, 100) && all_zero(c, 120));
    DT_ASSERT_EQ_STR(text, "tp");
    DT_ASSERT_EQ_INT(dti_alloc_count() - count, 4);
    DT_ASSERT_EQ_INT(dti_alloc_live() - live, 4);
    dti_free(a);
    dti_free(b);
    dti_free(c);
    dti_free(text);
    dti_free(NULL);
    DT_ASSERT_EQ_INT(dti_alloc_live(), live);
}

DT_TEST(memory, products_and_sums_that_overflow_are_refused)
{
    void *p = &p;
    size_t capacity = 0;
    dti_arena arena = DTI_ARENA_INIT;
    char *text;

    DT_ASSERT_STATUS(dti_alloc_array(SIZE_MAX / 8, 16, &p), DT_ERR_MEMORY, "address space");
    DT_ASSERT(p == NULL);
    p = NULL;
    DT_ASSERT_STATUS(dti_grow(&p, &capacity, SIZE_MAX / 4, 8), DT_ERR_MEMORY, "too large");
    DT_ASSERT(p == NULL && capacity == 0);
    DT_ASSERT_STATUS(dti_big_alloc(SIZE_MAX - 5, &p), DT_ERR_MEMORY, "address space");
    DT_ASSERT_STATUS(dti_arena_alloc(&arena, SIZE_MAX - 5, &p), DT_ERR_MEMORY, "address space");
    DT_ASSERT_STATUS(dti_arena_strndup(&arena, "", SIZE_MAX, &text), DT_ERR_MEMORY, "");
    DT_ASSERT(arena.blocks == NULL && text == NULL);
}

DT_TEST(memory, what_the_machine_does_not_have_is_an_error)
{
    void *p = &p;

    DT_ASSERT_STATUS(dti_big_alloc((size_t)1 << 60, &p), DT_ERR_MEMORY, "1152921504606846976");
    DT_ASSERT(p == NULL);
}

DT_TEST(memory, an_array_grows_with_its_contents_and_new_room_is_zero)
{
    const int64_t live = dti_alloc_live();
    DT_FREED int *array = NULL;
    size_t capacity = 0;

    for (size_t n = 1; n <= 1000; n++) {
        DT_ASSERT_OK(dti_grow((void **)&array, &capacity, n, sizeof *array));
        DT_ASSERT(capacity >= n && capacity <= (n < 8 ? 8 : 2 * n));
        DT_ASSERT_EQ_INT(array[n - 1], 0);
        array[n - 1] = (int)n;
    }
    for (size_t n = 1; n <= 1000; n++) DT_ASSERT_EQ_INT(array[n - 1], n);
    DT_ASSERT(all_zero(array + 1000, (capacity - 1000) * sizeof *array));
    DT_ASSERT_EQ_INT(dti_alloc_live() - live, 1);
}

DT_TEST(memory, big_blocks_are_aligned_zeroed_and_writable_to_the_end)
{
    static const size_t sizes[] = { 0, 1, 127, 4096, BIG - 1, BIG, BIG + 1, 3 * BIG - 5 };
    const int64_t live = dti_alloc_live();

    for (size_t i = 0; i < DT_COUNT(sizes); i++) {
        const size_t align = sizes[i] >= BIG ? BIG : 128;
        void *p;
        DT_ASSERT_OK(dti_big_alloc(sizes[i], &p));
        DT_ASSERT_EQ_INT((uintptr_t)p % align, 0);
        DT_ASSERT(all_zero(p, sizes[i]));
        memset(p, 0xff, sizes[i]);
        dti_big_free(p, sizes[i]);
    }
    dti_big_free(NULL, 5);
    DT_ASSERT_EQ_INT(dti_alloc_live(), live);
}

DT_TEST(memory, an_arena_gives_aligned_zeroed_memory_that_does_not_overlap)
{
    const int64_t live = dti_alloc_live();
    dti_arena arena = DTI_ARENA_INIT;
    unsigned char *piece[300];
    size_t bytes[300];
    char *text;

    for (size_t i = 0; i < DT_COUNT(piece); i++) {
        bytes[i] = i % 50 == 49 ? 100000 : i * 7 % 900;
        DT_ASSERT_OK(dti_arena_alloc(&arena, bytes[i], (void **)&piece[i]));
        DT_ASSERT_EQ_INT((uintptr_t)piece[i] % 16, 0);
        DT_ASSERT(all_zero(piece[i], bytes[i]));
        memset(piece[i], (int)(i % 255) + 1, bytes[i]);
    }
    for (size_t i = 0; i < DT_COUNT(piece); i++)
        for (size_t k = 0; k < bytes[i]; k++) DT_ASSERT(piece[i][k] == i % 255 + 1);
    DT_ASSERT_OK(dti_arena_strndup(&arena, "dp=2,tp=4", 4, &text));
    DT_ASSERT_EQ_STR(text, "dp=2");
    DT_ASSERT_OK(dti_arena_strndup(&arena, NULL, 0, &text));
    DT_ASSERT_EQ_STR(text, "");
    dti_arena_free(&arena);
    DT_ASSERT_EQ_INT(dti_alloc_live(), live);
    DT_ASSERT_OK(dti_arena_alloc(&arena, 3, (void **)&text));
    dti_arena_free(&arena);
    dti_arena_free(&arena);
}

/* A large request must not push the half-used block away. */
DT_TEST(memory, an_arena_keeps_filling_its_block_after_a_large_request)
{
    DT_ENDS(dti_arena_free) dti_arena arena = DTI_ARENA_INIT;
    void *p;
    uint64_t count;

    DT_ASSERT_OK(dti_arena_alloc(&arena, 16, &p));
    DT_ASSERT_OK(dti_arena_alloc(&arena, 1 << 20, &p));
    count = dti_alloc_count();
    DT_ASSERT_OK(dti_arena_alloc(&arena, 16, &p));
    DT_ASSERT_EQ_INT(dti_alloc_count(), count);
}

DT_TEST(memory, products_of_extents_are_checked)
{
    int64_t n = 7;

    DT_ASSERT(dti_mul_i64(3, 5, &n) && n == 15);
    DT_ASSERT(dti_mul_i64(INT64_MAX, 1, &n) && n == INT64_MAX);
    DT_ASSERT(dti_mul_i64(0, INT64_MAX, &n) && n == 0);
    DT_ASSERT(dti_mul_i64(INT64_MAX, 0, &n) && n == 0);
    n = 7;
    DT_ASSERT(!dti_mul_i64(INT64_MAX / 2 + 1, 2, &n));
    DT_ASSERT(!dti_mul_i64(-1, 2, &n) && !dti_mul_i64(2, -1, &n));
    DT_ASSERT_EQ_INT(n, 7);
}
