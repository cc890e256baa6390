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

/* Takes a layer's own parameters away, so that it can get others, also of another dtype. */
void dti_layer_clear(dt_layer *layer);

#endif
