/* SPDX-License-Identifier: Apache-2.0
 *
 * Patterns of names, sorted by their components: a name meets those that begin as it does, and no
 * others. Plans may have as many rules as a model has layers, and more. */
#ifndef DTI_PATTERN_INDEX_H
#define DTI_PATTERN_INDEX_H

#include "base/error.h"

typedef struct dti_pattern {
    const char *text;
    int part;     /* names are matched by the patterns of one part */
    int number;   /* the caller's */
    bool matched; /* some name; true of all equal ones once they are spread */
} dti_pattern;

/* The caller fills `all` and sorts it; it and the texts stay the caller's. */
typedef struct dti_patterns {
    dti_pattern *all;
    int n;
    int64_t n_compared; /* components that were looked at, which tests count */
} dti_patterns;

void dti_patterns_sort(dti_patterns *p);

/* The number of the pattern of `part` that matches `name` with the fewest stars, of these the
 * greatest number; -1: none does. Remembers all that match. */
int dti_patterns_find(dti_patterns *p, int part, const char *name);

/* What is remembered of one of several equal patterns then holds for all of them. */
void dti_patterns_spread(dti_patterns *p);

#endif
