/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of tokens as they are made: document by document, or from texts, JSON lines and chats.
 * <dtensor/training_data.h> reads them; docs/data.md describes them.
 *
 * Beside the tokens, FILE.bin, lie FILE.bin.json (how many there are and of which tokenizer),
 * FILE.bin.mask where some are not to be learned, and Megatron's FILE.idx. All appear when they are
 * whole: until then a file that was there before stays.
 *
 * Nothing here is collective or needs a runtime. */
#ifndef DT_TOKEN_FILES_H
#define DT_TOKEN_FILES_H

#include <dtensor/chat.h>
#include <dtensor/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dt_token_format {
    DT_TOKENS_LLMC,    /* llm.c's: a header, u16, or u32 of vocabularies beyond 65536; less than
                        * 2^31 tokens */
    DT_TOKENS_NANOGPT, /* u16 and nothing else; vocabularies to 65536 */
    DT_TOKENS_MEGATRON /* with an index of documents; u16, or i32 of vocabularies from 65500 on */
} dt_token_format;

/** The format of that name, "llmc", "nanogpt", "megatron". Not collective. Errors: DT_ERR_ARG,
 * listing the names. */
DT_API DT_MUST_USE dt_status dt_token_format_named(const char *name, dt_token_format *out);

/** Whether a path names a file of tokens rather than a text: by what it begins with, an index that
 * lies beside it, or its ending. Not collective. Errors: none; false if it cannot be read. */
DT_API bool dt_is_token_file(const char *path);

/* --- Writing tokens ------------------------------------------------------------------------- */

typedef struct dt_token_writer dt_token_writer;

typedef struct dt_token_writer_options {
    size_t size; /* sizeof(dt_token_writer_options) */
    dt_token_format format;
    int64_t vocab_size;  /* tokens are below it */
    uint64_t tokenizer;  /* dt_tokenizer_hash(); 0: not said */
    int32_t begin_token; /* that every document begins with, and none has elsewhere; -1: none */
    int32_t end_token;   /* the same of ends */
} dt_token_writer_options;

#define DT_TOKEN_WRITER_OPTIONS_INIT                                  \
    {                                                                 \
        sizeof(dt_token_writer_options), DT_TOKENS_LLMC, 0, 0, -1, -1 \
    }

/**
 * Begins a file.
 *
 *   path     ends in .bin
 *   options  vocab_size has no default
 *
 * Not collective.
 * Ownership   *out ends with dt_token_writer_close().
 * Errors      DT_ERR_ARG  NULL, another ending, a vocabulary that the format has no room for; what
 *                         lies where NAME.idx, NAME.bin.json or NAME.bin.mask will be is none
 *             DT_ERR_IO   the folder is missing or cannot be written
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_token_writer_open(const char *path,
                                                  const dt_token_writer_options *options,
                                                  dt_token_writer **out);

/**
 * n more tokens of the document that is being written.
 *
 *   learned  false: a prompt, whose tokens are no targets
 *
 * Not collective.
 * Errors      DT_ERR_ARG  a token that the vocabulary has not; more tokens than the format counts.
 *                         None of them is in the file then
 *             DT_ERR_IO, DT_ERR_MEMORY  after which the file has to be given up:
 *                         dt_token_writer_close() with the error
 */
DT_API DT_MUST_USE dt_status dt_token_writer_add(dt_token_writer *writer, const int32_t *tokens,
                                                 int64_t n, bool learned);

/** Ends the document, if it has tokens. Not collective. Errors: DT_ERR_MEMORY. */
DT_API DT_MUST_USE dt_status dt_token_writer_end_document(dt_token_writer *writer);

/**
 * Brings all to the disk and gives the files their names, or leaves what was there if `st`, what
 * happened so far, is an error. Accepts a NULL in *writer. NAME.bin that was there goes before what
 * lies beside it changes, and the new one comes last: whoever reads meanwhile, or after a crash,
 * finds the old files, the new ones, or no NAME.bin.
 *
 * Not collective.
 * Errors      st; DT_ERR_ARG a file without tokens; DT_ERR_IO
 */
DT_API dt_status dt_token_writer_close(dt_token_writer **writer, dt_status st);

/* --- Texts as tokens ------------------------------------------------------------------------ */

typedef enum dt_text_kind {
    DT_TEXT_BY_NAME,   /* .jsonl is JSON lines, anything else a text */
    DT_TEXT_PLAIN,     /* a file is a document, or several with a separator */
    DT_TEXT_JSON_LINES /* an object on each line: a text under a key, or a chat under "messages" */
} dt_text_kind;

/* How far it is; false: stop. */
typedef bool (*dt_tokenize_fn)(void *arg, int64_t bytes, int64_t all_bytes, int64_t tokens);

typedef struct dt_tokenize_options {
    size_t size; /* sizeof(dt_tokenize_options) */
    dt_token_format format;
    dt_text_kind kind;
    bool plain;            /* neither add special tokens nor find them in a text */
    int32_t end_token;     /* appended to each document; -1: nothing */
    const char *separator; /* of documents in a text; NULL: a file is one */
    const char *key;       /* of texts in JSON lines */
    dt_chat *chat;         /* how conversations are written; NULL: they are refused */
    dt_tokenize_fn progress;
    void *progress_arg;
} dt_tokenize_options;

#define DT_TOKENIZE_OPTIONS_INIT                                                               \
    {                                                                                          \
        sizeof(dt_tokenize_options), DT_TOKENS_LLMC, DT_TEXT_BY_NAME, false, -1, NULL, "text", \
            NULL, NULL, NULL                                                                   \
    }

/* What became of them. */
typedef struct dt_tokenized {
    int64_t bytes, documents, tokens;
    int64_t masked;    /* tokens of prompts */
    int64_t last_only; /* conversations of which the last answer alone is learned: their template
                        * writes earlier ones otherwise than when they were given */
    int64_t broken;    /* bytes of texts that are no UTF-8, in whose place U+FFFD was read */
} dt_tokenized;

/**
 * Makes a file of tokens from n files, in their order. A text's tokens are those of
 * dt_tokenizer_encode() of the whole, in pieces of about a MiB. Of a conversation the answers are
 * learned, with what ends them; all else is masked.
 *
 *   tokenizer  says what tokens are
 *   options    NULL: defaults
 *   told       may be NULL
 *
 * Not collective.
 * Errors      DT_ERR_ARG          NULL, a text that is the output, no tokens at all, stopped
 *             DT_ERR_FORMAT       names file and line: no JSON object, no text under the key, a
 *                                 conversation that the template refuses
 *             DT_ERR_UNSUPPORTED  a text of more than 1 GiB that cannot be taken in pieces
 *             those of dt_token_writer_open(), DT_ERR_IO, DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_tokenize_files(const char *const *paths, int n,
                                               dt_tokenizer *tokenizer,
                                               const dt_tokenize_options *options,
                                               const char *output, dt_tokenized *told);

#ifdef __cplusplus
}
#endif
#endif
