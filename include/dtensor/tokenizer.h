/* SPDX-License-Identifier: Apache-2.0
 *
 * Text to token ids and back, exactly as the checkpoint's tokenizer.json says.
 *
 * A tokenizer is a pipeline read from that file: added tokens are cut out of the text, the rest is
 * normalised, split into words and merged by byte-pair encoding; ids become text again through the
 * file's decoder. Steps that are not known here are refused by name when the file is opened, never
 * skipped. Results are those of the reference library (Hugging Face tokenizers), byte for byte.
 *
 * Nothing here is collective, and nothing needs a runtime. A tokenizer never changes, so rank
 * threads may share one; a stream belongs to one thread. */
#ifndef DT_TOKENIZER_H
#define DT_TOKENIZER_H

#include <dtensor/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tokenizer. Counted handle, immutable. */
typedef struct dt_tokenizer dt_tokenizer;

/* Turns ids into text one at a time, without ever splitting a character. */
typedef struct dt_tokenizer_stream dt_tokenizer_stream;

/* Flags of dt_tokenizer_encode(). */
enum {
    /* Add what the tokenizer's template puts around a text, such as <|begin_of_text|>. */
    DT_ENCODE_ADD_SPECIAL = 1,
    /* Special tokens that are spelled out in the text become their ids. Leave it off for text that
     * is not to be trusted: there "<|im_end|>" stays ten characters. */
    DT_ENCODE_PARSE_SPECIAL = 2
};

/**
 * Opens a tokenizer.
 *
 *   path  a checkpoint folder, or a file in the format of tokenizer.json. A folder without
 *         tokenizer.json may hold vocab.json and merges.txt instead (older GPT-2 and GPT-Neo
 *         exports): then the pipeline is GPT-2's, special_tokens_map.json names the special tokens
 *         and tokenizer_config.json says whether a space is put in front.
 *
 * Supported: BPE models (ignore_merges, byte_fallback, fuse_unk); added tokens with all their
 * flags; normalizers NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, ByteLevel;
 * pre-tokenizers Split, ByteLevel, Digits, Metaspace; post-processors ByteLevel and
 * TemplateProcessing; decoders ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace; and
 * Sequence of each. The file's truncation and padding are ignored, as Transformers does unless it
 * is asked.
 *
 * Collective  no.
 * Ownership   *out is a new reference, released with dt_tokenizer_release().
 * Errors      DT_ERR_ARG          path or out is NULL
 *             DT_ERR_IO           a file is missing or cannot be read
 *             DT_ERR_FORMAT       malformed JSON, or a vocabulary, merges or added tokens that
 *                                 contradict each other
 *             DT_ERR_UNSUPPORTED  a step, a model or an option that is not in the list above
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_tokenizer_open(const char *path, dt_tokenizer **out);

/** What the tokenizer of a model's folder is made of: "tokenizer.json", or "vocab.json and
 * merges.txt"; NULL: there is none that dt_tokenizer_open() knows. Not collective. Errors: none. */
DT_API const char *dt_tokenizer_files(const char *folder);

DT_API dt_tokenizer *dt_tokenizer_retain(dt_tokenizer *tok); /* one more reference; returns tok */
DT_API void dt_tokenizer_release(dt_tokenizer **tok);        /* drops one; accepts NULL */

/**
 * Encodes a text.
 *
 *   text   n_bytes of UTF-8; zero bytes are ordinary characters. Whatever is not UTF-8 is replaced
 *          by U+FFFD first, one for each maximal part of a broken sequence (Python's
 *          errors="replace").
 *   flags  DT_ENCODE_... or 0
 *   *ids   the token ids, freed with dt_tokenizer_free(); NULL if there are none
 *
 * Cost O(n log n) in the longest word, about linear otherwise.
 *
 * Not collective.
 * Errors      DT_ERR_ARG          NULL, or unknown flags
 *             DT_ERR_FORMAT       the model's unknown token is needed but not in its vocabulary
 *             DT_ERR_UNSUPPORTED  a regular expression of the file takes too many steps on this
 *                                 text, or the text is over 1 GiB
 *             DT_ERR_MEMORY
 *             On error *ids is NULL.
 */
DT_API DT_MUST_USE dt_status dt_tokenizer_encode(const dt_tokenizer *tok, const char *text,
                                                 size_t n_bytes, unsigned flags, int32_t **ids,
                                                 size_t *n_ids);

/**
 * dt_tokenizer_encode() that also says which character or byte of the text was dropped first, for a
 * byte-level tokenizer without an unknown token drops what it has no token for: "Q", "byte 0xC3".
 *
 *   left_out  empty if nothing was
 *
 * As dt_tokenizer_encode().
 */
enum { DT_LEFT_OUT_BYTES = 24 };
DT_API DT_MUST_USE dt_status dt_tokenizer_encode_checked(const dt_tokenizer *tok, const char *text,
                                                         size_t n_bytes, unsigned flags,
                                                         int32_t **ids, size_t *n_ids,
                                                         char left_out[DT_LEFT_OUT_BYTES]);

/**
 * Encodes several texts, each as dt_tokenizer_encode() would. Words are looked up once for all, so
 * this is faster than as many calls if the texts are short.
 *
 *   texts    n_texts texts of UTF-8
 *   n_bytes  their sizes; NULL if each ends at its first zero byte
 *   flags    DT_ENCODE_... or 0
 *   *ids     the ids of all texts, one behind the other; NULL if there are none
 *   *starts  [n_texts + 1]: those of text i are ids[starts[i]] to ids[starts[i + 1] - 1]. Both are
 *            freed with dt_tokenizer_free().
 *
 * Works on the calling thread; several threads may encode parts of a batch with one tokenizer.
 *
 * Not collective.
 * Errors      as dt_tokenizer_encode(), of the first text that has one; then *ids and *starts are
 *             NULL
 */
DT_API DT_MUST_USE dt_status dt_tokenizer_encode_batch(const dt_tokenizer *tok,
                                                       const char *const *texts,
                                                       const size_t *n_bytes, size_t n_texts,
                                                       unsigned flags, int32_t **ids,
                                                       size_t **starts);

/**
 * Decodes ids.
 *
 *   ids           ids that no token has give no text: a model may know more ids than its tokenizer
 *   skip_special  leave out special tokens
 *   *text         UTF-8, always valid: broken sequences are U+FFFD. Freed with
 *                 dt_tokenizer_free(); a zero byte that *n_bytes does not count ends it.
 *
 * Not collective.
 * Errors      DT_ERR_ARG          NULL or a negative id
 *             DT_ERR_UNSUPPORTED  a regular expression of the file takes too many steps
 *             DT_ERR_MEMORY
 *             On error *text is NULL.
 */
DT_API DT_MUST_USE dt_status dt_tokenizer_decode(const dt_tokenizer *tok, const int32_t *ids,
                                                 size_t n_ids, bool skip_special, char **text,
                                                 size_t *n_bytes);

/** Frees what encode and decode returned; accepts NULL. Not collective. Errors: none. */
DT_API void dt_tokenizer_free(void *result);

/**
 * Makes a stream. What its pushes and the flush return, put together, is what
 * dt_tokenizer_decode() returns for all ids at once.
 *
 * Not collective.
 * Ownership   *out is released with dt_tokenizer_stream_release(); it holds a reference to tok.
 * Errors      DT_ERR_ARG, DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_tokenizer_stream_create(dt_tokenizer *tok, bool skip_special,
                                                        dt_tokenizer_stream **out);

/**
 * Takes the next id and hands out the text that is certain now: whole characters, possibly none.
 * A warm stream does no malloc.
 *
 *   *text  valid until the next call on this stream; a zero byte that *n_bytes does not count
 *          ends it
 *
 * Text is held back while a character is incomplete, and while a run of byte tokens (<0xE2>) lasts,
 * because one broken byte turns the whole run into U+FFFD.
 *
 * Not collective.
 * Errors      as dt_tokenizer_decode(); the stream then starts anew
 */
DT_API DT_MUST_USE dt_status dt_tokenizer_stream_push(dt_tokenizer_stream *stream, int32_t id,
                                                      const char **text, size_t *n_bytes);

/** Ends a text: hands out what was held back, as dt_tokenizer_stream_push(). The stream can then
 * be used for another text. */
DT_API DT_MUST_USE dt_status dt_tokenizer_stream_flush(dt_tokenizer_stream *stream,
                                                       const char **text, size_t *n_bytes);

DT_API void dt_tokenizer_stream_release(dt_tokenizer_stream **stream); /* accepts NULL */

/** One more than the largest id of a token. Not collective. Errors: none. */
DT_API int32_t dt_tokenizer_vocab_size(const dt_tokenizer *tok);

/** A number for what its ids stand for: the same for tokenizers whose tokens are the same, however
 * their files are written. Not collective. Errors: none; 0 if tok is NULL. */
DT_API uint64_t dt_tokenizer_hash(const dt_tokenizer *tok);

/** The id of the token that is written exactly like this in the file ("<|eot_id|>", or "\u0120the"
 * for " the" in byte-level vocabularies); -1 if there is none. Not collective. Errors: none. */
DT_API int32_t dt_tokenizer_id(const dt_tokenizer *tok, const char *piece, size_t n_bytes);

/** How the token is written in the file, ended by a zero byte; NULL for an id that no token has.
 * n_bytes may be NULL. Valid while tok is. Not collective. Errors: none. */
DT_API const char *dt_tokenizer_piece(const dt_tokenizer *tok, int32_t id, size_t *n_bytes);

/**
 * What a token adds in the middle of a text, as bytes: they may be a part of a character only.
 *
 *   *bytes  freed with dt_tokenizer_free(); none for an id that no token has
 *
 * Not collective. Errors: DT_ERR_ARG NULL; DT_ERR_MEMORY.
 */
DT_API DT_MUST_USE dt_status dt_tokenizer_bytes(const dt_tokenizer *tok, int32_t id, char **bytes,
                                                size_t *n_bytes);

/** Whether an id is that of a special token. Not collective. Errors: none. */
DT_API bool dt_tokenizer_is_special(const dt_tokenizer *tok, int32_t id);

#ifdef __cplusplus
}
#endif
#endif
