/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/dt_test.h"

#include <string.h>

static dt_status fails(int n)
{
    DT_CHECK(n < 3, DT_ERR_SHAPE, "n is %d", n);
    return DT_OK;
}

static dt_status passes_on(int n)
{
    DT_TRY(fails(n));
    return DT_OK;
}

DT_TEST(error, the_record_names_message_and_path)
{
    const dt_error *e = dt_last_error();

    DT_ASSERT_OK(passes_on(2));
    DT_ASSERT_STATUS(passes_on(7), DT_ERR_SHAPE, "n is 7");
    DT_ASSERT_EQ_INT(e->code, DT_ERR_SHAPE);
    DT_ASSERT_EQ_INT(e->n_frames, 2);
    DT_ASSERT_EQ_STR(e->frames[0].func, "fails");
    DT_ASSERT_EQ_STR(e->frames[1].func, "passes_on");
}
