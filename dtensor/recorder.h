/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass that is recorded once and played again and again: what a rank starts on its device (a CUDA
 * graph), without the host's part of it. The pass has a tape and memory of its own, so that its
 * tensors lie at the same addresses each time. */
#ifndef DTI_RECORDER_H
#define DTI_RECORDER_H

#include <dtensor/tensor.h>

#include "base/error.h"

typedef struct dti_recorder dti_recorder;

/* Whether what `t` would run can be recorded: by its device and the way ranks are joined, and
 * because nobody looks on. All ranks of a run answer alike. */
bool dti_recorder_fits(const dt_tape *t);

/* Of a pass that all ranks of the mesh run. */
dt_status dti_recorder_create(dt_mesh *mesh, dti_recorder **out) DT_MUST_USE;
void dti_recorder_free(dti_recorder **recorder); /* accepts NULL; nothing of it is used any more */

dt_tape *dti_recorder_tape(dti_recorder *r);

/* Collective over the mesh, after a pass that was rehearsed or recorded, with what has become of it
 * here, DT_OK or DT_ERR_UNSUPPORTED: DT_ERR_UNSUPPORTED on all ranks if it is so on any. */
dt_status dti_recorder_agree(dti_recorder *r, dt_status own) DT_MUST_USE;

/* Between the two all memory comes from the recorder. It is taken from the device in a first pass,
 * which runs as any other; the second, after dt_tape_reset(), finds it and can be recorded. */
void dti_recorder_enter(dti_recorder *r);
void dti_recorder_leave(dti_recorder *r);

/* What is started between the two is recorded, not run. end() after an error on the tape drops it.
 * DT_ERR_UNSUPPORTED: something needed the host. */
dt_status dti_recorder_begin(dti_recorder *r) DT_MUST_USE;
dt_status dti_recorder_end(dti_recorder *r) DT_MUST_USE;

/* Counts on `t` what the recorder's pass has communicated. */
dt_status dti_recorder_count(const dti_recorder *r, dt_tape *t) DT_MUST_USE;

/* Runs what was recorded, and counts it. */
dt_status dti_recorder_play(dti_recorder *r, dt_tape *t) DT_MUST_USE;

/* A copy of the recorder's x that belongs to `t`; NULL after an error. */
dt_tensor *dti_recorder_give(dt_tape *t, dt_tensor *x);

#endif
