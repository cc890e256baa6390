/* SPDX-License-Identifier: Apache-2.0
 *
 * Matching of plan rules to layer names: "*" is one whole component between dots. */
#include <string.h>

#include "parallel_styles/layers_internal.h"

static size_t component(const char *text)
{
    return strcspn(text, ".");
}

int dti_plan_match(const char *pattern, const char *name)
{
    int stars = 0;

    for (;;) {
        const size_t p = component(pattern), n = component(name);
        if (p == 1 && pattern[0] == '*' && n > 0)
            stars++;
        else if (p != n || strncmp(pattern, name, n) != 0)
            return -1;
        pattern += p;
        name += n;
        if (*pattern != *name) return -1; /* one of them has components left */
        if (*pattern == '\0') return stars;
        pattern++;
        name++;
    }
}

const char *dti_plan_style(const dt_plan *plan, const char *name, bool *used)
{
    int best = -1, best_stars = 0;

    for (int i = 0; i < plan->n_rules; i++) {
        const int stars = dti_plan_match(plan->rules[i].pattern, name);
        if (stars < 0) continue;
        used[i] = true;
        if (best < 0 || stars <= best_stars) {
            best = i;
            best_stars = stars;
        }
    }
    return best < 0 ? NULL : plan->rules[best].style;
}
