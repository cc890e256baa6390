/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/vocab.h"

#include <string.h>

#include "base/memory.h"

typedef struct dti_vocab_slot {
    uint32_t tag; /* upper half of the hash: most misses end here */
    int32_t next; /* id + 1; 0: free */
} dti_vocab_slot;

uint64_t dti_vocab_hash(const char *s, size_t n)
{
    const uint64_t prime = 0x9e3779b97f4a7c15u;
    uint64_t h = prime ^ n, word;

    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&word, s, 8);
        h = (h ^ word) * prime;
        h ^= h >> 29;
    }
    word = 0;
    memcpy(&word, s, n);
    h = (h ^ word) * prime;
    h ^= h >> 32;
    h *= prime;
    return h ^ h >> 29;
}

dt_status dti_vocab_create(dti_vocab *v, size_t n_tokens, size_t n_bytes, int32_t n_ids)
{
    dt_status st;

    *v = (dti_vocab){ .n_ids = n_ids, .n_slots = 16 };
    while (v->n_slots < 2 * n_tokens) v->n_slots *= 2;
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)n_ids, sizeof *v->pieces, (void **)&v->pieces));
    DT_TRY_TO(fail, st, dti_alloc_array(v->n_slots, sizeof *v->slots, (void **)&v->slots));
    DT_TRY_TO(fail, st, dti_alloc(n_bytes + n_tokens, (void **)&v->text));
    return DT_OK;

fail:
    dti_vocab_free(v);
    return st;
}

/* The slot of a string, or the free one where it belongs. */
static dti_vocab_slot *slot_of(const dti_vocab *v, const char *s, size_t n, uint32_t *tag)
{
    const uint64_t h = dti_vocab_hash(s, n);
    size_t at = (size_t)h & (v->n_slots - 1);

    *tag = (uint32_t)(h >> 32);
    for (; v->slots[at].next != 0; at = (at + 1) & (v->n_slots - 1)) {
        const dti_piece *p = &v->pieces[v->slots[at].next - 1];

        if (v->slots[at].tag == *tag && p->bytes == n && memcmp(p->text, s, n) == 0) break;
    }
    return &v->slots[at];
}

dt_status dti_vocab_add(dti_vocab *v, const char *s, size_t n, int32_t id)
{
    uint32_t tag;
    dti_vocab_slot *slot = slot_of(v, s, n, &tag);
    char *text = v->text + v->text_bytes;

    DT_ASSERT(id >= 0 && id < v->n_ids);
    DT_CHECK(slot->next == 0, DT_ERR_FORMAT, "token \"%.64s\" occurs twice, with ids %d and %d", s,
             (int)slot->next - 1, (int)id);
    DT_CHECK(v->pieces[id].text == NULL, DT_ERR_FORMAT,
             "id %d belongs to both \"%.64s\" and \"%.64s\"", (int)id, v->pieces[id].text, s);
    memcpy(text, s, n);
    text[n] = '\0';
    v->text_bytes += n + 1;
    v->pieces[id] = (dti_piece){ text, (uint32_t)n };
    *slot = (dti_vocab_slot){ tag, id + 1 };
    v->n_tokens++;
    return DT_OK;
}

int32_t dti_vocab_find(const dti_vocab *v, const char *s, size_t n)
{
    uint32_t tag;

    return v->n_slots == 0 ? -1 : slot_of(v, s, n, &tag)->next - 1;
}

void dti_vocab_free(dti_vocab *v)
{
    dti_free(v->pieces);
    dti_free(v->slots);
    dti_free(v->text);
    *v = (dti_vocab){ 0 };
}
