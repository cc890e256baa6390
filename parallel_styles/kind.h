/* SPDX-License-Identifier: Apache-2.0
 *
 * What a kind of layer says, and what a spec says of a layer of that kind, before there is one.
 * What a kind leaves out is as in the kind that it is like. */
#ifndef DTI_KIND_H
#define DTI_KIND_H

#include <dtensor/layers.h>
#include <dtensor/parallel_styles.h>

#include "base/error.h"

extern const dt_layer_kind *const dti_kinds[]; /* the library's (kinds.c) */
extern const int dti_n_kinds;

enum { DTI_MAX_LIKE = 7 }; /* kinds in a chain of those that are like the next one */

/* The letters in the order of a spec's axes; how many there are. */
int dti_kind_letters(const dt_layer_kind *kind, char letters[DT_LAYER_MAX_AXES + 1]);

/* The letter that a cut divides, 0: none. */
char dti_kind_letter(const dt_layer_kind *kind, dt_cut cut);
const char *dti_kind_values(const dt_layer_kind *kind);
bool dti_kind_has_ids(const dt_layer_kind *kind);
dt_merge_fn dti_kind_merged(const dt_layer_kind *kind);
const char *dti_kind_text(const dt_layer_kind *kind); /* "a linear layer" */

/* One of these kinds ("linear experts"), or like one of them. */
bool dti_kind_is(const dt_layer_kind *kind, const char *names);
bool dti_kind_is_own(const dt_layer_kind *kind); /* a user's */

/* Does it hold what plans are about: a parameter of two axes or more? */
bool dti_kind_is_covered(const dt_layer_kind *kind);

int dti_kind_n_states(const dt_layer_kind *kind);

/* Axes of a state of kind->states: letters, and what is added to each; how many there are. */
int dti_kind_state(const dt_layer_kind *kind, int state, char letters[DT_PARAM_MAX_AXES],
                   int64_t plus[DT_PARAM_MAX_AXES]);

/* Can there be such a kind (kind_check.c)? */
dt_status dti_kind_check(const dt_layer_kind *kind) DT_MUST_USE;

/* Can there be such a layer (spec.c, blocks in packed.c)? */
dt_status dti_spec_check(const dt_layer_spec *spec) DT_MUST_USE;
dt_status dti_check_blocks(const dt_layer_spec *spec) DT_MUST_USE;

/* Axes that styles cut as columns and rows, of x and of the result alike: what linear layers are,
 * and experts. Blocks and reversed weights are theirs. */
bool dti_kind_is_matrix(const dt_layer_kind *kind);

uint32_t dti_spec_params(const dt_layer_spec *spec); /* bit p: it has parameter p */

/* Packed weights (spec.c): inputs that an element of a parameter's last axis is for, the weight
 * that these codes are of as a layer of plain ones would have it, the number of a layer's parameter
 * that is that part (-1: it has none), and whether there can be one. */
int64_t dti_packed_inputs(dt_packed packed, const dt_packing *packing);
dt_param_info dti_param_plain(const dt_param_info *codes);
int dti_packed_param(const dt_layer *layer, dt_packed part);
dt_status dti_check_packing(const dt_layer_spec *spec) DT_MUST_USE;

/* The dtype of a parameter in a model of dtype `model`: codes and zero points are u8. */
dt_dtype dti_param_dtype(const dt_param_info *info, dt_dtype model);
int64_t dti_spec_extent(const dt_layer_spec *spec, char letter);
double dti_spec_flops(const dt_layer_spec *spec);

#endif
