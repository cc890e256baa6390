/* SPDX-License-Identifier: Apache-2.0
 *
 * Strings with ids, found both ways. */
#ifndef DTI_VOCAB_H
#define DTI_VOCAB_H

#include "base/error.h"

/* Ids are dense in practice; this bounds the table of a file that says otherwise. */
enum { DTI_MAX_TOKEN_ID = (1 << 24) - 1 };

/* Of n bytes, all of which reach the lower bits: for tables, dti_hash_bytes() is for agreement. */
uint64_t dti_vocab_hash(const char *s, size_t n);

typedef struct dti_piece {
    const char *text; /* ended by a zero byte; NULL: no token has this id */
    uint32_t bytes;
} dti_piece;

typedef struct dti_vocab {
    dti_piece *pieces; /* by id, n_ids of them */
    int32_t n_ids;     /* one more than the largest id */
    int32_t n_tokens;
    char *text;        /* of all pieces, one after the other */
    size_t text_bytes; /* used so far */
    struct dti_vocab_slot *slots;
    size_t n_slots; /* a power of two, or 0 */
} dti_vocab;

/* Makes room once: at most n_tokens tokens of n_bytes in all, ids below n_ids. */
dt_status dti_vocab_create(dti_vocab *v, size_t n_tokens, size_t n_bytes,
                           int32_t n_ids) DT_MUST_USE;

/* Adds a token. DT_ERR_FORMAT if the string or the id is there already. */
dt_status dti_vocab_add(dti_vocab *v, const char *s, size_t n, int32_t id) DT_MUST_USE;

int32_t dti_vocab_find(const dti_vocab *v, const char *s, size_t n); /* -1: none */
void dti_vocab_free(dti_vocab *v);

#endif
