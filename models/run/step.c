/* SPDX-License-Identifier: Apache-2.0 */
#include "models/run/step.h"

#include "base/memory.h"
#include "dtensor/create.h"
#include "dtensor/recorder.h"
#include "mesh/runtime.h"
#include "models/run/forward.h"
#include "parallel_styles/changes.h"

/* The first pass over one token runs as any other, so that decisions are made; the second runs in
 * the recorder's memory, which it takes; the third is recorded. */
typedef enum stage { SEEN_ONE, REHEARSED, RECORDED, REFUSED } stage;

struct dti_step_pass {
    stage stage;
    uint64_t changes; /* of the layers, when it began */
    int64_t n_played;
    dti_recorder *recorder;
    dt_model_pass pass;
    dt_tensor *logits;
};

static bool can_be_recorded(const dt_tape *t, const dt_model *m, const dt_state *s)
{
    return s->length > 0 && dt_mesh_is_member(m->mesh) && m->stages.n_meshes == 0 &&
           m->arch->repeats != NULL && m->arch->repeats(m->self) && dti_recorder_fits(t) &&
           dti_layers_repeat(m->layers);
}

bool dti_step_fits(const dt_tape *t, const dt_model *m, dt_state *s)
{
    if (s->unrecorded || !can_be_recorded(t, m, s)) return false;
    if (s->step != NULL && s->step->changes != dti_layers_changes(m->layers)) dti_step_forget(s);
    if (s->step == NULL) {
        if (dti_new(sizeof *s->step, &s->step) != DT_OK) return false;
        s->step->changes = dti_layers_changes(m->layers);
        s->step->stage = SEEN_ONE; /* when this pass has run */
        return false;
    }
    return s->step->stage != REFUSED;
}

/* In the recorder's memory: ids and positions, then everything up to the logits. */
static dt_status run_inside(dti_step_pass *p, dt_model *m, dt_state *s, const int32_t *ids,
                            bool record)
{
    dt_tape *own = dti_recorder_tape(p->recorder);

    dt_tape_reset(own);
    DT_TRY(dti_pass_make(own, m, s, 1, DT_LOGITS_LAST, &p->pass));
    DT_TRY(dti_pass_write(m, s, ids, 1, &p->pass));
    if (record) DT_TRY(dti_recorder_begin(p->recorder));
    dt_scope_begin(own, m->arch->model_type);
    p->logits = dt_scope_end(own, dti_pass_run(own, m, &p->pass));
    if (record) DT_TRY(dti_recorder_end(p->recorder));
    DT_TRY(dt_tape_status(own));
    return DT_OK;
}

static dt_status rehearse_or_record(dti_step_pass *p, dt_model *m, dt_state *s, const int32_t *ids)
{
    dt_status st;

    if (p->recorder == NULL) DT_TRY(dti_recorder_create(m->mesh, &p->recorder));
    dti_recorder_enter(p->recorder);
    st = run_inside(p, m, s, ids, p->stage == REHEARSED);
    dti_recorder_leave(p->recorder);
    if (st == DT_OK || st == DT_ERR_UNSUPPORTED) st = dti_recorder_agree(p->recorder, st);
    if (st != DT_OK) return dti_error_frame(st, __func__, __FILE__, __LINE__);
    p->stage = p->stage == REHEARSED ? RECORDED : REHEARSED;
    return DT_OK;
}

/* What cannot be recorded costs nothing but this attempt; everything else is an error of the pass.
 */
static bool refuse(dti_step_pass *p, dt_tape *t, dt_status st, dt_tensor **logits)
{
    dti_recorder_free(&p->recorder);
    p->stage = REFUSED;
    *logits = NULL;
    if (st == DT_ERR_UNSUPPORTED) return false;
    (void)dti_tape_latch(t, st);
    return true;
}

bool dti_step_run(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids, dt_tensor **logits)
{
    dti_step_pass *p = s->step;
    dt_status st;

    *logits = NULL;
    if (p->stage == RECORDED)
        st = dti_pass_write(m, s, ids, 1, &p->pass);
    else
        st = rehearse_or_record(p, m, s, ids);
    if (st == DT_OK)
        st = p->stage == RECORDED ? dti_recorder_play(p->recorder, t)
                                  : dti_recorder_count(p->recorder, t);
    if (st != DT_OK) return refuse(p, t, st, logits);
    p->n_played += p->stage == RECORDED;
    *logits = dti_recorder_give(t, p->logits);
    return true;
}

void dt_state_set_recording(dt_state *s, bool on)
{
    if (s != NULL) s->unrecorded = !on;
}

bool dt_state_is_recorded(const dt_state *s)
{
    return s != NULL && s->step != NULL && s->step->stage == RECORDED;
}

int64_t dti_step_n_played(const dt_state *s)
{
    return s->step != NULL ? s->step->n_played : 0;
}

void dti_step_forget(dt_state *s)
{
    if (s->step == NULL) return;
    dti_recorder_free(&s->step->recorder);
    dti_free(s->step);
    s->step = NULL;
}
