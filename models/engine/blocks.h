/* SPDX-License-Identifier: Apache-2.0
 *
 * The blocks of a pool of keys and values: who has which, which are free, and which hold tokens
 * that another text may begin with. Numbers alone: the values themselves are elsewhere.
 *
 * What a full block holds is known by a number of its own, its content: that of the block before it
 * (0: it is the first), the salt of its text, and its tokens make it. Two blocks of one content are
 * equal token by token from the first on: nothing is taken for equal because of a hash. */
#ifndef DTI_BLOCKS_H
#define DTI_BLOCKS_H

#include "base/memory.h"

typedef struct dti_kv_block {
    int32_t refs;          /* texts that have it; 0: it is free */
    int32_t before, after; /* of the free ones, the least recently used first; -1: none */
    int32_t next;          /* of those that share a bucket; -1: none */
    bool found;            /* lookups find it */
    int64_t content, parent;
    uint64_t salt;
} dti_kv_block;

typedef struct dti_blocks {
    int64_t n, size;     /* blocks, and tokens of each */
    dti_kv_block *all;   /* [n] */
    int32_t *tokens;     /* [n, size] of those that are found */
    int32_t *buckets;    /* [n_buckets] the first of each; -1: none */
    int64_t n_buckets;   /* a power of two */
    int32_t first, last; /* of the free ones */
    int64_t n_free;
    int64_t n_contents; /* numbers given so far */
} dti_blocks;

/* What a block holds, or would hold. */
typedef struct dti_content {
    int64_t parent;
    uint64_t salt;
    const int32_t *tokens; /* [size] */
} dti_content;

dt_status dti_blocks_create(int64_t n, int64_t size, dti_blocks *out) DT_MUST_USE;
void dti_blocks_free(dti_blocks *b); /* accepts zeros */

/* A free block, with one reference: the one that was used least recently, which nobody finds any
 * more. -1: there is none. */
int32_t dti_blocks_take(dti_blocks *b);

void dti_blocks_retain(dti_blocks *b, int32_t block);  /* a free one is free no more */
void dti_blocks_release(dti_blocks *b, int32_t block); /* the last reference: free, still found */

/* A block of this content; -1: none. */
int32_t dti_blocks_find(const dti_blocks *b, const dti_content *c);

/* A block is full: from now on it is found, unless another of its content is. Returns the content's
 * number. */
int64_t dti_blocks_publish(dti_blocks *b, int32_t block, const dti_content *c);

/* An error DT_ERR_INTERNAL if the books are wrong: for tests, of cost n. */
dt_status dti_blocks_check(const dti_blocks *b) DT_MUST_USE;

#endif
