/* SPDX-License-Identifier: Apache-2.0
 *
 * Where modules are looked for: beside the library if that is a file of its own, never beside a
 * program that it is part of, as this one. */
#define _GNU_SOURCE
#include "base/module_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/dt_test.h"

/* A copy of this program answers the question alone, with its exit code. */
__attribute__((constructor)) static void answer(void)
{
    char path[DTI_MODULE_PATH_BYTES];

    if (getenv("DT_TEST_LOCATE") != NULL) _exit(dti_module_locate(NULL, "trap", path) ? 3 : 4);
}

static void copy_program(const char *to)
{
    const int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const int file = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
    struct stat info;

    DT_ASSERT(from >= 0 && file >= 0 && fstat(from, &info) == 0);
    while (lseek(from, 0, SEEK_CUR) < info.st_size)
        DT_ASSERT(sendfile(file, from, NULL, (size_t)info.st_size) > 0);
    (void)close(from);
    (void)close(file);
}

DT_TEST(module_file, nothing_beside_a_program_is_looked_at)
{
    static const char *const folders[] = { "bin", "bin/dtensor", "lib", "lib/dtensor" };
    char root[DT_TEST_PATH_BYTES], path[2 * DT_TEST_PATH_BYTES], program[2 * DT_TEST_PATH_BYTES];
    char *names[] = { program, "bin/program" }; /* as argv[0] may say it */

    (void)dt_test_temp_dir(root);
    for (size_t i = 0; i < DT_COUNT(folders); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", root, folders[i]);
        DT_ASSERT_EQ_INT(mkdir(path, 0700), 0);
        if (strchr(folders[i], '/') != NULL) dt_test_write_file(path, "dtensor_trap.so", "", 0);
    }
    (void)snprintf(program, sizeof program, "%s/bin/program", root);
    copy_program(program);
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        int status = 0;
        const pid_t pid = fork();
        DT_ASSERT(pid >= 0);
        if (pid == 0) {
            if (chdir(root) != 0) _exit(1);
            (void)setenv("DT_TEST_LOCATE", "1", 1);
            (void)execv(program, (char *[]){ names[i], NULL });
            _exit(2);
        }
        (void)waitpid(pid, &status, 0);
        DT_ASSERT_EQ_INT(WEXITSTATUS(status), 4);
    }
}

DT_TEST(module_file, a_folder_that_was_named_comes_first)
{
    char folder[DT_TEST_PATH_BYTES], path[DTI_MODULE_PATH_BYTES], want[2 * DT_TEST_PATH_BYTES];

    dt_test_write_file(dt_test_temp_dir(folder), "dtensor_trap.so", "", 0);
    DT_ASSERT(dti_module_locate(folder, "trap", path));
    (void)snprintf(want, sizeof want, "%s/dtensor_trap.so", folder);
    DT_ASSERT_EQ_STR(path, want);
    DT_ASSERT(!dti_module_locate(folder, "other", path));
    DT_ASSERT_EQ_STR(path, "");
}
