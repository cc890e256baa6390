/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalizers: steps that rewrite a text before it is cut into words. */
#ifndef DTI_NORMALIZER_H
#define DTI_NORMALIZER_H

#include "text/tokenizer/steps.h"
#include "text/tokenizer/unicode.h"

typedef struct dti_normalizer {
    const struct dti_normalizer_row *row;
    dti_form form;    /* NFC and its like */
    dti_text content; /* Prepend, Replace */
    dti_regex *regex; /* Replace */
    bool left, right; /* Strip */
} dti_normalizer;

typedef struct dti_normalizers {
    dti_normalizer steps[DTI_MAX_STEPS];
    size_t n;
    bool byte_level; /* one of them writes bytes as characters */
} dti_normalizers;

/* Reads the "normalizer" of the file: an object, or null for none. */
dt_status dti_normalizers_load(dti_normalizers *all, const dti_json *from) DT_MUST_USE;
void dti_normalizers_free(dti_normalizers *all);

/* Scratch of one thread. All zeros to begin with. */
typedef struct dti_normalizer_work {
    dti_matcher matcher;
    dti_text text[2];
} dti_normalizer_work;

void dti_normalizer_work_free(dti_normalizer_work *work);

/* What follows belongs to a text of so many bytes. */
void dti_normalizer_work_begin(dti_normalizer_work *work, size_t bytes);

/* Normalises n bytes of valid UTF-8. The result is s itself if nothing changes, or lies in `work`
 * until the next call. */
dt_status dti_normalizers_run(const dti_normalizers *all, dti_normalizer_work *work, const char *s,
                              size_t n, const char **out, size_t *n_out) DT_MUST_USE;

#endif
