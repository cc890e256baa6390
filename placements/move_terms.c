/* SPDX-License-Identifier: Apache-2.0
 *
 * How the steps of a plan reduce terms. Which steps a plan has follows from links and memory; what
 * a sum is rounded to must not. So a sum is rounded, and an average divided, once: by the step
 * that has the last terms. */
#include "placements/move.h"

/* Adds the dims of a step to what is known of a reduction. */
typedef struct terms {
    bool sums, averages;
    dt_reduce reduce; /* of the dim seen last */
    int64_t divisor;  /* of all averages */
} terms;

static void look_at(const dti_move_step *step, terms *t)
{
    for (int m = 0; m < step->from->n_dims; m++) {
        if (!dti_has(step->dims, m)) continue;
        t->reduce = step->from->place[m].reduce;
        t->sums = t->sums || t->reduce == DT_SUM;
        t->averages = t->averages || t->reduce == DT_AVG;
        if (t->reduce == DT_AVG) t->divisor *= step->from->dim_size[m];
    }
}

/* A layout mixes no reductions but sum and avg; if both occur the sum is divided afterwards. */
void dti_move_set_reduction(dti_move_step *step)
{
    terms t = { .reduce = DT_SUM, .divisor = 1 };

    look_at(step, &t);
    step->reduce = t.sums && t.averages ? DT_SUM : t.reduce;
    step->divisor = t.sums && t.averages ? t.divisor : 1; /* else the collective divides */
}

/* The least and the largest of some terms are terms: nothing is rounded. */
static bool rounds(const dt_layout *source, uint32_t open)
{
    for (int m = 0; m < source->n_dims; m++)
        if (dti_has(open, m))
            return source->place[m].reduce != DT_MIN && source->place[m].reduce != DT_MAX;
    return false;
}

void dti_move_set_width(dti_move_step *step, const dt_layout *source, const dt_layout *target)
{
    const uint32_t open = source->partial_dims & ~target->partial_dims;
    const uint32_t before = step->from->partial_dims & open, after = step->to->partial_dims & open;
    const bool begun = before != open, reduces = before != after;

    step->wide = step->widens = step->narrows = false;
    if (!rounds(source, open)) return;
    if (reduces)
        step->wide = begun || after != 0 || step->divisor > 1;
    else
        step->wide = begun && before != 0;
    step->widens = step->wide && !begun;
    step->narrows = step->wide && after == 0;
}

static bool is_reduction(const dti_move_step *step)
{
    return step->kind == DTI_MOVE_REDUCE_SCATTER || step->kind == DTI_MOVE_ALL_REDUCE;
}

void dti_move_settle(dti_move *plan)
{
    terms t = { .reduce = DT_SUM, .divisor = 1 };
    int n = 0, last = -1;

    for (int i = 0; i < plan->n_steps; i++) {
        if (!is_reduction(&plan->step[i])) continue;
        look_at(&plan->step[i], &t);
        n++;
        last = i;
    }
    for (int i = 0; i < plan->n_steps; i++) {
        dti_move_step *step = &plan->step[i];
        if (n > 1 && t.averages && is_reduction(step)) {
            step->reduce = DT_SUM;
            step->divisor = i == last ? t.divisor : 1;
        }
        dti_move_set_width(step, plan->step[0].from, plan->step[plan->n_steps - 1].to);
    }
}

size_t dti_move_element_bytes(const dti_move_step *step, size_t element_bytes)
{
    return step->wide && element_bytes == 2 ? 4 : element_bytes;
}
