/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DTI_TOKENIZER_INTERNAL_H
#define DTI_TOKENIZER_INTERNAL_H

#include <dtensor/tokenizer.h>

#include <stdatomic.h>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/post_processor.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/token_texts.h"

/* The pipeline, in the order in which a text passes it. */
struct dt_tokenizer {
    atomic_int refs;
    dti_added_tokens added;
    dti_normalizers normalizers;
    dti_pre_tokenizers pre_tokenizers;
    dti_bpe bpe;
    dti_template around;
    dti_decoders decoders;
    const dti_added_token **added_by_id; /* n_ids of them, NULL where the model's piece counts */
    int32_t n_ids;
    _Atomic(dti_token_texts *) texts; /* NULL: nobody has asked */
};

/* Reads a file in the format of tokenizer.json, or the pair vocab.json and merges.txt in a folder,
 * as such a document (tokenizer_files.c). */
dt_status dti_tokenizer_read(const char *path, dti_json_doc *out) DT_MUST_USE;

/* Makes a tokenizer of a document in the format of tokenizer.json. */
dt_status dti_tokenizer_load(const dti_json *root, dt_tokenizer **out) DT_MUST_USE;

/* The string of an id as decoders take it; NULL if no token has it. */
const char *dti_tokenizer_decoder_piece(const dt_tokenizer *tok, int32_t id, size_t *n);

#endif
