/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a pass, for those that run it otherwise than dt_model_forward() does. */
#ifndef DTI_FORWARD_H
#define DTI_FORWARD_H

#include "models/run/state.h"

/* A tensor [batch, tokens] of i32 on the tape, of which each rank has its sequences; `together` of
 * them are on one rank side by side. */
dt_status dti_pass_ints(dt_tape *t, const dt_model *m, int64_t batch, int64_t tokens,
                        int64_t together, dt_tensor **out) DT_MUST_USE;

/* The state's next pass over n_tokens of each sequence: tensors of ids and positions that belong to
 * the tape, without contents; dti_pass_write() gives them these. */
dt_status dti_pass_make(dt_tape *t, const dt_model *m, dt_state *s, int64_t n_tokens,
                        dt_logits_rows rows, dt_model_pass *out) DT_MUST_USE;
dt_status dti_pass_write(const dt_model *m, const dt_state *s, const int32_t *ids, int64_t n_tokens,
                         const dt_model_pass *pass) DT_MUST_USE;

/* Its logits, checked, in the scope that is open: embed, every block in a scope of its name, head
 * of the rows that are wanted (pass.c). NULL after an error. */
dt_tensor *dti_pass_run(dt_tape *t, dt_model *m, const dt_model_pass *pass);

/* Its two parts. What a stage makes of x [batch, tokens, hidden], which the one before it has made,
 * up to what enters the head; with `again` each block is a part that a backward pass runs again.
 * Logits of that. */
dt_tensor *dti_pass_body(dt_tape *t, const dt_model *m, const dt_model_pass *pass,
                         const dti_stage *stage, dt_tensor *x, bool again);
dt_tensor *dti_pass_head(dt_tape *t, const dt_model *m, dt_tensor *x);

/* What a stage makes of x: the last one what the pass is for. */
typedef dt_tensor *(*dti_stage_run)(dt_tape *t, dt_model *m, const void *arg,
                                    const dti_stage *stage, dt_tensor *x);

/* A pass through all stages: each rank runs its own and hands on what they make; what the last one
 * makes comes to all ranks of the model's mesh. A model in one piece is one stage. Of a dry model
 * each rank runs its own stages alone, and gets what its last one makes (through_stages.c).
 * Collective over the model's mesh. */
dt_tensor *dti_through_stages(dt_tape *t, dt_model *m, const dt_tensor *ids, dti_stage_run run,
                              const void *arg);

/* The greedy choice from logits [batch, 1, vocab]: ids [batch, 1] i32, and the keys they came from.
 */
dt_tensor *dti_choose_greedy(dt_tape *t, dt_tensor *logits, dt_tensor **key);

#endif
