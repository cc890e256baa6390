/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of a model's folder by name. */
#ifndef DTI_FOLDER_H
#define DTI_FOLDER_H

#include "files/json.h"

enum { DTI_PATH_BYTES = 4096 };

/* Errors: a path that does not fit. */
dt_status dti_folder_path(char path[DTI_PATH_BYTES], const char *folder,
                          const char *name) DT_MUST_USE;

/* Whether something has that name, or may have it: what nobody may look at and a symbolic link to
 * nothing are there, and who opens them is told why that cannot be. */
bool dti_folder_has(const char *folder, const char *name);

/* What a folder's tokenizer is made of: "tokenizer.json", or "vocab.json and merges.txt"; NULL:
 * there is none that is understood. */
const char *dti_folder_tokenizer(const char *folder);

/* Refuses a symbolic link that leads out of the folder: whoever copies a checkpoint wants none of
 * the other files of this machine in it. The Hub's cache, whose folders "snapshots/NAME" are links
 * into "blobs" beside "snapshots", stays inside. */
dt_status dti_folder_check_link(const char *folder, const char *name) DT_MUST_USE;

/* Errors: those of dti_json_read(), also where there is no such file. */
dt_status dti_folder_json(const char *folder, const char *name, dti_json_doc *out) DT_MUST_USE;

#endif
