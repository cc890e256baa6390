/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of tokens, written as they come: tokens through a buffer to the disk, of documents and runs
 * that are masked their numbers alone are remembered. */
#include <dtensor/token_files.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/options.h"
#include "files/checksum.h"
#include "files/folder.h"
#include "files/input.h"
#include "files/output.h"
#include "training/data/side_files.h"

enum { BUFFER_BYTES = 1 << 20 };

static const char *const format_names[] = { "llmc", "nanogpt", "megatron" };

struct dt_token_writer {
    dt_token_writer_options o;
    char path[DTI_PATH_BYTES];
    dti_output out;
    dti_token_type type;
    int bytes; /* of a token */
    unsigned char *buffer;
    size_t n_buffered;
    dti_checksum sum; /* of the tokens so far */
    int64_t n, n_masked;
    int64_t begin; /* of the document that is being written */
    int32_t *lengths;
    size_t n_documents, lengths_room;
    int64_t *runs; /* begin and end of each */
    size_t n_runs, runs_room;
};

dt_status dt_token_format_named(const char *name, dt_token_format *out)
{
    DT_CHECK(name != NULL && out != NULL, DT_ERR_ARG, "name or out is NULL");
    for (size_t i = 0; i < DT_COUNT(format_names); i++)
        if (strcmp(name, format_names[i]) == 0) {
            *out = (dt_token_format)i;
            return DT_OK;
        }
    DT_FAIL(DT_ERR_ARG, "\"%s\" is no format of tokens; there are llmc, nanogpt and megatron",
            name);
}

/* How a format holds the tokens of a vocabulary. */
static dt_status choose_type(const dt_token_writer_options *o, dti_token_type *out)
{
    const bool narrow = o->vocab_size <= 65536;

    DT_CHECK(o->vocab_size >= 1 && o->vocab_size <= INT32_MAX, DT_ERR_ARG,
             "dt_token_writer_options.vocab_size is %lld", (long long)o->vocab_size);
    DT_CHECK((int)o->format >= 0 && o->format <= DT_TOKENS_MEGATRON, DT_ERR_ARG,
             "dt_token_writer_options.format is %d: no dt_token_format", (int)o->format);
    DT_CHECK(
        narrow || o->format != DT_TOKENS_NANOGPT, DT_ERR_ARG,
        "the format nanogpt has two bytes for a token, the vocabulary has %lld: choose llmc or "
        "megatron",
        (long long)o->vocab_size);
    *out = narrow ? DTI_TOKEN_U16 : DTI_TOKEN_U32;
    if (o->format == DT_TOKENS_MEGATRON)
        *out = o->vocab_size < 65500 ? DTI_TOKEN_U16 : DTI_TOKEN_I32;
    return DT_OK;
}

static dt_status begin(dt_token_writer *w)
{
    static const unsigned char header[DTI_LLMC_HEADER_BYTES] = { 0 };

    dti_checksum_begin(&w->sum);
    DT_TRY(dti_alloc(BUFFER_BYTES, (void **)&w->buffer));
    DT_TRY(dti_output_open(&w->out, w->path, NULL));
    if (w->o.format == DT_TOKENS_LLMC) DT_TRY(dti_output_write(&w->out, header, sizeof header));
    return DT_OK;
}

/* A file beside tokens is taken away or replaced with them, if it is one of those. */
static dt_status check_beside(const char *path)
{
    static const struct {
        const char *ending;
        size_t cut; /* of NAME.bin */
        const char *begins;
    } beside[] = {
        { ".idx", 4, "MMIDIDX" },
        { DTI_MASK_ENDING, 0, DTI_MASK_MAGIC },
        { DTI_FACTS_ENDING, 0, "{\n  \"format\": \"" },
    };
    char name[DTI_PATH_BYTES], head[16];

    for (size_t i = 0; i < DT_COUNT(beside); i++) {
        const size_t n = strlen(beside[i].begins);
        dti_input in;
        bool ours;
        (void)snprintf(name, sizeof name, "%.*s%s", (int)(strlen(path) - beside[i].cut), path,
                       beside[i].ending);
        if (access(name, F_OK) != 0) continue;
        DT_TRY(dti_input_open(name, &in));
        ours = in.bytes >= (int64_t)n && dti_input_read(&in, head, (int64_t)n, 0) == DT_OK &&
               memcmp(head, beside[i].begins, n) == 0;
        dti_input_close(&in);
        DT_CHECK(ours, DT_ERR_ARG,
                 "%s: is there already, and no file that lies beside tokens: it would be lost; "
                 "choose another NAME.bin, or remove it first",
                 in.label);
    }
    return DT_OK;
}

dt_status dt_token_writer_open(const char *path, const dt_token_writer_options *options,
                               dt_token_writer **out)
{
    dt_token_writer_options o = DT_TOKEN_WRITER_OPTIONS_INIT;
    const size_t n = path != NULL ? strlen(path) : 0;
    dti_token_type type;
    dt_token_writer *w;
    dt_status st;

    DT_CHECK(path != NULL && options != NULL && out != NULL, DT_ERR_ARG,
             "path, options or out is NULL");
    *out = NULL;
    DT_TRY(dti_options_read("dt_token_writer_options", "start from DT_TOKEN_WRITER_OPTIONS_INIT",
                            options, &o, sizeof o));
    DT_CHECK(n > 4 && n + 8 < DTI_PATH_BYTES && strcmp(path + n - 4, ".bin") == 0, DT_ERR_ARG,
             "%.200s: a file of tokens is called NAME.bin", path);
    DT_TRY(choose_type(&o, &type));
    DT_TRY(check_beside(path));
    DT_TRY(dti_new(sizeof *w, &w));
    *w = (dt_token_writer){ .o = o, .out.fd = -1, .type = type, .bytes = dti_token_bytes(type) };
    memcpy(w->path, path, n + 1);
    st = begin(w);
    if (st != DT_OK) return dt_token_writer_close(&w, st);
    *out = w;
    return DT_OK;
}

static dt_status flush(dt_token_writer *w)
{
    DT_TRY(dti_output_write(&w->out, w->buffer, w->n_buffered));
    dti_checksum_add(&w->sum, w->buffer, w->n_buffered);
    w->n_buffered = 0;
    return DT_OK;
}

/* Tokens n to n + count - 1 are masked: one more run, or a longer one. */
static dt_status mask(dt_token_writer *w, int64_t count)
{
    w->n_masked += count;
    if (w->n_runs > 0 && w->runs[2 * w->n_runs - 1] == w->n) {
        w->runs[2 * w->n_runs - 1] += count;
        return DT_OK;
    }
    DT_TRY(dti_grow((void **)&w->runs, &w->runs_room, 2 * w->n_runs + 2, sizeof *w->runs));
    w->runs[2 * w->n_runs] = w->n;
    w->runs[2 * w->n_runs++ + 1] = w->n + count;
    return DT_OK;
}

dt_status dt_token_writer_add(dt_token_writer *w, const int32_t *tokens, int64_t n, bool learned)
{
    DT_CHECK(w != NULL && n >= 0 && (tokens != NULL || n == 0), DT_ERR_ARG,
             "writer or tokens is NULL, or there are %lld tokens", (long long)n);
    DT_CHECK(w->o.format != DT_TOKENS_LLMC || n <= INT32_MAX - w->n, DT_ERR_ARG,
             "%s: a file of llm.c has less than 2^31 tokens; choose megatron, or write several",
             w->path);
    DT_CHECK(n <= INT32_MAX - (w->n - w->begin), DT_ERR_ARG,
             "%s: a document has more than 2^31 - 1 tokens", w->path);
    for (int64_t i = 0; i < n; i++)
        DT_CHECK((uint32_t)tokens[i] < (uint64_t)w->o.vocab_size, DT_ERR_ARG,
                 "%s: token %lld is %d, the vocabulary has 0 to %lld", w->path,
                 (long long)(w->n + i), (int)tokens[i], (long long)w->o.vocab_size - 1);
    if (!learned && n > 0) DT_TRY(mask(w, n));
    for (int64_t i = 0; i < n; i++) {
        const uint32_t token = (uint32_t)tokens[i];
        if (w->n_buffered + sizeof token > BUFFER_BYTES) DT_TRY(flush(w));
        memcpy(w->buffer + w->n_buffered, &token, (size_t)w->bytes);
        w->n_buffered += (size_t)w->bytes;
    }
    w->n += n;
    return DT_OK;
}

dt_status dt_token_writer_end_document(dt_token_writer *w)
{
    DT_CHECK(w != NULL, DT_ERR_ARG, "writer is NULL");
    if (w->n == w->begin) return DT_OK;
    DT_TRY(
        dti_grow((void **)&w->lengths, &w->lengths_room, w->n_documents + 1, sizeof *w->lengths));
    w->lengths[w->n_documents++] = (int32_t)(w->n - w->begin);
    w->begin = w->n;
    return DT_OK;
}

/* --- what lies beside it ---------------------------------------------------------------------- */

/* Numbers of a header, one after the other. */
static size_t put(unsigned char *to, size_t at, int64_t value, size_t bytes)
{
    memcpy(to + at, &value, bytes);
    return at + bytes;
}

static dt_status write_offsets(const dt_token_writer *w, dti_output *out)
{
    enum { BLOCK = 512 };
    int64_t at[BLOCK], bytes = 0;

    for (size_t i = 0; i < w->n_documents;) {
        size_t n = 0;
        for (; n < BLOCK && i < w->n_documents; n++, i++) {
            at[n] = bytes;
            bytes += (int64_t)w->lengths[i] * w->bytes;
        }
        DT_TRY(dti_output_write(out, at, n * sizeof *at));
    }
    for (size_t i = 0; i <= w->n_documents;) { /* each document is one sequence */
        size_t n = 0;
        for (; n < BLOCK && i <= w->n_documents; n++, i++) at[n] = (int64_t)i;
        DT_TRY(dti_output_write(out, at, n * sizeof *at));
    }
    return DT_OK;
}

static dt_status write_index(const dt_token_writer *w, dti_output *out)
{
    unsigned char head[DTI_INDEX_HEADER_BYTES] = "MMIDIDX";
    size_t at = put(head, 9, 1, 8);

    at = put(head, at, (int64_t)w->type, 1);
    at = put(head, at, (int64_t)w->n_documents, 8);
    (void)put(head, at, (int64_t)w->n_documents + 1, 8);
    DT_TRY(dti_output_write(out, head, sizeof head));
    DT_TRY(dti_output_write(out, w->lengths, w->n_documents * sizeof *w->lengths));
    return write_offsets(w, out);
}

static dt_status write_mask(const dt_token_writer *w, dti_output *out)
{
    unsigned char head[DTI_MASK_HEADER_BYTES] = DTI_MASK_MAGIC;

    (void)put(head, put(head, 8, w->n, 8), (int64_t)w->n_runs, 8);
    DT_TRY(dti_output_write(out, head, sizeof head));
    return dti_output_write(out, w->runs, 2 * w->n_runs * sizeof *w->runs);
}

static int put_token(char *text, size_t room, const char *key, int32_t token)
{
    if (token < 0) return snprintf(text, room, "  \"%s\": null,\n", key);
    return snprintf(text, room, "  \"%s\": %d,\n", key, (int)token);
}

static dt_status write_facts(const dt_token_writer *w, dti_output *out)
{
    static const char *const types[] = { "", "", "", "", "i32", "", "", "", "u16", "u32" };
    dti_checksum sum = w->sum;
    char text[1024];
    int n;

    dti_checksum_add(&sum, w->runs, 2 * w->n_runs * sizeof *w->runs);
    n = snprintf(text, sizeof text,
                 "{\n  \"format\": \"%s\",\n  \"type\": \"%s\",\n  \"tokens\": %lld,\n"
                 "  \"documents\": %zu,\n  \"masked\": %lld,\n  \"vocab_size\": %lld,\n"
                 "  \"xxh64\": \"%016llx\",\n",
                 format_names[w->o.format], types[w->type], (long long)w->n, w->n_documents,
                 (long long)w->n_masked, (long long)w->o.vocab_size,
                 (unsigned long long)dti_checksum_end(&sum));

    n += put_token(text + n, sizeof text - (size_t)n, "begin_token", w->o.begin_token);
    n += put_token(text + n, sizeof text - (size_t)n, "end_token", w->o.end_token);
    if (w->o.tokenizer != 0)
        n += snprintf(text + n, sizeof text - (size_t)n, "  \"tokenizer\": \"%016llx\"\n}\n",
                      (unsigned long long)w->o.tokenizer);
    else
        n += snprintf(text + n, sizeof text - (size_t)n, "  \"tokenizer\": null\n}\n");
    return dti_output_write(out, text, (size_t)n);
}

/* --- all of them at once ---------------------------------------------------------------------- */

/* A file beside the tokens: NAME.bin with another ending, or one more. */
typedef struct beside {
    const char *ending;
    size_t cut;
    dt_status (*fill)(const dt_token_writer *w, dti_output *out); /* NULL: there is none */
    char path[DTI_PATH_BYTES];
    dti_output out;
} beside;

enum { BESIDE = 3 };

static dt_status fill(const dt_token_writer *w, beside *b)
{
    (void)snprintf(b->path, sizeof b->path, "%.*s%s", (int)(strlen(w->path) - b->cut), w->path,
                   b->ending);
    if (b->fill == NULL) return DT_OK;
    DT_TRY(dti_output_open(&b->out, b->path, NULL));
    DT_TRY(b->fill(w, &b->out));
    DT_TRY(dti_output_sync(&b->out));
    return DT_OK;
}

static dt_status finish_tokens(dt_token_writer *w)
{
    const bool wide = w->type == DTI_TOKEN_U32;
    unsigned char head[12];

    DT_TRY(dt_token_writer_end_document(w));
    DT_CHECK(w->n > 0, DT_ERR_ARG, "%s: there are no tokens to write", w->path);
    DT_TRY(flush(w));
    if (w->o.format == DT_TOKENS_LLMC) {
        size_t at = put(head, 0, wide ? DTI_LLMC_MAGIC_U32 : DTI_LLMC_MAGIC, 4);
        at = put(head, at, wide ? 7 : 1, 4);
        (void)put(head, at, w->n, 4);
        DT_TRY(dti_write_at(w->out.fd, w->path, head, sizeof head, 0));
    }
    DT_TRY(dti_output_sync(&w->out));
    return DT_OK;
}

/* Brings the names in the folder of a file to the disk. */
static dt_status sync_names(const dt_token_writer *w)
{
    const char *slash = strrchr(w->path, '/');
    char folder[DTI_PATH_BYTES];

    (void)snprintf(folder, sizeof folder, "%.*s",
                   slash != NULL ? (int)dti_max(slash - w->path, 1) : 1,
                   slash != NULL ? w->path : ".");
    DT_TRY(dti_folder_sync(folder));
    return DT_OK;
}

/* What lies beside tokens speaks of them alone. So while it changes there are none: they go first
 * and come last, and whoever is killed between leaves a set without tokens, never a mixed one. */
static dt_status replace(dt_token_writer *w, beside *all)
{
    dt_status st = DT_OK;

    (void)unlink(w->path);
    DT_TRY(sync_names(w));
    for (int i = 0; i < BESIDE; i++) {
        if (all[i].fill == NULL)
            (void)unlink(all[i].path);
        else
            st = dti_output_close(&all[i].out, st);
    }
    DT_TRY(st);
    DT_TRY(sync_names(w));
    DT_TRY(dti_output_close(&w->out, DT_OK));
    DT_TRY(sync_names(w));
    return DT_OK;
}

/* All is on the disk, under other names, before anything that is there changes. */
static dt_status finish(dt_token_writer *w)
{
    beside all[BESIDE] = {
        { .ending = ".idx",
          .cut = 4,
          .fill = w->o.format == DT_TOKENS_MEGATRON ? write_index : NULL },
        { .ending = DTI_MASK_ENDING, .fill = w->n_runs > 0 ? write_mask : NULL },
        { .ending = DTI_FACTS_ENDING, .fill = write_facts },
    };
    dt_status st;

    for (int i = 0; i < BESIDE; i++) all[i].out.fd = -1;
    st = finish_tokens(w);
    for (int i = 0; i < BESIDE && st == DT_OK; i++) st = fill(w, &all[i]);
    if (st == DT_OK) st = replace(w, all);
    for (int i = 0; i < BESIDE; i++) (void)dti_output_close(&all[i].out, st);
    return st;
}

dt_status dt_token_writer_close(dt_token_writer **writer, dt_status st)
{
    dt_token_writer *w = writer != NULL ? *writer : NULL;

    if (w == NULL) return st;
    if (st == DT_OK) st = finish(w);
    if (w->out.fd >= 0) st = dti_output_close(&w->out, st);
    dti_free(w->buffer);
    dti_free(w->lengths);
    dti_free(w->runs);
    dti_free(w);
    *writer = NULL;
    return st;
}
