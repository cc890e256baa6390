/* SPDX-License-Identifier: Apache-2.0 */
#include "models/engine/blocks.h"

#include <string.h>

#include "base/numbers.h"

/* --- the free ones ---------------------------------------------------------------------------- */

static void unlink_free(dti_blocks *b, int32_t i)
{
    dti_kv_block *x = &b->all[i];

    *(x->before >= 0 ? &b->all[x->before].after : &b->first) = x->after;
    *(x->after >= 0 ? &b->all[x->after].before : &b->last) = x->before;
    x->before = x->after = -1;
    b->n_free--;
}

/* One that nobody can find is as good as any: it goes first. */
static void link_free(dti_blocks *b, int32_t i)
{
    dti_kv_block *x = &b->all[i];

    x->before = x->found ? b->last : -1;
    x->after = x->found ? -1 : b->first;
    *(x->before >= 0 ? &b->all[x->before].after : &b->first) = i;
    *(x->after >= 0 ? &b->all[x->after].before : &b->last) = i;
    b->n_free++;
}

dt_status dti_blocks_create(int64_t n, int64_t size, dti_blocks *out)
{
    dti_blocks b = { .n = n, .size = size, .n_buckets = 1, .first = -1, .last = -1 };
    dt_status st = DT_OK;

    *out = (dti_blocks){ 0 };
    DT_CHECK(n >= 1 && n <= INT32_MAX && size >= 1, DT_ERR_ARG, "%lld blocks of %lld tokens",
             (long long)n, (long long)size);
    while (b.n_buckets < n) b.n_buckets *= 2;
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)n, sizeof *b.all, (void **)&b.all));
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)(n * size), sizeof *b.tokens, (void **)&b.tokens));
    DT_TRY_TO(fail, st,
              dti_alloc_array((size_t)b.n_buckets, sizeof *b.buckets, (void **)&b.buckets));
    for (int64_t i = 0; i < b.n_buckets; i++) b.buckets[i] = -1;
    for (int64_t i = n - 1; i >= 0; i--) {
        b.all[i].next = -1;
        link_free(&b, (int32_t)i);
    }
    *out = b;
    return DT_OK;

fail:
    dti_blocks_free(&b);
    return st;
}

void dti_blocks_free(dti_blocks *b)
{
    dti_free(b->all);
    dti_free(b->tokens);
    dti_free(b->buckets);
    *b = (dti_blocks){ 0 };
}

/* --- contents --------------------------------------------------------------------------------- */

static int32_t *bucket_of(const dti_blocks *b, const dti_content *c)
{
    uint64_t h = dti_hash_word(c->salt, (uint64_t)c->parent);

    h = dti_hash_bytes(h, c->tokens, (size_t)b->size * sizeof *c->tokens);
    h ^= h >> 32;
    return &b->buckets[h & (uint64_t)(b->n_buckets - 1)];
}

static const int32_t *tokens_of(const dti_blocks *b, int32_t i)
{
    return b->tokens + i * b->size;
}

int32_t dti_blocks_find(const dti_blocks *b, const dti_content *c)
{
    for (int32_t i = *bucket_of(b, c); i >= 0; i = b->all[i].next)
        if (b->all[i].parent == c->parent && b->all[i].salt == c->salt &&
            memcmp(tokens_of(b, i), c->tokens, (size_t)b->size * sizeof *c->tokens) == 0)
            return i;
    return -1;
}

int64_t dti_blocks_publish(dti_blocks *b, int32_t block, const dti_content *c)
{
    const int32_t same = dti_blocks_find(b, c);
    dti_kv_block *x = &b->all[block];
    int32_t *bucket = bucket_of(b, c);

    if (same >= 0) return b->all[same].content;
    memcpy(b->tokens + block * b->size, c->tokens, (size_t)b->size * sizeof *c->tokens);
    x->found = true;
    x->content = ++b->n_contents;
    x->parent = c->parent;
    x->salt = c->salt;
    x->next = *bucket;
    *bucket = block;
    return x->content;
}

static void forget(dti_blocks *b, int32_t i)
{
    dti_kv_block *x = &b->all[i];
    const dti_content c = { x->parent, x->salt, tokens_of(b, i) };
    int32_t *at;

    if (!x->found) return;
    for (at = bucket_of(b, &c); *at != i;) at = &b->all[*at].next;
    *at = x->next;
    x->next = -1;
    x->found = false;
    x->content = 0;
}

/* --- references ------------------------------------------------------------------------------- */

int32_t dti_blocks_take(dti_blocks *b)
{
    const int32_t i = b->first;

    if (i < 0) return -1;
    unlink_free(b, i);
    forget(b, i);
    b->all[i].refs = 1;
    return i;
}

void dti_blocks_retain(dti_blocks *b, int32_t block)
{
    if (b->all[block].refs++ == 0) unlink_free(b, block);
}

void dti_blocks_release(dti_blocks *b, int32_t block)
{
    if (--b->all[block].refs == 0) link_free(b, block);
}

dt_status dti_blocks_check(const dti_blocks *b)
{
    int64_t n = 0, found = 0, listed = 0;
    int32_t last = -1;

    for (int32_t i = b->first; i >= 0 && n <= b->n; last = i, i = b->all[i].after, n++)
        DT_CHECK(b->all[i].refs == 0 && b->all[i].before == last, DT_ERR_INTERNAL,
                 "free block %d has %d references", (int)i, (int)b->all[i].refs);
    DT_CHECK(n == b->n_free && last == b->last, DT_ERR_INTERNAL, "%lld blocks are free, not %lld",
             (long long)n, (long long)b->n_free);
    for (int64_t i = 0; i < b->n; i++) {
        DT_CHECK(b->all[i].refs >= 0, DT_ERR_INTERNAL, "block %lld has %d references", (long long)i,
                 (int)b->all[i].refs);
        n -= b->all[i].refs == 0;
        found += b->all[i].found;
    }
    DT_CHECK(n == 0, DT_ERR_INTERNAL, "%lld blocks are nobody's, and not free", (long long)-n);
    for (int64_t k = 0; k < b->n_buckets; k++)
        for (int32_t i = b->buckets[k]; i >= 0; i = b->all[i].next, listed++)
            DT_CHECK(b->all[i].found && listed < b->n, DT_ERR_INTERNAL,
                     "block %d is found in spite of itself", (int)i);
    DT_CHECK(listed == found, DT_ERR_INTERNAL, "%lld blocks are found, not %lld", (long long)listed,
             (long long)found);
    return DT_OK;
}
