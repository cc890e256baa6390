/* SPDX-License-Identifier: Apache-2.0
 *
 * Options of an optimizer: what makes no sense, and what groups say of a parameter. */
#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "training/optimizer.h"

static dt_status check_share(const char *name, double x, bool one)
{
    DT_CHECK(x >= 0.0 && (one ? x <= 1.0 : x < 1.0), DT_ERR_ARG, "%s is %g: it lies in [0, 1%c",
             name, x, one ? ']' : ')');
    return DT_OK;
}

static dt_status check_amount(const char *name, double x)
{
    DT_CHECK(isfinite(x) && x >= 0.0, DT_ERR_ARG, "%s is %g: it is a number from 0 on", name, x);
    return DT_OK;
}

static dt_status check_group(const dt_parameter_group *g, int i)
{
    DT_CHECK(g->pattern != NULL && g->pattern[0] != '\0', DT_ERR_ARG, "group %d has no pattern", i);
    DT_CHECK(isfinite(g->lr_factor) && g->lr_factor >= 0.0, DT_ERR_ARG,
             "group %d (\"%s\"): lr_factor is %g: it is a number from 0 on", i, g->pattern,
             g->lr_factor);
    DT_CHECK(isfinite(g->weight_decay), DT_ERR_ARG, "group %d (\"%s\"): weight_decay is %g", i,
             g->pattern, g->weight_decay);
    return DT_OK;
}

static dt_status check_rule(const dt_optimizer_options *o)
{
    DT_CHECK(o->rule == DT_ADAMW || o->rule == DT_SGD, DT_ERR_ARG, "%d is no dt_optimizer_rule",
             (int)o->rule);
    DT_TRY(check_share("beta1", o->beta1, false));
    DT_TRY(check_share("beta2", o->beta2, false));
    DT_TRY(check_amount("eps", o->eps));
    DT_TRY(check_amount("weight_decay", o->weight_decay));
    DT_TRY(check_share("momentum", o->momentum, true));
    DT_TRY(check_share("dampening", o->dampening, true));
    DT_CHECK(!o->nesterov || (o->momentum > 0.0 && o->dampening == 0.0), DT_ERR_ARG,
             "nesterov needs a momentum, which is %g, and no dampening, which is %g", o->momentum,
             o->dampening);
    return DT_OK;
}

dt_status dti_optimizer_check(const dt_optimizer_options *o)
{
    int exponent;

    DT_TRY(check_rule(o));
    DT_TRY(check_amount("clip", o->clip));
    DT_CHECK(o->n_groups >= 0 && (o->groups != NULL || o->n_groups == 0), DT_ERR_ARG,
             "groups is a list of %d", o->n_groups);
    for (int i = 0; i < o->n_groups; i++) DT_TRY(check_group(&o->groups[i], i));
    DT_CHECK(o->zero >= 0 && o->zero <= 2, DT_ERR_ARG,
             "zero is %d: 0, 1 and 2 are possible; stage 3 is the style \"fully_shard\" of layers",
             o->zero);
    DT_CHECK(!o->stochastic || !o->masters, DT_ERR_ARG,
             "stochastic rounds parameters that have no masters: set masters to false with it");
    DT_CHECK(o->loss_scale <= 0.0 ||
                 (isfinite(o->loss_scale) && frexp(o->loss_scale, &exponent) == 0.5),
             DT_ERR_ARG, "loss_scale is %g: it is a power of 2, or 0 for none", o->loss_scale);
    DT_CHECK(o->bucket_bytes >= 0, DT_ERR_ARG, "bucket_bytes is %lld: it counts from 0 on",
             (long long)o->bucket_bytes);
    DT_CHECK(o->window_bytes >= 0, DT_ERR_ARG, "window_bytes is %lld: it counts from 0 on",
             (long long)o->window_bytes);
    DT_CHECK(o->offload == NULL || o->offload[0] != '\0', DT_ERR_ARG,
             "offload is an empty text: it is \"host\", or a folder");
    DT_CHECK(o->offload == NULL || o->window_bytes >= DTI_OFFLOAD_LEAST_BYTES, DT_ERR_ARG,
             "window_bytes is %lld, must be at least %d", (long long)o->window_bytes,
             DTI_OFFLOAD_LEAST_BYTES);
    return DT_OK;
}

dti_group_says dti_groups_of(const dt_optimizer_options *o, const char *name, int n_axes)
{
    dti_group_says says = { false, 1.0, n_axes >= 2 ? o->weight_decay : 0.0 };

    for (int i = o->n_groups - 1; i >= 0; i--) {
        const dt_parameter_group *g = &o->groups[i];
        if (!dti_name_matches(g->pattern, name)) continue;
        says.frozen = g->frozen;
        if (g->lr_factor > 0.0) says.lr_factor = g->lr_factor;
        if (g->weight_decay >= 0.0) says.weight_decay = g->weight_decay;
        return says;
    }
    return says;
}

static bool matches_any(const char *pattern, dt_layers *layers)
{
    char name[DT_PARAM_NAME_BYTES];

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            if (!dt_layer_owns_param(layer, p)) continue;
            (void)snprintf(name, sizeof name, "%s.%s", dt_layer_name(layer),
                           dt_layer_param_info(layer, p).name);
            if (dti_name_matches(pattern, name)) return true;
        }
    }
    return false;
}

dt_status dti_groups_check(const dt_optimizer_options *o, dt_layers *layers)
{
    for (int i = 0; i < o->n_groups; i++)
        DT_CHECK(matches_any(o->groups[i].pattern, layers), DT_ERR_ARG,
                 "group %d: no parameter matches \"%s\"; names are like \"%s.%s\"", i,
                 o->groups[i].pattern, dt_layer_name(dt_layers_at(layers, 0)), "weight");
    return DT_OK;
}
