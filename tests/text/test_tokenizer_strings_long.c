/* SPDX-License-Identifier: Apache-2.0
 *
 * A hundred thousand random strings, and as many sequences of random ids, for each family: what the
 * reference library makes of them, decoded at once and as a stream. */
#include "tests/text/tokenizer_sweep.h"

/* One group of strings, which has one row of sums. */
static dt_status check_group(sweep *s, size_t group, size_t n)
{
    for (size_t i = group * n; i < (group + 1) * n; i++) {
        int32_t ids[12];
        size_t n_ids;

        DT_TRY(text_string(&s->text, i, s->pieces));
        DT_TRY(sweep_text(s));
        n_ids = text_random_ids(ids, i, s->n_vocab);
        DT_TRY(sweep_decode(s, SUM_RANDOM, ids, n_ids, false));
    }
    return sweep_check(s, "strings", group);
}

static void check_strings(const char *shape)
{
    size_t n_groups, n;
    DT_ENDS(sweep_close) sweep s;

    sweep_open(&s, shape);
    n_groups = sweep_rows(&s, "strings");
    n = sweep_number(&s, "group");
    DT_ASSERT(n_groups * n >= 100000);
    for (size_t group = 0; group < n_groups; group++) DT_ASSERT_OK(check_group(&s, group, n));
}

DT_TEST(tokenizer_strings, llama3_is_byte_exact)
{
    check_strings("llama3");
}

DT_TEST(tokenizer_strings, qwen_is_byte_exact)
{
    check_strings("qwen");
}

DT_TEST(tokenizer_strings, gemma_is_byte_exact)
{
    check_strings("gemma");
}

DT_TEST(tokenizer_strings, phi3_is_byte_exact)
{
    check_strings("phi3");
}

DT_TEST(tokenizer_strings, gpt2_is_byte_exact)
{
    check_strings("gpt2");
}
