/* SPDX-License-Identifier: Apache-2.0
 *
 * Names with values: what something is, to be written down and compared with later. */
#ifndef DTI_FACTS_H
#define DTI_FACTS_H

#include "base/memory.h"

typedef struct dti_fact {
    const char *what, *value;
} dti_fact;

/* Each name once. A zeroed one is empty. */
typedef struct dti_facts {
    dti_fact *list;
    int n;
    size_t capacity;
    const char *of; /* the file that says so, for messages; NULL: none */
    dti_arena memory;
} dti_facts;

/* Says that `what` is `value`, whatever was said of it before. Both are copied. */
dt_status dti_facts_say(dti_facts *f, const char *what, const char *value) DT_MUST_USE;

/* NULL: nothing was said of it. */
const char *dti_facts_find(const dti_facts *f, const char *what);

/* *to becomes the same; it was empty. On error it is empty. */
dt_status dti_facts_copy(const dti_facts *from, dti_facts *to) DT_MUST_USE;

void dti_facts_free(dti_facts *f); /* it is empty and usable afterwards */

#endif
