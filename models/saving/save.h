/* SPDX-License-Identifier: Apache-2.0
 *
 * A folder being written: which file holds which parameter, and who writes what. */
#ifndef DTI_SAVE_H
#define DTI_SAVE_H

#include "files/output.h"
#include "files/safetensors.h"
#include "models/load/load.h"
#include "models/load/param_tensors.h"

enum { DTI_SAVE_NAME_BYTES = 64 };

/* One file of weights. */
typedef struct dti_save_file {
    char name[DTI_SAVE_NAME_BYTES]; /* "model-00001-of-00003.safetensors" */
    char *path;
    char *temporary; /* the same on every rank */
    size_t first, n; /* parameters */
    dti_st_file_plan plan;
    int fd;         /* this rank's; -1 until it writes */
    dti_output out; /* the mesh's first rank's */
    bool named;     /* it has its final name */
} dti_save_file;

/* A parameter on its way into a file. */
typedef struct dti_saved {
    dt_tensor *x;  /* borrowed */
    bool reversed; /* a matrix that the file holds as [in, out] */
} dti_saved;

typedef struct dti_saver {
    dt_model *model;
    const char *dir;
    dt_dtype dtype; /* in the files */
    dti_arena names;
    dti_st_spec *specs; /* [n] */
    dti_saved *values;  /* [n] */
    size_t n;
    size_t n_specs_room, n_values_room;
    dti_save_file *files;
    size_t n_files;
    int64_t bytes; /* of all tensors */
    bool made_dir;
} dti_saver;

/* Fills specs and values with every parameter that is stored: a tied weight once. */
dt_status dti_save_list(dti_saver *s) DT_MUST_USE;

/* save.c: weights could be written into this folder, as far as can be told without making it. */
dt_status dti_save_check_folder(const char *dir) DT_MUST_USE;

/* Divides the parameters into files of at most max_bytes of tensors; one that has more is alone. */
dt_status dti_save_divide(dti_saver *s, int64_t max_bytes) DT_MUST_USE;

/* Writes what this rank owns of every parameter. Collective over the mesh. */
dt_status dti_save_values(dti_saver *s, const dt_save_options *o) DT_MUST_USE;

/* Copies configuration, tokenizer and their like; "dtype" in config.json becomes that of the files.
 */
dt_status dti_save_small_files(const dti_saver *s) DT_MUST_USE;

/* The index of several files; nothing for one. */
dt_status dti_save_index(const dti_saver *s) DT_MUST_USE;
void dti_save_unindex(const dti_saver *s); /* removes it again */

/* The i-th file that may be copied; NULL behind the last. */
const char *dti_save_small_name(int i);

#endif
