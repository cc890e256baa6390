/* SPDX-License-Identifier: Apache-2.0
 *
 * What ways to say that a checkpoint's weights are packed have in common. */
#ifndef DTI_PACKED_CONFIG_H
#define DTI_PACKED_CONFIG_H

#include "models/describe/describe.h"

/* Whether a layer may have packed weights: linear ones, and experts. */
bool dti_packed_may(const dt_layer_spec *spec);

/* The i-th name of the module that a layer is, of experts, each of which is one, the first: ours,
 * and that of files, where it is another. False: there are not so many. */
bool dti_packed_module(const dti_described *d, const dt_layer_spec *spec, int i,
                       char name[DT_PARAM_NAME_BYTES]);

/* Makes layer i one of packed weights; in `packing` file_group 0 is all inputs, and file_rows more
 * than there are is all outputs. `said` is what config.json says, for messages. */
dt_status dti_packed_spec(dti_described *d, int i, const dti_json *said, dt_packing packing,
                          bool zeros) DT_MUST_USE;

/* The methods that say one thing for all layers (packed_methods.c). */
dt_status dti_packed_method_read(const dti_json *config, const char *method,
                                 dti_described *d) DT_MUST_USE;

#endif
