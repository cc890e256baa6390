/* SPDX-License-Identifier: Apache-2.0
 *
 * Log-probabilities of what is chosen for a text, and of the best, by the scores as the model gave
 * them: those that dt_generated_logprobs() has of it. */
#include <math.h>
#include <string.h>

#include "dtensor/argmax.h"
#include "mesh/runtime.h"
#include "models/engine/engine_parts.h"

static int64_t n_best(const dti_pick *p)
{
    return p->request->rules.o.n_logprobs;
}

/* A row of this rank as it was taken. */
static dti_scores raw_row(const dti_choosing *c, int64_t row, int64_t kept)
{
    dti_scores v = dti_scores_view(&c->scores, row, 1);

    v.data = c->raw + kept * c->scores.n;
    return v;
}

static dt_status rank_best(dti_choosing *c, const dti_pick *p, dti_scores *v)
{
    const int64_t k = n_best(p);
    dt_logprob *list = c->logprobs + p->logprobs;

    DT_TRY(dti_scores_normalise(v));
    if (k == 0) return DT_OK;
    DT_TRY(dti_grow((void **)&c->ranked, &c->ranked_room, (size_t)k, sizeof *c->ranked));
    DT_TRY(dti_scores_rank(v, &(dti_ranking){ .rows_per_group = 1, .k = k }, c->ranked));
    for (int64_t i = 0; i < k; i++) {
        const dti_candidate *x = &c->ranked[i];
        const bool none = x->row < 0 || x->token >= v->vocab;
        list[i + 1] = (dt_logprob){ none ? -1 : (int32_t)x->token, none ? -INFINITY : x->score };
    }
    return DT_OK;
}

dt_status dti_choosing_keep_logprobs(dti_choosing *c)
{
    const dti_scores *s = &c->scores;
    const size_t row = (size_t)s->n * sizeof *c->raw;
    int64_t n = 0, kept = 0;

    for (int64_t i = 0; i < c->n_picks; i++) {
        c->picks[i].logprobs = n;
        n += n_best(&c->picks[i]) + 1;
    }
    DT_TRY(dti_grow((void **)&c->logprobs, &c->logprobs_room, (size_t)n + 1, sizeof *c->logprobs));
    memset(c->logprobs, 0, (size_t)n * sizeof *c->logprobs);
    for (int64_t i = 0; i < s->n_rows; i++) {
        dti_scores v;
        if (n_best(&c->picks[s->first_row + i]) < 0) continue;
        DT_TRY(dti_grow((void **)&c->raw, &c->raw_room, (size_t)((kept + 1) * s->n) + 1,
                        sizeof *c->raw));
        memcpy(c->raw + kept * s->n, s->data + i * s->n, row);
        v = raw_row(c, i, kept++);
        DT_TRY(rank_best(c, &c->picks[s->first_row + i], &v));
    }
    return DT_OK;
}

/* What a key says was chosen; any token where it says that nothing can be. */
static int32_t token_of(const dti_pick *p)
{
    return p->key == INT64_MIN || dti_argmax_overflows(p->key) ? 0
                                                               : (int32_t)dti_argmax_index(p->key);
}

/* Others than a text's own replica have zeros in its list. */
dt_status dti_choosing_logprobs(dti_choosing *c)
{
    const dti_scores *s = &c->scores;
    int64_t kept = 0;
    dti_comm *comm = NULL;

    _Static_assert(sizeof(dt_logprob) == sizeof(int64_t), "one is summed as one integer");
    if (s->row_dims != 0) DT_TRY(dti_mesh_comm(s->mesh, s->row_dims, &comm));
    for (int64_t i = 0; i < c->n_picks; i++) {
        const dti_pick *p = &c->picks[i];
        dt_logprob *list = c->logprobs + p->logprobs;
        if (n_best(p) < 0) continue;
        if (i >= s->first_row && i < s->first_row + s->n_rows) {
            const dti_scores v = raw_row(c, i - s->first_row, kept++);
            list->id = token_of(p);
            DT_TRY(dti_scores_at(&v, &list->id, &list->logprob));
        }
        if (comm != NULL) DT_TRY(dti_all_reduce(comm, list, list, n_best(p) + 1, DT_I64, DT_SUM));
    }
    return DT_OK;
}
