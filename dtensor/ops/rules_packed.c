/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of products with weights of few bits. x, codes and scales count the same inputs in steps of
 * their own: one, as many as a byte holds, as many as a scale is for. A cut of inputs is one cut of
 * all of them where its units are in these proportions; it leaves terms of a sum. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"

enum { X, CODES, SCALES, ZEROS };

dt_status dti_packed_extents(const dt_op_shapes *call, int codes, int64_t n_in, int bits,
                             int64_t group)
{
    const int last = call->in[codes].n_axes - 1;
    const int64_t bytes = call->in[codes].extent[last], scales = call->in[codes + 1].extent[last];

    DT_CHECK(bits == 4 || bits == 8, DT_ERR_ARG, "%s: codes of %d bits, not 4 or 8", call->op->name,
             bits);
    DT_CHECK(group >= 16 && (group & (group - 1)) == 0, DT_ERR_SHAPE,
             "%s: groups of %lld inputs; a power of two from 16 on is needed", call->op->name,
             (long long)group);
    DT_CHECK(n_in % group == 0 && bytes == n_in / 8 * bits && scales == n_in / group, DT_ERR_SHAPE,
             "%s: %lld inputs have %lld bytes of codes of %d bits and %lld scales, one for %lld",
             call->op->name, (long long)n_in, (long long)bytes, bits, (long long)scales,
             (long long)group);
    return DT_OK;
}

/* x [..., i], codes [o, i bits / 8], scales and zeros [o, i / group] */
dt_status dti_linear_packed_extents(dt_op_shapes *call)
{
    const dti_packed_attr *attr = call->attr;

    DT_TRY(dti_packed_extents(call, CODES, call->in[X].extent[call->in[X].n_axes - 1], attr->bits,
                              attr->group));
    return DT_OK;
}

/* Inputs that an element of operand i counts as. */
static int64_t step_of(const dti_op_call *call, int i)
{
    const dti_packed_attr *attr = call->attr;

    return i == X ? 1 : i == CODES ? 8 / attr->bits : attr->group;
}

static bool cuts_inputs(const dti_op_call *call, int i, int m)
{
    const dt_placement *p = &call->in_place[i][m];

    return p->kind == DT_PLACE_SHARD && p->axis == call->in[i]->n_axes - 1;
}

/* Mesh dim m cuts the inputs of operand `first`: the others are cut there too, or sliced. */
static dt_status cut_inputs(dti_op_call *call, int m, int first)
{
    const dt_placement cut = call->in_place[first][m];
    const int64_t unit = cut.unit * step_of(call, first), group = step_of(call, SCALES);
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES];

    (void)dti_placement_words(&cut, one);
    if (unit % group != 0 || cut.n_offsets > 0 || cut.n_blocks > 0 || cut.replicas > 1)
        return dti_op_clash(call, m,
                            "operand %d is %s, but inputs are cut in multiples of their groups of "
                            "%lld alone",
                            first, one, (long long)group);
    for (int i = 0; i < call->n; i++) {
        dt_placement *p = &call->in_place[i][m], want = cut;
        want.axis = call->in[i]->n_axes - 1;
        want.unit = unit / step_of(call, i);
        if (p->kind == DT_PLACE_REPLICATE)
            *p = want;
        else if (p->kind != DT_PLACE_SHARD || p->axis != want.axis ||
                 !dti_placement_same_cut(p, &want))
            return dti_op_clash(call, m, "operand %d is %s and operand %d is %s, cut elsewhere",
                                first, one, i, dti_placement_words(p, two));
    }
    call->out_place[m] = DT_PARTIAL(DT_SUM);
    call->reduced = true;
    return DT_OK;
}

static dt_status shard_dim(dti_op_call *call, int m)
{
    for (int i = 0; i < call->n; i++)
        if (cuts_inputs(call, i, m)) return cut_inputs(call, m, i);
    return dti_shard_letters_dim(call, m);
}

dt_status dti_linear_packed_shard(dti_op_call *call)
{
    return dti_shard_dims(call, shard_dim);
}
