/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/device/cuda/head_group.h"

#include <string.h>

/* Blocks of a kernel count in 31 bits, and a block has at least four heads. */
static const int64_t MAX_HEADS = (int64_t)1 << 30;

static bool are_heads(const dti_head_group *g, const dt_local *x)
{
    return x->n_axes == 4 &&
           x->shape[3] * (int64_t)dti_cuda_dtype_bytes((int)x->dtype) <= DTI_MAX_HEAD_BYTES &&
           dti_cuda_count(x) / x->shape[3] <= MAX_HEADS &&
           (g->n == 0 || g->chains[0].x.dtype == x->dtype);
}

/* What a chain has come to. */
static const void *end_of(const dti_head_chain *c)
{
    return c->rotated != NULL ? c->rotated : c->normed;
}

/* The chain that x goes on with, or a new one that begins with it; its number, -1: neither. */
static int chain_of(dti_head_group *g, const dt_local *x, bool rotates)
{
    for (int k = 0; k < g->n; k++) {
        const dti_head_chain *c = &g->chains[k];
        if (end_of(c) == x->data && c->cache == NULL && (c->rotated == NULL || !rotates) &&
            memcmp(c->x.shape, x->shape, 4 * sizeof *x->shape) == 0)
            return k;
    }
    if (g->n == DTI_MAX_HEAD_CHAINS || !dti_spans_read(&g->spans, x, g->n)) return -1;
    g->chains[g->n] = (dti_head_chain){ .x = *x };
    return g->n;
}

/* Takes the chain as it is now, or gives up and leaves the group as it was. */
static bool settle(dti_head_group *g, const dti_head_group *before, int k, bool fits)
{
    if (!fits)
        *g = *before;
    else if (k == g->n)
        g->n++;
    return fits;
}

bool dti_head_group_norm(dti_head_group *g, const dt_kargs *a, dti_norm_form form)
{
    const dti_head_group before = *g;
    const dt_local *x = &a->in[0], *weight = &a->in[1];
    int k;

    if (!are_heads(g, x) || weight->dtype != x->dtype) return false;
    k = g->n; /* a norm begins a chain: what is read late must not be a result of another */
    if (k == DTI_MAX_HEAD_CHAINS) return false;
    g->chains[k] = (dti_head_chain){ .x = *x };
    g->chains[k].weight = weight->data;
    g->chains[k].normed = a->out[0].data;
    g->chains[k].form = form;
    g->chains[k].eps = ((const dti_norm_attr *)a->attr)->eps;
    return settle(g, &before, k,
                  dti_spans_read(&g->spans, x, k) && dti_spans_read(&g->spans, weight, -1) &&
                      dti_spans_write(&g->spans, &a->out[0], k));
}

bool dti_head_group_rope(dti_head_group *g, const dt_kargs *a)
{
    const dti_head_group before = *g;
    const dt_local *x = &a->in[0], *table = &a->in[1];
    int k;

    if (!are_heads(g, x) || table->dtype != x->dtype) return false;
    k = chain_of(g, x, true);
    if (k < 0) return false;
    g->chains[k].table = table->data;
    g->chains[k].half = table->shape[2] / 2;
    g->chains[k].rotated = a->out[0].data;
    return settle(g, &before, k,
                  dti_spans_read(&g->spans, table, -1) &&
                      dti_spans_write(&g->spans, &a->out[0], k));
}

bool dti_head_group_write(dti_head_group *g, const dt_kargs *a)
{
    const dti_head_group before = *g;
    const dt_local *x = &a->in[0], *positions = &a->in[1], *cache = &a->out[0];
    int k;

    if (!are_heads(g, x) || a->in[2].data != cache->data) return false;
    k = chain_of(g, x, false);
    if (k < 0) return false;
    g->chains[k].positions = positions->data;
    g->chains[k].cache = cache->data;
    g->chains[k].n_rows = cache->shape[1];
    return settle(g, &before, k,
                  dti_spans_read(&g->spans, positions, -1) &&
                      dti_spans_write(&g->spans, cache, -1));
}
