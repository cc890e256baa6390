/* SPDX-License-Identifier: Apache-2.0
 *
 * What of policies waits for the layers: claims about ranks, compared with the cut, and
 * computations that replace layers' own. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "models/policies/policies.h"
#include "placements/layout.h"

/* --- claims ----------------------------------------------------------------------------------- */

/* How an attribute follows from the local extents of a module's layers. */
typedef enum measure { HEADS, KV_HEADS, HEAD_WIDTH, HEAD_DIM, GROUPS, WIDTH } measure;

static const struct {
    const char *name;
    measure measure;
} attributes[] = {
    { "num_heads", HEADS },
    { "num_attention_heads", HEADS },
    { "n_head", HEADS },
    { "num_key_value_heads", KV_HEADS },
    { "num_kv_heads", KV_HEADS },
    { "embed_dim", HEAD_WIDTH }, /* of the attention: heads side by side */
    { "all_head_size", HEAD_WIDTH },
    { "head_dim", HEAD_DIM },
    { "attention_head_size", HEAD_DIM },
    { "num_key_value_groups", GROUPS },
    { "intermediate_size", WIDTH },
    { "ffn_dim", WIDTH },
};

bool dti_claim_known(const char *attribute)
{
    for (size_t i = 0; i < DT_COUNT(attributes); i++)
        if (strcmp(attributes[i].name, attribute) == 0) return true;
    return false;
}

void dti_claim_list(char text[DTI_CLAIM_LIST_BYTES])
{
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < DT_COUNT(attributes) && used < DTI_CLAIM_LIST_BYTES; i++)
        used += (size_t)snprintf(text + used, DTI_CLAIM_LIST_BYTES - used, used ? ", %s" : "%s",
                                 attributes[i].name);
}

static measure measure_of(const char *attribute)
{
    for (size_t i = 0; i < DT_COUNT(attributes); i++)
        if (strcmp(attributes[i].name, attribute) == 0) return attributes[i].measure;
    return HEAD_DIM;
}

/* Whether the inputs of a layer's weight are cut, by its style or by what an own one came to. */
static bool cuts_inputs(const dt_layer *layer, int axis)
{
    const dt_layout *layout = dt_layer_param_layout(layer, DT_PARAM_WEIGHT);
    const dt_cut cut = dt_layer_style(layer)->cut;
    int dims[DT_MAX_DIMS];

    return cut == DT_CUT_ROWS || cut == DT_CUT_PACKED_ROWS ||
           dti_layout_cuts(layout, axis, dims) > 0;
}

/* The axis of a layer's weight that tells it, -1: none does. Outputs of q_proj count heads, those
 * of k_proj kv heads; where they are fused the inputs of o_proj count heads. The width of an MLP is
 * that of the inputs of its last layer that has them cut: a router's are as wide as the model. */
static int teller(const dt_layer *layer, measure what)
{
    const dt_param_info w = dt_layer_param_info(layer, DT_PARAM_WEIGHT);
    const dt_axis_unit unit = what == KV_HEADS ? DT_UNIT_KV_HEADS : DT_UNIT_HEADS;
    const char rows = dt_layer_kind_of(layer)->rows; /* inputs of a linear layer, and of experts */
    const char *at = rows != 0 && w.n_axes > 0 ? strchr(w.letters, rows) : NULL;
    const bool experts = dt_layer_kind_of(layer)->run_by != NULL;
    const int inputs = at != NULL ? (int)(at - w.letters) : -1;

    if (inputs < 0 || dt_layer_kind_of(layer)->ids) return -1;
    if (what == WIDTH)
        return w.axis[inputs].unit == DT_UNIT_ROW && w.blocks[inputs].n == 0 &&
                       cuts_inputs(layer, inputs)
                   ? inputs
                   : -1;
    if (experts || w.heads.head_dim == 0 || w.heads.n_kv_heads == 0) return -1;
    for (int axis = 0; axis < 2; axis++)
        if (w.axis[axis].unit == unit && w.blocks[axis].n == 0) return axis;
    return -1;
}

/* What the rank at coordinate `part` of mesh dim `dim` holds. */
static dt_status held(const dt_layer *layer, int axis, int dim, int part, measure what,
                      int64_t *out)
{
    const dt_param_info w = dt_layer_param_info(layer, DT_PARAM_WEIGHT);
    int64_t shape[DT_PARAM_MAX_AXES], local[DT_MAX_AXES];
    int coord[DT_MAX_DIMS] = { 0 };

    for (int a = 0; a < w.n_axes; a++) shape[a] = w.axis[a].extent;
    if (dim >= 0) coord[dim] = part;
    DT_TRY(
        dt_layout_local_shape(dt_layer_param_layout(layer, DT_PARAM_WEIGHT), shape, coord, local));
    *out = local[axis];
    if (what == HEADS || what == KV_HEADS) *out /= w.heads.head_dim;
    if (what == HEAD_DIM) *out = w.heads.head_dim;
    if (what == GROUPS) *out = w.heads.n_heads / w.heads.n_kv_heads;
    return DT_OK;
}

static dt_status compare(const dti_claim *c, const dt_layer *layer, int axis, const dt_mesh *mesh,
                         int dim)
{
    enum { SHOWN = 8, LIST = 128 };
    const int n_parts = dim >= 0 ? dt_mesh_dim_size(mesh, dim) : 1;
    const measure what = measure_of(c->attribute);
    char list[LIST] = "";
    size_t used = 0;
    bool same = true;

    for (int p = 0; p < n_parts; p++) {
        int64_t value;
        DT_TRY(held(layer, axis, dim, p, what, &value));
        same = same && value == c->value;
        if (p < SHOWN && used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, p > 0 ? ", %lld" : "%lld",
                                     (long long)value);
    }
    if (n_parts > SHOWN && used < sizeof list)
        (void)snprintf(list + used, sizeof list - used, ", ...");
    DT_CHECK(same, DT_ERR_ARG,
             "%s: replace_arguments says that %s.%s is %lld on a rank, but over mesh dim \"%s\" of "
             "%d the ranks hold %s, by the cut of %s; leave the argument out: ranks know it",
             c->policy, c->module, c->attribute, (long long)c->value,
             dim >= 0 ? dt_mesh_dim_name(mesh, dim) : "none", n_parts, list, dt_layer_name(layer));
    return DT_OK;
}

/* Whether layer `inside` of a block tells something of a module: it is anywhere in it, or, as a
 * width is that of one MLP, not of the experts in it, it is the module's own. */
static bool is_of(const dti_claim *c, const char *inside, measure what)
{
    const size_t n = strlen(c->module);

    if (inside == NULL || strncmp(inside, c->module, n) != 0 || inside[n] != '.') return false;
    return what != WIDTH || strchr(inside + n + 1, '.') == NULL;
}

/* In every block one layer of the module tells: the first that can, of a width the last. */
static dt_status check_claim(const dti_claim *c, dt_layers *layers, const dt_mesh *mesh, int dim)
{
    const measure what = measure_of(c->attribute);
    const dt_layer *told = NULL;
    size_t block = 0;

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        const char *name = dt_layer_name(layer), *inside = dti_inside_block(c->blocks, name);
        bool same;
        if (!is_of(c, inside, what) || teller(layer, what) < 0) continue;
        same = told != NULL && strncmp(dt_layer_name(told), name, block) == 0;
        if (same && what != WIDTH) continue;
        if (told != NULL && !same) DT_TRY(compare(c, told, teller(told, what), mesh, dim));
        told = layer;
        block = (size_t)(inside - name);
    }
    DT_CHECK(told != NULL, DT_ERR_ARG, "%s: no layer of %s.%s tells what %s is%s", c->policy,
             c->blocks, c->module, c->attribute,
             what == WIDTH ? ": none of its own has its inputs cut" : "");
    DT_TRY(compare(c, told, teller(told, what), mesh, dim));
    return DT_OK;
}

/* --- computations ----------------------------------------------------------------------------- */

/* Is the layer of a kind of that name, or of one like it? */
static bool is_called(const dt_layer *layer, const char *name)
{
    for (const dt_layer_kind *k = dt_layer_kind_of(layer); k != NULL; k = k->like)
        if (strcmp(k->name, name) == 0) return true;
    return false;
}

static dt_status replace(const dt_policy *p, const char *blocks, const dt_policy_module *m,
                         dt_layers *layers)
{
    char text[DTI_POLICY_TEXT_BYTES], shown[DTI_SHOWN_BYTES];
    bool found = false;

    DT_CHECK(m->name != NULL && m->forward != NULL, DT_ERR_ARG,
             "%s: an entry of replace_modules has no name or no forward", dti_policy_text(p, text));
    for (int i = 0; i < dt_layers_count(layers); i++) {
        dt_layer *layer = dt_layers_at(layers, i);
        const char *inside = dti_inside_block(blocks, dt_layer_name(layer));
        if (inside == NULL) continue;
        if (!is_called(layer, m->name) && strcmp(inside, m->name) != 0) continue;
        DT_TRY(dt_layer_set_forward(layer, m->forward, m->arg));
        found = true;
    }
    DT_CHECK(found, DT_ERR_ARG,
             "%s: replace_modules matches nothing in %s: \"%s\" is neither a kind of layer there "
             "(linear, embedding, rms_norm, layer_norm) nor the path of one (\"mlp.down_proj\")",
             dti_policy_text(p, text), blocks, dti_printable(m->name, shown, sizeof shown));
    return DT_OK;
}

dt_status dti_policies_apply(const dti_described *d, const dt_load_options *o, const dt_mesh *mesh,
                             dt_layers *layers)
{
    const int dim = dt_mesh_find_dim(mesh, o->dim);

    for (size_t i = 0; i < d->notes.n_claims; i++)
        DT_TRY(check_claim(&d->notes.claims[i], layers, mesh, dim));
    for (int i = 0; i < o->n_policies; i++) {
        const char *blocks;
        dt_policy p;
        DT_TRY(dti_policy_at(o, i, &p));
        blocks = dti_policy_blocks(&p, d);
        for (int k = 0; blocks != NULL && k < p.n_replace_modules; k++)
            DT_TRY(replace(&p, blocks, &p.replace_modules[k], layers));
    }
    return DT_OK;
}
