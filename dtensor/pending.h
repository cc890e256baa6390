/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves under way, as the tape and the device see them. */
#ifndef DTI_PENDING_H
#define DTI_PENDING_H

#include <dtensor/async.h>

#include "dtensor/device/device.h"

/* Drops what the tape has begun and not waited for. */
void dti_pending_drop_all(dt_pending **of_tape);

/* The end of a run: what was dropped and has now come to its end. */
void dti_pending_end(dti_device *d);

#endif
