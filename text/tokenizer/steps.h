/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of a pipeline have in common: each is a step with a "type", a Sequence of steps,
 * or null. */
#ifndef DTI_STEPS_H
#define DTI_STEPS_H

#include "files/json.h"
#include "text/tokenizer/regex.h"

/* Steps that one part holds at most, once Sequences are unfolded. */
enum { DTI_MAX_STEPS = 16 };

/* Hands the steps of a part to `load` in order; `list` is the key under which a Sequence has them.
 * No part, or null, has no steps. */
dt_status dti_steps_each(const dti_json *part, const char *list,
                         dt_status (*load)(void *arg, const dti_json *step, const char *type),
                         void *arg) DT_MUST_USE;

/* The errors of a step too many and of an unknown one: "tokenizer.json: normalizer is of type
 * "Nmt", which is not supported here; known types are NFC, ..." */
dt_status dti_step_too_many(const dti_json *step);
dt_status dti_step_unknown(const dti_json *step, const char *type, const char *known);

/* The pattern of a step, {"String": ..} or {"Regex": ..}. */
dt_status dti_step_pattern(const dti_json *step, dti_regex **out) DT_MUST_USE;

#endif
