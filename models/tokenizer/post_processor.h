/* SPDX-License-Identifier: Apache-2.0
 *
 * Post-processors: the special tokens around a text. */
#ifndef DTI_POST_PROCESSOR_H
#define DTI_POST_PROCESSOR_H

#include "models/tokenizer/bpe.h"

enum { DTI_TEMPLATE_TEXT = -1 };

/* Ids in order, DTI_TEMPLATE_TEXT where the text stands. */
typedef struct dti_template {
    dti_ids items;
} dti_template;

/* Reads the "post_processor" of the file: an object, or null for none. */
dt_status dti_template_load(dti_template *t, const dti_json *from) DT_MUST_USE;
void dti_template_free(dti_template *t);

/* Replaces the ids of a text by the filled-in template; without `add_special` only by as many
 * copies of the text as it has. */
dt_status dti_template_apply(const dti_template *t, bool add_special, dti_ids *ids) DT_MUST_USE;

#endif
