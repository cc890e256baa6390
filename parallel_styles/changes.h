/* SPDX-License-Identifier: Apache-2.0
 *
 * What models have to know of the layers that their passes run through. */
#ifndef DTI_CHANGES_H
#define DTI_CHANGES_H

#include <dtensor/parallel_styles.h>

/* Goes up whenever a parameter or a layer's forward is set. */
uint64_t dti_layers_changes(const dt_layers *layers);

/* Whether layers compute by the library's operators and styles alone: functions of users may do on
 * the host what a recording does not repeat. */
bool dti_layers_repeat(const dt_layers *layers);

/* Bytes of this rank's pieces of what is carried; 0 for NULL. */
int64_t dti_carry_bytes(const dt_carry *carry);

/* A state that a kind cannot keep in slots; NULL: there is none. */
const char *dti_layers_without_slots(const dt_layers *layers, const char **layer);

/* From now on states are those of n slots, a multiple of the sequences that there were, laid out as
 * the last pass left these, all zeros. No pass finds them by dt_layer_state(). Errors:
 * DT_ERR_MEMORY, after which there are none. */
dt_status dti_carry_set_slots(dt_carry *carry, int64_t n) DT_MUST_USE;

/* Then a state of all slots, which a pass writes over. NULL after an error, which is latched:
 * DT_ERR_ARG there are no slots. */
dt_tensor *dti_layer_slots(dt_tape *t, const dt_layer *layer, int state);

/* Slot `to` becomes a copy of `from`, which lies on the same ranks; others do nothing. */
dt_status dti_carry_copy_slot(dt_carry *carry, int64_t from, int64_t to) DT_MUST_USE;

/* Does a style of that name, of the library, no more than to say how parameters are stored? Then
 * values may be cut on its mesh dim as they like. */
bool dti_style_stores(const char *style);

/* Whether some layers gather their parameters while they are used. */
bool dti_layers_gather(const dt_layers *layers);

/* Where values of a layer's parameters lie that are made from now on: what dt_layers_offload() said
 * of it. NULL: in the device's memory. */
struct dti_memory *dti_layer_memory(const dt_layer *layer);

/* How many units of layers are gathered before their turn: 1 unless said otherwise. */
void dti_layers_set_ahead(dt_layers *layers, int units);

/* Points whose experts lie whole on ranks, and the mesh dims where they sum terms of these or send
 * them tokens, [dt_layers_count()] each; returns how many. *sends: one of them sends some. */
int dti_points_of_experts(dt_layers *layers, dt_layer **points, uint32_t *dims, bool *sends);

/* From now on a point sends tokens on those dims. */
dt_status dti_point_send(dt_layer *point, uint32_t dims) DT_MUST_USE;

/* Takes a layer's own parameters away, so that it can get others, also of another dtype. */
void dti_layer_clear(dt_layer *layer);

#endif
