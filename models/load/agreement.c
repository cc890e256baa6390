/* SPDX-License-Identifier: Apache-2.0 */
#include "models/load/agreement.h"

#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "mesh/runtime.h"
#include "models/policies/policies.h"
#include "parallel_styles/layer_hash.h"

static uint64_t hash_policy(uint64_t hash, const dt_policy *p)
{
    hash = dti_hash_text(dti_hash_text(hash, p->name), p->original_layer_class);
    for (int k = 0; k < DTI_N_POLICY_LISTS; k++) {
        const dti_policy_list l = dti_policy_list_at(p, k, false);
        hash = dti_hash_word(hash, (uint64_t)l.list->n);
        for (int i = 0; i < l.list->n; i++) {
            const dt_policy_layer *x = &l.list->layers[i];
            hash = dti_hash_text(dti_hash_text(hash, x->weight), x->bias);
            hash = dti_hash_word(dti_hash_text(hash, x->replace), (uint64_t)x->n_fused);
            hash = dti_hash_word(hash, (uint64_t)x->reversed << 1 | (uint64_t)x->ignore_checker);
        }
    }
    for (int i = 0; i < p->n_replace_modules; i++)
        hash = dti_hash_text(hash, p->replace_modules[i].name);
    return dti_hash_word(hash, p->replace_arguments != NULL);
}

uint64_t dti_hash_plans(const dt_load_options *o)
{
    uint64_t hash =
        dti_hash_text(dti_hash_text(dti_hash_text(5, o->plan_name), o->fully_shard), o->weights);
    dt_policy p;

    for (const dt_plan *plan = o->plan; plan != NULL; plan = plan->more) {
        hash = dti_hash_text(dti_hash_text(hash, plan->dim), plan->version);
        hash = dti_hash_text(hash, plan->others);
        hash = dti_hash_word(hash, (uint64_t)plan->manual << 1 | (uint64_t)plan->strict);
        for (int i = 0; i < plan->n_rules && plan->rules != NULL; i++)
            hash = dti_hash_text(dti_hash_text(hash, plan->rules[i].pattern), plan->rules[i].style);
        for (int i = 0; i < plan->n_overrides && plan->overrides != NULL; i++)
            hash = dti_hash_text(hash, plan->overrides[i].name);
    }
    for (int i = 0; i < o->n_policies; i++)
        if (dti_policy_at(o, i, &p) == DT_OK) hash = hash_policy(hash, &p);
    return hash;
}

static dt_status gather(dt_runtime *rt, const void *mine, size_t bytes, void **all)
{
    const dt_status st = dti_gather_bytes(rt, mine, bytes, all);

    if (st != DT_OK) dti_error_prefix("dt_parallelize() waits for all ranks of the run");
    return dti_runtime_alone(rt, st);
}

/* --- before ----------------------------------------------------------------------------------- */

static dt_status check_statuses(const dti_word *all, int n, int mine)
{
    for (int r = 0; r < n; r++) {
        const dt_status st = (dt_status)all[r].status;
        DT_CHECK(st == DT_OK || r != mine, st, "%s", all[r].message);
        DT_CHECK(st == DT_OK, st, "rank %d: %s", r, all[r].message);
    }
    return DT_OK;
}

dt_status dti_agree_on_words(dt_runtime *rt, const dti_word *mine)
{
    const int n = dt_runtime_size(rt);
    dt_status st = DT_OK;
    dti_word *all = NULL;

    DT_TRY_TO(done, st, gather(rt, mine, sizeof *mine, (void **)&all));
    DT_TRY_TO(done, st, check_statuses(all, n, dt_runtime_rank(rt)));
    for (int r = 1; r < n; r++)
        DT_CHECK_TO(done, st, all[r].hash == all[0].hash, DT_ERR_ARG,
                    "ranks 0 and %d were called with different arguments: %s against %s", r,
                    all[0].asked, all[r].asked);
done:
    dti_free(all);
    return st;
}

/* --- after ------------------------------------------------------------------------------------ */

/* How loading went on a rank, and what came of it. */
typedef struct outcome {
    int32_t status;
    int32_t n_layers;
    uint64_t hash; /* of all layers */
    char message[DT_ERROR_MESSAGE_BYTES];
} outcome;

/* The first layer that rank `other` has laid out otherwise than rank 0. Called by all ranks, with
 * as many layers. */
static dt_status name_layer(dt_runtime *rt, dt_layers *layers, const uint64_t *hashes, int other)
{
    const size_t n = (size_t)dt_layers_count(layers);
    uint64_t *all = NULL;
    dt_status st = DT_OK;
    size_t i = 0;

    DT_TRY_TO(done, st, gather(rt, hashes, n * sizeof *hashes, (void **)&all));
    while (i + 1 < n && all[i] == all[(size_t)other * n + i]) i++;
    st = dt_fail_at(DT_ERR_ARG, __func__, __FILE__, __LINE__,
                    "ranks 0 and %d have laid out %s differently; all ranks need the same "
                    "plan, policies and registered styles",
                    other, dt_layer_name(dt_layers_at(layers, (int)i)));
done:
    dti_free(all);
    return st;
}

static dt_status compare(dt_runtime *rt, const outcome *all, const dt_model *m,
                         const uint64_t *hashes)
{
    const int n = dt_runtime_size(rt);

    for (int r = 0; r < n; r++)
        DT_CHECK(all[r].status == DT_OK, (dt_status)all[r].status, "rank %d: %s", r,
                 all[r].message);
    for (int r = 1; r < n; r++)
        DT_CHECK(all[r].n_layers == all[0].n_layers, DT_ERR_ARG,
                 "rank 0 has made a model of %d layers, rank %d one of %d; all ranks need the same "
                 "config.json, plan and policies",
                 (int)all[0].n_layers, r, (int)all[r].n_layers);
    for (int r = 1; r < n; r++)
        if (all[r].hash != all[0].hash) DT_TRY(name_layer(rt, m->layers, hashes, r));
    return DT_OK;
}

static dt_status hash_model(const dt_model *m, uint64_t **hashes, outcome *out)
{
    const int n = dt_layers_count(m->layers);

    DT_TRY(dti_alloc_array((size_t)n, sizeof **hashes, (void **)hashes));
    out->n_layers = n;
    for (int i = 0; i < n; i++) {
        (*hashes)[i] = dti_layer_hash(dt_layers_at(m->layers, i));
        out->hash = dti_hash_word(out->hash, (*hashes)[i]);
    }
    return DT_OK;
}

/* After these the world is aborted: the other ranks know. */
static bool others_know(dt_status st)
{
    return st == DT_ERR_MEMORY || st == DT_ERR_IO || st == DT_ERR_DEVICE || st == DT_ERR_INTERNAL ||
           st == DT_ERR_COMM;
}

dt_status dti_agree_on_model(dt_runtime *rt, dt_status st, const dt_model *m)
{
    outcome mine = { .status = (int32_t)st }, *all = NULL;
    const dt_error why = *dt_last_error();
    uint64_t *hashes = NULL;
    dt_status heard = DT_OK;

    if (others_know(st)) return st;
    if (st != DT_OK) (void)snprintf(mine.message, sizeof mine.message, "%s", why.message);
    if (st == DT_OK) DT_TRY_TO(done, heard, hash_model(m, &hashes, &mine));
    DT_TRY_TO(done, heard, gather(rt, &mine, sizeof mine, (void **)&all));
    if (st == DT_OK) DT_TRY_TO(done, heard, compare(rt, all, m, hashes));
done:
    if (st != DT_OK) dti_error_restore(&why);
    dti_free(hashes);
    dti_free(all);
    return st != DT_OK ? st : dti_runtime_alone(rt, heard);
}
