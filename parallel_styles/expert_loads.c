/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/expert_loads.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "dtensor/create.h"
#include "dtensor/host.h"
#include "mesh/comm/comm.h"
#include "mesh/runtime.h"
#include "parallel_styles/layers_internal.h"

/* Numbers of all points stand one after the other. */
struct dti_expert_counts {
    int n;
    const dt_layer **point; /* [n] */
    int64_t *first;         /* [n + 1] number of each one's first expert */
    int64_t *now, *sum;     /* [first[n]] */
};

void dti_expert_counts_free(struct dti_expert_counts **counts)
{
    struct dti_expert_counts *c = *counts;

    *counts = NULL;
    if (c == NULL) return;
    dti_free((void *)c->point);
    dti_free(c->first);
    dti_free(c->now);
    dti_free(c->sum);
    dti_free(c);
}

static int number_of(const struct dti_expert_counts *c, const dt_layer *point)
{
    for (int i = 0; i < c->n; i++)
        if (c->point[i] == point) return i;
    return -1;
}

/* Points in the order of layers, each once; both of its layers of experts name it. */
static void find_points(const dt_layers *layers, struct dti_expert_counts *c)
{
    for (int i = 0; i < layers->n; i++) {
        const dt_layer *layer = &layers->layers[i], *point;
        if (!dti_kind_is(layer->spec.kind, "experts")) continue;
        point = dti_point_around(layer);
        if (number_of(c, point) >= 0) continue;
        c->point[c->n] = point;
        c->first[c->n + 1] = c->first[c->n] + dt_layer_extent(layer, 'e');
        c->n++;
    }
}

static dt_status make(const dt_layers *layers, struct dti_expert_counts *c)
{
    const size_t most = (size_t)layers->n;
    size_t all;

    DT_TRY(dti_alloc_array(most, sizeof *c->point, (void **)&c->point));
    DT_TRY(dti_alloc_array(most + 1, sizeof *c->first, (void **)&c->first));
    c->first[0] = 0;
    find_points(layers, c);
    DT_CHECK(c->n > 0, DT_ERR_ARG, "no layer has experts whose tokens could be counted");
    all = (size_t)c->first[c->n];
    DT_TRY(dti_alloc_array(all, sizeof *c->now, (void **)&c->now));
    DT_TRY(dti_alloc_array(all, sizeof *c->sum, (void **)&c->sum));
    for (size_t i = 0; i < all; i++) c->now[i] = c->sum[i] = 0;
    return DT_OK;
}

dt_status dt_layers_count_experts(dt_layers *layers, bool on)
{
    struct dti_expert_counts *c;
    dt_status st;

    DT_CHECK(layers != NULL, DT_ERR_ARG, "layers is NULL");
    dti_expert_counts_free(&layers->counts);
    layers->changes++; /* recorded passes would not count */
    if (!on) return DT_OK;
    DT_TRY(dti_new(sizeof *c, &c));
    st = make(layers, c);
    if (st != DT_OK) dti_expert_counts_free(&c);
    layers->counts = c;
    return st;
}

/* Of a token that several ranks have the first one counts. */
static bool counts_here(const dt_tensor *ids)
{
    dt_mesh *mesh = dt_tensor_mesh(ids);

    for (int m = 0; m < dt_mesh_n_dims(mesh); m++)
        if (dt_layout_placement(dt_tensor_layout(ids), m).kind != DT_PLACE_SHARD &&
            dt_mesh_coord(mesh, m) != 0)
            return false;
    return true;
}

dt_status dti_count_choices(dt_tape *t, const dt_layer *point, dt_tensor *ids)
{
    struct dti_expert_counts *c = point->list->counts;
    const int i = c != NULL ? number_of(c, point) : -1;
    int64_t n = 1;
    dti_host host;

    if (i < 0 || ids == NULL || dti_tape_goes_back(t) || !counts_here(ids)) return DT_OK;
    DT_TRY(dti_host_open(ids, DTI_HOST_READS, &host));
    for (int a = 0; a < host.local.n_axes; a++) n *= host.local.shape[a];
    for (int64_t k = 0; k < n && host.local.data != NULL; k++) {
        const int64_t e = ((const int32_t *)host.local.data)[k];
        if (e >= 0 && e < c->first[i + 1] - c->first[i]) /* others dt_experts() refuses */
            c->now[c->first[i] + e]++;
    }
    DT_TRY(dti_host_close(&host, DT_OK));
    return DT_OK;
}

dt_status dt_layers_sum_experts(dt_layers *layers)
{
    struct dti_expert_counts *c;
    dti_comm *comm;

    DT_CHECK(layers != NULL, DT_ERR_ARG, "layers is NULL");
    c = layers->counts;
    DT_CHECK(c != NULL, DT_ERR_ARG,
             "nothing is counted: dt_layers_count_experts() comes before the passes");
    for (int64_t i = 0; i < c->first[c->n]; i++) {
        c->sum[i] = c->now[i];
        c->now[i] = 0;
    }
    if (!dt_mesh_is_member(layers->mesh)) return DT_OK;
    DT_TRY(dti_mesh_comm(layers->mesh, (1u << dt_mesh_n_dims(layers->mesh)) - 1, &comm));
    DT_TRY(dti_all_reduce(comm, c->sum, c->sum, c->first[c->n], DT_I64, DT_SUM));
    return DT_OK;
}

bool dt_layers_expert_load(const dt_layers *layers, int i, dt_expert_load *out)
{
    const struct dti_expert_counts *c = layers != NULL ? layers->counts : NULL;
    int64_t all = 0;

    if (c == NULL || i < 0 || i >= c->n || out == NULL) return false;
    *out = (dt_expert_load){ .layer = c->point[i]->name,
                             .n_experts = c->first[i + 1] - c->first[i],
                             .tokens = c->sum + c->first[i] };
    for (int64_t e = 0; e < out->n_experts; e++) {
        out->most = dti_max(out->most, out->tokens[e]);
        out->unused += out->tokens[e] == 0;
        all += out->tokens[e];
    }
    if (all > 0) out->imbalance = (double)out->most * (double)out->n_experts / (double)all;
    return true;
}
