/* SPDX-License-Identifier: Apache-2.0
 *
 * What a checkpoint holds, and where: tensors by name, the boxes that each was divided into, the
 * files that they are in. Pure, but for the tensors that it may point to: every rank of a mesh
 * comes to the same result, and so does who reads it from a manifest (manifest.h). */
#ifndef DTI_SNAPSHOT_H
#define DTI_SNAPSHOT_H

#include <dtensor/layers.h>

#include "base/memory.h"
#include "training/optimizer.h"

/* Elements [begin[a], end[a]) of each axis of a tensor, which one file holds whole. */
typedef struct dti_stored_box {
    size_t file;
    int64_t begin[DT_MAX_AXES], end[DT_MAX_AXES];
} dti_stored_box;

typedef struct dti_stored_tensor {
    const char *name;
    bool state; /* the optimizer's; false: a parameter */
    dt_dtype dtype;
    int n_axes;
    int64_t shape[DT_MAX_AXES];
    const char *layout; /* of those who saved, for humans */
    size_t first, n;    /* its boxes: none of a tensor without elements */

    const dt_layout *lies; /* here; NULL of what is read from a manifest */
    const dt_mesh *mesh;   /* that it lies on, if that is a stage's; NULL: the run's */
    dt_tensor *x;          /* borrowed; NULL: it has no value here, or lies elsewhere */
    dt_layer *layer;       /* of a parameter, whose number is `param`; or NULL */
    int param;
    dt_optimizer *optimizer; /* of a state; or NULL */
    dti_state_ref ref;
} dti_stored_tensor;

typedef struct dti_stored_file {
    const char *name; /* "model-rank-00003.safetensors" */
    int place;        /* in the mesh of who writes it */
    int64_t bytes;
    uint64_t checksum;
} dti_stored_file;

typedef struct dti_snapshot {
    dti_arena memory;
    dti_stored_tensor *tensors;
    dti_stored_box *boxes; /* tensor by tensor */
    dti_stored_file *files;
    size_t n_tensors, n_boxes, n_files;
    size_t tensors_room, boxes_room, files_room;
} dti_snapshot;

#define DTI_SNAPSHOT_INIT                                  \
    {                                                      \
        DTI_ARENA_INIT, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0 \
    }

void dti_snapshot_free(dti_snapshot *s); /* which is empty then */

/* Adds what `t` says, but for its boxes; copies the texts. */
dt_status dti_snapshot_add(dti_snapshot *s, const dti_stored_tensor *t) DT_MUST_USE;
dt_status dti_snapshot_add_file(dti_snapshot *s, const dti_stored_file *file) DT_MUST_USE;
dt_status dti_snapshot_add_box(dti_snapshot *s, const dti_stored_box *box) DT_MUST_USE;

/* Every parameter of a list of layers, under the names that files give them; a tied one once.
 * Those that are `wanted` of a checkpoint need have no value, and of a tied one each stage wants
 * its copy, under one name. */
dt_status dti_snapshot_list(dti_snapshot *s, dt_layers *layers, bool wanted) DT_MUST_USE;

/* And of the optimizer's state. */
dt_status dti_snapshot_list_state(dti_snapshot *s, dt_optimizer *optimizer,
                                  bool wanted) DT_MUST_USE;

/* The value, which may have to be fetched; and back, if it `was_written`. */
dt_status dti_stored_open(const dti_stored_tensor *t, dt_tensor **x) DT_MUST_USE;
dt_status dti_stored_close(const dti_stored_tensor *t, bool was_written, dt_tensor **x) DT_MUST_USE;

/* Divides all tensors, which have values on `mesh` or on stages of it, into boxes and files: of
 * replicas the first has it. A piece of several boxes (packed axes) is in several files of its
 * rank, box k in the k-th, because a file has a name once. */
dt_status dti_snapshot_divide(dti_snapshot *s, const dt_mesh *mesh) DT_MUST_USE;

/* Each element of each tensor is in exactly one box. Errors: DT_ERR_FORMAT; names the tensor and
 * the files. */
dt_status dti_snapshot_check_cover(const dti_snapshot *s) DT_MUST_USE;

/* By name; NULL: there is none. After dti_snapshot_sort(). */
dt_status dti_snapshot_sort(const dti_snapshot *s, const dti_stored_tensor ***sorted) DT_MUST_USE;
const dti_stored_tensor *dti_snapshot_find(const dti_stored_tensor *const *sorted, size_t n,
                                           const char *name);

int64_t dti_stored_count(const dti_stored_tensor *t); /* elements */
int64_t dti_box_elements(const dti_stored_box *box, int n_axes);

/* What two boxes of one tensor have in common; false: nothing. */
bool dti_boxes_share(const dti_stored_box *a, const dti_stored_box *b, int n_axes,
                     dti_stored_box *out);

#endif
