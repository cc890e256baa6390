/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/plan_files.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"

dt_status dt_test_read_plan(const char *text, dt_plan **out)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 16];
    dt_status st;

    dt_test_write_file(dt_test_temp_dir(folder), "plan.json", text, strlen(text));
    (void)snprintf(path, sizeof path, "%s/plan.json", folder);
    st = dt_plan_read(path, out);
    return st;
}
