/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte-pair encoding of one word: characters become tokens, then the pair of neighbours that was
 * learned first is merged until none is left. */
#ifndef DTI_BPE_H
#define DTI_BPE_H

#include "files/json.h"
#include "text/tokenizer/vocab.h"

enum { DTI_BPE_DIRECT_CHARS = 0x180 };

/* Immutable once loaded. */
typedef struct dti_bpe {
    dti_vocab vocab;
    struct dti_merge *merges; /* hashed by pair of ids */
    size_t n_slots;           /* a power of two */
    bool ignore_merges;       /* a word that is a token is not taken apart */
    bool byte_fallback;       /* unknown characters become byte tokens, <0xE2> */
    bool fuse_unk;            /* neighbouring unknown characters are one unknown token */
    char *unk_token;          /* NULL: unknown characters are dropped */
    int32_t unk_id;           /* -1: not in the vocabulary */
    int32_t byte_ids[256];
    int32_t char_ids[DTI_BPE_DIRECT_CHARS]; /* of the first characters, -1: no token */
} dti_bpe;

/* A growing array of ids. */
typedef struct dti_ids {
    int32_t *data;
    size_t n;
    size_t capacity;
} dti_ids;

dt_status dti_ids_append(dti_ids *ids, const int32_t *more, size_t n) DT_MUST_USE;

/* Scratch of one thread. All zeros to begin with. */
typedef struct dti_bpe_work {
    struct dti_symbol *symbols;
    size_t n_symbols, symbols_capacity;
    struct dti_candidate *heap;
    size_t n_heap, heap_capacity;
    uint32_t left_out; /* the first character that has no token, not even an unknown one; 0: none */
} dti_bpe_work;

void dti_bpe_work_free(dti_bpe_work *work);

/* Reads the "model" object of a tokenizer.json (bpe_load.c). */
dt_status dti_bpe_load(dti_bpe *bpe, const dti_json *model) DT_MUST_USE;
void dti_bpe_free(dti_bpe *bpe);

/* Room for n merges, then one at a time: of equal pairs the last one counts. */
dt_status dti_bpe_create_merges(dti_bpe *bpe, size_t n) DT_MUST_USE;
void dti_bpe_add_merge(dti_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t product);

/* Appends the ids of a word, n bytes of valid UTF-8 in the characters of the vocabulary. */
dt_status dti_bpe_encode(const dti_bpe *bpe, dti_bpe_work *work, const char *word, size_t n,
                         dti_ids *out) DT_MUST_USE;

#endif
