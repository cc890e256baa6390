/* SPDX-License-Identifier: Apache-2.0
 *
 * Where documents begin: as an index says, or behind each token that ends one and before each that
 * begins one. */
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "training/data/token_file.h"

enum { BLOCK_TOKENS = 1 << 14 };

bool dti_token_file_has_documents(const dti_token_file *f)
{
    return f->index.in.fd >= 0 || f->begin_token >= 0 || f->end_token >= 0;
}

dt_status dti_token_file_document(dti_token_file *f, int64_t d, int64_t *out)
{
    DT_ASSERT(d >= 0 && d <= f->n_documents);
    if (f->document_begin == NULL) return dti_token_index_document(f, d, out);
    *out = f->document_begin[d];
    return DT_OK;
}

dt_status dti_token_file_find_documents(dti_token_file *f, int64_t limit)
{
    int32_t tokens[BLOCK_TOKENS], before = -1;
    int64_t *begin = NULL, n = 0;
    dt_status st = DT_OK;
    size_t room = 0;

    if (f->n_documents >= 0) return DT_OK;
    for (int64_t at = 0; at < f->n; at += BLOCK_TOKENS) {
        const int64_t count = dti_min(BLOCK_TOKENS, f->n - at);
        DT_TRY_TO(fail, st, dti_token_file_read(f, at, count, limit, tokens));
        for (int64_t i = 0; i < count; before = tokens[i], i++) {
            if (at + i > 0 && tokens[i] != f->begin_token &&
                (before != f->end_token || f->end_token < 0))
                continue;
            DT_TRY_TO(fail, st, dti_grow((void **)&begin, &room, (size_t)n + 2, sizeof *begin));
            begin[n++] = at + i;
        }
    }
    DT_TRY_TO(fail, st, dti_grow((void **)&begin, &room, (size_t)n + 1, sizeof *begin));
    begin[n] = f->n;
    f->document_begin = begin;
    f->n_documents = n;
    return DT_OK;
fail:
    dti_free(begin);
    return st;
}

/* The first document that begins at or behind token `at`. */
static dt_status first_at(dti_token_file *f, int64_t at, int64_t *out)
{
    int64_t low = 0, high = f->n_documents, begin;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        DT_TRY(dti_token_file_document(f, middle, &begin));
        if (begin < at)
            low = middle + 1;
        else
            high = middle;
    }
    *out = low;
    return DT_OK;
}

dt_status dti_token_file_mark(dti_token_file *f, int64_t first, int64_t n, const int32_t *tokens,
                              unsigned char flag, unsigned char *flags)
{
    int64_t d, begin;

    if (f->n_documents >= 0) {
        DT_TRY(first_at(f, first, &d));
        for (; d < f->n_documents; d++) {
            DT_TRY(dti_token_file_document(f, d, &begin));
            if (begin >= first + n) break;
            if (begin >= first) flags[begin - first] |= flag;
        }
        return DT_OK;
    }
    for (int64_t i = 0; i < n; i++)
        if ((f->begin_token >= 0 && tokens[i] == f->begin_token) ||
            (f->end_token >= 0 && i > 0 && tokens[i - 1] == f->end_token))
            flags[i] |= flag;
    return DT_OK;
}
