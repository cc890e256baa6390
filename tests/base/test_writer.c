/* SPDX-License-Identifier: Apache-2.0 */
#include "base/writer.h"

#include <string.h>

#include "tests/support/dt_test.h"

DT_TEST(writer, text_is_cut_and_measured)
{
    for (size_t bytes = 0; bytes < 14; bytes++) {
        char text[16];
        dti_writer w = { bytes > 0 ? text : NULL, bytes, 0 };
        memset(text, '#', sizeof text);
        dti_put(&w, "%s-%d", "abc", 12);
        dti_put(&w, "%s", "");
        dti_put(&w, "wxyz");
        DT_ASSERT_EQ_INT(dti_written(&w), 10);
        DT_ASSERT(text[bytes] == '#');
        if (bytes > 0) {
            DT_ASSERT_EQ_INT(strlen(text), bytes - 1 < 10 ? bytes - 1 : 10);
            DT_ASSERT(strncmp(text, "abc-12wxyz", strlen(text)) == 0);
        }
    }
}

DT_TEST(writer, json_text_is_escaped)
{
    char text[64];
    dti_writer w = { text, sizeof text, 0 };

    dti_put_json(&w, "a\"b\\c\n\x01\x1f \xc3\xa9");
    DT_ASSERT_EQ_STR(text, "\"a\\\"b\\\\c\\u000a\\u0001\\u001f \xc3\xa9\"");
}
