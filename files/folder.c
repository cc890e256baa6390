/* SPDX-License-Identifier: Apache-2.0 */
#include "files/folder.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

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
