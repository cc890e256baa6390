/* SPDX-License-Identifier: Apache-2.0
 *
 * Patterns of a tokenizer: regular expressions in the syntax of the reference library (Oniguruma,
 * Ruby), run by PCRE2, and literal strings. */
#ifndef DTI_REGEX_H
#define DTI_REGEX_H

#include "text/tokenizer/utf8.h"

typedef struct dti_regex dti_regex; /* immutable, so threads may share it */

/* Compiles a pattern. Constructs that the two engines read differently are translated, or refused
 * with DT_ERR_UNSUPPORTED. An empty pattern is refused. */
dt_status dti_regex_compile(const char *pattern, dti_regex **out) DT_MUST_USE;
dt_status dti_regex_literal(const char *text, dti_regex **out) DT_MUST_USE;
void dti_regex_free(dti_regex *re); /* accepts NULL */

/* Translates a pattern to PCRE2's syntax (regex_translate.c). */
dt_status dti_regex_translate(const char *pattern, dti_text *out) DT_MUST_USE;

/* What one thread needs to match. All zeros to begin with; grown on first use. */
typedef struct dti_matcher {
    void *data;           /* pcre2_match_data */
    void *context;        /* pcre2_match_context */
    int64_t deadline_ns;  /* of the text at hand, by the clock of this thread's work; 0: none yet */
    uint64_t since_clock; /* what searches may have done at most since it was looked at */
} dti_matcher;

void dti_matcher_free(dti_matcher *m);

/* What follows belongs to a text of so many bytes: patterns may work on it for two seconds, and for
 * four microseconds per byte, ten times of what tokenizers need. */
void dti_matcher_begin(dti_matcher *m, size_t bytes);

/* A walk over the matches in a text: leftmost first, not overlapping; an empty match right after
 * the last one does not count. */
typedef struct dti_matches {
    const dti_regex *regex;
    const char *text; /* valid UTF-8 */
    size_t bytes;
    size_t at;         /* where the search goes on */
    bool any;          /* a match was found before */
    size_t begin, end; /* the match; [bytes, bytes) after the last one */
    bool done;
} dti_matches;

dti_matches dti_matches_in(const dti_regex *re, const char *text, size_t bytes);

/* Moves to the next match, or sets `done`. */
dt_status dti_matches_next(dti_matches *it, dti_matcher *m) DT_MUST_USE;

/* Appends s with every match replaced by `by`, taken literally; *changed false and nothing appended
 * if there is no match. */
dt_status dti_regex_replace(const dti_regex *re, dti_matcher *m, const char *s, size_t n,
                            const dti_text *by, dti_text *out, bool *changed) DT_MUST_USE;

#endif
