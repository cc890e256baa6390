/* SPDX-License-Identifier: Apache-2.0
 *
 * How a way cuts each group of operators, in the four dimensions of FlexFlow, as the layers of the
 * model lie on a dry mesh of it. */
#include <ctype.h>
#include <string.h>

#include "base/numbers.h"
#include "mesh/runtime.h"
#include "parallel_styles/kind.h"
#include "placements/layout.h"
#include "planner/search.h"

enum { EMBEDDING, PROJECTIONS, ATTENTION, FEED_FORWARD, EXPERTS, NORMS, HEAD };

static const char *const names[DTI_GROUPS] = { [EMBEDDING] = "embedding",
                                               [PROJECTIONS] = "attention's products",
                                               [ATTENTION] = "attention",
                                               [FEED_FORWARD] = "feed-forward",
                                               [EXPERTS] = "experts",
                                               [NORMS] = "norms",
                                               [HEAD] = "head" };

/* "model.layers.0.mlp" */
static bool is_in_block(const char *name)
{
    for (const char *c = strchr(name, '.'); c != NULL; c = strchr(c + 1, '.'))
        if (isdigit((unsigned char)c[1])) return true;
    return false;
}

static int group_of(const dt_layer *l)
{
    const dt_layer_kind *kind = dt_layer_kind_of(l);
    const char *name = dt_layer_name(l);

    if (strstr(kind->name, "norm") != NULL) return NORMS;
    if (dti_kind_has_ids(kind)) return EMBEDDING;
    if (strstr(name, "experts") != NULL) return EXPERTS;
    if (!is_in_block(name)) return HEAD;
    return strstr(name, "attn") != NULL || strstr(name, "attention") != NULL ? PROJECTIONS
                                                                             : FEED_FORWARD;
}

/* Pieces that tp and ep cut the parameters of a layer into, at the most. */
static int pieces_of(const dt_layer *l)
{
    const dt_mesh *mesh = dt_layer_mesh(l);
    int most = 1;

    for (int p = 0; p < dt_layer_n_params(l); p++) {
        const dt_layout *layout = dt_layer_param_layout(l, p);
        int pieces = 1;
        for (int m = 0; layout != NULL && m < dt_mesh_n_dims(mesh); m++)
            if (dti_has(layout->shard_dims, m) && (strcmp(dt_mesh_dim_name(mesh, m), "tp") == 0 ||
                                                   strcmp(dt_mesh_dim_name(mesh, m), "ep") == 0))
                pieces *= dt_mesh_dim_size(mesh, m);
        most = (int)dti_max(most, pieces);
    }
    return most;
}

/* Norms have their tokens cut where these are; attention its heads as its products. */
static void find(dt_layers *layers, const dt_way *w, dt_operator_group group[DTI_GROUPS])
{
    bool there[DTI_GROUPS] = { false };

    for (int g = 0; g < DTI_GROUPS; g++)
        group[g] = (dt_operator_group){ .name = names[g],
                                        .sample = w->dp,
                                        .operators = g == EMBEDDING || g == HEAD ? 1 : w->pp,
                                        .attribute = 1,
                                        .parameter = 1 };
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *l = dt_layers_at(layers, i);
        const int g = group_of(l);
        if (dt_layer_n_params(l) == 0) continue;
        there[g] = true;
        group[g].parameter = (int)dti_max(group[g].parameter, pieces_of(l));
    }
    there[ATTENTION] = there[PROJECTIONS];
    group[ATTENTION].attribute = group[PROJECTIONS].parameter;
    if (w->sequence_parallel) group[NORMS].attribute = w->tp;
    for (int g = 0; g < DTI_GROUPS; g++)
        if (!there[g]) group[g].name = NULL;
}

dt_status dti_find_groups(const dti_task *t, const dt_way *w, dt_operator_group group[DTI_GROUPS])
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    dt_optimizer_options optimizer;
    dt_load_options load;
    dt_loss_options loss;
    char text[DTI_MESH_BYTES];
    dt_runtime *rt = NULL;
    dt_model *model = NULL;
    dt_mesh *mesh = NULL;
    dt_status st = DT_OK;

    dti_way_options(t, w, &load, &optimizer, &loss);
    load.fully_shard = load.offload = NULL; /* how they are stored, not computed */
    run.n_ranks = w->pp * dti_way_place(w);
    run.device = t->machine.gpus ? "cuda" : NULL;
    DT_TRY_TO(done, st, dt_runtime_create_dry(&run, 0, t->rt, &rt));
    DT_TRY_TO(done, st, dt_mesh_create(rt, dti_way_mesh(w, text), &mesh));
    DT_TRY_TO(done, st, dt_model_load(mesh, t->dir, &load, &model));
    find(dt_model_layers(model), w, group);
done:
    dt_model_release(&model);
    dt_mesh_release(&mesh);
    dt_runtime_release_dry(&rt);
    return st;
}

const dt_operator_group *dt_search_group(const dt_search *s, int i)
{
    for (int g = 0; s != NULL && i >= 0 && g < DTI_GROUPS; g++)
        if (s->group[g].name != NULL && i-- == 0) return &s->group[g];
    return NULL;
}
