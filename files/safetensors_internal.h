/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind an open safetensors file, and the table of dtypes. */
#ifndef DTI_SAFETENSORS_INTERNAL_H
#define DTI_SAFETENSORS_INTERNAL_H

#include "base/memory.h"
#include "files/input.h"
#include "files/open_files.h"
#include "files/safetensors.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files are little-endian, and bytes are not swapped here"
#endif

enum {
    DTI_ST_LENGTH_BYTES = 8,
    DTI_ST_HEADER_BYTES = 100000000, /* longest header; the reference has the same limit */
    DTI_ST_NAME_BYTES = 512,         /* longest name of a tensor */
    DTI_ST_SHOWN_BYTES = 160         /* of a name in a message */
};

struct dti_st_file {
    dti_input in;
    dti_open_file *open; /* where `in` has no descriptor of its own; or NULL */
    size_t n;
    dti_st_entry *entries;        /* in the order of the data */
    const dti_st_entry **by_name; /* the same, sorted by name */
    int64_t data_begin;           /* first byte of the data in the file */
    int64_t data_bytes;
    dti_arena names;
    const dti_faults *faults; /* while it is opened; NULL: the first one is an error */
    bool incomplete;          /* there are tensors that could not be understood */
};

typedef struct dti_st_dtype {
    const char *name; /* as in files */
    int bits;
    bool supported;
    dt_dtype dtype;
} dti_st_dtype;

/* Leaves of the file's tensors those that are named in `keep`, sorted by address. */
dt_status dti_st_keep(dti_st_file *file, const dti_st_entry *const *keep, size_t n) DT_MUST_USE;

/* The row of a dtype by its name in files or by its number; NULL if there is none. */
const dti_st_dtype *dti_st_dtype_named(const char *name);
const dti_st_dtype *dti_st_dtype_of(dt_dtype dtype);

/* Elements and bytes of a tensor; false if the numbers overflow or do not fill whole bytes. A
 * shape's extents are >= 0. */
bool dti_st_size(const dti_st_dtype *dtype, int n_axes, const int64_t *shape, int64_t *elements,
                 int64_t *bytes);

/* Fills entries, by_name and names from the n bytes of JSON; the file's other fields are set. On
 * error the caller closes the file. */
void dti_st_sort_names(const dti_st_entry **names, size_t n);
dt_status dti_st_parse_header(dti_st_file *file, const char *text, size_t n) DT_MUST_USE;

#endif
