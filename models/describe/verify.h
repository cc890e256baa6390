/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that is wrong with a checkpoint, or only odd: loading stops at the first fault, this
 * goes on. */
#ifndef DTI_VERIFY_H
#define DTI_VERIFY_H

#include "models/describe/describe.h"

typedef struct dti_verify {
    const char *folder;
    dt_runtime *rt; /* whose architectures there are; NULL: the built-in ones */
    bool values;    /* read every number too */
    dt_progress_fn progress;
    void *progress_arg;
    /* One finding. An error: the model cannot be run, or its numbers cannot be right. */
    void (*say)(void *arg, bool error, const char *tensor, const char *text);
    void *arg;

    /* What was found out; zero where nothing could be. */
    char model_type[32];
    size_t n_files, n_tensors;
    int64_t bytes;
    int64_t n_values; /* read */
} dti_verify;

/* Looks at config.json, generation_config.json, tokenizer, index and every tensor of the folder.
 * Not collective; one process without ranks.
 * Errors: DT_ERR_MEMORY. Whatever is wrong with the folder is said through `say`. */
dt_status dti_verify_folder(dti_verify *v) DT_MUST_USE;

#endif
