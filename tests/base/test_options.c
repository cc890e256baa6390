/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include <string.h>

#include "tests/support/dt_test.h"

/* Three versions of one struct; the library under test is the second. */
typedef struct first {
    size_t size;
    int64_t n;
} first;

typedef struct second {
    size_t size;
    int64_t n;
    int64_t added; /* default 7 */
} second;

typedef struct third {
    size_t size;
    int64_t n;
    int64_t added;
    int64_t later;
} third;

static dt_status read_it(const void *from, second *to)
{
    *to = (second){ sizeof *to, 1, 7 };
    return dti_options_read("opt", "start from INIT", from, to, sizeof *to);
}

DT_TEST(options, structs_of_other_versions_are_read)
{
    second got;

    DT_ASSERT_OK(read_it(NULL, &got));
    DT_ASSERT(got.n == 1 && got.added == 7);
    DT_ASSERT_OK(read_it(&(first){ sizeof(first), 5 }, &got));
    DT_ASSERT(got.n == 5 && got.added == 7 && got.size == sizeof got);
    DT_ASSERT_OK(read_it(&(second){ sizeof(second), 5, 0 }, &got));
    DT_ASSERT(got.n == 5 && got.added == 0);
    DT_ASSERT_OK(read_it(&(third){ sizeof(third), 5, 6, 0 }, &got));
    DT_ASSERT(got.n == 5 && got.added == 6 && got.size == sizeof got);
}

DT_TEST(options, sizes_and_fields_that_cannot_be_understood_are_refused)
{
    second got;

    DT_ASSERT_STATUS(read_it(&(third){ sizeof(third), 5, 6, 1 }, &got), DT_ERR_ARG,
                     "opt has 32 bytes, of which version");
    DT_ASSERT_STATUS(read_it(&(second){ 0, 5, 6 }, &got), DT_ERR_ARG,
                     "opt.size is 0, the struct has 24 bytes; start from INIT");
    DT_ASSERT_STATUS(read_it(&(second){ SIZE_MAX, 5, 6 }, &got), DT_ERR_ARG, "opt.size is");
    DT_ASSERT(got.n == 1 && got.added == 7);
}
