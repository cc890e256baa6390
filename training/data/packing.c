/* SPDX-License-Identifier: Apache-2.0 */
#include "training/data/packing.h"

#include "base/memory.h"
#include "base/numbers.h"

enum { BLOCK = 1024 };

dt_status dti_packing_create(dti_token_file **files, int n_files, uint64_t seed, uint32_t use,
                             dti_packing *out)
{
    *out =
        (dti_packing){ .files = files, .n_files = n_files, .epoch = -1, .key = { seed, 0, use } };
    DT_TRY(dti_alloc_array((size_t)n_files + 1, sizeof *out->first_document,
                           (void **)&out->first_document));
    for (int i = 0; i < n_files; i++) {
        out->first_document[i] = out->n_documents;
        out->n_documents += files[i]->n_documents;
        out->n_tokens += files[i]->n;
    }
    out->first_document[n_files] = out->n_documents;
    return dti_alloc_array((size_t)(out->n_documents / BLOCK) + 2, sizeof *out->before,
                           (void **)&out->before);
}

void dti_packing_free(dti_packing *p)
{
    dti_free(p->first_document);
    dti_free(p->before);
    *p = (dti_packing){ .epoch = -1 };
}

/* The document at a place of the order: all of its tokens. */
static dt_status document_at(dti_packing *p, int64_t place, dti_stretch *out)
{
    const int64_t d = dti_permute(place, p->n_documents, &p->key);
    int64_t end;
    int i = 0;

    while (d >= p->first_document[i + 1]) i++;
    out->file = p->files[i];
    DT_TRY(dti_token_file_document(out->file, d - p->first_document[i], &out->first));
    DT_TRY(dti_token_file_document(out->file, d - p->first_document[i] + 1, &end));
    out->n = end - out->first;
    DT_CHECK(out->n >= 0, DT_ERR_IO, "%s: has changed since it was opened",
             out->file->index.in.label);
    return DT_OK;
}

/* One pass over the documents of an epoch, in its order. */
static dt_status count_epoch(dti_packing *p, int64_t epoch)
{
    int64_t n = 0;
    dti_stretch s;

    p->epoch = -1;
    p->key.epoch = (uint64_t)epoch;
    for (int64_t place = 0; place < p->n_documents; place++) {
        if (place % BLOCK == 0) p->before[place / BLOCK] = n;
        DT_TRY(document_at(p, place, &s));
        n += s.n;
    }
    DT_CHECK(n == p->n_tokens, DT_ERR_IO, "documents have %lld tokens together, files %lld",
             (long long)n, (long long)p->n_tokens);
    p->epoch = epoch;
    p->place = p->place_at = 0;
    return DT_OK;
}

/* Puts the walk at the beginning of the last block that begins at or before token `at`. */
static void go_to_block(dti_packing *p, int64_t at)
{
    int64_t low = 0, high = (p->n_documents + BLOCK - 1) / BLOCK;

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (p->before[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    if (at >= p->place_at && p->place >= low * BLOCK) return; /* further on in that block */
    p->place = low * BLOCK;
    p->place_at = p->before[low];
}

dt_status dti_packing_find(dti_packing *p, int64_t epoch, int64_t at, int64_t most,
                           dti_stretch *out)
{
    DT_ASSERT(at >= 0 && at < p->n_tokens && most > 0);
    if (p->epoch != epoch) DT_TRY(count_epoch(p, epoch));
    go_to_block(p, at);
    for (;;) {
        DT_TRY(document_at(p, p->place, out));
        if (at < p->place_at + out->n) break;
        p->place_at += out->n;
        p->place++;
        DT_CHECK(p->place < p->n_documents, DT_ERR_IO, "%s: has changed since it was opened",
                 out->file->tokens.in.label);
    }
    out->begins = at == p->place_at;
    out->first += at - p->place_at;
    out->n = dti_min(out->n - (at - p->place_at), most);
    return DT_OK;
}
