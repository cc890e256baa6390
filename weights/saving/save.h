/* SPDX-License-Identifier: Apache-2.0
 *
 * A folder being written: which file holds which parameter, and who writes what. */
#ifndef DTI_SAVE_H
#define DTI_SAVE_H

#include "base/memory.h"
#include "dtensor/host.h"
#include "files/safetensors.h"
#include "weights/param_tensors.h"
#include "weights/saving/hold.h"

enum { DTI_SAVE_NAME_BYTES = 64, DTI_SAVE_TENSOR_BYTES = 512 };

/* One file of weights. */
typedef struct dti_save_file {
    char name[DTI_SAVE_NAME_BYTES]; /* "model-00001-of-00003.safetensors" */
    char *temporary;                /* its path while it is written, the same on every rank */
    size_t first, n;                /* parameters */
    dti_st_file_plan plan;
    int fd;      /* this rank's while it writes; -1 before and after */
    size_t made; /* its number in the hold; the mesh's first rank's */
} dti_save_file;

/* A file beside the weights, as it will be. */
typedef struct dti_small_file {
    const char *name;
    void *bytes;
    int64_t n;
    bool there;  /* the folder has just this one already */
    bool absent; /* the model has none, and the folder must not have one */
} dti_small_file;

enum { DTI_SMALL_FILES = 13 };

/* What there was of them in a folder, by the file system's word (beside.c). */
typedef struct dti_beside dti_beside;

/* A parameter on its way into a file. */
typedef struct dti_saved {
    dt_tensor *x;          /* borrowed */
    bool reversed;         /* the file has the last two axes the other way round: [in, out] */
    const dt_layer *merge; /* whose kind says what parameter `param` becomes; NULL: x is it */
    int param;
    bool words;                  /* the file has x's bytes as words of its dtype */
    int64_t expert, first, rows; /* rows > 0: it is that expert's matrix of so many of x's rows */
    int zero_bits;    /* of these they are zero points of so many bits, words along rows */
    dt_tensor *owned; /* x, if it was made for the file */
} dti_saved;

typedef struct dti_saver {
    dt_layers *layers;
    const char *from; /* the folder whose configuration and tokenizer go along; NULL: none */
    const dti_beside *beside; /* as they were when the layers were read */
    const char *dir;
    bool merged;     /* adapters go into what they stand beside */
    bool finite;     /* so is every number, or it is refused */
    bool keep_dtype; /* of each parameter */
    dt_dtype dtype;  /* in the files, otherwise; of config.json in any case */
    dti_arena names;
    dti_st_spec *specs; /* [n] */
    dti_saved *values;  /* [n] */
    size_t n;
    size_t n_specs_room, n_values_room;
    dti_save_file *files;
    size_t n_files;
    int64_t bytes; /* of all tensors */
    dti_small_file small[DTI_SMALL_FILES];
    int n_small;
    const dt_spelling *spellings; /* that names get; NULL: they stay ours */
    struct {
        const dt_tensor *of; /* experts that are being written, matrix by matrix; */
        dt_tensor *rows;     /* so that ranks have whole ones, */
        dti_host host;       /* to be read here, if `open` */
        bool open;
    } experts;
    dti_hold hold;    /* the mesh's first rank's */
    dt_error refused; /* what this rank has of numbers that cannot be saved; DT_OK: none */
} dti_saver;

/* Fills specs and values with every parameter that is stored: a tied weight once, adapters that are
 * merged not at all. */
dt_status dti_save_list(dti_saver *s) DT_MUST_USE;

/* One more tensor of the files: v->x, of that dtype there; takes v->owned if it is DT_OK. */
dt_status dti_save_add(dti_saver *s, const char *name, dt_dtype dtype,
                       const dti_saved *v) DT_MUST_USE;

/* The tensors that parameter `param` of a packed weight is in files; what config.json says of all
 * of them, NULL: there are none (packed_values.c). */
dt_status dti_save_packed(dti_saver *s, const dt_layer *layer, int param) DT_MUST_USE;
struct json_t *dti_save_packed_config(const dt_layers *layers, const dt_spelling *spellings);

/* The whole of it (write_layers.c): a folder of these layers, with what lies in `from` beside its
 * weights, whose dtype `dtype` is, if that is what `beside` saw; NULL: weights alone. Where experts
 * are packed, which upstream has one by one alone, all names are in `spellings`. Collective over
 * the mesh. */
dt_status dti_layers_write(dt_layers *layers, const char *dir, const char *from,
                           const dti_beside *beside, dt_dtype dtype, const dt_spelling *spellings,
                           const dt_save_options *options) DT_MUST_USE;

/* Weights could be written into this folder, as far as can be told without making it: it
 * can be written, and holds no weights, in whatever format. */
dt_status dti_save_check_folder(const char *dir) DT_MUST_USE;

/* What lies in `from` beside the weights can be read, and takes no other file's place in `dir`:
 * what a save would find out after the weights have been read. */
dt_status dti_save_check_small(const char *from, const char *dir, dt_dtype dtype) DT_MUST_USE;

/* Divides the parameters into files of at most max_bytes of tensors; one that has more is alone. */
dt_status dti_save_divide(dti_saver *s, int64_t max_bytes) DT_MUST_USE;

/* Writes what this rank owns of every parameter. Collective over the mesh. */
dt_status dti_save_values(dti_saver *s, const dt_save_options *o) DT_MUST_USE;

/* Reads configuration, tokenizer and their like; "dtype" in config.json becomes that of the files,
 * "quantization_config" that of `layers`; NULL: those of the folder. Freed with dti_small_free(),
 * also after an error. */
dt_status dti_small_read(const char *from, dt_dtype dtype, const dt_layers *layers,
                         const dt_spelling *spellings, dti_small_file *small, int *n) DT_MUST_USE;
void dti_small_free(dti_small_file *small, int n);

const char *dti_small_name(int i);

/* Looks at those of a folder, freed with dti_free(); refuses one that is no longer the same. */
dt_status dti_beside_look(const char *folder, dti_beside **out) DT_MUST_USE;
dt_status dti_beside_check(const char *folder, const dti_beside *before) DT_MUST_USE;

/* Whether those that a folder has are files that can be read, but for its configurations, which
 * every reader of a model opens. */
dt_status dti_small_readable(const char *folder) DT_MUST_USE;

/* Refuses to take the place of other files in `dir`, and to stand beside such that the model has
 * none of; equal ones are left as they are. */
dt_status dti_small_check(const char *dir, dti_small_file *small, int n) DT_MUST_USE;
dt_status dti_small_write(dti_hold *hold, const dti_small_file *small, int n) DT_MUST_USE;

/* Where x has to lie so that each rank holds whole rows of the file that follow each other; whether
 * this rank is the one of its replicas that writes. Of a transposed matrix the file's rows are
 * columns here. */
void dti_save_rows(const dt_tensor *x, int axis, dt_placement want[DT_MAX_DIMS], bool *writes);

dt_status dti_save_open(dti_save_file *f) DT_MUST_USE; /* to be written */

/* Writes n elements from `from` on at a byte of the file, as `dtype` (values.c). */
dt_status dti_save_elements(dti_save_file *f, const dt_local *from, dt_dtype dtype, int64_t n,
                            int64_t at) DT_MUST_USE;

/* Writes the matrix of one expert, value i of file f, on the rank that it comes to lie on; drops
 * what is left of the last tensor of experts (expert_values.c). Collective over the mesh where it
 * is the first of its tensor. */
dt_status dti_save_expert(dti_saver *s, dti_save_file *f, size_t i) DT_MUST_USE;
dt_status dti_save_experts_end(dti_saver *s);

/* The index of several files; nothing for one. */
dt_status dti_save_index(dti_saver *s) DT_MUST_USE;

#endif
