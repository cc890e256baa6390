/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding by recorded passes: where the device can (dtensor/recorder.h), a pass over one token is
 * recorded once per state and then played, so that a token costs the host one launch. Ids and
 * positions are written before, everything else is on the device. */
#ifndef DTI_STEP_H
#define DTI_STEP_H

#include "models/run/state.h"

typedef struct dti_step_pass dti_step_pass;

/* Whether the state's next pass, over one token per sequence, is one for dti_step_run(). Asked once
 * before each such pass: the first of them it only notes. */
bool dti_step_fits(const dt_tape *t, const dt_model *m, dt_state *s);

/* Runs the state's next pass over one token per sequence, recorded or not yet: *logits belong to t,
 * NULL after an error on t. False: it could not be recorded, run it as any other. The state is not
 * advanced.
 */
bool dti_step_run(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids, dt_tensor **logits);

int64_t dti_step_n_played(const dt_state *s); /* passes so far */

/* What was recorded names caches that go away. */
void dti_step_forget(dt_state *s);

#endif
