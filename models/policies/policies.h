/* SPDX-License-Identifier: Apache-2.0
 *
 * Policies, from the caller's structs to what the rest of the room works with: a changed
 * configuration (policy_arguments.c), rules of a plan (policy_rules.c), claims about ranks and
 * layers with other computations (policy_apply.c). */
#ifndef DTI_POLICIES_H
#define DTI_POLICIES_H

#include "models/describe/describe.h"

/* One of the lists of a policy: "attn_qkv", and the style that its layers get; with tokens cut
 * between blocks sums are scattered over them. */
typedef struct dti_policy_list {
    const char *name;
    const dt_policy_layers *list;
    const char *style;
    bool inputs; /* are cut, not outputs */
} dti_policy_list;
enum { DTI_N_POLICY_LISTS = 4 };
dti_policy_list dti_policy_list_at(const dt_policy *policy, int i, bool cut_tokens);

/* The i-th policy of the options, checked; what an older caller's struct lacks is zero. */
dt_status dti_policy_at(const dt_load_options *o, int i, dt_policy *out) DT_MUST_USE;

/* `policy "name"` for messages. Returns `text`. */
enum { DTI_POLICY_TEXT_BYTES = 96 };
const char *dti_policy_text(const dt_policy *policy, char text[DTI_POLICY_TEXT_BYTES]);

/* The names of the blocks that a policy is for, "model.layers.*"; NULL: it is for others. */
const char *dti_policy_blocks(const dt_policy *policy, const dti_described *d);

/* What follows the block in a layer's name: of "model.layers.3.mlp.up_proj" that is "mlp.up_proj".
 * NULL for names that do not begin with one of `blocks`. */
const char *dti_inside_block(const char *blocks, const char *name);

/* Whether a policy of the options changes the configuration. */
bool dti_policies_change(const dt_load_options *o);

/* Has all policies change `config`, of which `d` is the description before any change, on a mesh
 * dim of n_parts ranks. *notes says what was changed and what is claimed of ranks; what it points
 * to lies in its arena, to be freed also after an error. */
dt_status dti_policies_arguments(const dt_load_options *o, int n_parts, dti_json_doc *config,
                                 const dti_described *d, dti_policy_notes *notes) DT_MUST_USE;

/* Refuses a changed key that nobody looked up while the configuration was read. */
dt_status dti_policies_check_read(const dti_policy_notes *notes,
                                  const dti_json_doc *config) DT_MUST_USE;

/* Adds the rules of all policies for the layers of `d` to its notes. */
dt_status dti_policies_plan(dti_described *d, const dt_load_options *o) DT_MUST_USE;

/* Once layers are laid out: compares what policies claim of ranks with the cut, and gives layers
 * the computations that replace their own. */
dt_status dti_policies_apply(const dti_described *d, const dt_load_options *o, const dt_mesh *mesh,
                             dt_layers *layers) DT_MUST_USE;

/* Whether a rank's attribute of a module may be called so ("num_heads"). */
bool dti_claim_known(const char *attribute);
enum { DTI_CLAIM_LIST_BYTES = 320 };
void dti_claim_list(char text[DTI_CLAIM_LIST_BYTES]);

#endif
