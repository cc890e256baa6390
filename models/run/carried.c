/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear attention that remembers: of a batch of sequences, or of rows of several whose states lie
 * in slots (ragged.h). */
#include <dtensor/architectures.h>

#include "dtensor/ops/paged.h"
#include "models/run/paged.h"
#include "parallel_styles/changes.h"

/* What a pass goes on from: the states of x's sequences, or those of all slots. */
static dt_tensor *begin(dt_tape *t, const dt_model_pass *pass, dt_carried of, dt_tensor *x,
                        dti_slot_rows *rows)
{
    if (dt_tape_status(t) != DT_OK) return NULL;
    if (pass == NULL) return dt_tape_fail(t, DT_ERR_ARG, "linear attention: pass is NULL");
    if (pass->paged == NULL || pass->paged->slots == NULL) {
        *rows = (dti_slot_rows){ NULL, NULL };
        return dt_layer_state(t, of.layer, of.state, x);
    }
    *rows = (dti_slot_rows){ pass->positions, pass->paged->slots };
    return dti_layer_slots(t, of.layer, of.state);
}

dt_tensor *dt_carried_conv(dt_tape *t, const dt_model_pass *pass, dt_carried of, dt_tensor *x,
                           dt_tensor *w)
{
    dti_slot_rows rows;
    dt_tensor *window = begin(t, pass, of, x, &rows), *next;

    if (window == NULL) return NULL;
    if (rows.slots != NULL) return dti_causal_conv_slots(t, x, w, &rows, window);
    x = dt_causal_conv(t, x, w, window, &next);
    dt_layer_set_state(t, of.layer, of.state, next);
    return x;
}

dt_tensor *dt_carried_delta(dt_tape *t, const dt_model_pass *pass, dt_carried of,
                            const dt_delta *rule)
{
    dt_delta from = rule != NULL ? *rule : (dt_delta){ 0 };
    dti_slot_rows rows;
    dt_tensor *y, *after;

    from.state = begin(t, pass, of, from.decay, &rows); /* f32, as the decay is */
    if (from.state == NULL) return NULL;
    if (rows.slots != NULL) return dti_gated_delta_slots(t, &from, &rows);
    y = dt_gated_delta(t, &from, &after);
    dt_layer_set_state(t, of.layer, of.state, after);
    return y;
}
