/* SPDX-License-Identifier: Apache-2.0
 *
 * One file of tokens, whatever its format: so many tokens, readable from any place on, of which
 * some begin documents and some are masked. */
#ifndef DTI_TOKEN_FILE_H
#define DTI_TOKEN_FILE_H

#include "files/mapped.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "files of tokens are little-endian, and bytes are not swapped here"
#endif

enum {
    DTI_LLMC_HEADER_BYTES = 1024,
    DTI_LLMC_MAGIC = 20240520,     /* version 1: u16 */
    DTI_LLMC_MAGIC_U32 = 20240801, /* version 7 */
    DTI_LLMC_MAGIC_EVAL = 20240522,
    DTI_INDEX_HEADER_BYTES = 34,
    DTI_CHECKSUM_DIGITS = 16 /* XXH64 of the bytes of all tokens, then of the runs of the mask */
};

/* How tokens lie in files; the numbers are Megatron's but for U32. */
typedef enum dti_token_type {
    DTI_TOKEN_U8 = 1,
    DTI_TOKEN_I8,
    DTI_TOKEN_I16,
    DTI_TOKEN_I32,
    DTI_TOKEN_I64,
    DTI_TOKEN_F64,
    DTI_TOKEN_F32,
    DTI_TOKEN_U16,
    DTI_TOKEN_U32
} dti_token_type;

int dti_token_bytes(dti_token_type type);

typedef struct dti_token_file {
    dti_mapped tokens;
    int64_t begin; /* byte of the first one */
    int64_t n;
    dti_token_type type;
    int bytes; /* of one */

    dti_mapped index;        /* Megatron's; index.in.fd is -1: there is none */
    int64_t n_sequences;     /* in it */
    int64_t n_documents;     /* -1: nothing says where they end */
    int64_t *document_begin; /* [n_documents + 1], where tokens were searched for them; or NULL */
    int32_t begin_token, end_token; /* of documents without an index; -1: none */

    dti_mapped mask; /* fd is -1: none */
    int64_t n_runs;

    /* Of tokens and runs, as FILE.json says; "": it does not. What has more digits matches none. */
    char checksum[DTI_CHECKSUM_DIGITS + 2];
} dti_token_file;

/* What is asked of a file besides. */
typedef struct dti_token_wish {
    int32_t begin_token, end_token; /* see dt_data_options */
    uint64_t tokenizer;
    int64_t vocab_size; /* 0: not known */
} dti_token_wish;

/* Headers, index, side files are checked against each other and the files' sizes. On error there is
 * nothing to close; closing accepts a zeroed one. */
dt_status dti_token_file_open(const char *path, const dti_token_wish *wish,
                              dti_token_file *out) DT_MUST_USE;
void dti_token_file_close(dti_token_file *f);

/* Refuses one that has become shorter. */
dt_status dti_token_file_check(const dti_token_file *f) DT_MUST_USE;

/* Reads all tokens: refuses one that is `limit` or more, and other tokens or runs than FILE.json
 * has the checksum of. */
dt_status dti_token_file_check_all(dti_token_file *f, int64_t limit) DT_MUST_USE;

/* n tokens from number `first` on, of which none is `limit` or more (0: that fits an int32_t). */
dt_status dti_token_file_read(dti_token_file *f, int64_t first, int64_t n, int64_t limit,
                              int32_t *to) DT_MUST_USE;

/* --- documents (token_documents.c, token_index.c) --------------------------------------------- */

/* Whether anything says where documents end. */
bool dti_token_file_has_documents(const dti_token_file *f);

/* Finds documents by their first and last tokens, unless an index has them: reads all tokens. */
dt_status dti_token_file_find_documents(dti_token_file *f, int64_t limit) DT_MUST_USE;

/* The number of the token that document d begins with, d = 0 .. n_documents; they have to be known.
 */
dt_status dti_token_file_document(dti_token_file *f, int64_t d, int64_t *out) DT_MUST_USE;

/* Sets `flag` in flags[j] where token first + j, one of n, begins a document; `tokens` are they. */
dt_status dti_token_file_mark(dti_token_file *f, int64_t first, int64_t n, const int32_t *tokens,
                              unsigned char flag, unsigned char *flags) DT_MUST_USE;

/* Opens and checks the index at `path`; f->tokens is open. */
dt_status dti_token_index_open(dti_token_file *f, const char *path) DT_MUST_USE;

/* As dti_token_file_document() for a file with an index. */
dt_status dti_token_index_document(dti_token_file *f, int64_t d, int64_t *out) DT_MUST_USE;

/* --- side files (side_files.c) ---------------------------------------------------------------- */

/* "FILE.json" and "FILE.mask" beside the tokens, if they are there. */
dt_status dti_side_files_read(dti_token_file *f, const char *path,
                              const dti_token_wish *wish) DT_MUST_USE;

/* Sets `flag` where token first + j, one of n, is masked. */
dt_status dti_token_file_mark_masked(dti_token_file *f, int64_t first, int64_t n,
                                     unsigned char flag, unsigned char *flags) DT_MUST_USE;

#endif
