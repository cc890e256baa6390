/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tensors of a checkpoint a parameter is made of, and reading a rank's piece of it. */
#ifndef DTI_PARAM_TENSORS_H
#define DTI_PARAM_TENSORS_H

#include <dtensor/weights.h>

#include "base/error.h"

struct dti_ckpt;
struct dti_host;
struct dti_st_entry;

/* The tensor of a layer's parameter, in any of the architecture's spellings; NULL if it is missing.
 */
const struct dti_st_entry *dti_find_param(const struct dti_ckpt *ckpt, const dt_spelling *spellings,
                                          const char *layer, const char *param);

struct dti_st_stage;

/* One of the tensors that a parameter is made of, as it has to be in the file. */
typedef struct dti_param_tensor {
    const char *name;                 /* in our spelling; while a call lasts */
    const struct dti_st_entry *entry; /* NULL: it is missing */
    int n_axes;
    int64_t shape[DT_PARAM_MAX_AXES];
    const char *dtype;   /* as it has to be in the file, "I32"; NULL: a float */
    int64_t n_weights;   /* that it is; -1: its elements */
    bool single;         /* of one element, in any shape */
    int64_t input_group; /* it tells which group each input is of, so many of one; 0: it does not */
    bool whole;          /* it is the parameter; otherwise rows `first` .. of one expert's weight */
    int64_t expert;
    int64_t first;
    dt_packed part;                    /* of a packed weight, or of one that reading unpacks */
    const struct dti_st_entry *scales; /* of blocks that become plain numbers: theirs */
    int64_t block;                     /* inputs of such a block; 0: it is none */
    int64_t block_rows;                /* and outputs */
    dt_packed_form form;
} dti_param_tensor;

typedef dt_status (*dti_tensor_fn)(void *arg, const dti_param_tensor *tensor);

/* Calls fn for each tensor that makes up a parameter (param_tensors.c): the one of its name, or for
 * experts, where that is missing, one per expert and block; none for an adapter that a checkpoint
 * lacks. Without a checkpoint (NULL) all are missing. */
dt_status dti_each_tensor(const struct dti_ckpt *ckpt, const dt_spelling *spellings,
                          const dt_param_info *info, dti_tensor_fn fn, void *arg) DT_MUST_USE;

/* Whether files have the parameter in few bits, of which reading makes plain numbers. */
bool dti_param_unpacks(const dt_param_info *info);

/* Of a layer of experts whose parts have names the k-th tensor `param` ("weight"), of one expert
 * and block after the other, with the shape of a plain weight's; false: there are not so many.
 * `name` gets its name. */
bool dti_expert_tensor(const dt_param_info *info, const char *param, int64_t k, char *name,
                       size_t bytes, dti_param_tensor *t);

/* A name of ours as the architecture's files have it, as far as spellings of middles say so. */
void dti_spell(const dt_spelling *spellings, const char *name, char *to, size_t bytes);

/* The name of a parameter's own tensor, like snprintf: "a.weight"; experts have none of "weight".
 */
int dti_param_tensor_name(const dt_param_info *info, char *name, size_t bytes);

/* Reads this rank's piece of a parameter, as far as it is in the tensor `t`, straight into place
 * (read_param.c): its parts of blocks, if axes are packed, and transposed, if the file holds it so.
 * `to` is the parameter as the host sees it (dtensor/host.h). */
dt_status dti_read_param(const struct dti_ckpt *ckpt, const dti_param_tensor *t, bool reversed,
                         const struct dti_host *to, const struct dti_st_stage *stage) DT_MUST_USE;

/* Reads a tensor that has an input_group. DT_ERR_UNSUPPORTED: a group's inputs do not follow each
 * other (packed_files.c). */
dt_status dti_check_input_groups(const struct dti_ckpt *ckpt, const dti_param_tensor *t,
                                 const struct dti_st_stage *stage) DT_MUST_USE;

/* Rows [begin[a], end[a]) of each axis of this rank's piece of x. */
typedef struct dti_part {
    const dt_tensor *x;
    bool reversed; /* the file's last two axes stand the other way round */
    int64_t begin[DT_MAX_AXES];
    int64_t end[DT_MAX_AXES];
} dti_part;

dti_part dti_whole_part(const dt_tensor *x, bool reversed);

/* The same for a part of the piece, whose elements lie in `to` as far apart as they do there. */
dt_status dti_read_part(const struct dti_ckpt *ckpt, const dti_param_tensor *t,
                        const dti_part *part, const struct dti_st_stage *stage,
                        void *to) DT_MUST_USE;

/* Where a parameter comes from. */
typedef struct dti_param_source {
    const char *name;
    const struct dti_ckpt *ckpt;
    const dti_param_tensor *tensors; /* all that it is made of */
    size_t n_tensors;
    bool reversed;
    const struct dti_st_stage *stage;
} dti_param_source;

struct dti_st_box;

/* Blocks of MXFP4 as numbers of `dtype` (mxfp4.c), a box of [experts, outputs, inputs] as
 * dti_ckpt_read_strided() reads it. Exact, or DT_ERR_FORMAT: a scale is no number, or the dtype
 * does not hold a weight. */
dt_status dti_read_mxfp4(const struct dti_ckpt *ckpt, const dti_param_tensor *t,
                         const struct dti_st_box *box, dt_dtype dtype,
                         const struct dti_st_stage *stage, void *to) DT_MUST_USE;

/* Reads scales of MXFP4. DT_ERR_FORMAT: one is no number. */
dt_status dti_check_mxfp4_scales(const struct dti_ckpt *ckpt, const dti_param_tensor *t,
                                 const struct dti_st_stage *stage) DT_MUST_USE;

/* Floats of 8 bits with a scale for each block as numbers of `dtype` (e4m3_blocks.c), the same of
 * [outputs, inputs]. Products are rounded once; errors as dti_read_mxfp4(). */
dt_status dti_read_e4m3(const struct dti_ckpt *ckpt, const dti_param_tensor *t,
                        const struct dti_st_box *box, dt_dtype dtype,
                        const struct dti_st_stage *stage, void *to) DT_MUST_USE;

struct dti_upload;

/* Reads this rank's piece of x into pinned buffers, part by part, and starts their copies to the
 * device (upload_param.c, dtensor/device/upload.h). x lives until these have been waited for. */
dt_status dti_upload_param(const dti_param_source *from, dt_tensor *x,
                           struct dti_upload *upload) DT_MUST_USE;

#endif
