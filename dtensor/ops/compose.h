/* SPDX-License-Identifier: Apache-2.0
 *
 * What operators that are compositions of rows share (general.c). */
#ifndef DTI_COMPOSE_H
#define DTI_COMPOSE_H

#include "dtensor/tape.h"

/* `axis` from the front, -1 and a latched error where there is none. */
int dti_compose_axis(dt_tape *t, const char *op, const dt_tensor *x, int axis);

/* Whether mesh dims of more than one rank cut an axis. */
bool dti_compose_is_cut(const dt_tensor *x, int axis);

/* An axis of one element before `axis`: a view. NULL of NULL. */
dt_tensor *dti_compose_insert(dt_tape *t, dt_tensor *x, int axis);

/* Terms of ranks become the value on each: a move that the tape counts under `why`. */
dt_tensor *dti_compose_reduced(dt_tape *t, const char *why, dt_tensor *x);

#endif
