/* SPDX-License-Identifier: Apache-2.0 */
#include "models/judge/rank_classes.h"

#include <string.h>

#include "base/memory.h"

typedef struct dti_watched_cut {
    const dt_layout *layout;
    int axis;
    int64_t extent;
} dti_watched_cut;

typedef struct dti_watched_step {
    dti_move_step step;
    int64_t shape[DT_MAX_AXES];
} dti_watched_step;

static dt_status watch_axis(dti_watched *w, const dt_layout *layout, int axis, int64_t extent)
{
    for (size_t i = 0; i < w->n_cuts; i++) {
        const dti_watched_cut *c = &w->cuts[i];
        if (c->extent == extent && dti_layout_same_cuts(c->layout, c->axis, layout, axis))
            return DT_OK;
    }
    DT_TRY(dti_grow((void **)&w->cuts, &w->cuts_capacity, w->n_cuts + 1, sizeof *w->cuts));
    w->cuts[w->n_cuts++] = (dti_watched_cut){ layout, axis, extent };
    return DT_OK;
}

dt_status dti_watch_tensor(dti_watched *w, const dt_layout *layout, const int64_t *shape)
{
    int dims[DT_MAX_DIMS];

    for (int a = 0; a < layout->n_axes && layout->shard_dims != 0; a++)
        if (dti_layout_cuts(layout, a, dims) > 0) DT_TRY(watch_axis(w, layout, a, shape[a]));
    return DT_OK;
}

/* All-reduces are as large as the tensor that they make. */
dt_status dti_watch_step(dti_watched *w, const dti_move_step *step, const int64_t *shape)
{
    const size_t bytes = (size_t)step->from->n_axes * sizeof *shape;
    dti_watched_step *new;

    if (step->kind != DTI_MOVE_EXCHANGE) return DT_OK;
    for (size_t i = 0; i < w->n_steps; i++) {
        const dti_watched_step *s = &w->steps[i];
        if (s->step.dims == step->dims && s->step.from == step->from && s->step.to == step->to &&
            memcmp(s->shape, shape, bytes) == 0)
            return DT_OK;
    }
    DT_TRY(dti_grow((void **)&w->steps, &w->steps_capacity, w->n_steps + 1, sizeof *w->steps));
    new = &w->steps[w->n_steps++];
    new->step = *step;
    memcpy(new->shape, shape, bytes);
    return DT_OK;
}

void dti_watched_free(dti_watched *w)
{
    dti_free(w->cuts);
    dti_free(w->steps);
    *w = (dti_watched){ 0 };
}

static bool is_packed(const dti_watched_cut *c)
{
    return (c->layout->packed_axes >> c->axis & 1u) != 0;
}

/* How many numbers a key has: of a packed axis all its runs, as they are copied one by one. */
static size_t key_length(const dti_watched *w)
{
    size_t n = w->n_cuts + w->n_steps + (size_t)__builtin_popcount(w->apart);

    for (size_t i = 0; i < w->n_cuts; i++)
        if (is_packed(&w->cuts[i])) n += DT_MAX_RUNS;
    return n;
}

/* How many rows there are, and the rows of each run. */
static int64_t *key_of_runs(const dti_watched_cut *c, const int *coord, int64_t *key)
{
    dti_runs runs;

    dti_layout_axis_runs(c->layout, c->axis, c->extent, coord, &runs);
    *key++ = runs.total;
    for (int r = 0; r < DT_MAX_RUNS; r++)
        *key++ = r < runs.n ? runs.run[r].end - runs.run[r].begin : 0;
    return key;
}

/* Numbers that decide what the rank at `coord` holds, keeps and packs. */
static void key_of(const dti_watched *w, const int *coord, int64_t *key)
{
    int64_t begin;

    for (int m = 0; m < DT_MAX_DIMS; m++)
        if (dti_has(w->apart, m)) *key++ = coord[m];

    for (size_t i = 0; i < w->n_cuts; i++) {
        const dti_watched_cut *c = &w->cuts[i];
        if (is_packed(c))
            key = key_of_runs(c, coord, key);
        else
            dti_layout_axis_extent(c->layout, c->axis, c->extent, coord, &begin, key++);
    }
    for (size_t i = 0; i < w->n_steps; i++) {
        const dti_watched_step *s = &w->steps[i];
        *key++ = dti_overlap_count(s->step.from, coord, s->step.to, coord, s->shape);
    }
}

/* Keys of classes, one after the other, the last one being that of the rank at hand. */
typedef struct keys {
    int64_t *all;
    size_t capacity;
    size_t length; /* of one */
    size_t first_capacity;
} keys;

static bool is_in(const keys *k, int class, int last)
{
    return memcmp(k->all + (size_t) class * k->length, k->all + (size_t)last * k->length,
                  k->length * sizeof *k->all) == 0;
}

/* Neighbours mostly are of one class. */
static dt_status classify(const dti_watched *w, keys *k, int rank, const int *coord,
                          dti_rank_classes *c)
{
    int class = rank > 0 ? c->of[rank - 1] : 0;

    DT_TRY(dti_grow((void **)&k->all, &k->capacity, (size_t)(c->n + 1) * k->length + 1,
                    sizeof *k->all));
    key_of(w, coord, k->all + (size_t)c->n * k->length);
    if (c->n == 0 || !is_in(k, class, c->n)) {
        for (class = 0; class < c->n && !is_in(k, class, c->n);) class ++;
        if (class == c->n) {
            DT_TRY(dti_grow((void **)&c->first, &k->first_capacity, (size_t)c->n + 1,
                            sizeof *c->first));
            c->first[c->n++] = rank;
        }
    }
    c->of[rank] = class;
    return DT_OK;
}

dt_status dti_rank_classes_find(const dti_watched *w, const dt_mesh *mesh, dti_rank_classes *out)
{
    const int n_ranks = dt_mesh_n_ranks(mesh), n_dims = dt_mesh_n_dims(mesh);
    keys k = { .length = key_length(w) };
    int coord[DT_MAX_DIMS] = { 0 };
    dt_status st = DT_OK;

    *out = (dti_rank_classes){ 0 };
    DT_TRY(dti_alloc_array((size_t)n_ranks, sizeof *out->of, (void **)&out->of));
    for (int rank = 0; rank < n_ranks; rank++) {
        DT_TRY_TO(done, st, classify(w, &k, rank, coord, out));
        for (int m = n_dims - 1; m >= 0 && ++coord[m] == dt_mesh_dim_size(mesh, m); m--)
            coord[m] = 0;
    }
done:
    dti_free(k.all);
    return st;
}

void dti_rank_classes_free(dti_rank_classes *c)
{
    dti_free(c->first);
    dti_free(c->of);
    *c = (dti_rank_classes){ 0 };
}
