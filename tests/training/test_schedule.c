/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/optimizers.h>
#include <math.h>

#include "tests/support/dt_test.h"

DT_TEST(schedule, rises_and_falls)
{
    const dt_schedule constant = { .kind = DT_SCHEDULE_CONSTANT, .lr = 2.0, .warmup = 4 };
    const dt_schedule linear = {
        .kind = DT_SCHEDULE_LINEAR, .lr = 2.0, .min_lr = 0.25, .warmup = 10, .steps = 110
    };
    dt_schedule s = linear;

    DT_ASSERT(dt_schedule_at(NULL, 0) == 0.0);
    DT_ASSERT(dt_schedule_at(&constant, 0) == 0.5 && dt_schedule_at(&constant, 3) == 2.0);
    DT_ASSERT(dt_schedule_at(&constant, 1000000) == 2.0);
    DT_ASSERT(dt_schedule_at(&linear, 10) == 2.0 && dt_schedule_at(&linear, 9) == 2.0);
    DT_ASSERT_CLOSE(dt_schedule_at(&linear, 60), 2.0 * (0.25 + 0.75 * 0.5), 1e-12);
    DT_ASSERT(dt_schedule_at(&linear, 110) == 0.5 && dt_schedule_at(&linear, 5000) == 0.5);
    s.kind = DT_SCHEDULE_COSINE;
    DT_ASSERT_CLOSE(dt_schedule_at(&s, 35), 2.0 * (0.25 + 0.75 * (0.5 + 0.5 * sqrt(0.5))), 1e-12);
    DT_ASSERT_CLOSE(dt_schedule_at(&s, 110), 0.5, 1e-12);
    s.kind = DT_SCHEDULE_WSD;
    s.steps = 100;
    DT_ASSERT(dt_schedule_at(&s, 79) == 2.0 && dt_schedule_at(&s, 80) == 2.0);
    DT_ASSERT_CLOSE(dt_schedule_at(&s, 85), 2.0 * (0.25 + 0.75 * 0.5), 1e-12);
    s.decay = 0.5;
    DT_ASSERT_CLOSE(dt_schedule_at(&s, 62), 2.0 * (0.25 + 0.75 * (1.0 - sqrt(0.24))), 1e-12);
    DT_ASSERT(dt_schedule_at(&s, 100) == 0.5);
}
