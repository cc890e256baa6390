/* SPDX-License-Identifier: Apache-2.0
 *
 * The plans of large products: what makes two products the same, and which plan a full table gives
 * up. No device is needed. */
#include "tests/support/dt_test.h"

#include <string.h>

#include "dtensor/kernels/cuda/gemm_plans.h"
#include "dtensor/kernels/cuda/plan_table.h"

enum { N_PLANS = 64, N_KEYS = 14 };

/* A plan is where it counts how often it was dropped. */
static void drop(void *arg, void *plan)
{
    (void)arg;
    ++*(int *)plan;
}

static dti_gemm_key key_of(int64_t m)
{
    dti_gemm_key key;

    memset(&key, 0, sizeof key);
    key.m = m;
    key.n = 4096;
    key.k = 4096;
    key.x_align = key.w_align = key.y_align = 16;
    return key;
}

DT_TEST(cuda_plans, each_part_of_a_key_tells_products_apart)
{
    int dropped[N_KEYS] = { 0 };
    dti_gemm_key keys[N_KEYS];
    dti_plan_table *table = dti_plan_table_create(N_PLANS, sizeof(dti_gemm_key), drop, NULL);

    DT_ASSERT(table != NULL);
    for (int i = 0; i < N_KEYS; i++) keys[i] = key_of(64);
    keys[1].m = 128;
    keys[2].n = 1;
    keys[3].k = 1;
    keys[4].dtype = 1;
    keys[5].out_dtype = 1;
    keys[6].bias = 1;
    keys[7].x_align = 8;
    keys[8].w_align = 8;
    keys[9].y_align = 8;
    keys[10].bias_align = 8;
    keys[11].exact = 1;
    keys[12].x_turned = 1;
    keys[13].w_turned = 1;
    for (int i = 0; i < N_KEYS; i++) {
        DT_ASSERT(dti_plan_table_find(table, &keys[i]) == NULL);
        dti_plan_table_put(table, &keys[i], &dropped[i]);
    }
    for (int i = 0; i < N_KEYS; i++) DT_ASSERT(dti_plan_table_find(table, &keys[i]) == &dropped[i]);
    DT_ASSERT(dti_plan_table_count(table) == N_KEYS);
    dti_plan_table_destroy(table);
    for (int i = 0; i < N_KEYS; i++) DT_ASSERT(dropped[i] == 1);
}

DT_TEST(cuda_plans, a_full_table_gives_up_what_was_not_used_for_longest)
{
    int dropped[5] = { 0 };
    dti_plan_table *table = dti_plan_table_create(3, sizeof(dti_gemm_key), drop, NULL);
    dti_gemm_key keys[5];

    DT_ASSERT(table != NULL);
    for (int i = 0; i < 5; i++) keys[i] = key_of(i + 1);
    for (int i = 0; i < 3; i++) dti_plan_table_put(table, &keys[i], &dropped[i]);
    DT_ASSERT(dti_plan_table_find(table, &keys[0]) == &dropped[0]); /* now 1 is oldest */
    dti_plan_table_put(table, &keys[3], &dropped[3]);
    DT_ASSERT(dropped[1] == 1 && dti_plan_table_find(table, &keys[1]) == NULL);
    DT_ASSERT(dti_plan_table_find(table, &keys[2]) == &dropped[2]);
    DT_ASSERT(dti_plan_table_find(table, &keys[0]) == &dropped[0]);
    dti_plan_table_put(table, &keys[4], &dropped[4]); /* 3 is oldest */
    DT_ASSERT(dropped[3] == 1 && dropped[0] == 0 && dropped[2] == 0);
    DT_ASSERT(dti_plan_table_count(table) == 3);
    dti_plan_table_destroy(table);
    DT_ASSERT(dropped[0] == 1 && dropped[2] == 1 && dropped[4] == 1);
}

/* Against a list that is searched from its front: 20000 calls, 40 keys, tables of 1 to 16. */
DT_TEST(cuda_plans, any_order_of_calls_does_what_a_plain_list_does)
{
    static const int capacities[] = { 1, 2, 7, 16 };

    for (size_t c = 0; c < DT_COUNT(capacities); c++) {
        const int capacity = capacities[c];
        dti_plan_table *table = dti_plan_table_create(capacity, sizeof(dti_gemm_key), drop, NULL);
        int list[16], n = 0, dropped[40] = { 0 }, want[40] = { 0 };
        uint32_t state = 7;

        DT_ASSERT(table != NULL);
        for (int call = 0; call < 5000; call++) {
            state = state * 1664525u + 1013904223u;
            const int which = (int)(state >> 20) % 40;
            const dti_gemm_key key = key_of(which);
            int at = 0;
            while (at < n && list[at] != which) at++;
            DT_ASSERT(dti_plan_table_find(table, &key) == (at < n ? &dropped[which] : NULL));
            if (at == n) {
                dti_plan_table_put(table, &key, &dropped[which]);
                if (n < capacity)
                    n++;
                else
                    want[list[n - 1]]++;
                at = n - 1;
            }
            memmove(list + 1, list, (size_t)at * sizeof *list);
            list[0] = which;
            DT_ASSERT(memcmp(dropped, want, sizeof want) == 0);
        }
        dti_plan_table_destroy(table);
    }
}

DT_TEST(cuda_plans, buckets_hold_their_rows_and_are_few)
{
    int n = 0;
    int64_t last = 0;

    for (int64_t m = 1; m <= 8192; m++) {
        const int64_t bucket = dti_gemm_bucket(m);
        DT_ASSERT(bucket >= m && bucket >= last && bucket < m + 256);
        DT_ASSERT(dti_gemm_bucket(bucket) == bucket);
        n += bucket != last;
        last = bucket;
    }
    DT_ASSERT(n == 16 + 3 + 7 + 30);
}

DT_TEST(cuda_plans, alignment_is_that_of_pointer_and_rows)
{
    const char *base = (const char *)4096;

    DT_ASSERT(dti_gemm_alignment(base, 8192) == 16);
    DT_ASSERT(dti_gemm_alignment(base + 8, 8192) == 8);
    DT_ASSERT(dti_gemm_alignment(base, 8196) == 4);
    DT_ASSERT(dti_gemm_alignment(base + 16, 8194) == 2);
    DT_ASSERT(dti_gemm_alignment(base + 1, 64) == 1);
    DT_ASSERT(dti_gemm_alignment(base, 0) == 16);
}
