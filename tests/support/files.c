/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* nftw */

#include "tests/support/dt_test.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *join(char path[DT_TEST_PATH_BYTES], const char *folder, const char *name)
{
    const int n = snprintf(path, DT_TEST_PATH_BYTES, "%s/%s", folder, name);

    if (n < 0 || n >= DT_TEST_PATH_BYTES)
        dt_test_fail(__FILE__, __LINE__, "the path of %s is too long", name);
    return path;
}

const char *dt_test_source_path(char path[DT_TEST_PATH_BYTES], const char *relative, ...)
{
    const char *root = getenv("DTENSOR_SOURCE_DIR");
    char name[DT_TEST_PATH_BYTES];
    va_list args;

    va_start(args, relative);
    (void)vsnprintf(name, sizeof name, relative, args);
    va_end(args);
    return join(path, root ? root : ".", name);
}

const char *dt_test_binary_path(char path[DT_TEST_PATH_BYTES], const char *relative)
{
    const char *root = getenv("DTENSOR_BINARY_DIR");

    if (root == NULL) dt_test_skip("DTENSOR_BINARY_DIR is not set: run under ctest");
    return join(path, root ? root : ".", relative);
}

/* Folders of this process, which go when it ends. */
typedef struct own_folder {
    struct own_folder *next;
    pid_t owner;
    char path[DT_TEST_PATH_BYTES];
} own_folder;

static own_folder *folders;
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER; /* ranks make some */

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info;
    (void)type;
    (void)at;
    return remove(path);
}

void dt_test_remove_dir(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void remove_folders(void)
{
    while (folders != NULL) {
        own_folder *f = folders;
        folders = f->next;
        if (f->owner == getpid()) dt_test_remove_dir(f->path); /* a child leaves its parent's */
        free(f);
    }
}

static const char *own(const char *path)
{
    own_folder *f = malloc(sizeof *f);
    bool added;

    if (f == NULL) dt_test_fail(__FILE__, __LINE__, "no memory for %s", path);
    f->owner = getpid();
    memcpy(f->path, path, sizeof f->path);
    (void)pthread_mutex_lock(&adding);
    added = folders != NULL || atexit(remove_folders) == 0;
    f->next = folders;
    folders = f;
    (void)pthread_mutex_unlock(&adding);
    if (!added) dt_test_fail(__FILE__, __LINE__, "%s would stay", path);
    return path;
}

const char *dt_test_temp_dir(char path[DT_TEST_PATH_BYTES])
{
    const char *root = getenv("TMPDIR");

    (void)join(path, root ? root : "/tmp", "dtensor_test_XXXXXX");
    if (mkdtemp(path) == NULL) dt_test_fail(__FILE__, __LINE__, "no folder %s", path);
    return own(path);
}

/* Processes of a launch are children of one, and make as many. */
const char *dt_test_shared_dir(char path[DT_TEST_PATH_BYTES])
{
    static int made;
    const char *root = getenv("TMPDIR");
    char name[64];

    if (dt_test_processes() == 1) return dt_test_temp_dir(path);
    (void)snprintf(name, sizeof name, "dtensor_test_of_%ld_%d", (long)getppid(), made++);
    (void)join(path, root ? root : "/tmp", name);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        dt_test_fail(__FILE__, __LINE__, "no folder %s", path);
    return own(path);
}

void dt_test_write_file(const char *folder, const char *name, const void *data, size_t bytes)
{
    char path[DT_TEST_PATH_BYTES];
    FILE *f = fopen(join(path, folder, name), "wb");
    const bool written = f != NULL && fwrite(data, 1, bytes, f) == bytes;

    if (f == NULL || fclose(f) != 0 || !written)
        dt_test_fail(__FILE__, __LINE__, "%s could not be written", path);
}

int dt_test_count_files(const char *dir, const char *part)
{
    DIR *folder = opendir(dir);
    int n = 0;

    if (folder == NULL) return -1;
    for (const struct dirent *e = readdir(folder); e != NULL; e = readdir(folder))
        n += part[0] != '\0' ? strstr(e->d_name, part) != NULL : e->d_name[0] != '.';
    (void)closedir(folder);
    return n;
}
