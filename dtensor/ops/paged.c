/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/ops/paged.h"

#include <dtensor/gradients.h>

#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"

dt_tensor *dti_kv_write_paged(dt_tape *t, dt_tensor *k, const dti_paged_rows *rows, dt_tensor *pool)
{
    return dt_apply(t, &dti_op_kv_write_paged, NULL, 5,
                    (dt_tensor *[]){ k, rows->positions, rows->sequence, rows->table, pool });
}

dt_tensor *dti_attention_paged(dt_tape *t, dt_tensor *q, dt_tensor *k, dt_tensor *v,
                               const dti_paged_rows *rows, const dt_attention_options *o)
{
    static const dt_op *const forms[] = { &dti_op_attention_paged, &dti_op_attention_paged_bias,
                                          &dti_op_attention_paged_sinks,
                                          &dti_op_attention_paged_bias_sinks };
    dt_tensor *in[DT_OP_MAX_IN] = { q, k, v, rows->positions, rows->sequence, rows->table };
    dti_attention_attr attr;
    int n = 6;

    if (o == NULL) return dt_tape_fail(t, DT_ERR_ARG, "attention: options is NULL");
    if (o->segments != NULL || o->dropout != 0.0 || dt_tape_records(t))
        return dt_tape_fail(t, DT_ERR_UNSUPPORTED,
                            "attention over keys in blocks has neither segments nor dropout nor "
                            "gradients");
    attr = dti_attention_attr_of(o);
    if (o->bias != NULL) in[n++] = o->bias;
    if (o->sinks != NULL) in[n++] = o->sinks;
    return dt_apply(t, forms[attr.flags & (DTI_ATTENTION_BIAS | DTI_ATTENTION_SINKS)], &attr, n,
                    in);
}
