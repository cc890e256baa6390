/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts on their way to a file of tokens. */
#ifndef DTI_TOKENIZE_H
#define DTI_TOKENIZE_H

#include <dtensor/token_files.h>

#include "files/json.h"

enum { DTI_AROUND_MOST = 8 };

typedef struct dti_tokenizing {
    const dt_tokenize_options *o;
    dt_tokenizer *tokenizer;
    dt_token_writer *writer;
    unsigned flags; /* of dt_tokenizer_encode(), for what stands within a document */
    int32_t before[DTI_AROUND_MOST], behind[DTI_AROUND_MOST]; /* what its template adds to a text */
    int n_before, n_behind;
    int64_t all_bytes, here; /* of all files; where the document begins that is being read */
    dt_tokenized done;
} dti_tokenizing;

/* A document of n bytes, in pieces. */
dt_status dti_tokenize_text(dti_tokenizing *z, const char *text, size_t n) DT_MUST_USE;

/* A conversation, {"messages": [...]}: `line` is its text, `doc` what that says. */
dt_status dti_tokenize_chat(dti_tokenizing *z, const dti_json_doc *doc,
                            const char *line) DT_MUST_USE;

#endif
