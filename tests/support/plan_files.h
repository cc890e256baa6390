/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans that tests write down as text. */
#ifndef DT_TEST_PLAN_FILES_H
#define DT_TEST_PLAN_FILES_H

#include <dtensor/plans.h>

/* dt_plan_read() of a file "plan.json" with that text, in a folder of its own that is removed. */
dt_status dt_test_read_plan(const char *text, dt_plan **out);

#endif
