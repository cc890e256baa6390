/* SPDX-License-Identifier: Apache-2.0
 *
 * More than a megabyte of text with characters of all planes: ids and decoded text are those of the
 * reference library, and a stream gives what decoding at once gives. */
#include "tests/text/tokenizer_sweep.h"

static void check_corpus(const char *shape)
{
    size_t bytes = 0, n;
    DT_ENDS(sweep_close) sweep s;

    sweep_open(&s, shape);
    n = sweep_rows(&s, "corpus");
    for (size_t i = 0; i < n; i++) {
        DT_ASSERT_OK(text_chunk(&s.text, i, s.pieces, sweep_number(&s, "chunk_bytes")));
        bytes += s.text.bytes;
        DT_ASSERT_OK(sweep_text(&s));
        DT_ASSERT_OK(sweep_check(&s, "corpus", i));
    }
    DT_ASSERT(bytes >= 1 << 20 && bytes == sweep_number(&s, "corpus_bytes"));
}

DT_TEST(tokenizer_corpus, llama3_is_byte_exact)
{
    check_corpus("llama3");
}

DT_TEST(tokenizer_corpus, qwen_is_byte_exact)
{
    check_corpus("qwen");
}

DT_TEST(tokenizer_corpus, gemma_is_byte_exact)
{
    check_corpus("gemma");
}

DT_TEST(tokenizer_corpus, phi3_is_byte_exact)
{
    check_corpus("phi3");
}

DT_TEST(tokenizer_corpus, gpt2_is_byte_exact)
{
    check_corpus("gpt2");
}
