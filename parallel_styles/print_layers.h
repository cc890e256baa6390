/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DTI_PRINT_LAYERS_H
#define DTI_PRINT_LAYERS_H

#include <dtensor/parallel_styles.h>

#include "base/writer.h"

/* What dt_layers_print() writes, as part of more: its table, or the members of its object. */
void dti_layers_put(dti_writer *w, const dt_layers *layers, dt_dtype dtype, bool json);

#endif
