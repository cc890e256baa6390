/* SPDX-License-Identifier: Apache-2.0
 *
 * Characters as the reference library classes and normalises them. */
#ifndef DTI_UNICODE_H
#define DTI_UNICODE_H

#include "text/tokenizer/utf8.h"

typedef struct dti_category_row {
    uint32_t first, last;
    char category[3]; /* general category, "Lo" */
    int since; /* Unicode version by which all libraries know it; 17: only Rust's own tables */
} dti_category_row;

typedef struct dti_lower_row {
    uint32_t first, last;
    int32_t distance;
} dti_lower_row;

typedef struct dti_inert_row {
    uint32_t first, last;
    bool compat;
} dti_inert_row;

/* unicode_tables.c; each in rising order */
extern const dti_category_row dti_category_rows[];
extern const dti_lower_row dti_lower_rows[];
extern const dti_inert_row dti_inert_rows[];
extern const size_t dti_n_category_rows, dti_n_lower_rows, dti_n_inert_rows;

bool dti_is_space(uint32_t c);   /* White_Space: \s of the reference, without U+180E */
bool dti_is_word(uint32_t c);    /* \w of Rust's regular expressions */
bool dti_is_numeric(uint32_t c); /* categories Nd, Nl and No */

/* ASCII's, or in a category of punctuation as Unicode 8 has them. */
bool dti_is_punctuation(uint32_t c);

/* Lower case of one character, without context. */
dt_status dti_append_lower(dti_text *out, uint32_t c) DT_MUST_USE;

typedef enum dti_form { DTI_NFC, DTI_NFD, DTI_NFKC, DTI_NFKD } dti_form;

/* Appends s, n bytes of valid UTF-8, in the form; *changed false and nothing appended where a quick
 * look shows that it is in that form already. */
dt_status dti_normalize(dti_form form, const char *s, size_t n, dti_text *out,
                        bool *changed) DT_MUST_USE;

#endif
