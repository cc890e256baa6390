/* SPDX-License-Identifier: Apache-2.0
 *
 * What cannot be looked at is not taken for what is not there: a message has the reason. */
#include "files/folder.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/checkpoint.h"
#include "tests/support/dt_test.h"

enum { PATH = DT_TEST_PATH_BYTES + 64, NOBODY = 65534 };

static void link_to(const char *folder, const char *name, const char *target)
{
    char path[PATH];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    DT_ASSERT(symlink(target, path) == 0);
}

static void refuse(const char *folder, const char *reason)
{
    dti_ckpt *ckpt = NULL;
    dti_json_doc doc = { 0 };

    DT_ASSERT_STATUS(dti_folder_json(folder, "config.json", &doc), DT_ERR_IO, reason);
    dt_test_write_file(folder, "model.safetensors", "", 0);
    DT_ASSERT_STATUS(dti_ckpt_open(folder, &ckpt), DT_ERR_FORMAT, "too short");
}

DT_TEST(folder, a_link_to_nothing_is_named)
{
    char folder[DT_TEST_PATH_BYTES];

    (void)dt_test_temp_dir(folder);
    DT_ASSERT(!dti_folder_has(folder, "config.json"));
    link_to(folder, "config.json", "blobs/1234");
    DT_ASSERT(dti_folder_has(folder, "config.json"));
    refuse(folder, "No such file or directory (it is a symbolic link to nothing)");
}

DT_TEST(folder, a_link_in_a_circle_is_named)
{
    char folder[DT_TEST_PATH_BYTES];

    (void)dt_test_temp_dir(folder);
    link_to(folder, "config.json", "config.json");
    refuse(folder, "config.json: cannot be opened: Too many levels of symbolic links");
}

/* The superuser may read everything, and becomes somebody else for the moment. */
static void as_nobody(bool begin)
{
    if (getuid() == 0) DT_ASSERT(seteuid(begin ? NOBODY : 0) == 0);
}

DT_TEST(folder, missing_permissions_are_named)
{
    char folder[DT_TEST_PATH_BYTES], inner[PATH], path[PATH + 16];
    dti_json_doc doc = { 0 };
    dti_ckpt *ckpt = NULL;
    dt_status st;

    (void)dt_test_temp_dir(folder);
    (void)snprintf(inner, sizeof inner, "%s/model", folder);
    (void)snprintf(path, sizeof path, "%s/config.json", inner);
    DT_ASSERT(chmod(folder, 0755) == 0 && mkdir(inner, 0755) == 0);
    dt_test_write_file(inner, "config.json", "{}", 2);
    dt_test_write_file(inner, "model.safetensors", "", 0);
    DT_ASSERT(chmod(inner, 0) == 0);
    as_nobody(true);
    st = dti_folder_json(inner, "config.json", &doc);
    DT_ASSERT_STATUS(st, DT_ERR_IO, "model/config.json: cannot be opened: Permission denied");
    st = dti_ckpt_open(inner, &ckpt); /* not: it has no config.json */
    as_nobody(false);
    DT_ASSERT_STATUS(st, DT_ERR_IO, "model/model.safetensors: cannot be opened: Permission denied");
    DT_ASSERT(chmod(inner, 0755) == 0 && chmod(path, 0) == 0);
    as_nobody(true);
    st = dti_folder_json(inner, "config.json", &doc);
    as_nobody(false);
    DT_ASSERT_STATUS(st, DT_ERR_IO, "model/config.json: cannot be opened: Permission denied");
}
