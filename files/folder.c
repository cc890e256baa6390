/* SPDX-License-Identifier: Apache-2.0 */
#include "files/folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "files/input.h"

dt_status dti_folder_path(char path[DTI_PATH_BYTES], const char *folder, const char *name)
{
    const int n = snprintf(path, DTI_PATH_BYTES, "%s/%s", folder, name);

    DT_CHECK(n > 0 && n < DTI_PATH_BYTES, DT_ERR_IO, "the path %.100s.../%s is too long", folder,
             name);
    return DT_OK;
}

bool dti_folder_has(const char *folder, const char *name)
{
    char path[DTI_PATH_BYTES];
    struct stat info;

    if (dti_folder_path(path, folder, name) != DT_OK) return false;
    return lstat(path, &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

/* Whether `path` lies in the folder of the first n bytes of `folder`, or in `sub` of it. */
static bool lies_in(const char *path, const char *folder, size_t n, const char *sub)
{
    return strncmp(path, folder, n) == 0 && strncmp(path + n, sub, strlen(sub)) == 0 &&
           path[n + strlen(sub)] == '/';
}

/* Of real paths: "R/snapshots/NAME" has "R/blobs". */
static bool is_in_cache(const char *path, const char *folder)
{
    static const char snapshots[] = "/snapshots/";
    const char *name = strrchr(folder, '/');
    const size_t n = name != NULL ? (size_t)(name + 1 - folder) : 0, k = sizeof snapshots - 1;

    return n >= k && memcmp(folder + n - k, snapshots, k) == 0 &&
           lies_in(path, folder, n - k, "/blobs");
}

dt_status dti_folder_check_link(const char *folder, const char *name)
{
    char path[DTI_PATH_BYTES], shown[2][DTI_INPUT_LABEL_BYTES];
    char *real = NULL, *real_folder = NULL;
    dt_status st = DT_OK;
    struct stat info;

    DT_TRY(dti_folder_path(path, folder, name));
    if (lstat(path, &info) != 0 || !S_ISLNK(info.st_mode)) return DT_OK;
    real = realpath(path, NULL);
    real_folder = realpath(folder, NULL);
    /* one that leads nowhere is refused by whoever opens it, in better words */
    DT_CHECK_TO(done, st,
                real == NULL || real_folder == NULL ||
                    lies_in(real, real_folder, strlen(real_folder), "") ||
                    is_in_cache(real, real_folder),
                DT_ERR_IO,
                "%s: is a symbolic link to %s, outside the folder: it is not followed; put the "
                "file itself there if it belongs to the model",
                dti_printable(path, shown[0], sizeof shown[0]),
                dti_printable(real, shown[1], sizeof shown[1]));
done:
    free(real); /* the C library's */
    free(real_folder);
    return st;
}

const char *dti_folder_tokenizer(const char *folder)
{
    if (dti_folder_has(folder, "tokenizer.json")) return "tokenizer.json";
    if (dti_folder_has(folder, "vocab.json") && dti_folder_has(folder, "merges.txt"))
        return "vocab.json and merges.txt";
    return NULL;
}

dt_status dti_folder_json(const char *folder, const char *name, dti_json_doc *out)
{
    char path[DTI_PATH_BYTES];

    DT_TRY(dti_folder_path(path, folder, name));
    return dti_json_read(path, DTI_JSON_INDEX_BYTES, out);
}
