/* SPDX-License-Identifier: Apache-2.0
 *
 * Learning rates as functions of the step. */
#include <dtensor/optimizers.h>
#include <math.h>

static const double PI = 3.14159265358979323846;
static const double DEFAULT_DECAY = 0.2;

/* How far `step` is on the way from `begin` to `end`, 0 to 1. */
static double progress(int64_t step, double begin, double end)
{
    const double share = end > begin ? ((double)step - begin) / (end - begin) : 1.0;

    return share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
}

/* 1 at the beginning, 0 at the end. */
static double left(const dt_schedule *s, int64_t step)
{
    const double steps = (double)s->steps, decay = s->decay > 0.0 ? s->decay : DEFAULT_DECAY;

    switch (s->kind) {
    case DT_SCHEDULE_LINEAR:
        return 1.0 - progress(step, (double)s->warmup, steps);
    case DT_SCHEDULE_COSINE:
        return 0.5 * (1.0 + cos(PI * progress(step, (double)s->warmup, steps)));
    case DT_SCHEDULE_WSD:
        return 1.0 - sqrt(progress(step, steps - decay * steps, steps));
    case DT_SCHEDULE_CONSTANT:
        break;
    }
    return 1.0;
}

double dt_schedule_at(const dt_schedule *s, int64_t step)
{
    if (s == NULL) return 0.0;
    if (step < s->warmup) return s->lr * (double)(step + 1) / (double)s->warmup;
    return s->lr * (s->min_lr + (1.0 - s->min_lr) * left(s, step));
}
