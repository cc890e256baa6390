/* SPDX-License-Identifier: Apache-2.0
 *
 * The members of a JSON object one by one: a header of a million tensors as one document takes ten
 * times its bytes. Only what is plainly an object of objects is walked so; anything else is left to
 * whoever parses the whole, and knows what is wrong with it. */
#ifndef DTI_HEADER_MEMBERS_H
#define DTI_HEADER_MEMBERS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct dti_members {
    const char *at, *end;
    bool begun, over;
} dti_members;

dti_members dti_members_in(const char *text, size_t n);

/* The text of the next member, key and value: {"a": {..}} has "a": {..}. False at the end, which is
 * one if `over` is true, and something else otherwise. */
bool dti_members_next(dti_members *m, const char **text, size_t *n);

#endif
