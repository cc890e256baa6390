/* SPDX-License-Identifier: Apache-2.0
 *
 * Options that cross to worker processes: the struct, then the texts that it points to. Both sides
 * have the same headers; that is checked before (workers.c). */
#include <stddef.h>
#include <string.h>

#include "service/packet.h"

/* Where a struct has its texts. */
static const size_t how_texts[] = {
    offsetof(dt_parallelize_options, device),      offsetof(dt_parallelize_options, backend),
    offsetof(dt_parallelize_options, mesh),        offsetof(dt_parallelize_options, dim),
    offsetof(dt_parallelize_options, batch_dim),   offsetof(dt_parallelize_options, plan_name),
    offsetof(dt_parallelize_options, fully_shard), offsetof(dt_parallelize_options, weights),
    offsetof(dt_parallelize_options, offload),
};
static const size_t run_texts[] = {
    offsetof(dt_run_options, fault),    offsetof(dt_run_options, isa),
    offsetof(dt_run_options, check),    offsetof(dt_run_options, flight),
    offsetof(dt_run_options, device),   offsetof(dt_run_options, links),
    offsetof(dt_run_options, products),
};
static const size_t plan_texts[] = {
    offsetof(dt_plan, source),
    offsetof(dt_plan, dim),
    offsetof(dt_plan, version),
    offsetof(dt_plan, others),
};
static const size_t rule_texts[] = { offsetof(dt_plan_rule, pattern),
                                     offsetof(dt_plan_rule, style) };

static dt_status put_texts(dti_packet *p, const void *from, const size_t *at, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *text;
        memcpy(&text, (const char *)from + at[i], sizeof text);
        DT_TRY(dti_packet_put_text(p, text));
    }
    return DT_OK;
}

static dt_status unpack_texts(dti_unpacking *u, void *to, const size_t *at, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *text;
        DT_TRY(dti_unpack_text(u, &text));
        memcpy((char *)to + at[i], &text, sizeof text);
    }
    return DT_OK;
}

#define PUT_TEXTS(p, from, at)  put_texts((p), (from), (at), DT_COUNT(at))
#define UNPACK_TEXTS(u, to, at) unpack_texts((u), (to), (at), DT_COUNT(at))

/* --- plans ------------------------------------------------------------------------------------ */

/* A chain of plans, each with a mark before it that there is one. */
static dt_status put_plan(dti_packet *p, const dt_plan *plan)
{
    for (;; plan = plan->more) {
        const int64_t more = plan != NULL;
        DT_TRY(dti_packet_put(p, &more, sizeof more));
        if (plan == NULL) return DT_OK;
        DT_CHECK(plan->n_overrides == 0, DT_ERR_UNSUPPORTED,
                 "the plan's overrides are styles of this process, which worker processes do not "
                 "have: register them in a module (dt_service_options.modules)");
        DT_TRY(dti_packet_put(p, plan, sizeof *plan));
        DT_TRY(PUT_TEXTS(p, plan, plan_texts));
        for (int i = 0; i < plan->n_rules; i++) DT_TRY(PUT_TEXTS(p, &plan->rules[i], rule_texts));
    }
    return DT_OK;
}

static dt_status unpack_plan(dti_unpacking *u, const dt_plan **out)
{
    const dt_plan **at = out;

    for (;;) {
        dt_plan_rule *rules;
        dt_plan *plan;
        int64_t more;
        *at = NULL;
        DT_TRY(dti_unpack_copy(u, &more, sizeof more));
        if (more == 0) return DT_OK;
        DT_TRY(dti_arena_alloc(&u->arena, sizeof *plan, (void **)&plan));
        DT_TRY(dti_unpack_copy(u, plan, sizeof *plan));
        DT_TRY(UNPACK_TEXTS(u, plan, plan_texts));
        DT_TRY(dti_arena_alloc(&u->arena, (size_t)plan->n_rules * sizeof *rules, (void **)&rules));
        for (int i = 0; i < plan->n_rules; i++) DT_TRY(UNPACK_TEXTS(u, &rules[i], rule_texts));
        plan->rules = rules;
        plan->overrides = NULL;
        *at = plan;
        at = &plan->more;
    }
}

/* --- policies --------------------------------------------------------------------------------- */

static const size_t policy_texts[] = { offsetof(dt_policy, name),
                                       offsetof(dt_policy, original_layer_class) };
static const size_t layer_texts[] = { offsetof(dt_policy_layer, weight),
                                      offsetof(dt_policy_layer, bias),
                                      offsetof(dt_policy_layer, replace) };
static const size_t layer_lists[] = { offsetof(dt_policy, attn_qkv), offsetof(dt_policy, attn_out),
                                      offsetof(dt_policy, mlp_in), offsetof(dt_policy, mlp_out) };

static dt_status put_layers(dti_packet *p, const dt_policy_layers *list)
{
    for (int i = 0; i < list->n; i++) {
        DT_TRY(dti_packet_put(p, &list->layers[i], sizeof list->layers[i]));
        DT_TRY(PUT_TEXTS(p, &list->layers[i], layer_texts));
    }
    return DT_OK;
}

static dt_status put_policy(dti_packet *p, const dt_policy *policy)
{
    dt_policy o = { 0 };

    DT_CHECK(policy != NULL && policy->size == sizeof o, DT_ERR_ARG,
             "a policy is NULL or of another version (size)");
    o = *policy;
    DT_CHECK(o.n_replace_modules == 0 && o.replace_arguments == NULL, DT_ERR_UNSUPPORTED,
             "policy \"%s\": replace_modules and replace_arguments are functions of this process, "
             "which worker processes do not have: register an architecture or styles in a module "
             "(dt_service_options.modules)",
             o.name != NULL ? o.name : "");
    o.user = NULL;
    DT_TRY(dti_packet_put(p, &o, sizeof o));
    DT_TRY(PUT_TEXTS(p, &o, policy_texts));
    for (size_t i = 0; i < DT_COUNT(layer_lists); i++)
        DT_TRY(put_layers(p, (const void *)((const char *)&o + layer_lists[i])));
    return DT_OK;
}

static dt_status unpack_layers(dti_unpacking *u, dt_policy_layers *list)
{
    dt_policy_layer *layers;

    DT_TRY(dti_arena_alloc(&u->arena, (size_t)list->n * sizeof *layers, (void **)&layers));
    for (int i = 0; i < list->n; i++) {
        DT_TRY(dti_unpack_copy(u, &layers[i], sizeof layers[i]));
        DT_TRY(UNPACK_TEXTS(u, &layers[i], layer_texts));
    }
    list->layers = layers;
    return DT_OK;
}

static dt_status unpack_policies(dti_unpacking *u, dt_parallelize_options *how)
{
    const dt_policy **policies;
    dt_policy *o;

    how->policies = NULL;
    if (how->n_policies == 0) return DT_OK;
    DT_TRY(
        dti_arena_alloc(&u->arena, (size_t)how->n_policies * sizeof *policies, (void **)&policies));
    for (int k = 0; k < how->n_policies; k++) {
        DT_TRY(dti_arena_alloc(&u->arena, sizeof *o, (void **)&o));
        DT_TRY(dti_unpack_copy(u, o, sizeof *o));
        DT_TRY(UNPACK_TEXTS(u, o, policy_texts));
        for (size_t i = 0; i < DT_COUNT(layer_lists); i++)
            DT_TRY(unpack_layers(u, (void *)((char *)o + layer_lists[i])));
        policies[k] = o;
    }
    how->policies = policies;
    return DT_OK;
}

/* --- both structs ----------------------------------------------------------------------------- */

dt_status dti_packet_put_how(dti_packet *p, const dt_parallelize_options *how)
{
    dt_parallelize_options o = *how;

    DT_CHECK(how->n_policies == 0 || (how->policies != NULL && how->n_policies > 0), DT_ERR_ARG,
             "%d policies at %p", how->n_policies, (const void *)how->policies);
    o.policies = NULL;
    o.progress = NULL;
    o.progress_arg = NULL;
    DT_TRY(dti_packet_put(p, &o, sizeof o));
    DT_TRY(PUT_TEXTS(p, &o, how_texts));
    for (int i = 0; i < how->n_policies; i++) DT_TRY(put_policy(p, how->policies[i]));
    return put_plan(p, how->plan);
}

dt_status dti_unpack_how(dti_unpacking *u, dt_parallelize_options *how)
{
    DT_TRY(dti_unpack_copy(u, how, sizeof *how));
    DT_TRY(UNPACK_TEXTS(u, how, how_texts));
    DT_TRY(unpack_policies(u, how));
    return unpack_plan(u, &how->plan);
}

/* Sums by MPI are for processes that MPI joins. */
dt_status dti_packet_put_run(dti_packet *p, const dt_run_options *run)
{
    const int64_t is_linked = run->simulated_link != NULL;
    dt_run_options o = *run;

    o.log = NULL;
    o.log_arg = NULL;
    o.setup = NULL;
    o.setup_arg = NULL;
    o.simulated_link = NULL;
    o.sums = NULL;
    DT_TRY(dti_packet_put(p, &o, sizeof o));
    DT_TRY(PUT_TEXTS(p, &o, run_texts));
    DT_TRY(dti_packet_put(p, &is_linked, sizeof is_linked));
    return is_linked ? dti_packet_put(p, run->simulated_link, sizeof *run->simulated_link) : DT_OK;
}

dt_status dti_unpack_run(dti_unpacking *u, dt_run_options *run)
{
    const void *link = NULL;
    int64_t is_linked;

    DT_TRY(dti_unpack_copy(u, run, sizeof *run));
    DT_TRY(UNPACK_TEXTS(u, run, run_texts));
    DT_TRY(dti_unpack_copy(u, &is_linked, sizeof is_linked));
    if (is_linked) DT_TRY(dti_unpack(u, sizeof *run->simulated_link, &link));
    run->simulated_link = link;
    return DT_OK;
}
