/* SPDX-License-Identifier: Apache-2.0
 *
 * Log-probabilities of what is chosen, and of the best: by the scores as the model gave them. */
#include <math.h>
#include <string.h>

#include "models/generation/generate.h"

void dti_logprobs_free(dti_step *step)
{
    dti_free(step->raw.data);
    dti_free(step->ranked);
    dti_free(step->logprobs);
    dti_free(step->chosen);
}

dt_status dti_logprobs_take(dti_step *step)
{
    const dti_scores *s = &step->scores;
    const int64_t k = step->rules->o.n_logprobs;
    const size_t n = (size_t)(s->n_rows * s->n), rows = (size_t)s->all_rows;
    float *data = step->raw.data;
    size_t room = step->raw.room;

    if (k < 0) return DT_OK;
    DT_TRY(dti_grow((void **)&data, &room, n + 1, sizeof *data));
    memcpy(data, s->data, n * sizeof *data);
    step->raw = *s; /* what it points to beside the data is only read */
    step->raw.data = data;
    step->raw.room = room;
    DT_TRY(dti_scores_normalise(&step->raw));
    DT_TRY(dti_grow((void **)&step->ranked, &step->ranked_room, rows * (size_t)k + 1,
                    sizeof *step->ranked));
    DT_TRY(dti_grow((void **)&step->logprobs, &step->logprobs_room, rows * (size_t)(k + 1),
                    sizeof *step->logprobs));
    DT_TRY(dti_grow((void **)&step->chosen, &step->chosen_room, rows, sizeof *step->chosen));
    if (k > 0)
        DT_TRY(dti_scores_rank(&step->raw, &(dti_ranking){ .rows_per_group = 1, .k = k },
                               step->ranked));
    return DT_OK;
}

dt_status dti_logprobs_choose(dti_step *step, const int32_t *chosen)
{
    const int64_t k = step->rules->o.n_logprobs;

    if (k < 0) return DT_OK;
    DT_TRY(dti_scores_at(&step->raw, chosen, step->chosen));
    for (int64_t r = 0; r < step->raw.all_rows; r++) {
        dt_logprob *list = step->logprobs + r * (k + 1);
        list[0] = (dt_logprob){ chosen[r], step->chosen[r] };
        for (int64_t i = 0; i < k; i++) {
            const dti_candidate *c = &step->ranked[r * k + i];
            const bool none = c->row < 0 || c->token >= step->raw.vocab;
            list[i + 1] =
                (dt_logprob){ none ? -1 : (int32_t)c->token, none ? -INFINITY : c->score };
        }
    }
    return DT_OK;
}
