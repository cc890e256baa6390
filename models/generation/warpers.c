/* SPDX-License-Identifier: Apache-2.0
 *
 * Processors that look at probabilities. A row keeps what is not below a limit; the limits are
 * found together with the other ranks. Tokens of equal score stay or go together. */
#include <math.h>

#include "models/generation/text_rules.h"

static void keep_from(dti_scores *s, const float *limit)
{
    for (int64_t r = 0; r < s->n_rows; r++)
        for (int64_t i = r * s->n; i < (r + 1) * s->n; i++)
            if (s->data[i] < limit[r]) s->data[i] = -INFINITY;
}

/* A limit of a row's scores must not be above the keep-th best one. */
static dt_status lower_limits(const dti_text_rules *u, dti_scores *s, float *limit)
{
    float *kth = limit + s->n_rows;

    DT_TRY(dti_scores_kth(s, NULL, u->keep < s->vocab ? u->keep : s->vocab, kth));
    for (int64_t r = 0; r < s->n_rows; r++)
        if (kth[r] < limit[r]) limit[r] = kth[r];
    return DT_OK;
}

static dt_status top_k(const dti_text_rules *u, dti_scores *s, float *limit)
{
    const int64_t k = u->o.top_k > u->keep ? u->o.top_k : u->keep;

    if (k >= s->vocab) return DT_OK;
    DT_TRY(dti_scores_kth(s, NULL, k, limit));
    keep_from(s, limit);
    return DT_OK;
}

static dt_status top_p(const dti_text_rules *u, dti_scores *s, float *limit)
{
    DT_TRY(dti_scores_norms(s, u->norms));
    DT_TRY(dti_scores_mass(s, u->norms, NULL, 1.0 - u->o.top_p, false, limit));
    DT_TRY(lower_limits(u, s, limit));
    keep_from(s, limit);
    return DT_OK;
}

/* Tokens of less probability than `least[r]`, given as its logarithm relative to the best. */
static dt_status keep_likely(const dti_text_rules *u, dti_scores *s, float *limit)
{
    DT_TRY(lower_limits(u, s, limit));
    keep_from(s, limit);
    return DT_OK;
}

static dt_status min_p(const dti_text_rules *u, dti_scores *s, float *limit)
{
    DT_TRY(dti_scores_norms(s, u->norms));
    for (int64_t r = 0; r < s->n_rows; r++)
        limit[r] = (float)(u->norms[r].largest + log(u->o.min_p));
    DT_TRY(keep_likely(u, s, limit));
    return DT_OK;
}

static dt_status cutoff(const dti_text_rules *u, dti_scores *s, bool eta, float *limit)
{
    const double epsilon = eta ? u->o.eta_cutoff : u->o.epsilon_cutoff;

    DT_TRY(dti_scores_norms(s, u->norms));
    for (int64_t r = 0; r < s->n_rows; r++) {
        const dti_norm *norm = &u->norms[r];
        double least = log(epsilon);
        if (eta) least = fmin(least, 0.5 * least - norm->entropy);
        limit[r] = (float)(norm->largest + norm->log_sum + least);
    }
    DT_TRY(keep_likely(u, s, limit));
    return DT_OK;
}

/* How far a token's information is from the entropy: the typical ones are near. */
static void distances(const dti_scores *s, const dti_norm *norms, float *value)
{
    for (int64_t r = 0; r < s->n_rows; r++)
        for (int64_t i = r * s->n; i < (r + 1) * s->n; i++) {
            const dti_norm *norm = &norms[r];
            const double information = norm->largest + norm->log_sum - (double)s->data[i];
            value[i] = (float)fabs(information - norm->entropy);
        }
}

static dt_status typical(dti_text_rules *u, dti_scores *s, float *limit)
{
    const int64_t n = s->n_rows * s->n, keep = u->keep < s->vocab ? u->keep : s->vocab;
    float *nearest = limit + s->n_rows;

    DT_TRY(dti_grow((void **)&u->values, &u->values_room, (size_t)n + 1, sizeof(float)));
    DT_TRY(dti_scores_norms(s, u->norms));
    distances(s, u->norms, u->values);
    DT_TRY(dti_scores_mass(s, u->norms, u->values, u->o.typical_p, true, limit));
    for (int64_t i = 0; i < n; i++) u->values[i] = -u->values[i];
    DT_TRY(dti_scores_kth(s, u->values, keep, nearest));
    for (int64_t r = 0; r < s->n_rows; r++) {
        const float least = -limit[r] < nearest[r] ? -limit[r] : nearest[r];
        for (int64_t i = r * s->n; i < (r + 1) * s->n; i++)
            if (u->values[i] < least) s->data[i] = -INFINITY;
    }
    return DT_OK;
}

dt_status dti_process_sampling(dti_text_rules *u, dti_scores *s)
{
    const dt_generate_options *o = &u->o;
    const size_t rows = (size_t)s->n_rows;
    const float temperature = (float)o->temperature;

    DT_TRY(dti_grow((void **)&u->limits, &u->limits_room, 2 * rows, sizeof(float)));
    DT_TRY(dti_grow((void **)&u->norms, &u->norms_room, rows, sizeof(dti_norm)));
    if (temperature != 1)
        for (int64_t i = 0; i < s->n_rows * s->n; i++) s->data[i] /= temperature;
    if (o->top_k > 0) DT_TRY(top_k(u, s, u->limits));
    if (o->top_p < 1) DT_TRY(top_p(u, s, u->limits));
    if (o->min_p > 0) DT_TRY(min_p(u, s, u->limits));
    if (o->typical_p < 1) DT_TRY(typical(u, s, u->limits));
    if (o->epsilon_cutoff > 0) DT_TRY(cutoff(u, s, false, u->limits));
    if (o->eta_cutoff > 0) DT_TRY(cutoff(u, s, true, u->limits));
    return DT_OK;
}
