/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/dt_test.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static dt_status fails(int n)
{
    DT_CHECK(n < 3, DT_ERR_SHAPE, "n is %d", n);
    return DT_OK;
}

static dt_status passes_on(int n)
{
    DT_TRY(fails(n));
    return DT_OK;
}

static dt_status cleans_up(int n, int *cleaned)
{
    dt_status st = DT_OK;

    DT_CHECK_TO(done, st, n >= 0, DT_ERR_ARG, "n is negative: %d", n);
    DT_TRY_TO(done, st, passes_on(n));
done:
    (*cleaned)++;
    return st;
}

static dt_status recurse(int depth)
{
    if (depth == 0) DT_FAIL(DT_ERR_INTERNAL, "deep");
    DT_TRY(recurse(depth - 1));
    return DT_OK;
}

DT_TEST(error, the_record_names_message_and_path)
{
    const dt_error *e = dt_last_error();

    DT_ASSERT_EQ_INT(e->code, DT_OK);
    DT_ASSERT_OK(passes_on(2));
    DT_ASSERT_STATUS(passes_on(7), DT_ERR_SHAPE, "n is 7");
    DT_ASSERT_EQ_INT(e->code, DT_ERR_SHAPE);
    DT_ASSERT_EQ_INT(e->n_frames, 2);
    DT_ASSERT_EQ_STR(e->frames[0].func, "fails");
    /* No folder of the build machine; compiler caches may put "../../" before it. */
    DT_ASSERT(strstr(e->frames[0].file, "tests/base/test_error.c") != NULL);
    DT_ASSERT(e->frames[0].file[0] != '/');
    DT_ASSERT_EQ_STR(e->frames[1].func, "passes_on");
}

DT_TEST(error, functions_that_hold_something_clean_up)
{
    int cleaned = 0;

    DT_ASSERT_OK(cleans_up(1, &cleaned));
    DT_ASSERT_STATUS(cleans_up(-1, &cleaned), DT_ERR_ARG, "negative: -1");
    DT_ASSERT_STATUS(cleans_up(5, &cleaned), DT_ERR_SHAPE, "n is 5");
    DT_ASSERT_EQ_INT(dt_last_error()->n_frames, 3);
    DT_ASSERT_EQ_INT(cleaned, 3);
}

DT_TEST(error, a_new_error_replaces_the_old_one_and_may_quote_it)
{
    (void)fails(3);
    (void)dt_fail_at(DT_ERR_COMM, "f", "f.c", 1, "rank 2 said: %s", dt_last_error()->message);
    DT_ASSERT_EQ_STR(dt_last_error()->message, "rank 2 said: n is 3");
    DT_ASSERT_EQ_INT(dt_last_error()->n_frames, 1);
    dti_error_prefix("config.json at %d", 12);
    DT_ASSERT_EQ_STR(dt_last_error()->message, "config.json at 12: rank 2 said: n is 3");
    dti_error_clear();
    DT_ASSERT_EQ_INT(dt_last_error()->code, DT_OK);
    DT_ASSERT_EQ_STR(dt_last_error()->message, "");
}

DT_TEST(error, frames_beyond_the_last_place_are_dropped)
{
    DT_ASSERT_STATUS(recurse(40), DT_ERR_INTERNAL, "deep");
    DT_ASSERT_EQ_INT(dt_last_error()->n_frames, DT_ERROR_MAX_FRAMES);
    DT_ASSERT_STATUS(recurse(1), DT_ERR_INTERNAL, "deep");
    DT_ASSERT_EQ_INT(dt_last_error()->n_frames, 2);
}

/* 3-byte characters at every offset: the cut must never leave a part of one, which would be shown
 * as an escape. */
DT_TEST(error, long_messages_lose_their_middle_between_characters)
{
    char text[20000];

    for (size_t shift = 0; shift < 3; shift++) {
        size_t n = 0;
        while (n < shift) text[n++] = 'a';
        while (n + 4 < sizeof text) {
            memcpy(text + n, "\xe2\x82\xac", 3);
            n += 3;
        }
        text[n] = '\0';
        (void)dt_fail_at(DT_ERR_ARG, "f", "f.c", 1, "file %s: is too long; shorten it", text);
        DT_ASSERT(strlen(dt_last_error()->message) >= DT_ERROR_MESSAGE_BYTES - 6);
        DT_ASSERT(strncmp(dt_last_error()->message, "file ", 5) == 0);
        DT_ASSERT(strstr(dt_last_error()->message, "...\xe2\x82\xac") != NULL);
        DT_ASSERT(strstr(dt_last_error()->message, "\xac: is too long; shorten it") != NULL);
        DT_ASSERT(strchr(dt_last_error()->message, '\\') == NULL);
        dti_error_prefix("%s", text);
        DT_ASSERT(strlen(dt_last_error()->message) < DT_ERROR_MESSAGE_BYTES);
        DT_ASSERT(strstr(dt_last_error()->message, "\xac: is too long; shorten it") != NULL);
        DT_ASSERT(strchr(dt_last_error()->message, '\\') == NULL);
    }
}

DT_TEST(error, a_users_own_function_fails_with_a_record)
{
    (void)fails(3);
    DT_ASSERT_STATUS(dt_fail(DT_ERR_LAYOUT, "%s, said %s", "no", dt_last_error()->message),
                     DT_ERR_LAYOUT, "no, said n is 3");
    DT_ASSERT_EQ_INT(dt_last_error()->n_frames, 0);
}

static void *other_thread(void *arg)
{
    dt_error *record = arg;

    dti_error_set_rank(3);
    dti_error_set_where("dp=1,tp=1");
    (void)passes_on(9);
    *record = *dt_last_error();
    return NULL;
}

DT_TEST(error, each_thread_has_its_own_record_and_can_hand_it_over)
{
    pthread_t thread;
    dt_error record;

    (void)fails(4);
    DT_ASSERT_EQ_INT(dt_last_error()->rank, -1);
    DT_ASSERT_EQ_INT(pthread_create(&thread, NULL, other_thread, &record), 0);
    DT_ASSERT_EQ_INT(pthread_join(thread, NULL), 0);
    DT_ASSERT_EQ_STR(dt_last_error()->message, "n is 4");
    dti_error_restore(&record);
    DT_ASSERT_EQ_STR(dt_last_error()->message, "n is 9");
    DT_ASSERT_EQ_INT(dt_last_error()->rank, 3);
    DT_ASSERT_EQ_STR(dt_last_error()->where, "dp=1,tp=1");
    dti_error_restore(dt_last_error());
    DT_ASSERT_EQ_STR(dt_last_error()->message, "n is 9");
}

DT_TEST(error, every_code_has_a_name_and_a_sentence)
{
    DT_ASSERT_EQ_STR(dt_status_name(DT_ERR_FORMAT), "DT_ERR_FORMAT");
    for (int code = DT_OK; code <= DT_ERR_INTERNAL; code++) {
        DT_ASSERT(strncmp(dt_status_name((dt_status)code), "DT_", 3) == 0);
        DT_ASSERT(strlen(dt_status_text((dt_status)code)) > 5);
    }
    DT_ASSERT_EQ_STR(dt_status_name((dt_status)77), "DT_?");
    DT_ASSERT_EQ_STR(dt_status_text((dt_status)77), "not a status code");
}

DT_TEST(error, the_version_is_that_of_the_header)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%d.%d.%d", DT_VERSION_MAJOR, DT_VERSION_MINOR,
                   DT_VERSION_PATCH);
    DT_ASSERT_EQ_STR(dt_version(), text);
}
