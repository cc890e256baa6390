/* SPDX-License-Identifier: Apache-2.0 */
#include "placements/duals.h"

static bool is_sum(const dt_layout *l, int m)
{
    return dti_has(l->partial_dims & ~l->shard_dims, m) && l->place[m].reduce == DT_SUM;
}

dt_status dti_dual_layout(const dt_layout *value, const dt_layout *comes, const dt_layout **out)
{
    dt_layout key = *value;
    char text[256];

    *out = NULL;
    DT_ASSERT(comes == NULL || (comes->n_dims == value->n_dims && comes->n_axes == value->n_axes));
    for (int m = 0; m < key.n_dims; m++) {
        dt_placement *p = &key.place[m];
        if (dti_has(value->shard_dims, m)) {
            p->terms = !p->terms; /* of one holder they say nothing */
        } else if (dti_has(value->partial_dims, m)) {
            (void)dt_layout_print(value, text, sizeof text);
            DT_CHECK(p->reduce == DT_SUM, DT_ERR_UNSUPPORTED,
                     "%s: a value that is Partial(%s) on mesh dim %d has no gradient; reduce it "
                     "before, or make it a sum",
                     text, dti_reduce_name(p->reduce), m);
            *p = DT_REPLICATE;
        } else if (comes != NULL && is_sum(comes, m)) {
            *p = DT_PARTIAL(DT_SUM);
        }
    }
    DT_TRY(dti_layout_normalise(&key, value->order));
    DT_TRY(dti_layout_intern_key(value->table, &key, out));
    return DT_OK;
}
