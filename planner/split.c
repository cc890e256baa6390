/* SPDX-License-Identifier: Apache-2.0
 *
 * How a pipeline is cut into stages: as a load cuts it, so that the busiest does least, or so that
 * the largest holds least. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "mesh/runtime.h"
#include "models/describe/describe.h"
#include "models/load/stages.h"
#include "planner/search.h"

/* As a load cuts the model over pp: on a dry mesh of it alone. */
static dt_status cut(const dti_task *t, dti_split *out)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    dt_load_options load = t->load;
    dti_described d = { 0 };
    dti_stages s = { 0 };
    dt_runtime *rt = NULL;
    dt_mesh *mesh = NULL;
    char text[DTI_MESH_BYTES];
    dt_status st = DT_OK;

    load.n_stages = out->n;
    if (out->text != NULL) load.stages = out->text;
    run.n_ranks = out->pp;
    (void)snprintf(text, sizeof text, "pp=%d", out->pp);
    DT_TRY_TO(done, st, dt_runtime_create_dry(&run, 0, t->rt, &rt));
    DT_TRY_TO(done, st, dt_mesh_create(rt, text, &mesh));
    DT_TRY_TO(done, st, dti_describe_for(t->dir, mesh, &load, &d));
    DT_TRY_TO(done, st, dti_stages_cut(&d, mesh, &load, &s));
    for (int i = 0; i < out->n; i++) out->blocks[i] = (int)s.stage[i].n;
done:
    dti_stages_free(&s);
    dti_described_free(&d);
    dt_mesh_release(&mesh);
    dt_runtime_release_dry(&rt);
    return st;
}

static bool is_same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* The last one of the list, its text kept. */
static dt_status append(dti_task *t, const dt_way *w, const char *text, dti_split **out)
{
    char *kept = NULL;

    if (text != NULL) DT_TRY(dti_arena_strndup(&t->texts, text, strlen(text), &kept));
    DT_TRY(dti_grow((void **)&t->splits, &t->splits_room, t->n_splits + 1, sizeof **out));
    *out = &t->splits[t->n_splits];
    **out = (dti_split){ .pp = w->pp,
                         .n = w->pp * (w->stages_per_rank > 1 ? w->stages_per_rank : 1),
                         .text = kept };
    DT_TRY(dti_alloc_array((size_t)(*out)->n, sizeof *(*out)->blocks, (void **)&(*out)->blocks));
    return DT_OK;
}

/* One that was found before; NULL: none. */
static const dti_split *look_up(const dti_task *t, const dt_way *w, const char *text)
{
    const int n = w->pp * (w->stages_per_rank > 1 ? w->stages_per_rank : 1);

    for (size_t i = 0; i < t->n_splits; i++) {
        const dti_split *s = &t->splits[i];
        if (s->pp == w->pp && s->n == n && is_same(s->text, text)) return s;
    }
    return NULL;
}

dt_status dti_split_of(dti_task *t, const dt_way *w, const dti_split **out)
{
    dti_split *s;
    dt_status st;

    *out = look_up(t, w, w->stages);
    if (*out != NULL) return DT_OK;
    DT_TRY(append(t, w, w->stages, &s));
    st = cut(t, s);
    if (st != DT_OK) dti_free(s->blocks);
    DT_TRY(st);
    t->n_splits++;
    *out = s;
    return DT_OK;
}

/* --- by memory -------------------------------------------------------------------------------- */

/* What a stage holds: so much, and for each of its blocks. */
typedef struct load_of {
    double fixed, block;
} load_of;

/* The first has the embedding, the last the head and logits; of passes as many are kept as are on
 * their way. Shares of a profile's weights are shares of gradients and state. */
static dt_status load_stages(dti_task *t, const dt_way *w, load_of *of)
{
    const double size = (double)dt_dtype_size(t->dtype), rows = (double)dti_way_rows(t, w);
    const double head = t->head_flops / 2, blocks = t->block_params * (double)t->info.n_layers;
    const double logits =
        rows * (double)(t->o.sequence * t->info.vocab_size) * (size + sizeof(float)) / w->tp;
    const dti_profile *p;
    double kept, again, each; /* bytes of a parameter, with what belongs to it */

    DT_TRY(dti_kept_by_block(t, w, rows, &kept, &again));
    DT_TRY(dti_profile_of(t, w, &p));
    each = ((double)p->cost.weight_bytes + (double)p->cost.gradient_bytes +
            (w->offload ? 0 : (double)p->cost.state_bytes / (w->zero > 0 ? w->dp : 1))) /
           fmax((double)p->cost.weight_bytes, 1) * size;
    for (int r = 0; r < w->pp; r++) {
        const double live = (double)dti_min(w->microbatches, w->pp - r);
        of[r].block = each * dti_block_share(t, w) + live * kept;
        of[r].fixed = 0;
    }
    of[0].fixed += each * fmax(t->all_params - blocks - head, 0) / w->tp;
    of[w->pp - 1].fixed += each * head / w->tp + logits;
    return DT_OK;
}

/* Blocks that each has room for in `most` bytes, at most `cap` and at least one; of all. */
static int64_t fill(const load_of *of, int n, double most, int64_t cap, int *blocks)
{
    int64_t sum = 0;

    for (int r = 0; r < n; r++) {
        const double room = floor((most - of[r].fixed) / of[r].block);
        blocks[r] = (int)fmax(1, fmin(room, (double)cap));
        sum += blocks[r];
    }
    return sum;
}

/* The least bytes that do, then the fewest blocks of any stage, the last ones having fewer. */
static void divide(const load_of *of, int n, int64_t all, int *blocks)
{
    double low = 0, high = 0;
    int64_t cap = (all + n - 1) / n, sum;

    for (int r = 0; r < n; r++) high = fmax(high, of[r].fixed + of[r].block * (double)all);
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        *(fill(of, n, middle, all, blocks) >= all ? &high : &low) = middle;
    }
    while ((sum = fill(of, n, high, cap, blocks)) < all) cap++;
    for (int r = n - 1; r >= 0 && sum > all; r--)
        if (blocks[r] == cap && cap > 1) {
            blocks[r]--;
            sum--;
        }
}

static dt_status keep_stages(dti_task *t, const dt_way *w, const int *blocks, const char **out)
{
    char text[8 * DTI_MAX_STAGES];
    dti_writer to = { text, sizeof text, 0 };
    const dti_split *known;
    dti_split *s;

    for (int r = 0; r < w->pp; r++) dti_put(&to, "%s%d", r > 0 ? "," : "", blocks[r]);
    known = look_up(t, w, text);
    if (known == NULL) {
        DT_TRY(append(t, w, text, &s));
        memcpy(s->blocks, blocks, (size_t)w->pp * sizeof *blocks);
        t->n_splits++;
        known = s;
    }
    *out = known->text;
    return DT_OK;
}

dt_status dti_stages_by_memory(dti_task *t, const dt_way *w, const char **out)
{
    load_of of[DTI_MAX_STAGES];
    int blocks[DTI_MAX_STAGES];
    const dti_split *usual;

    *out = NULL;
    if (w->pp == 1 || w->pp > DTI_MAX_STAGES || w->pp > t->info.n_layers ||
        w->stages_per_rank > 1 || t->load.stages != NULL)
        return DT_OK;
    DT_TRY(load_stages(t, w, of));
    divide(of, w->pp, t->info.n_layers, blocks);
    DT_TRY(dti_split_of(t, w, &usual));
    if (memcmp(usual->blocks, blocks, (size_t)w->pp * sizeof *blocks) == 0) return DT_OK;
    DT_TRY(keep_stages(t, w, blocks, out));
    return DT_OK;
}
