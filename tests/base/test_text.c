/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <string.h>

#include "tests/support/dt_test.h"

DT_TEST(text, controls_and_bytes_that_are_no_text_are_escaped)
{
    static const struct {
        const char *text, *shown;
    } rows[] = {
        { "", "" },
        { "plain \"text\"", "plain \"text\"" },
        { "a\nb\tc\r", "a\\nb\\tc\\r" },
        { "\033[31mred\a", "\\x1b[31mred\\x07" },
        { "del \x7f", "del \\x7f" },
        { "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80" },
        { "\xc2\x9b 31m", "\\xc2\\x9b 31m" }, /* C1: an escape sequence of one character */
        { "\xe2\x80\xae"
          "txt.exe",
          "\\xe2\\x80\\xaetxt.exe" }, /* turns what follows */
        { "\xd8\x9c\xe2\x80\xa8\xe2\x81\xa9", "\\xd8\\x9c\\xe2\\x80\\xa8\\xe2\\x81\\xa9" },
        { "\xe2\x80\x8d\xe2\x80\x93\xd8\xa8",
          "\xe2\x80\x8d\xe2\x80\x93\xd8\xa8" }, /* joins, a dash, a letter */
        { "\xff\xc3(", "\\xff\\xc3(" },         /* no UTF-8 */
        { "\xc0\xaf", "\\xc0\\xaf" },           /* overlong */
        { "\xe0\x80\xaf", "\\xe0\\x80\\xaf" },  /* overlong */
        { "\xed\xa0\x80", "\\xed\\xa0\\x80" },  /* a surrogate */
        { "\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80" },
        { "\xf0\x8f\xbf\xbf", "\\xf0\\x8f\\xbf\\xbf" }, /* overlong */
        { "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf",
          "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf" }, /* first and last of 4 bytes */
        { "\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80", "\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80" },
        { "\xe2\x82", "\\xe2\\x82" }, /* the text ends within a character */
    };
    char out[64], twice[64];

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        DT_ASSERT_EQ_STR(dti_printable(rows[i].text, out, sizeof out), rows[i].shown);
        DT_ASSERT_EQ_STR(dti_printable(out, twice, sizeof twice), rows[i].shown);
    }
}

/* Characters of 1, 2, 3 and 8 shown bytes; every room from the smallest on. */
DT_TEST(text, what_does_not_fit_loses_its_middle)
{
    static const char *const units[] = { "a", "\xc3\xa9", "\xe2\x82\xac", "\xc2\x9b" };
    char text[256], out[64], again[64];

    for (size_t u = 0; u < DT_COUNT(units); u++) {
        strcpy(text, "<");
        while (strlen(text) < 200) strcat(text, units[u]);
        strcat(text, ">");
        for (size_t bytes = 16; bytes <= sizeof out; bytes++) {
            memset(out, '#', sizeof out);
            (void)dti_printable(text, out, bytes);
            DT_ASSERT(strlen(out) < bytes);
            DT_ASSERT(strlen(out) + 16 > bytes);
            DT_ASSERT(out[0] == '<' && out[strlen(out) - 1] == '>');
            DT_ASSERT(strstr(out, "...") != NULL);
            DT_ASSERT_EQ_STR(dti_printable(out, again, sizeof again), out);
        }
    }
    DT_ASSERT_EQ_STR(dti_printable("123456789012345", out, 16), "123456789012345");
    DT_ASSERT_EQ_STR(dti_printable("1234567890123456", out, 16), "123456...123456");
}

DT_TEST(text, a_number_is_said_in_as_few_digits_as_tell_it)
{
    char text[DTI_NUMBER_BYTES];

    DT_ASSERT_EQ_STR(dti_number_text(1, text), "1");
    DT_ASSERT_EQ_STR(dti_number_text(0.9, text), "0.9");
    DT_ASSERT_EQ_STR(dti_number_text(1e-38, text), "1e-38");
    DT_ASSERT_EQ_STR(dti_number_text(1.0000001, text), "1.0000001");
    DT_ASSERT_EQ_STR(dti_number_text(1.0000000000000002, text), "1.0000000000000002");
    DT_ASSERT_EQ_STR(dti_number_text(-1.7976931348623157e308, text), "-1.7976931348623157e+308");
}
