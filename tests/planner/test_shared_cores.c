/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipelines on fewer cores than ranks. */
#include "planner/shared_cores.h"

#include <math.h>

#include "tests/support/dt_test.h"

enum { MOST_STAGES = 16 };

static double makespan(dt_pipeline_schedule *s, double message, double wait, double cores)
{
    double f[MOST_STAGES], back[MOST_STAGES], f_wait[MOST_STAGES], b_wait[MOST_STAGES], out;
    double messages[MOST_STAGES];
    const dti_shared_work work = { f, back, back, f_wait, b_wait, messages, cores };

    for (int i = 0; i < MOST_STAGES; i++) {
        messages[i] = message * (1 + i % 3);
        f[i] = 1 + 0.25 * i;
        back[i] = f[i];
        f_wait[i] = b_wait[i] = wait;
    }
    DT_ASSERT_OK(dti_shared_makespan(s, &work, &out));
    return out;
}

static double simulated(dt_pipeline_schedule *s, double message, double wait)
{
    dt_pipeline_costs c = DT_PIPELINE_COSTS_INIT;
    double f[MOST_STAGES], i[MOST_STAGES], w[MOST_STAGES], messages[MOST_STAGES];
    dt_pipeline_timing *timing;
    double out;

    for (int k = 0; k < MOST_STAGES; k++) {
        messages[k] = message * (1 + k % 3);
        w[k] = 1 + 0.25 * k;
        f[k] = i[k] = w[k] + wait;
    }
    c.n = dt_pipeline_schedule_stages(s);
    c.f = f;
    c.i = i;
    c.w = w;
    c.messages = messages;
    DT_ASSERT_OK(dt_pipeline_simulate(s, &c, &timing));
    out = dt_pipeline_timing_total(timing).makespan;
    dt_pipeline_timing_release(&timing);
    return out;
}

DT_TEST(shared_cores, with_a_core_each_it_is_the_simulator)
{
    static const char *const names[] = { "naive", "gpipe", "1f1b", "interleaved", "zb-h1" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (int ranks = 1; ranks <= 4; ranks++) {
            dt_pipeline_schedule *s;
            DT_ASSERT_OK(dt_pipeline_schedule_create(names[i], ranks, 0, 8 * ranks, &s));
            DT_ASSERT_CLOSE(makespan(s, 0, 0, ranks), simulated(s, 0, 0), 1e-9);
            DT_ASSERT_CLOSE(makespan(s, 0.5, 0.25, ranks), simulated(s, 0.5, 0.25), 1e-9);
            dt_pipeline_schedule_release(&s);
        }
}

DT_TEST(shared_cores, on_one_core_everything_is_added_up)
{
    dt_pipeline_schedule *s;
    double before = INFINITY;

    DT_ASSERT_OK(dt_pipeline_schedule_create("1f1b", 4, 0, 8, &s));
    DT_ASSERT_CLOSE(makespan(s, 0, 0, 1), 8 * 3 * (1 + 1.25 + 1.5 + 1.75), 1e-9);
    for (double cores = 1; cores <= 4; cores += 0.5) { /* more cores take no longer */
        const double now = makespan(s, 0.1, 0.1, cores);
        DT_ASSERT(now <= before + 1e-9);
        before = now;
    }
    dt_pipeline_schedule_release(&s);
}
