/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalizers: steps that rewrite a text before it is cut into words. */
#ifndef DTI_NORMALIZER_H
#define DTI_NORMALIZER_H

#include "models/checkpoint/json.h"
#include "models/tokenizer/regex.h"
#include "models/tokenizer/unicode.h"

/* Steps of one kind in a pipeline, once Sequences are unfolded. */
enum { DTI_MAX_STEPS = 16 };

/* Whether a "type" of the file is the one a row describes, and the error for one that has no row:
 * "tokenizer.json: normalizer is of type "Nmt", which is not supported (known: NFC, ...)". */
dt_status dti_step_type(const dti_json *step, const char **type) DT_MUST_USE;
dt_status dti_step_unknown(const dti_json *step, const char *type, const char *known);

/* A pattern object of the file, {"String": ..} or {"Regex": ..}. */
dt_status dti_step_pattern(const dti_json *step, dti_regex **out) DT_MUST_USE;

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

/* Normalises n bytes of valid UTF-8. The result is s itself if nothing changes, or lies in `work`
 * until the next call. */
dt_status dti_normalizers_run(const dti_normalizers *all, dti_normalizer_work *work, const char *s,
                              size_t n, const char **out, size_t *n_out) DT_MUST_USE;

#endif
