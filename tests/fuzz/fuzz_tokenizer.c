/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing the tokenizer: any bytes are refused with a message, or make a tokenizer that encodes and
 * decodes any text, where streaming gives what decoding gives.
 *
 * An input is a tokenizer.json, a zero byte, and a text.
 *
 *   fuzz_tokenizer [N [SEED]]   N seeded mutations of valid files (default 20000)
 *
 * With libFuzzer: clang -fsanitize=fuzzer,address,undefined -DDT_LIBFUZZER. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/tokenizer/tokenizer_internal.h"

enum { MOST_BYTES = 1 << 13 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void stop(const char *what)
{
    (void)fprintf(stderr, "fuzz_tokenizer: %s: %s\n", what, dt_last_error()->message);
    abort();
}

/* A file may make work impossible, but only for reasons that it gave itself. */
static bool failed(dt_status st)
{
    if (st == DT_OK) return false;
    if (st != DT_ERR_UNSUPPORTED && st != DT_ERR_FORMAT) stop("an error of another kind");
    if (dt_last_error()->message[0] == '\0') stop("an error without a message");
    return true;
}

static void check_stream(dt_tokenizer *tok, const int32_t *ids, size_t n, bool skip,
                         const char *want, size_t n_want)
{
    dt_tokenizer_stream *stream;
    size_t at = 0;

    if (dt_tokenizer_stream_create(tok, skip, &stream) != DT_OK) stop("no memory");
    for (size_t i = 0; i <= n; i++) {
        const char *part;
        size_t bytes;

        if (failed(i < n ? dt_tokenizer_stream_push(stream, ids[i], &part, &bytes)
                         : dt_tokenizer_stream_flush(stream, &part, &bytes)))
            stop("a stream fails where decoding did not");
        if (dti_utf8_valid(part, bytes) != bytes) stop("a stream split a character");
        if (at + bytes > n_want || memcmp(part, want + at, bytes) != 0) stop("a stream differs");
        at += bytes;
    }
    if (at != n_want) stop("a stream is too short");
    dt_tokenizer_stream_release(&stream);
}

static void check_decode(dt_tokenizer *tok, const int32_t *ids, size_t n)
{
    for (int skip = 0; skip < 2; skip++) {
        char *text;
        size_t bytes;

        if (failed(dt_tokenizer_decode(tok, ids, n, skip, &text, &bytes))) continue;
        if (dti_utf8_valid(text, bytes) != bytes || text[bytes] != '\0') stop("broken text");
        check_stream(tok, ids, n, skip, text, bytes);
        dt_tokenizer_free(text);
    }
}

static void use(dt_tokenizer *tok, const char *text, size_t n)
{
    int32_t some[64];
    const size_t n_some = n < 64 ? n : 64;

    for (unsigned flags = 0; flags < 4; flags++) {
        int32_t *ids;
        size_t n_ids;

        if (failed(dt_tokenizer_encode(tok, text, n, flags, &ids, &n_ids))) continue;
        for (size_t i = 0; i < n_ids; i++)
            if (dt_tokenizer_piece(tok, ids[i], NULL) == NULL) stop("an id that is no token");
        check_decode(tok, ids, n_ids);
        dt_tokenizer_free(ids);
    }
    for (size_t i = 0; i < n_some; i++) some[i] = (unsigned char)text[i] % 40;
    check_decode(tok, some, n_some);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t n_json = zero ? (size_t)(zero - data) : size;
    const char *text = (const char *)data + n_json + (zero ? 1 : 0);
    dt_tokenizer *tok = NULL;
    dti_json_doc doc;

    if (size > MOST_BYTES) return 0;
    if (!failed(dti_json_parse("fuzz", size > 0 ? (const char *)data : "", n_json, &doc))) {
        if (!failed(dti_tokenizer_load(&doc.root, &tok)))
            use(tok, text, size - (size_t)(text - (const char *)data));
        else if (tok != NULL)
            stop("a tokenizer in spite of an error");
        dt_tokenizer_release(&tok);
    }
    dti_json_free(&doc);
    return 0;
}

#ifndef DT_LIBFUZZER

#define BPE                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"byte_fallback\":true,\"vocab\":{\"?\":0," \
    "\"a\":1,\"b\":2,\"ab\":3,\" \":4,\"\\u0120\":5,\"\\u0120a\":6,\"\\u2581\":7,\"\\u00c3\":8," \
    "\"\\u00a9\":9,\"\\u00c3\\u00a9\":10,\"<0xC3>\":11,\"<0xA9>\":12,\"\\u00e9\":13,\"1\":14},"  \
    "\"merges\":[\"a b\",[\"\\u0120\",\"a\"],\"\\u00c3 \\u00a9\"]}}"

/* clang-format off */
static const char *const seeds[] = {
    "{" BPE,
    "{\"added_tokens\":[{\"id\":15,\"content\":\"<s>\",\"special\":true,\"lstrip\":true},{\"content\":\"x y\",\"single_word\":true,"
    "\"normalized\":false,\"rstrip\":true}],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],"
    "\"special_tokens\":{\"<s>\":{\"ids\":[15]}}},\"decoder\":{\"type\":\"ByteLevel\"}," BPE,
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Lowercase\"},{\"type\":\"Strip\","
    "\"strip_left\":true,\"strip_right\":true}]},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
    "\"pattern\":{\"Regex\":\"(?i:'s)|\\\\p{L}+|\\\\s+(?!\\\\S)|[^\\\\s\\\\w]{1,3}\"},\"behavior\":\"MergedWithNext\",\"invert\":true},"
    "{\"type\":\"Digits\",\"individual_digits\":false}]}," BPE,
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"},{\"type\":\"Replace\","
    "\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
    "\"pattern\":{\"Regex\":\"\\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
    "\"content\":\" \",\"start\":1,\"stop\":2}]}," BPE,
    "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"first\",\"split\":true},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"},{\"type\":\"ByteLevel\"},"
    "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\"}]}," BPE,
};
static const char *const texts[] = {
    "", "ab  a\xc3\xa9 12 x y<s> <s>b", "\xff\xe2\x82 a\xcc\x81\xe1\xba\x9e", "\xe2\x96\x81" "ab 's 'S \n\n a\t", "aaaaaaaaaaaaaaaaaaaaaaaa b",
};
/* Pieces that change a meaning, not only a letter. */
static const char *const words[] = {
    "[", "]", "{", "}", ",", ":", "\"", "null", "true", "-1", "15", "16777216", "1e3", "\"NFC\"", "\"NFD\"", "\"ByteLevel\"", "\"Fuse\"",
    "\"Sequence\"", "\"Isolated\"", "\"Removed\"", "\"Contiguous\"", "\"MergedWithPrevious\"", "\"String\"", "\"Regex\"", "\"always\"",
    "\\\\s", "\\\\b", "\\\\p{Lu}", "\\\\P{^N}", "\\\\w*", "(?=a)", "(?m)", "x*|", "{2,}", "\\\\x{41}", "[^", "(a|a)+", "$",
    "\\u0000", "\\ud83d\\ude00",
    "\\u0301", "\xc3", "\xa9", "\xf0\x9f\x98\x80", "<0xC3>", "<s>", " ", "\xe2\x96\x81", "ab", "\"content\":\"\"",
};
/* clang-format on */

static uint32_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Replaces `cut` bytes at `at` by n others; the input stays below MOST_BYTES. */
static size_t splice(uint8_t *data, size_t size, size_t at, size_t cut, const void *by, size_t n)
{
    if (at > size) at = size;
    if (cut > size - at) cut = size - at;
    if (size - cut + n > MOST_BYTES) return size;
    memmove(data + at + n, data + at + cut, size - at - cut);
    memmove(data + at, by, n);
    return size - cut + n;
}

static size_t mutate(uint8_t *data, size_t size, uint64_t *state)
{
    const size_t at = size > 0 ? next(state) % size : 0;
    const char *word = words[next(state) % (sizeof words / sizeof words[0])];
    const uint8_t byte = (uint8_t)next(state);
    uint8_t copy[64];

    switch (next(state) % 5) {
    case 0: /* one bit */
        if (size > 0) data[at] ^= (uint8_t)(1u << (byte & 7));
        return size;
    case 1: /* a word in, a few bytes out */
        return splice(data, size, at, next(state) % 8, word, strlen(word));
    case 2: /* a word in place of a string */
        for (size_t i = at; i + 1 < size; i++) {
            const uint8_t *end = data[i] == '"' ? memchr(data + i + 1, '"', size - i - 1) : NULL;

            if (end != NULL)
                return splice(data, size, i, (size_t)(end + 1 - (data + i)), word, strlen(word));
        }
        return size;
    case 3: /* bytes repeated */
        memcpy(copy, data + at, size - at < sizeof copy ? size - at : sizeof copy);
        return splice(data, size, next(state) % (size + 1), 0, copy,
                      size - at < sizeof copy ? size - at : sizeof copy);
    default: /* a byte more */
        return splice(data, size, at, 0, &byte, 1);
    }
}

int main(int argc, char **argv)
{
    const long n = argc > 1 ? strtol(argv[1], NULL, 10) : 20000;
    uint64_t state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint8_t *data = calloc(1, MOST_BYTES + 1);

    if (data == NULL) return 1;
    for (long i = 0; i < n; i++) {
        const char *seed = seeds[next(&state) % (sizeof seeds / sizeof seeds[0])];
        const char *text = texts[next(&state) % (sizeof texts / sizeof texts[0])];
        size_t size = strlen(seed) + 1 + strlen(text);

        memcpy(data, seed, strlen(seed) + 1);
        memcpy(data + strlen(seed) + 1, text, strlen(text));
        for (uint32_t m = next(&state) % 5; m > 0; m--) size = mutate(data, size, &state);
        (void)LLVMFuzzerTestOneInput(data, size);
    }
    free(data);
    (void)printf("fuzz_tokenizer: %ld mutations, no fault\n", n);
    return 0;
}

#endif
