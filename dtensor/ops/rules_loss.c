/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of a cross entropy over a vocabulary that ranks share. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"

/* [..., v] -> [..., 2], and one more with label smoothing. */
dt_status dti_cross_entropy_sums_extents(dt_op_shapes *call)
{
    const dti_cross_entropy_attr *attr = call->attr;
    dt_op_shape *y = &call->out[0];

    y->extent[y->n_axes - 1] = attr->label_smoothing > 0.0 ? 3 : 2;
    return DT_OK;
}

/* The logits are not read, so a cut of their last axis is nobody's business if what was found in
 * them is whole there: then the results are too. */
static dt_status vocabulary_dim(dti_op_call *call, int m)
{
    char text[DTI_PLACEMENT_BYTES];

    call->out_place[m] = DT_REPLICATE;
    for (int i = 1; i < call->n; i++)
        if (call->in_place[i][m].kind != DT_PLACE_REPLICATE)
            return dti_op_clash(call, m, "the vocabulary is cut, but operand %d is %s", i,
                                dti_placement_words(&call->in_place[i][m], text));
    return DT_OK;
}

dt_status dti_cross_entropy_shard(dti_op_call *call)
{
    const dt_layout *x = call->in[0]->layout;

    for (int m = 0; m < x->n_dims; m++) {
        const dt_placement *p = &call->in_place[0][m];
        call->out_place[m] = DT_REPLICATE;
        if (x->dim_size[m] == 1) continue;
        if (p->kind == DT_PLACE_SHARD && p->axis == call->in[0]->n_axes - 1)
            DT_TRY(vocabulary_dim(call, m));
        else
            DT_TRY(dti_shard_letters_dim(call, m));
    }
    return DT_OK;
}
