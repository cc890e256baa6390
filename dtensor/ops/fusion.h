/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that a device holds back, so that one kernel may do the work of several rows: who calls
 * rows need not know, in which order he does. Values are held, not addresses: a held call keeps its
 * operands and results alive, so scopes may end and tensors be dropped meanwhile.
 *
 * Everything else a tape does is done at the call: decision, checks, results, what is counted and
 * recorded. Only the kernel comes later, and whoever asks for bytes finds it started. */
#ifndef DTI_FUSION_H
#define DTI_FUSION_H

#include "dtensor/device/device.h"

/* For a device that has run_fused(). Without it (d->fusion is NULL) nothing is ever held. */
dt_status dti_fusion_open(dti_device *d) DT_MUST_USE;
void dti_fusion_close(dti_device *d); /* what is held is dropped */

/* A call of a row, its results made. *taken: it is held, or has been done with those before it;
 * otherwise the caller runs its kernel, for which all that it needs has been started. */
typedef struct dti_row_call {
    const dt_op *op;
    const void *attr;
    int n_in, n_out;
    dt_tensor *const *in, *const *out;
} dti_row_call;

dt_status dti_fusion_take(dti_device *d, const dti_row_call *call, bool *taken) DT_MUST_USE;

/* Starts all that is held. Every function of the device that touches bytes or order begins with it;
 * an error names the rows that it could not start. */
dt_status dti_fusion_settle(dti_device *d) DT_MUST_USE;

/* For who cannot fail: the next call that can says it. */
void dti_fusion_settle_unheard(dti_device *d);

/* Off: each row has its own kernel, with the same bits. On when opened. */
void dti_fusion_set(dti_device *d, bool on);

#endif
