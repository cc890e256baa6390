/* SPDX-License-Identifier: Apache-2.0
 *
 * Merging with a heap, O(n log n): some tokenizers never cut a text into words, so a word may be
 * the whole text. */
#include "text/tokenizer/bpe.h"

#include <string.h>

#include "base/memory.h"
#include "text/tokenizer/utf8.h"

typedef struct dti_merge {
    uint64_t pair; /* left << 32 | right; NO_PAIR: free */
    uint32_t rank; /* order in which pairs were learned */
    int32_t product;
} dti_merge;

/* One token of the word so far, linked to its neighbours. */
typedef struct dti_symbol {
    int32_t id; /* GONE: merged into its left neighbour */
    int32_t left, right;
} dti_symbol;

/* A merge that was possible when it was noted. */
typedef struct dti_candidate {
    uint64_t key; /* rank << 32 | position: lowest first */
    int32_t product;
} dti_candidate;

enum { GONE = -1, NONE = -1 };
static const uint64_t no_pair = UINT64_MAX;

dt_status dti_ids_append(dti_ids *ids, const int32_t *more, size_t n)
{
    if (n == 0) return DT_OK;
    if (ids->capacity - ids->n < n)
        DT_TRY(dti_grow((void **)&ids->data, &ids->capacity, ids->n + n, sizeof *ids->data));
    memcpy(ids->data + ids->n, more, n * sizeof *more);
    ids->n += n;
    return DT_OK;
}

void dti_bpe_work_free(dti_bpe_work *work)
{
    dti_free(work->symbols);
    dti_free(work->heap);
    *work = (dti_bpe_work){ 0 };
}

void dti_bpe_free(dti_bpe *bpe)
{
    dti_vocab_free(&bpe->vocab);
    dti_free(bpe->merges);
    dti_free(bpe->unk_token);
    *bpe = (dti_bpe){ 0 };
}

dt_status dti_bpe_create_merges(dti_bpe *bpe, size_t n)
{
    bpe->n_slots = 16;
    while (bpe->n_slots < 2 * n) bpe->n_slots *= 2;
    DT_TRY(dti_alloc_array(bpe->n_slots, sizeof *bpe->merges, (void **)&bpe->merges));
    for (size_t i = 0; i < bpe->n_slots; i++) bpe->merges[i].pair = no_pair;
    return DT_OK;
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The slot of a pair, or the free one where it belongs. */
static dti_merge *merge_slot(const dti_bpe *bpe, uint64_t pair)
{
    const uint64_t h = pair * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(h ^ h >> 32) & (bpe->n_slots - 1);

    while (bpe->merges[at].pair != pair && bpe->merges[at].pair != no_pair)
        at = (at + 1) & (bpe->n_slots - 1);
    return &bpe->merges[at];
}

void dti_bpe_add_merge(dti_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t product)
{
    const uint64_t pair = pair_of(left, right);

    *merge_slot(bpe, pair) = (dti_merge){ pair, rank, product };
}

static const dti_merge *find_merge(const dti_bpe *bpe, int32_t left, int32_t right)
{
    const dti_merge *m = merge_slot(bpe, pair_of(left, right));

    return m->pair == no_pair ? NULL : m;
}

/* A heap with four children per node: half the levels of two, and neighbours share a line. */
static void heap_push(dti_bpe_work *w, uint64_t key, int32_t product)
{
    size_t at = w->n_heap++;

    while (at > 0 && w->heap[(at - 1) / 4].key > key) {
        w->heap[at] = w->heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    w->heap[at] = (dti_candidate){ key, product };
}

static dti_candidate heap_pop(dti_bpe_work *w)
{
    const dti_candidate top = w->heap[0], last = w->heap[--w->n_heap];
    size_t at = 0;

    for (size_t child = 1; child < w->n_heap; child = 4 * at + 1) {
        const size_t end = child + 4 < w->n_heap ? child + 4 : w->n_heap;
        size_t least = child;

        for (size_t c = child + 1; c < end; c++)
            if (w->heap[c].key < w->heap[least].key) least = c;
        if (w->heap[least].key >= last.key) break;
        w->heap[at] = w->heap[least];
        at = least;
    }
    w->heap[at] = last;
    return top;
}

/* Notes the merge of the symbol at `position` with its right neighbour, if there is one. */
static dt_status note(const dti_bpe *bpe, dti_bpe_work *w, int32_t position)
{
    const dti_symbol *s = &w->symbols[position];
    const dti_merge *m = find_merge(bpe, s->id, w->symbols[s->right].id);

    if (m == NULL) return DT_OK;
    if (w->n_heap == w->heap_capacity)
        DT_TRY(dti_grow((void **)&w->heap, &w->heap_capacity, w->n_heap + 1, sizeof *w->heap));
    heap_push(w, (uint64_t)m->rank << 32 | (uint32_t)position, m->product);
    return DT_OK;
}

/* The reference compares only the product when it asks whether a candidate is out of date; so must
 * we, or an unknown token of varying length could come out differently. */
static bool is_current(const dti_bpe *bpe, const dti_bpe_work *w, const dti_symbol *s,
                       int32_t product)
{
    const dti_merge *m;

    if (s->id == GONE || s->right == NONE) return false;
    m = find_merge(bpe, s->id, w->symbols[s->right].id);
    return m != NULL && m->product == product;
}

static dt_status merge_all(const dti_bpe *bpe, dti_bpe_work *w)
{
    dti_symbol *symbols = w->symbols;

    w->n_heap = 0;
    for (size_t i = 0; i + 1 < w->n_symbols; i++) DT_TRY(note(bpe, w, (int32_t)i));
    while (w->n_heap > 0) {
        const dti_candidate c = heap_pop(w);
        const int32_t position = (int32_t)(c.key & UINT32_MAX);
        dti_symbol *s = &symbols[position];
        dti_symbol *absorbed;

        if (!is_current(bpe, w, s, c.product)) continue;
        absorbed = &symbols[s->right];
        s->id = c.product;
        s->right = absorbed->right;
        absorbed->id = GONE;
        if (s->right != NONE) symbols[s->right].left = position;
        if (s->left != NONE) DT_TRY(note(bpe, w, s->left));
        if (s->right != NONE) DT_TRY(note(bpe, w, position));
    }
    return DT_OK;
}

static dt_status add_symbol(dti_bpe_work *w, int32_t id)
{
    const int32_t at = (int32_t)w->n_symbols;

    if (w->n_symbols == w->symbols_capacity)
        DT_TRY(dti_grow((void **)&w->symbols, &w->symbols_capacity, w->n_symbols + 1,
                        sizeof *w->symbols));
    if (at > 0) w->symbols[at - 1].right = at;
    w->symbols[at] = (dti_symbol){ id, at - 1, NONE };
    w->n_symbols++;
    return DT_OK;
}

static bool has_byte_tokens(const dti_bpe *bpe, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bpe->byte_ids[(unsigned char)s[i]] < 0) return false;
    return true;
}

/* A character that is no token. The unknown token waits in *waiting until the next known character,
 * so byte tokens in between overtake it: the reference does the same. */
static dt_status add_unknown(const dti_bpe *bpe, dti_bpe_work *w, const char *s, size_t n,
                             bool *waiting)
{
    if (bpe->byte_fallback && has_byte_tokens(bpe, s, n)) {
        for (size_t i = 0; i < n; i++) DT_TRY(add_symbol(w, bpe->byte_ids[(unsigned char)s[i]]));
        return DT_OK;
    }
    if (bpe->unk_token == NULL) { /* dropped, as the reference does; but not in silence */
        if (w->left_out == 0) w->left_out = dti_utf8_at(s);
        return DT_OK;
    }
    DT_CHECK(bpe->unk_id >= 0, DT_ERR_FORMAT,
             "the text needs the unknown token \"%.64s\", which is not in the model's vocabulary",
             bpe->unk_token);
    if (*waiting && !bpe->fuse_unk) DT_TRY(add_symbol(w, bpe->unk_id));
    *waiting = true;
    return DT_OK;
}

static dt_status add_characters(const dti_bpe *bpe, dti_bpe_work *w, const char *word, size_t n)
{
    bool waiting = false;
    size_t length;

    w->n_symbols = 0;
    for (size_t at = 0; at < n; at += length) {
        const uint32_t c = dti_utf8_at(word + at);
        int32_t id;

        length = dti_utf8_length(word[at]);
        id = c < DTI_BPE_DIRECT_CHARS ? bpe->char_ids[c]
                                      : dti_vocab_find(&bpe->vocab, word + at, length);
        if (id < 0) {
            DT_TRY(add_unknown(bpe, w, word + at, length, &waiting));
            continue;
        }
        if (waiting) DT_TRY(add_symbol(w, bpe->unk_id));
        waiting = false;
        DT_TRY(add_symbol(w, id));
    }
    return waiting ? add_symbol(w, bpe->unk_id) : DT_OK;
}

dt_status dti_bpe_encode(const dti_bpe *bpe, dti_bpe_work *work, const char *word, size_t n,
                         dti_ids *out)
{
    if (bpe->ignore_merges) {
        const int32_t id = dti_vocab_find(&bpe->vocab, word, n);

        if (id >= 0) return dti_ids_append(out, &id, 1);
    }
    DT_CHECK(n < INT32_MAX, DT_ERR_UNSUPPORTED, "a word of %zu bytes, at most %d are supported", n,
             INT32_MAX);
    DT_TRY(add_characters(bpe, work, word, n));
    DT_TRY(merge_all(bpe, work));
    for (size_t i = 0; i < work->n_symbols; i++)
        if (work->symbols[i].id != GONE) DT_TRY(dti_ids_append(out, &work->symbols[i].id, 1));
    return DT_OK;
}
