/* SPDX-License-Identifier: Apache-2.0
 *
 * The structs behind layers, for this room only. */
#ifndef DTI_LAYERS_INTERNAL_H
#define DTI_LAYERS_INTERNAL_H

#include <dtensor/parallel_styles.h>

#include "base/error.h"

struct dt_layer {
    char *name;
    dt_layer_kind kind;
    dt_axis axis[2];
    dt_head_counts heads;
    float eps;
    int n_params;
    const dt_style *style;
    struct dt_layers *list;
    struct dt_layer *tied_to;
    const dt_layout *layout[DT_LAYER_MAX_PARAMS];
    dt_tensor *param[DT_LAYER_MAX_PARAMS];
    bool inputs_cut; /* linear: the contraction is cut, so bias and rounding come after the move */
};

struct dt_layers {
    dt_mesh *mesh;
    int dim; /* mesh dim that styles speak of, -1 if the mesh has none of that name */
    int n;
    dt_layer *layers;
    int *index;          /* hash of a name -> 1 + its layer, 0: empty */
    uint32_t index_mask; /* places - 1 */
};

/* Does `pattern` match `name`? -1 if not, otherwise the number of stars. */
int dti_plan_match(const char *pattern, const char *name);

/* The style name that the plan has for `name`, or NULL; marks the rule in used[]. */
const char *dti_plan_style(const dt_plan *plan, const char *name, bool *used);

/* The built-in styles and their older names (builtin.c). */
typedef struct dti_style_alias {
    const char *alias;
    const char *name;
} dti_style_alias;

extern const dt_style dti_builtin_styles[];
extern const int dti_n_builtin_styles;
extern const dti_style_alias dti_style_aliases[];
extern const int dti_n_style_aliases;

/* What a style says, through its functions or its data fields (style.c). */
dt_status dti_style_partition(const dt_style *style, const dt_param_info *param, int n_parts,
                              dt_placement *out) DT_MUST_USE;
dt_tensor *dti_style_input(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim,
                           dt_tensor *x);
dt_tensor *dti_style_output(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim,
                            dt_tensor *y);

#endif
