/* SPDX-License-Identifier: Apache-2.0
 *
 * How many files of a set are open, and which are closed for others. */
#include "files/open_files.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/dt_test.h"

enum { MOST = 2, FILES = 4 };

/* A file that is opened again closes another one first: also while it is read there are no more
 * than may be. One that is read stays open, whatever there are besides. */
DT_TEST(open_files, one_that_is_opened_again_takes_the_place_of_another)
{
    char folder[DT_TEST_PATH_BYTES], name[16], path[DT_TEST_PATH_BYTES + 16];
    dti_open_file *file[FILES];
    DT_ENDS(dti_open_files_free) dti_open_files *all = NULL;
    int fd, read[FILES];

    (void)dt_test_temp_dir(folder);
    DT_ASSERT_OK(dti_open_files_create(MOST, &all));
    for (int i = 0; i < FILES; i++) {
        dti_input in;
        (void)snprintf(name, sizeof name, "f%d", i);
        (void)snprintf(path, sizeof path, "%s/%s", folder, name);
        dt_test_write_file(folder, name, "x", 1);
        DT_ASSERT_OK(dti_input_open(path, &in));
        DT_ASSERT_OK(dti_open_file_add(all, path, &in, &file[i]));
    }
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < FILES; i++) {
            DT_ASSERT_OK(dti_open_file_take(file[i], &fd));
            DT_ASSERT_EQ_INT(dti_open_files_count(all), MOST);
            dti_open_file_give(file[i]);
        }
    for (int i = 0; i < FILES; i++) DT_ASSERT_OK(dti_open_file_take(file[i], &read[i]));
    DT_ASSERT_EQ_INT(dti_open_files_count(all), FILES);
    for (int i = 0; i < FILES; i++) {
        char byte = 0;
        DT_ASSERT_EQ_INT(pread(read[i], &byte, 1, 0), 1);
        dti_open_file_give(file[i]);
    }
    DT_ASSERT_EQ_INT(dti_open_files_count(all), MOST);
    for (int i = 0; i < FILES; i++) dti_open_file_remove(&file[i]);
    DT_ASSERT_EQ_INT(dti_open_files_count(all), 0);
}

/* What the process has run out of is no fault of the file. */
DT_TEST(open_files, too_many_are_not_taken_for_a_file_that_is_bad)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 4];
    const int next = dup(0);
    struct rlimit old, few;
    dti_input in;
    dt_status st;

    (void)snprintf(path, sizeof path, "%s/f", dt_test_temp_dir(folder));
    dt_test_write_file(folder, "f", "text", 4);
    DT_ASSERT(getrlimit(RLIMIT_NOFILE, &old) == 0);
    few = (struct rlimit){ (rlim_t)next, old.rlim_max };
    (void)close(next);
    DT_ASSERT(setrlimit(RLIMIT_NOFILE, &few) == 0);
    st = dti_input_open(path, &in);
    DT_ASSERT(setrlimit(RLIMIT_NOFILE, &old) == 0);
    DT_ASSERT_EQ_INT(st, DT_ERR_MEMORY);
    DT_ASSERT(strstr(dt_last_error()->message, "Too many open files") != NULL);
    DT_ASSERT_EQ_INT(dt_last_error()->code, DT_ERR_MEMORY);
}
