/* SPDX-License-Identifier: Apache-2.0
 *
 * Post-processors: the special tokens around a text. */
#ifndef DTI_POST_PROCESSOR_H
#define DTI_POST_PROCESSOR_H

#include "text/tokenizer/bpe.h"

enum { DTI_TEMPLATE_TEXT = -1 };

/* Ids in order, DTI_TEMPLATE_TEXT where the text stands. */
typedef struct dti_template {
    dti_ids items;
    size_t n_texts; /* how often the text stands in it */
} dti_template;

/* Reads the "post_processor" of the file: an object, or null for none. */
dt_status dti_template_load(dti_template *t, const dti_json *from) DT_MUST_USE;
void dti_template_free(dti_template *t);

/* Whether nothing stands around a text. */
bool dti_template_is_text(const dti_template *t);

/* Appends the template, filled in with the ids of a text; without `add_special` only as many copies
 * of the text as it has. */
dt_status dti_template_append(const dti_template *t, bool add_special, const int32_t *ids, size_t n,
                              dti_ids *out) DT_MUST_USE;

#endif
