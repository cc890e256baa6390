/* SPDX-License-Identifier: Apache-2.0
 *
 * Pre-tokenizers: steps that cut a text into words. */
#ifndef DTI_PRE_TOKENIZER_H
#define DTI_PRE_TOKENIZER_H

#include "text/tokenizer/normalizer.h"

typedef enum dti_behavior { /* what becomes of a separator */
                            DTI_REMOVED,
                            DTI_ISOLATED,
                            DTI_MERGED_WITH_PREVIOUS,
                            DTI_MERGED_WITH_NEXT,
                            DTI_CONTIGUOUS
} dti_behavior;

typedef enum dti_prepend { DTI_PREPEND_NEVER, DTI_PREPEND_FIRST, DTI_PREPEND_ALWAYS } dti_prepend;

typedef struct dti_pre_tokenizer {
    const struct dti_pre_tokenizer_row *row;
    dti_regex *regex; /* what separates; NULL: nothing is cut */
    dti_behavior behavior;
    dti_prepend prepend;  /* whether `marker` is put in front of a piece that lacks it */
    dti_text marker;      /* a space, or Metaspace's stand-in for spaces */
    bool invert;          /* the pattern describes words, not separators */
    bool replaces_spaces; /* every space becomes `marker` */
} dti_pre_tokenizer;

typedef struct dti_pre_tokenizers {
    dti_pre_tokenizer steps[DTI_MAX_STEPS];
    size_t n;
    /* Words are handed out as bytes and stand for byte-level characters: writing these out is left
     * to the model, which meets most words more than once. */
    bool byte_level_words;
} dti_pre_tokenizers;

/* Reads the "pre_tokenizer" of the file: an object, or null for none. */
dt_status dti_pre_tokenizers_load(dti_pre_tokenizers *all, const dti_json *from) DT_MUST_USE;
void dti_pre_tokenizers_free(dti_pre_tokenizers *all);

/* The fields that Metaspace has as a pre-tokenizer and as a decoder. A zero byte follows *marker.
 */
dt_status dti_metaspace_load(const dti_json *from, dti_text *marker,
                             dti_prepend *prepend) DT_MUST_USE;

/* A part of a text. */
typedef struct dti_text_span {
    const char *s; /* valid UTF-8 */
    size_t n;
    bool first; /* begins where the user's text begins */
} dti_text_span;

/* Cutting, with the scratch of one thread. Give `all`, `word` and `arg`; zeros otherwise. */
typedef struct dti_pre_walk {
    const dti_pre_tokenizers *all;
    dt_status (*word)(void *arg, const char *s, size_t n);
    void *arg;
    dti_matcher matcher;
    dti_text scratch[DTI_MAX_STEPS];
    size_t n_out, limit; /* bytes of words, and how many they may be */
} dti_pre_walk;

/* What follows belongs to a text of so many bytes, as long as it was before it was normalised. */
void dti_pre_walk_begin(dti_pre_walk *walk, size_t bytes);

void dti_pre_walk_free(dti_pre_walk *walk);

/* Hands the words of a text to walk->word, in order; none is empty. */
dt_status dti_pre_tokenize(dti_pre_walk *walk, dti_text_span text) DT_MUST_USE;

#endif
