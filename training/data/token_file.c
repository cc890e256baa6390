/* SPDX-License-Identifier: Apache-2.0 */
#include "training/data/token_file.h"

#include <dtensor/token_files.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "files/checksum.h"
#include "files/folder.h"
#include "training/data/side_files.h"

enum { BLOCK_TOKENS = 1 << 20 }; /* that one piece of a file has at most */

static bool ends_with(const char *path, const char *ending)
{
    const size_t n = strlen(path), m = strlen(ending);

    return n > m && strcmp(path + n - m, ending) == 0;
}

/* `path` with another ending, or one more where it does not end so. */
static dt_status other_ending(const char *path, const char *now, const char *then,
                              char out[DTI_PATH_BYTES])
{
    const size_t n = strlen(path) - (ends_with(path, now) ? strlen(now) : 0);

    DT_CHECK(n + strlen(then) < DTI_PATH_BYTES, DT_ERR_ARG, "the path has %zu bytes", n);
    memcpy(out, path, n);
    (void)strcpy(out + n, then);
    return DT_OK;
}

int dti_token_bytes(dti_token_type type)
{
    switch (type) {
    case DTI_TOKEN_U8:
    case DTI_TOKEN_I8:
        return 1;
    case DTI_TOKEN_I16:
    case DTI_TOKEN_U16:
        return 2;
    case DTI_TOKEN_I32:
    case DTI_TOKEN_U32:
    case DTI_TOKEN_F32:
        return 4;
    default:
        return 8;
    }
}

/* --- formats ---------------------------------------------------------------------------------- */

static dt_status open_llmc(dti_token_file *f, const int32_t head[3])
{
    const char *label = f->tokens.in.label;
    const bool wide = head[0] == DTI_LLMC_MAGIC_U32;
    const int64_t bytes = f->tokens.in.bytes;

    DT_CHECK(head[0] != DTI_LLMC_MAGIC_EVAL, DT_ERR_UNSUPPORTED,
             "%s: is an evaluation file of llm.c (magic %d), which has questions, no text", label,
             head[0]);
    DT_CHECK(head[1] == (wide ? 7 : 1), DT_ERR_FORMAT,
             "%s: has the magic %d of llm.c and version %d, must be version %d", label, head[0],
             head[1], wide ? 7 : 1);
    f->type = wide ? DTI_TOKEN_U32 : DTI_TOKEN_U16;
    f->begin = DTI_LLMC_HEADER_BYTES;
    f->n = head[2];
    DT_CHECK(f->n >= 0 && bytes == f->begin + f->n * dti_token_bytes(f->type), DT_ERR_FORMAT,
             "%s: its header says %lld tokens of %d bytes behind %d of its own, the file has %lld "
             "bytes",
             label, (long long)f->n, dti_token_bytes(f->type), DTI_LLMC_HEADER_BYTES,
             (long long)bytes);
    return DT_OK;
}

enum { LOOKED_AT = 4096, ENOUGH = 256 };

/* Whether a file of no header begins as a text does: without zeros and other bytes that no text
 * has, of which ids of two bytes have one in four or more. */
static dt_status looks_like_text(dti_token_file *f, bool *text)
{
    const int64_t n = dti_min(f->tokens.in.bytes, LOOKED_AT);
    const unsigned char *bytes;

    DT_TRY(dti_mapped_at(&f->tokens, 0, n, &bytes));
    *text = n >= ENOUGH;
    for (int64_t i = 0; i < n && *text; i++)
        *text = bytes[i] >= ' ' || bytes[i] == '\n' || bytes[i] == '\r' || bytes[i] == '\t';
    return DT_OK;
}

static dt_status open_plain(dti_token_file *f, const char *path)
{
    static const unsigned char numpy[] = { 0x93, 'N', 'U', 'M', 'P', 'Y' };
    const unsigned char *bytes;
    bool text;

    DT_CHECK(
        ends_with(path, ".bin"), DT_ERR_UNSUPPORTED,
        "%s: is no file of tokens: has no header of llm.c, no Megatron index beside it, and is "
        "not called .bin, as nanoGPT's are; dtensor tokenize makes one of a text",
        f->tokens.in.label);
    DT_CHECK(f->tokens.in.bytes % 2 == 0, DT_ERR_FORMAT,
             "%s: has %lld bytes: without a header it would be tokens of two bytes each",
             f->tokens.in.label, (long long)f->tokens.in.bytes);
    DT_TRY(
        dti_mapped_at(&f->tokens, 0, dti_min(f->tokens.in.bytes, (int64_t)sizeof numpy), &bytes));
    DT_CHECK(f->tokens.in.bytes < (int64_t)sizeof numpy || memcmp(bytes, numpy, sizeof numpy) != 0,
             DT_ERR_UNSUPPORTED, "%s: is an array of NumPy; write its ids alone, ids.tofile(NAME)",
             f->tokens.in.label);
    DT_TRY(looks_like_text(f, &text));
    DT_CHECK(
        !text, DT_ERR_UNSUPPORTED,
        "%s: is a text and no file of tokens, though it is called .bin; dtensor tokenize makes "
        "one of it",
        f->tokens.in.label);
    f->type = DTI_TOKEN_U16;
    f->n = f->tokens.in.bytes / 2;
    return DT_OK;
}

/* What kind of file it is: by its first bytes, by an index beside it, by its name. */
static dt_status open_as_what_it_is(dti_token_file *f, const char *path, const char *index)
{
    const unsigned char *bytes;
    int32_t head[3] = { 0 };

    DT_CHECK(f->tokens.in.bytes > 0, DT_ERR_FORMAT, "%s: is empty", f->tokens.in.label);
    if (index != NULL) return dti_token_index_open(f, index);
    if (f->tokens.in.bytes >= DTI_LLMC_HEADER_BYTES) {
        DT_TRY(dti_mapped_at(&f->tokens, 0, sizeof head, &bytes));
        memcpy(head, bytes, sizeof head);
    }
    if (head[0] == DTI_LLMC_MAGIC || head[0] == DTI_LLMC_MAGIC_U32 ||
        head[0] == DTI_LLMC_MAGIC_EVAL)
        return open_llmc(f, head);
    return open_plain(f, path);
}

/* The file of tokens that a path names, and the index that goes with it: "" where there is none. */
static dt_status find_files(const char *path, char tokens[DTI_PATH_BYTES],
                            char index[DTI_PATH_BYTES])
{
    const bool prefix = !ends_with(path, ".idx") && access(path, F_OK) != 0;

    DT_TRY(other_ending(path, ends_with(path, ".bin") ? ".bin" : ".idx", ".idx", index));
    if (access(index, F_OK) != 0 && !ends_with(path, ".idx")) index[0] = '\0';
    if (ends_with(path, ".idx") || (prefix && index[0] != '\0'))
        return other_ending(path, ends_with(path, ".idx") ? ".idx" : ".bin", ".bin", tokens);
    return other_ending(path, "", "", tokens);
}

/* Who writes all files anew takes the tokens away before what lies beside them. */
static dt_status check_name(const dti_token_file *f, const char *tokens)
{
    struct stat opened, there;

    DT_CHECK(fstat(f->tokens.in.fd, &opened) == 0 && stat(tokens, &there) == 0 &&
                 opened.st_dev == there.st_dev && opened.st_ino == there.st_ino,
             DT_ERR_IO, "%s: was replaced while it was opened: open it again", f->tokens.in.label);
    return DT_OK;
}

dt_status dti_token_file_open(const char *path, const dti_token_wish *wish, dti_token_file *out)
{
    char tokens[DTI_PATH_BYTES], index[DTI_PATH_BYTES];
    dt_status st = DT_OK;

    *out = (dti_token_file){
        .tokens.in.fd = -1, .index.in.fd = -1, .mask.in.fd = -1, .n_documents = -1
    };
    DT_TRY(find_files(path, tokens, index));
    DT_TRY(dti_mapped_open(tokens, &out->tokens));
    DT_TRY_TO(fail, st, open_as_what_it_is(out, tokens, index[0] != '\0' ? index : NULL));
    out->bytes = dti_token_bytes(out->type);
    DT_TRY_TO(fail, st, dti_side_files_read(out, tokens, wish));
    DT_TRY_TO(fail, st, check_name(out, tokens));
    return DT_OK;
fail:
    dti_token_file_close(out);
    return st;
}

void dti_token_file_close(dti_token_file *f)
{
    dti_mapped_close(&f->tokens);
    dti_mapped_close(&f->index);
    dti_mapped_close(&f->mask);
    dti_free(f->document_begin);
    f->document_begin = NULL;
}

dt_status dti_token_file_check(const dti_token_file *f)
{
    DT_TRY(dti_mapped_check(&f->tokens));
    if (f->index.in.fd >= 0) DT_TRY(dti_mapped_check(&f->index));
    if (f->mask.in.fd >= 0) DT_TRY(dti_mapped_check(&f->mask));
    return DT_OK;
}

/* --- reading ---------------------------------------------------------------------------------- */

static int64_t value_at(const unsigned char *p, dti_token_type type)
{
    int16_t i16;
    uint16_t u16;
    int32_t i32;
    uint32_t u32;
    int64_t i64;

    switch (type) {
    case DTI_TOKEN_U8:
        return *p;
    case DTI_TOKEN_I8:
        return (signed char)*p;
    case DTI_TOKEN_I16:
        memcpy(&i16, p, sizeof i16);
        return i16;
    case DTI_TOKEN_U16:
        memcpy(&u16, p, sizeof u16);
        return u16;
    case DTI_TOKEN_I32:
        memcpy(&i32, p, sizeof i32);
        return i32;
    case DTI_TOKEN_U32:
        memcpy(&u32, p, sizeof u32);
        return u32;
    default:
        memcpy(&i64, p, sizeof i64);
        return i64;
    }
}

/* Names the document too, where it is known without looking for it. */
static dt_status refuse_token(dti_token_file *f, int64_t at, int64_t value, int64_t limit)
{
    int64_t low = 0, high = f->n_documents, begin = 0;
    char where[64] = "";

    while (high - low > 1) { /* begin of low <= at < begin of high */
        const int64_t middle = low + (high - low) / 2;
        DT_TRY(dti_token_file_document(f, middle, &begin));
        if (begin <= at)
            low = middle;
        else
            high = middle;
    }
    if (f->n_documents > 0) {
        DT_TRY(dti_token_file_document(f, low, &begin));
        (void)snprintf(where, sizeof where, ", %lld of document %lld", (long long)(at - begin),
                       (long long)low);
    }
    DT_CHECK(value < 0 || limit == 0, DT_ERR_FORMAT,
             "%s: token %lld%s (byte %lld) is %lld, the vocabulary has 0 to %lld",
             f->tokens.in.label, (long long)at, where, (long long)(f->begin + at * f->bytes),
             (long long)value, (long long)limit - 1);
    DT_FAIL(DT_ERR_FORMAT, "%s: token %lld%s (byte %lld) is %lld, which no token is",
            f->tokens.in.label, (long long)at, where, (long long)(f->begin + at * f->bytes),
            (long long)value);
}

static dt_status read_piece(dti_token_file *f, int64_t first, int64_t n, int64_t limit, int32_t *to)
{
    const uint64_t end = limit > 0 ? (uint64_t)limit : (uint64_t)INT32_MAX + 1;
    const unsigned char *p;

    DT_TRY(dti_mapped_at(&f->tokens, f->begin + first * f->bytes, n * f->bytes, &p));
    for (int64_t i = 0; i < n; i++, p += f->bytes) {
        const int64_t value = value_at(p, f->type);
        if ((uint64_t)value >= end) return refuse_token(f, first + i, value, limit);
        to[i] = (int32_t)value;
    }
    return DT_OK;
}

dt_status dti_token_file_read(dti_token_file *f, int64_t first, int64_t n, int64_t limit,
                              int32_t *to)
{
    DT_ASSERT(first >= 0 && n >= 0 && first + n <= f->n);
    for (int64_t done = 0; done < n; done += BLOCK_TOKENS)
        DT_TRY(read_piece(f, first + done, dti_min(n - done, BLOCK_TOKENS), limit, to + done));
    return DT_OK;
}

static dt_status check_sum(dti_token_file *f, dti_checksum *sum)
{
    char digits[DTI_CHECKSUM_DIGITS + 1];

    if (f->n_runs > 0) {
        const int64_t bytes = f->mask.in.bytes - DTI_MASK_HEADER_BYTES;
        const unsigned char *p;
        DT_TRY(dti_mapped_at(&f->mask, DTI_MASK_HEADER_BYTES, bytes, &p));
        dti_checksum_add(sum, p, (size_t)bytes);
    }
    (void)snprintf(digits, sizeof digits, "%016llx", (unsigned long long)dti_checksum_end(sum));
    DT_CHECK(f->checksum[0] == '\0' || strcmp(digits, f->checksum) == 0, DT_ERR_FORMAT,
             "%s: its tokens are not those that were written: their checksum is %s, and was %s",
             f->tokens.in.label, digits, f->checksum);
    return DT_OK;
}

dt_status dti_token_file_check_all(dti_token_file *f, int64_t limit)
{
    enum { BLOCK = 1 << 12 };
    int32_t tokens[BLOCK];
    const unsigned char *p;
    dti_checksum sum;

    dti_checksum_begin(&sum);
    for (int64_t at = 0; at < f->n; at += BLOCK) {
        const int64_t n = dti_min(BLOCK, f->n - at);
        if (at % (BLOCK * 1024) == 0) DT_TRY(dti_token_file_check(f));
        DT_TRY(dti_token_file_read(f, at, n, limit, tokens));
        DT_TRY(dti_mapped_at(&f->tokens, f->begin + at * f->bytes, n * f->bytes, &p));
        dti_checksum_add(&sum, p, (size_t)(n * f->bytes));
    }
    DT_TRY(check_sum(f, &sum));
    return DT_OK;
}

bool dt_is_token_file(const char *path)
{
    char tokens[DTI_PATH_BYTES], index[DTI_PATH_BYTES];
    int32_t magic = 0;
    dti_input in;
    bool is;

    if (path == NULL || find_files(path, tokens, index) != DT_OK) return false;
    if (index[0] != '\0' || ends_with(path, ".bin")) return true;
    if (dti_input_open(tokens, &in) != DT_OK) return false;
    is = in.bytes >= DTI_LLMC_HEADER_BYTES &&
         dti_input_read(&in, &magic, sizeof magic, 0) == DT_OK &&
         (magic == DTI_LLMC_MAGIC || magic == DTI_LLMC_MAGIC_U32);
    dti_input_close(&in);
    return is;
}
