/* SPDX-License-Identifier: Apache-2.0
 *
 * Collections of gradients. */
#include <dtensor/gradients.h>

#include "base/memory.h"
#include "dtensor/graph.h"
#include "dtensor/tape.h"
#include "mesh/runtime.h"

dt_status dt_gradients_create(dt_runtime *rt, dt_gradients **out)
{
    dti_device *device;
    dt_gradients *g;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(rt != NULL, DT_ERR_ARG, "rt is NULL");
    DT_TRY(dti_device_of(rt, &device));
    DT_TRY(dti_new(sizeof *g, &g));
    g->rt = rt;
    g->refs = 1;
    g->stamp = ++device->stamps;
    *out = g;
    return DT_OK;
}

static void drop_made(dt_gradients *g)
{
    while (g->made.n > 0) {
        dti_collected *w = &g->made.at[--g->made.n];
        dti_sum_drop(&w->sum);
        dt_tensor_release(&w->x);
    }
}

void dt_gradients_clear(dt_gradients *g)
{
    if (g == NULL) return;
    drop_made(g);
    for (size_t i = 0; i < g->leaves.n; i++) dti_sum_drop(&g->leaves.at[i].sum);
    g->clears++;
}

void dt_gradients_release(dt_gradients **gradients)
{
    dt_gradients *g = gradients != NULL ? *gradients : NULL;

    if (g == NULL) return;
    *gradients = NULL;
    dt_gradients_clear(g);
    while (g->leaves.n > 0) {
        dt_tensor *x = g->leaves.at[--g->leaves.n].x;
        x->graph_stamp = 0;
        x->leaf = false;
        dt_tensor_release(&x);
    }
    dti_gradients_drop(g);
}

void dti_gradients_drop(dt_gradients *g)
{
    if (g == NULL || --g->refs > 0) return;
    dti_free(g->leaves.at);
    dti_free(g->made.at);
    dti_free(g);
}

dt_status dti_watch(dti_collected_list *list, dt_tensor *x)
{
    DT_TRY(dti_grow((void **)&list->at, &list->capacity, list->n + 1, sizeof *list->at));
    list->at[list->n++] = (dti_collected){ .x = dt_tensor_retain(x) };
    return DT_OK;
}

dt_status dt_gradients_watch(dt_gradients *g, dt_tensor *x)
{
    DT_CHECK(g != NULL && x != NULL, DT_ERR_ARG, "gradients or x is NULL");
    DT_CHECK(dt_mesh_runtime(x->mesh) == g->rt, DT_ERR_ARG, "x belongs to another runtime");
    DT_CHECK(dt_dtype_is_float(x->local.dtype), DT_ERR_ARG, "x is %s: integers have no gradient",
             dt_dtype_name(x->local.dtype));
    DT_CHECK(x->layout->partial_dims == 0, DT_ERR_LAYOUT,
             "x is terms of a sum; a leaf is whole or cut: redistribute it first");
    DT_CHECK(!x->leaf || x->graph_stamp == g->stamp, DT_ERR_ARG,
             "x is watched by another collection of gradients: release that first");
    if (x->leaf) return DT_OK;
    DT_TRY(dti_watch(&g->leaves, x));
    x->leaf = true;
    x->graph_stamp = g->stamp;
    x->graph_value = (int32_t)g->leaves.n - 1;
    return DT_OK;
}

dt_tensor *dt_gradient(const dt_gradients *g, const dt_tensor *x)
{
    if (g == NULL || x == NULL) return NULL;
    if (x->graph_stamp == g->stamp) return g->leaves.at[x->graph_value].sum.part[0];
    for (size_t i = g->made.n; i > 0; i--)
        if (g->made.at[i - 1].x == x) return g->made.at[i - 1].sum.part[0];
    return NULL;
}

dt_tensor *dt_gradients_at(const dt_gradients *g, int64_t i)
{
    return g != NULL && i >= 0 && i < (int64_t)g->leaves.n ? g->leaves.at[i].x : NULL;
}

static dt_status settle(dti_collected_list *list, dt_tape *t)
{
    for (size_t i = 0; i < list->n; i++) {
        dti_collected *w = &list->at[i];
        const dt_layout *want;
        dt_tensor *y;

        DT_TRY(dti_gradient_layout(w->x->layout, "a watched tensor", &want));
        DT_TRY(dti_sum_take(t, &w->sum, want, &y));
        w->sum.part[0] = y;
    }
    return DT_OK;
}

dt_status dt_gradients_settle(dt_gradients *g, dt_tape *t)
{
    const char *before = dt_tape_because(t, "gradients");
    dt_status st = DT_OK;

    DT_CHECK_TO(done, st, g != NULL, DT_ERR_ARG, "gradients is NULL");
    DT_CHECK_TO(done, st, t == NULL || dt_tape_runtime(t) == g->rt, DT_ERR_ARG,
                "the tape is another runtime's");
    DT_TRY_TO(done, st, dti_runtime_alone(g->rt, settle(&g->leaves, t)));
    DT_TRY_TO(done, st, dti_runtime_alone(g->rt, settle(&g->made, t)));
done:
    (void)dt_tape_because(t, before);
    return st;
}
