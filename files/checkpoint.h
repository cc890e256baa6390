/* SPDX-License-Identifier: Apache-2.0
 *
 * The weights in a Hugging Face folder: one model.safetensors, or the shards that
 * model.safetensors.index.json names. Every file is checked when the folder is opened; nothing of
 * the data is read. Afterwards a checkpoint does not change: rank threads may share one. */
#ifndef DTI_CHECKPOINT_H
#define DTI_CHECKPOINT_H

#include "files/safetensors.h"

typedef struct dti_ckpt dti_ckpt;

/* Refuses what cannot be a Hugging Face folder at all: DT_ERR_IO no folder, DT_ERR_FORMAT no
 * config.json in it. */
dt_status dti_ckpt_check_folder(const char *folder) DT_MUST_USE;

/* Errors: DT_ERR_IO no such folder, a missing shard; DT_ERR_FORMAT no config.json or no weights in
 * it (the message says what was looked for and what is there), a malformed file, an index that
 * contradicts its shards; DT_ERR_UNSUPPORTED weights in another format alone.
 * Ownership: *out is closed with dti_ckpt_close(). On error it is NULL. */
dt_status dti_ckpt_open(const char *folder, dti_ckpt **out) DT_MUST_USE;
void dti_ckpt_close(dti_ckpt **ckpt); /* accepts NULL */

/* The weights alone: of a folder, which need not be a model's, or of one safetensors file. */
dt_status dti_ckpt_open_weights(const char *path, dti_ckpt **out) DT_MUST_USE;

/* The same, but faults are said and the next file or tensor looked at, as far as there is something
 * to go on with; what is left has the tensors that could be understood. Errors: what is wrong with
 * the folder, its single file, or the index as a whole. */
dt_status dti_ckpt_open_faulty(const char *folder, const dti_faults *faults,
                               dti_ckpt **out) DT_MUST_USE;

/* Forgets all tensors but those in `keep`, sorted by address, and remembers what is said of the
 * others: of a million names that nobody asks for none is kept. Nobody reads yet. */
dt_status dti_ckpt_keep(dti_ckpt *ckpt, const dti_st_entry *const *keep, size_t n_keep,
                        size_t n_unused, const char *first_unused) DT_MUST_USE;
bool dti_ckpt_kept_some(const dti_ckpt *ckpt, size_t *n_unused, const char **first_unused);

/* Files that are open now. A few at most: they are opened when they are read. */
int dti_ckpt_n_open(const dti_ckpt *ckpt);

/* Whether there was a fault of tensor `name`, or of the file that it is in; of any tensor. */
bool dti_ckpt_is_faulty(const dti_ckpt *ckpt, const char *name);
bool dti_ckpt_has_faults(const dti_ckpt *ckpt);

/* Whether there are weights in the folder to open, good ones or bad ones. */
bool dti_ckpt_exists(const char *folder);

/* Whether a file of this name holds weights or is an index of them, in whatever format. */
bool dti_ckpt_is_weights(const char *name);

/* Queries; what they give is borrowed from the checkpoint. Tensors come sorted by name. */
const char *dti_ckpt_folder(const dti_ckpt *ckpt);
size_t dti_ckpt_count(const dti_ckpt *ckpt);
const dti_st_entry *dti_ckpt_at(const dti_ckpt *ckpt, size_t i);
const dti_st_entry *dti_ckpt_find(const dti_ckpt *ckpt, const char *name); /* or NULL */
int64_t dti_ckpt_bytes(const dti_ckpt *ckpt);                              /* of all tensors */
size_t dti_ckpt_n_files(const dti_ckpt *ckpt);                             /* that are good */

/* The file that tensor `name` is in, for messages; the folder if there is no such tensor. */
const char *dti_ckpt_label(const dti_ckpt *ckpt, const char *name);

/* Calls fn for each tensor that a file holds but the index does not name. */
void dti_ckpt_each_unnamed(const dti_ckpt *ckpt,
                           void (*fn)(void *arg, const char *file, const dti_st_entry *entry),
                           void *arg);

/* The path of a file in the folder, "config.json"; freed with dti_free(). */
dt_status dti_ckpt_path(const char *folder, const char *name, char **out) DT_MUST_USE;

/* Reads a box of tensor `name` as dti_st_read_slice() does. */
dt_status dti_ckpt_read(const dti_ckpt *ckpt, const char *name, const int64_t *begin,
                        const int64_t *end, dt_dtype want, const dti_st_stage *stage,
                        void *dst) DT_MUST_USE;

/* The same as dti_st_read_strided() does. */
dt_status dti_ckpt_read_strided(const dti_ckpt *ckpt, const char *name, const dti_st_box *box,
                                dt_dtype want, const dti_st_stage *stage, void *dst) DT_MUST_USE;

/* What is among the numbers of a tensor. */
typedef struct dti_ckpt_scan {
    int64_t n; /* numbers read; 0 of a tensor that holds none, or no floats */
    int64_t n_nan, n_infinite;
    int64_t first; /* of these, counted row-major; -1: there are none */
    bool all_zero;
} dti_ckpt_scan;

/* Counts n more numbers, in memory. */
void dti_ckpt_scan_block(dt_dtype dtype, const void *data, int64_t n, dti_ckpt_scan *s);

/* Reads all numbers of a tensor, in blocks of 4 MiB, or of a row that is longer. */
dt_status dti_ckpt_scan_values(const dti_ckpt *ckpt, const dti_st_entry *entry,
                               const dti_st_stage *stage, dti_ckpt_scan *out) DT_MUST_USE;

#endif
