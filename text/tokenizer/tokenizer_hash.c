/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/tokenizer.h>

#include "base/numbers.h"

uint64_t dt_tokenizer_hash(const dt_tokenizer *tok)
{
    const int32_t n_ids = dt_tokenizer_vocab_size(tok);
    uint64_t h = 1;

    if (tok == NULL) return 0;
    for (int32_t id = 0; id < n_ids; id++) {
        size_t n;
        const char *piece = dt_tokenizer_piece(tok, id, &n);
        if (piece != NULL) h = dti_hash_bytes(dti_hash_word(h, (uint64_t)id), piece, n);
    }
    return h != 0 ? h : 1;
}
