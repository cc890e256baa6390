/* SPDX-License-Identifier: Apache-2.0
 *
 * One safetensors file: 8 bytes of little-endian header length N, N bytes of JSON that give every
 * tensor a dtype, a shape and the bytes it occupies, then the data, row-major and little-endian.
 *
 * A file is checked as a whole when it is opened, as strictly as the reference implementation does
 * it (tensors fill the data without holes or overlaps, sizes follow from dtype and shape), and
 * repeated names and more than 8 axes are refused too. Afterwards a handle does not change: rank
 * threads may share it. */
#ifndef DTI_SAFETENSORS_H
#define DTI_SAFETENSORS_H

#include <dtensor/base.h>

#include "base/pool.h"

typedef struct dti_st_file dti_st_file;

typedef struct dti_st_entry {
    const char *name;       /* owned by the file */
    const char *dtype_name; /* as in the file: "BF16"; owned by the library */
    dt_dtype dtype;         /* valid if `supported` */
    bool supported;         /* false: a dtype such as BOOL or F8_E4M3, which can only be listed */
    int n_axes;
    int64_t shape[DT_MAX_AXES];
    int64_t begin, end; /* bytes of the file */
} dti_st_entry;

/* Ownership: *out is closed with dti_st_close(). On error it is NULL. */
dt_status dti_st_open(const char *path, dti_st_file **out) DT_MUST_USE;

/* Who wants to know of all faults, and not of the first alone. `tensor` is NULL where a fault is of
 * no single one. */
typedef struct dti_faults {
    void (*fn)(void *arg, const char *tensor, const char *text);
    void *arg;
} dti_faults;

/* The same, but a fault of a tensor is said and the next one looked at; the file then holds those
 * that could be understood, some with less bytes than their shape has. Errors: what is wrong with
 * the whole. */
dt_status dti_st_open_faulty(const char *path, const dti_faults *faults,
                             dti_st_file **out) DT_MUST_USE;

/* What a reader of such things does with a status: an error is said and forgotten, unless it is
 * DT_ERR_MEMORY, or nobody wants to hear of it: `faults` NULL. */
dt_status dti_say_fault(const dti_faults *faults, const char *tensor, dt_status st);

void dti_st_close(dti_st_file **file); /* accepts NULL */

struct dti_open_files;

/* Makes an open file one of those of which a few are open at a time (open_files.h). */
dt_status dti_st_share(dti_st_file *file, const char *path,
                       struct dti_open_files *files) DT_MUST_USE;

/* Queries; entries are borrowed from the file. dti_st_at() gives them in the order of the data. */
const char *dti_st_label(const dti_st_file *file); /* its path, for messages */
size_t dti_st_count(const dti_st_file *file);
const dti_st_entry *dti_st_at(const dti_st_file *file, size_t i);
const dti_st_entry *dti_st_find(const dti_st_file *file, const char *name); /* or NULL */

/* --- reading ---------------------------------------------------------------------------------- */

/* Memory that bytes pass through on their way when they must be converted or picked out of rows,
 * and the threads that share the work. One per rank; reads of one stage do not overlap in time. */
typedef struct dti_st_stage {
    void *data;
    size_t bytes;
    dti_pool *pool; /* NULL: the calling thread alone */
} dti_st_stage;

/* `bytes` 0 chooses 4 MiB, the size that large reads need; dti_st_stage_bytes() divides what a
 * process may spend, 32 MiB, among its rank threads. */
dt_status dti_st_stage_create(size_t bytes, dti_pool *pool, dti_st_stage *out) DT_MUST_USE;
void dti_st_stage_destroy(dti_st_stage *stage); /* accepts a zeroed stage */
size_t dti_st_stage_bytes(int n_ranks);

/* Reads the box [begin[a], end[a]) of every axis a into dst, contiguous and row-major, as `want`.
 * begin and end NULL is the whole tensor. Float dtypes convert among each other, rounding to
 * nearest even; any other dtype must be wanted as it is.
 *
 * Bytes of the wanted dtype that are contiguous in the file, or lie there in pieces of 64 KiB and
 * more, are read straight into dst. Otherwise blocks of at most the stage's size are read whole and
 * the pieces picked from them in memory: a disk is never asked for single short rows.
 *
 * Errors: DT_ERR_ARG a box outside the tensor; DT_ERR_UNSUPPORTED dtypes that do not convert;
 * DT_ERR_IO. */
dt_status dti_st_read_slice(const dti_st_file *file, const dti_st_entry *entry,
                            const int64_t *begin, const int64_t *end, dt_dtype want,
                            const dti_st_stage *stage, void *dst) DT_MUST_USE;

/* A box of a tensor, and where its elements go: `stride` elements apart along each axis. */
typedef struct dti_st_box {
    int64_t begin[DT_MAX_AXES];
    int64_t end[DT_MAX_AXES];
    int64_t stride[DT_MAX_AXES];
} dti_st_box;

/* The same into places that do not follow each other: a block of a packed axis, a transposed
 * weight, one of many experts. What is not contiguous in dst for 64 KiB and more goes through half
 * of the stage. Element (begin) is dst[0]. Errors as dti_st_read_slice(). */
dt_status dti_st_read_strided(const dti_st_file *file, const dti_st_entry *entry,
                              const dti_st_box *box, dt_dtype want, const dti_st_stage *stage,
                              void *dst) DT_MUST_USE;

/* --- writing ---------------------------------------------------------------------------------- */

/* A tensor to be written. */
typedef struct dti_st_spec {
    const char *name;
    dt_dtype dtype;
    int n_axes;
    int64_t shape[DT_MAX_AXES];
} dti_st_spec;

/* What a file of tensors will be, for writers that each write a part of it. */
typedef struct dti_st_file_plan {
    void *header; /* the file's first bytes */
    int64_t header_bytes;
    int64_t *begin; /* [n] where the data of specs[i] begins in the file */
    int64_t bytes;  /* of the whole file */
} dti_st_file_plan;

/* Plans a file as dti_st_write() lays it out; the same arguments give the same plan on every rank.
 * Freed with dti_st_plan_free(). Errors: as dti_st_write() for its arguments. */
dt_status dti_st_plan(const dti_st_spec *specs, size_t n, const char *const *metadata,
                      dti_st_file_plan *out) DT_MUST_USE;
void dti_st_plan_free(dti_st_file_plan *plan);

/* Gives `count` elements of specs[i] from element `first` on, in the spec's dtype. Tensors are
 * asked for one after the other, each from its first element to its last. */
typedef dt_status (*dti_st_fill)(void *arg, size_t i, int64_t first, int64_t count, void *to);

/* Writes n tensors to `path` through a temporary file beside it that is renamed at the end, so that
 * a reader never sees half a file. Needs 1 MiB whatever the size of the tensors. `metadata` is NULL
 * or keys and values in turn, ended by NULL. Tensors are laid out like the reference writer does:
 * wide dtypes first, then by name.
 *
 * Errors: DT_ERR_ARG a repeated or malformed name, a shape that is too large; DT_ERR_IO; whatever
 * `fill` returns. On error `path` is as it was. */
dt_status dti_st_write(const char *path, const dti_st_spec *specs, size_t n,
                       const char *const *metadata, dti_st_fill fill, void *arg) DT_MUST_USE;

#endif
