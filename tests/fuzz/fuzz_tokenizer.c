/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing the tokenizer: any bytes are refused with a message, or make a tokenizer that encodes and
 * decodes any text, where streaming gives what decoding gives.
 *
 * An input is a tokenizer.json, a zero byte, and a text. */
#include "tests/fuzz/fuzz.h"

#include "text/tokenizer/tokenizer_internal.h"

enum { MOST_BYTES = 1 << 13 };

static void check_stream(dt_tokenizer *tok, const int32_t *ids, size_t n, bool skip,
                         const char *want, size_t n_want)
{
    dt_tokenizer_stream *stream;
    size_t at = 0;

    if (dt_tokenizer_stream_create(tok, skip, &stream) != DT_OK) fuzz_stop("no memory");
    for (size_t i = 0; i <= n; i++) {
        const char *part;
        size_t bytes;

        if (fuzz_failed(i < n ? dt_tokenizer_stream_push(stream, ids[i], &part, &bytes)
                              : dt_tokenizer_stream_flush(stream, &part, &bytes)))
            fuzz_stop("a stream fails where decoding did not");
        if (dti_utf8_valid(part, bytes) != bytes) fuzz_stop("a stream split a character");
        if (at + bytes > n_want || memcmp(part, want + at, bytes) != 0)
            fuzz_stop("a stream differs");
        at += bytes;
    }
    if (at != n_want) fuzz_stop("a stream is too short");
    dt_tokenizer_stream_release(&stream);
}

static void check_decode(dt_tokenizer *tok, const int32_t *ids, size_t n)
{
    for (int skip = 0; skip < 2; skip++) {
        char *text;
        size_t bytes;

        if (fuzz_failed(dt_tokenizer_decode(tok, ids, n, skip, &text, &bytes))) continue;
        if (dti_utf8_valid(text, bytes) != bytes || text[bytes] != '\0') fuzz_stop("broken text");
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

        if (fuzz_failed(dt_tokenizer_encode(tok, text, n, flags, &ids, &n_ids))) continue;
        for (size_t i = 0; i < n_ids; i++)
            if (dt_tokenizer_piece(tok, ids[i], NULL) == NULL) fuzz_stop("an id that is no token");
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
    if (!fuzz_failed(dti_json_parse("fuzz", size > 0 ? (const char *)data : "", n_json, &doc))) {
        if (!fuzz_failed(dti_tokenizer_load(&doc.root, &tok)))
            use(tok, text, size - (size_t)(text - (const char *)data));
        else if (tok != NULL)
            fuzz_stop("a tokenizer in spite of an error");
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
#define SEED(text) { text, sizeof(text) - 1 }
static const fuzz_seed seeds[] = {
    SEED("{" BPE "\0"),
    SEED("{\"added_tokens\":[{\"id\":15,\"content\":\"<s>\",\"special\":true,\"lstrip\":true},{\"content\":\"x y\",\"single_word\":true,"
    "\"normalized\":false,\"rstrip\":true}],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],"
    "\"special_tokens\":{\"<s>\":{\"ids\":[15]}}},\"decoder\":{\"type\":\"ByteLevel\"}," BPE "\0" "ab  a\xc3\xa9 12 x y<s> <s>b"),
    SEED("{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Lowercase\"},{\"type\":\"Strip\","
    "\"strip_left\":true,\"strip_right\":true}]},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
    "\"pattern\":{\"Regex\":\"(?i:'s)|\\\\p{L}+|\\\\s+(?!\\\\S)|[^\\\\s\\\\w]{1,3}\"},\"behavior\":\"MergedWithNext\",\"invert\":true},"
    "{\"type\":\"Digits\",\"individual_digits\":false}]}," BPE "\0" "\xff\xe2\x82 a\xcc\x81\xe1\xba\x9e"),
    SEED("{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"},{\"type\":\"Replace\","
    "\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
    "\"pattern\":{\"Regex\":\"\\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
    "\"content\":\" \",\"start\":1,\"stop\":2}]}," BPE "\0" "\xe2\x96\x81" "ab 's 'S \n\n a\t"),
    SEED("{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"first\",\"split\":true},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"},{\"type\":\"ByteLevel\"},"
    "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\"}]}," BPE "\0" "aaaaaaaaaaaaaaaaaaaaaaaa b"),
};
static const char *const words[] = {
    "[", "]", "{", "}", ",", ":", "\"", "null", "true", "-1", "15", "16777216", "1e3", "\"NFC\"", "\"NFD\"", "\"ByteLevel\"", "\"Fuse\"",
    "\"Sequence\"", "\"Isolated\"", "\"Removed\"", "\"Contiguous\"", "\"MergedWithPrevious\"", "\"String\"", "\"Regex\"", "\"always\"",
    "\\\\s", "\\\\b", "\\\\p{Lu}", "\\\\P{^N}", "\\\\w*", "(?=a)", "(?m)", "x*|", "{2,}", "\\\\x{41}", "[^", "(a|a)+", "$",
    "\\u0000", "\\ud83d\\ude00",
    "\\u0301", "\xc3", "\xa9", "\xf0\x9f\x98\x80", "<0xC3>", "<s>", " ", "\xe2\x96\x81", "ab", "\"content\":\"\"",
};
/* clang-format on */

static const fuzz_table table = { "fuzz_tokenizer", 20000, MOST_BYTES,      seeds,
                                  DT_COUNT(seeds),  words, DT_COUNT(words), NULL };

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
