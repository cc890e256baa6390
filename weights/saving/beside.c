/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether what lies beside a folder's weights is what it was: a model may be saved hours after it
 * was read, with the configuration and the tokenizer that it has. */
#include <sys/stat.h>

#include "files/folder.h"
#include "files/input.h"
#include "weights/saving/save.h"

typedef struct look {
    bool there;
    ino_t inode;
    off_t bytes;
    struct timespec changed;
} look;

struct dti_beside {
    look at[DTI_SMALL_FILES];
};

static look look_at(const char *folder, const char *name)
{
    char path[DTI_PATH_BYTES];
    struct stat is;

    if (dti_folder_path(path, folder, name) != DT_OK || stat(path, &is) != 0) return (look){ 0 };
    return (look){ true, is.st_ino, is.st_size, is.st_mtim };
}

static bool same(const look *a, const look *b)
{
    return a->there == b->there && a->inode == b->inode && a->bytes == b->bytes &&
           a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

dt_status dti_beside_look(const char *folder, dti_beside **out)
{
    DT_TRY(dti_new(sizeof **out, out));
    for (int i = 0; i < DTI_SMALL_FILES; i++) (*out)->at[i] = look_at(folder, dti_small_name(i));
    return DT_OK;
}

dt_status dti_beside_check(const char *folder, const dti_beside *before)
{
    char label[DTI_INPUT_LABEL_BYTES];

    for (int i = 0; i < DTI_SMALL_FILES; i++) {
        const look now = look_at(folder, dti_small_name(i));
        DT_CHECK(same(&before->at[i], &now), DT_ERR_IO,
                 "%s/%s: %s since the model was loaded, and would be saved beside weights that it "
                 "does not belong to; put back what was there, and load the model again",
                 dti_printable(folder, label, sizeof label), dti_small_name(i),
                 !now.there            ? "was removed"
                 : before->at[i].there ? "was changed"
                                       : "was added");
    }
    return DT_OK;
}
