/* SPDX-License-Identifier: Apache-2.0
 *
 * Megatron's .idx: 9 bytes of magic, version (u64), type (u8), numbers of sequences and of document
 * entries (u64 each); then for each sequence its length (i32), then its first byte in the .bin
 * (i64), then for each document its first sequence (i64) and one behind the last; and perhaps a
 * mode (i8) for each sequence. Nothing is aligned. */
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "training/data/token_file.h"

static const char magic[9] = "MMIDIDX\0";

static const char *const type_names[] = {
    "", "u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"
};

static dt_status number_at(dti_mapped *m, int64_t at, int64_t *out)
{
    const unsigned char *p;

    DT_TRY(dti_mapped_at(m, at, sizeof *out, &p));
    memcpy(out, p, sizeof *out);
    return DT_OK;
}

static int64_t offsets_at(const dti_token_file *f)
{
    return DTI_INDEX_HEADER_BYTES + 4 * f->n_sequences;
}

static int64_t documents_at(const dti_token_file *f)
{
    return offsets_at(f) + 8 * f->n_sequences;
}

/* Header, and sizes that follow from it. */
static dt_status read_header(dti_token_file *f)
{
    const char *label = f->index.in.label;
    const int64_t bytes = f->index.in.bytes;
    int64_t version, n_entries, end;
    const unsigned char *p;
    unsigned code;

    DT_CHECK(bytes >= DTI_INDEX_HEADER_BYTES, DT_ERR_FORMAT,
             "%s: has %lld bytes, the header of an index alone has %d", label, (long long)bytes,
             DTI_INDEX_HEADER_BYTES);
    DT_TRY(dti_mapped_at(&f->index, 0, DTI_INDEX_HEADER_BYTES, &p));
    DT_CHECK(memcmp(p, magic, sizeof magic) == 0, DT_ERR_FORMAT,
             "%s: does not begin with MMIDIDX: is no index of Megatron", label);
    code = p[17];
    memcpy(&version, p + 9, sizeof version);
    memcpy(&f->n_sequences, p + 18, sizeof f->n_sequences);
    memcpy(&n_entries, p + 26, sizeof n_entries);
    DT_CHECK(version == 1, DT_ERR_UNSUPPORTED, "%s: is version %lld, must be 1", label,
             (long long)version);
    DT_CHECK(code >= 1 && code < DT_COUNT(type_names), DT_ERR_FORMAT,
             "%s: says type %u, must be 1 to %zu", label, code, DT_COUNT(type_names) - 1);
    DT_CHECK(code != DTI_TOKEN_F32 && code != DTI_TOKEN_F64, DT_ERR_UNSUPPORTED,
             "%s: is of %s, tokens are integers", label, type_names[code]);
    DT_CHECK(f->n_sequences >= 0 && f->n_sequences <= bytes / 12 && n_entries >= 1 &&
                 n_entries <= bytes / 8,
             DT_ERR_FORMAT, "%s: says %llu sequences and %llu document entries, in %lld bytes",
             label, (unsigned long long)f->n_sequences, (unsigned long long)n_entries,
             (long long)bytes);
    f->type = (dti_token_type)code;
    f->n_documents = n_entries - 1;
    end = documents_at(f) + 8 * n_entries;
    DT_CHECK(bytes == end || bytes == end + f->n_sequences, DT_ERR_FORMAT,
             "%s: %lld sequences and %lld document entries take %lld bytes (%lld with modes), the "
             "file has %lld%s",
             label, (long long)f->n_sequences, (long long)n_entries, (long long)end,
             (long long)(end + f->n_sequences), (long long)bytes,
             bytes < end ? ": it is cut off" : "");
    return DT_OK;
}

/* Each sequence begins where the one before it ends, the last ends with the file. */
static dt_status check_sequences(dti_token_file *f, int64_t width)
{
    const char *label = f->index.in.label;
    int64_t at = 0, offset;
    const unsigned char *p;
    int32_t length;

    /* Two walks side by side would fight for one window, so lengths are summed block by block. */
    enum { BLOCK = 1 << 12 };
    int32_t lengths[BLOCK];
    for (int64_t i = 0; i < f->n_sequences; i++) {
        if (i % BLOCK == 0) {
            const int64_t n = dti_min(BLOCK, f->n_sequences - i);
            DT_TRY(dti_mapped_at(&f->index, DTI_INDEX_HEADER_BYTES + 4 * i, 4 * n, &p));
            memcpy(lengths, p, 4 * (size_t)n);
        }
        length = lengths[i % BLOCK];
        DT_TRY(number_at(&f->index, offsets_at(f) + 8 * i, &offset));
        DT_CHECK(length >= 0, DT_ERR_FORMAT, "%s: sequence %lld has %d tokens", label, (long long)i,
                 length);
        DT_CHECK(offset == at, DT_ERR_FORMAT,
                 "%s: sequence %lld begins at byte %lld, the one before it ends at byte %lld",
                 label, (long long)i, (long long)offset, (long long)at);
        at += length * width;
        DT_CHECK(at <= f->tokens.in.bytes, DT_ERR_FORMAT,
                 "%s: sequence %lld ends at byte %lld, %s has %lld bytes", label, (long long)i,
                 (long long)at, f->tokens.in.label, (long long)f->tokens.in.bytes);
    }
    DT_CHECK(at == f->tokens.in.bytes, DT_ERR_FORMAT,
             "%s: its sequences have %lld bytes together, %s has %lld", label, (long long)at,
             f->tokens.in.label, (long long)f->tokens.in.bytes);
    f->n = at / width;
    return DT_OK;
}

static dt_status check_documents(dti_token_file *f)
{
    int64_t before = 0, first = 0;

    for (int64_t d = 0; d <= f->n_documents; d++, before = first) {
        DT_TRY(number_at(&f->index, documents_at(f) + 8 * d, &first));
        DT_CHECK(d > 0 || first == 0, DT_ERR_FORMAT,
                 "%s: document 0 begins with sequence %lld, must be 0", f->index.in.label,
                 (long long)first);
        DT_CHECK(first >= before && first <= f->n_sequences, DT_ERR_FORMAT,
                 "%s: document %lld begins with sequence %lld, behind %lld and of %lld",
                 f->index.in.label, (long long)d, (long long)first, (long long)before,
                 (long long)f->n_sequences);
    }
    DT_CHECK(first == f->n_sequences, DT_ERR_FORMAT,
             "%s: its documents end with sequence %lld of %lld", f->index.in.label,
             (long long)first, (long long)f->n_sequences);
    return DT_OK;
}

dt_status dti_token_index_open(dti_token_file *f, const char *path)
{
    DT_TRY(dti_mapped_open(path, &f->index));
    DT_TRY(read_header(f));
    DT_TRY(check_sequences(f, dti_token_bytes(f->type)));
    DT_TRY(check_documents(f));
    return DT_OK;
}

dt_status dti_token_index_document(dti_token_file *f, int64_t d, int64_t *out)
{
    int64_t sequence, offset = f->n * f->bytes;

    DT_TRY(number_at(&f->index, documents_at(f) + 8 * d, &sequence));
    DT_CHECK(sequence >= 0 && sequence <= f->n_sequences, DT_ERR_IO,
             "%s: has changed since it was opened", f->index.in.label);
    if (sequence < f->n_sequences)
        DT_TRY(number_at(&f->index, offsets_at(f) + 8 * sequence, &offset));
    DT_CHECK(offset >= 0 && offset <= f->n * f->bytes, DT_ERR_IO,
             "%s: has changed since it was opened", f->index.in.label);
    *out = offset / f->bytes;
    return DT_OK;
}
