/* SPDX-License-Identifier: Apache-2.0
 *
 * Patterns in the syntax of the reference's engine. */
#include "text/tokenizer/regex.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "text/tokenizer/unicode.h"

/* Matches of a pattern in a text, as "begin-end begin-end". */
static dt_status find_all(const char *pattern, const char *text, char *out, size_t bytes)
{
    dti_matcher m = { 0 };
    dti_regex *re;
    dti_matches it;
    size_t at = 0;
    dt_status st = DT_OK;

    DT_TRY(dti_regex_compile(pattern, &re));
    it = dti_matches_in(re, text, strlen(text));
    out[0] = '\0';
    while ((st = dti_matches_next(&it, &m)) == DT_OK && !it.done && at + 32 < bytes)
        at += (size_t)snprintf(out + at, bytes - at, "%s%zu-%zu", at ? " " : "", it.begin, it.end);
    dti_matcher_free(&m);
    dti_regex_free(re);
    return st;
}

/* clang-format off */
static const struct {
    const char *pattern, *text, *matches;
} cases[] = {
    /* Empty matches: not right behind another match. */
    { "x*", "axxb", "0-0 1-3 4-4" },
    { "", "", NULL },
    { "(?=a)", "aba", "0-0 2-2" },
    /* The Mongolian vowel separator is no space, a next-line control is. */
    { "\\s", "a\xe1\xa0\x8e \xc2\x85", "4-5 5-7" },
    { "\\S+", "a\xe1\xa0\x8e ", "0-4" },
    { "[^\\S\\n]+", "a \n\tb", "1-2 3-4" },
    /* Categories include what Unicode 15 and 16 brought. */
    { "\\p{L}+", "a\xf0\xb1\x8d\x90""1", "0-5" },                  /* U+31350 */
    { "[\\p{L}1]+", "a\xf0\xb1\x8d\x90""1", "0-6" },
    { "[^\\p{L}]", "a\xf0\xb1\x8d\x90""1", "5-6" },
    { "\\P{L}", "a\xf0\xb1\x8d\x90""1", "5-6" },
    { "\\p{^L}", "a\xf0\xb1\x8d\x90""1", "5-6" },
    { "\\p{Lo}", "a\xf0\xb1\x8d\x90""1", "1-5" },
    { "\\p{Han}+", "a\xf0\xb1\x8d\x90\xe4\xb8\xad\xe3\x80\x82", "1-8" }, /* U+3002 is shared, not Han */
    { "\\d+", "x12\xd9\xa1", "1-5" },
    { "\\w+", "-a\xcc\x81_\xe2\x80\xbf""1-", "1-9" },              /* marks and connectors belong */
    { "\\w", "\xc2\xb2\xe2\x81\xb4", "0-2" },                  /* so do Latin-1's small digits */
    { "\\W", "a-", "1-2" },
    { "\\bb", "ab b\xcc\x81", "3-4" },
    { "b\\b", "b\xcc\x81 b", "4-5" },
    /* Ruby: \h is a hexadecimal digit, \v one character, m makes the dot match everything, ^ and $
     * are ends of lines, {,n} counts from nothing. */
    { "\\h+", "xaF9g ", "1-4" },
    { "[\\h-]+", "xa-g", "1-3" },
    { "\\v", "\x0b\x0c", "0-1" },
    { "a.b", "a\nb", "" },
    { "(?m:a.b)", "a\nb", "0-3" },
    { "(?i)a|B", "Ab", "0-1 1-2" },
    { "^b$", "a\nb\nc", "2-3" },
    { "xa{,2}y", "xy xaay xaaay", "0-2 3-7" },
    { "a{x", "a{x", "0-3" },
    { "\\x41\\x{e9}\\u00e9", "A\xc3\xa9\xc3\xa9", "0-5" },
    { "[\\x41-\\x{43}\\n]+", "ABC\nD", "0-4" },
    { "(a)\\1", "aab", "0-2" },
    { "a++b|a?+c", "aab c", "0-3 4-5" },
    { "(?<=a)b(?!c)", "ab abc", "1-2" },
};

static const char *const refused[] = {
    "[a[b]]", "[[:alpha:]]", "[a&&b]", "[]a]", "[a", "a(?i)b", "a{2}+", "a{2,3}+", "a{2}?", "\\xe9", "\\M-a", "\\",
    "\\p", "\\pL", "\\p{}", "\\p{Letter}", "[\\W]", "(*FAIL)", "\\N", "\\Qa\\E", "(?s:a)", "(?#x)a", "(?P<n>a)", "[\\H]", "\\u12", "\\o{1}",
};
/* clang-format on */

DT_TEST(tokenizer_regex, patterns_mean_what_they_mean_in_the_reference)
{
    char got[256];

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        if (cases[i].matches == NULL) {
            DT_ASSERT_STATUS(find_all(cases[i].pattern, cases[i].text, got, sizeof got),
                             DT_ERR_UNSUPPORTED, "an empty pattern");
            continue;
        }
        DT_ASSERT_OK(find_all(cases[i].pattern, cases[i].text, got, sizeof got));
        if (strcmp(got, cases[i].matches) != 0)
            dt_test_fail(__FILE__, __LINE__, "%s: matches %s, expected %s", cases[i].pattern, got,
                         cases[i].matches);
    }
}

DT_TEST(tokenizer_regex, what_the_engines_read_differently_is_refused)
{
    char got[64];

    for (size_t i = 0; i < DT_COUNT(refused); i++) {
        if (find_all(refused[i], "a", got, sizeof got) == DT_OK)
            dt_test_fail(__FILE__, __LINE__, "%s is not refused", refused[i]);
        DT_ASSERT_STATUS(find_all(refused[i], "a", got, sizeof got), DT_ERR_UNSUPPORTED,
                         "regular expression \"");
    }
}

/* A run that is longer than the stack of compiled code allows is matched all the same. */
DT_TEST(tokenizer_regex, long_runs_do_not_hit_the_limits)
{
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES + 1), got[64], want[64];

    DT_ASSERT(text != NULL);
    memset(text, ' ', BYTES);
    text[BYTES] = '\0';
    DT_ASSERT_OK(find_all("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", text, got, sizeof got));
    (void)snprintf(want, sizeof want, "0-%d", BYTES);
    DT_ASSERT_EQ_STR(got, want);
    memset(text, 'a', BYTES);
    DT_ASSERT_OK(find_all("(a|b)+", text, got, sizeof got));
    DT_ASSERT_EQ_STR(got, want);
    free(text);
}

/* A search goes on where a piece of it ended, also in the middle of a character. */
DT_TEST(tokenizer_regex, matches_far_away_are_found)
{
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES + 1), got[64], want[64];

    DT_ASSERT(text != NULL);
    for (size_t far = BYTES - 200; far < BYTES - 4; far += 7) {
        for (size_t i = 0; i < BYTES; i++) text[i] = i % 2 == 0 ? '\xc3' : '\xa9'; /* e acute */
        text[BYTES] = '\0';
        memcpy(text + far / 2 * 2, "xy", 2);
        DT_ASSERT_OK(find_all("(?<=\\x{e9})x?y|xy", text, got, sizeof got));
        (void)snprintf(want, sizeof want, "%zu-%zu", far / 2 * 2, far / 2 * 2 + 2);
        DT_ASSERT_EQ_STR(got, want);
    }
    free(text);
}

DT_TEST(tokenizer_regex, the_tables_of_differences_are_in_order)
{
    for (size_t i = 1; i < dti_n_category_rows; i++)
        DT_ASSERT(dti_category_rows[i - 1].last < dti_category_rows[i].first);
    for (size_t i = 1; i < dti_n_lower_rows; i++)
        DT_ASSERT(dti_lower_rows[i - 1].last < dti_lower_rows[i].first);
    for (size_t i = 1; i < dti_n_inert_rows; i++)
        DT_ASSERT(dti_inert_rows[i - 1].last < dti_inert_rows[i].first);
}
