/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a pass, for those that run it otherwise than dt_model_forward() does. */
#ifndef DTI_FORWARD_H
#define DTI_FORWARD_H

#include <dtensor/model_training.h>

#include "mesh/comm/comm.h"
#include "models/run/state.h"

/* A tensor [batch, tokens] of i32 on the tape, of which each rank has its sequences; `together` of
 * them are on one rank side by side. */
dt_status dti_pass_ints(dt_tape *t, const dt_model *m, int64_t batch, int64_t tokens,
                        int64_t together, dt_tensor **out) DT_MUST_USE;

/* Every rank is handed what it is to run, and no message says it: ranks that were handed different
 * things would compute a mixture. With checks of agreement they meet first and compare `about`. */
dt_status dti_pass_agree(dt_model *m, const dti_comm_note *about) DT_MUST_USE;

/* The state's next pass over n_tokens of each sequence: tensors of ids and positions that belong to
 * the tape, without contents; dti_pass_write() gives them these. */
dt_status dti_pass_make(dt_tape *t, const dt_model *m, dt_state *s, int64_t n_tokens,
                        dt_logits_rows rows, dt_model_pass *out) DT_MUST_USE;
dt_status dti_pass_write(const dt_model *m, const dt_state *s, const int32_t *ids, int64_t n_tokens,
                         const dt_model_pass *pass) DT_MUST_USE;

/* What this rank makes of a pass, or what is on its way to it: at most one of them. */
typedef struct dti_result {
    dt_tensor *x;
    struct dt_parcel *parcel;
} dti_result;

/* This rank's stages of a pass, in the scope that is open: embed, every block in a scope of its
 * name, and with `heads` logits of the rows that are wanted, which come to all ranks (pass.c). */
dti_result dti_pass_enter(dt_tape *t, dt_model *m, const dt_model_pass *pass, bool heads);

/* The logits, checked. NULL after an error. */
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
 * makes, `made`, comes to all ranks of the model's mesh, which may begin other passes before they
 * wait for it. NULL: it makes nothing that is wanted. A model in one piece is one stage. Of a dry
 * model each rank runs its own stages alone (through_stages.c).
 * Collective over the model's mesh: passes begin in the same order. */
dti_result dti_enter_stages(dt_tape *t, dt_model *m, const dt_tensor *ids, dti_stage_run run,
                            const void *arg, const dt_tensor_kind *made);
dt_tensor *dti_leave_stages(dt_tape *t, dti_result *r);

/* Waits until what this rank has sent is where it belongs and nothing is held for it: when all
 * ranks have left all passes. */
dt_status dti_settle_stages(const dt_model *m) DT_MUST_USE;

dt_tensor_kind dti_logits_kind(const dt_model *m, int64_t batch, int64_t rows);

/* The greedy choice from logits [batch, 1, vocab]: ids [batch, 1] i32, and the keys they came from.
 */
dt_tensor *dti_choose_greedy(dt_tape *t, dt_tensor *logits, dt_tensor **key);

#endif
