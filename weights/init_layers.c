/* SPDX-License-Identifier: Apache-2.0
 *
 * From a key: where parameters begin. The stream of a parameter follows from its name, so that
 * neither the mesh nor the other layers of a list decide what it gets. */
#include <dtensor/factories.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "weights/read_layers.h"

static const double INITIALIZER_RANGE = 0.02; /* of Transformers' configurations */

typedef struct initialiser {
    uint64_t seed;
    const dt_init_rule *rules;
    int n_rules;
} initialiser;

/* FNV-1a */
static uint64_t stream_of(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *name != '\0'; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

static dt_init_rule default_rule(const dt_layer *layer, int param)
{
    const dt_kind_param *own = &dt_layer_kind_of(layer)->params[param];

    if (own->added || own->begins == DT_BEGINS_ZEROS)
        return (dt_init_rule){ .kind = DT_INIT_CONSTANT };
    if (own->begins == DT_BEGINS_ONES) return (dt_init_rule){ .kind = DT_INIT_CONSTANT, .a = 1.0 };
    return (dt_init_rule){ .kind = DT_INIT_NORMAL, .b = INITIALIZER_RANGE };
}

dt_status dti_fill_packed(const dt_param_info *info, dt_tensor *x, dt_random key)
{
    const double codes = 1 << info->packing.bits;

    if (info->packed == DT_PACKED_CODES) return dt_fill_randint(x, key, 0, 256);
    if (info->packed == DT_PACKED_ZEROS) return dt_fill(x, codes / 2);
    return dt_fill(x, INITIALIZER_RANGE * sqrt(12.0) / codes); /* codes are uniform */
}

static dt_status fill_param(void *arg, const dt_layer *layer, int param, dt_tensor *x)
{
    const initialiser *in = arg;
    const dt_param_info info = dt_layer_param_info(layer, param);
    dt_init_rule rule = default_rule(layer, param);
    char name[DT_PARAM_NAME_BYTES];
    dt_random key;
    double bound;

    (void)snprintf(name, sizeof name, "%s.%s", info.layer, info.name);
    for (int i = in->n_rules - 1; i >= 0; i--)
        if (dti_name_matches(in->rules[i].pattern, name)) rule = in->rules[i];
    key = (dt_random){ in->seed, stream_of(name) };
    if (info.packed != DT_PACKED_NOT) return dti_fill_packed(&info, x, key);
    switch (rule.kind) {
    case DT_INIT_CONSTANT:
        return dt_fill(x, rule.a);
    case DT_INIT_NORMAL:
        return dt_fill_randn(x, key, rule.a, rule.b);
    case DT_INIT_UNIFORM:
        return dt_fill_rand(x, key, rule.a, rule.b);
    case DT_INIT_FAN_IN:
        break;
    }
    bound = rule.a / sqrt((double)info.axis[info.n_axes - 1].extent);
    return dt_fill_rand(x, key, -bound, bound);
}

dt_status dti_param_begin(const dt_layer *layer, int param, dt_tensor *x, uint64_t seed)
{
    const initialiser in = { .seed = seed };

    DT_TRY(fill_param((void *)(uintptr_t)&in, layer, param, x));
    return DT_OK;
}

static dt_status check_rule(const dt_init_rule *rule, int i)
{
    const bool range = rule->kind == DT_INIT_UNIFORM;

    DT_CHECK(rule->pattern != NULL && rule->pattern[0] != '\0', DT_ERR_ARG,
             "rule %d has no pattern", i);
    DT_CHECK((int)rule->kind >= 0 && rule->kind <= DT_INIT_FAN_IN, DT_ERR_ARG,
             "rule %d (\"%s\"): %d is no dt_init_kind", i, rule->pattern, (int)rule->kind);
    DT_CHECK(isfinite(rule->a) && isfinite(rule->b), DT_ERR_ARG,
             "rule %d (\"%s\"): %g, %g are no numbers to begin with", i, rule->pattern, rule->a,
             rule->b);
    DT_CHECK(!range || rule->a < rule->b, DT_ERR_ARG, "rule %d (\"%s\"): no value is in [%g, %g)",
             i, rule->pattern, rule->a, rule->b);
    DT_CHECK(rule->kind != DT_INIT_NORMAL || rule->b >= 0.0, DT_ERR_ARG,
             "rule %d (\"%s\"): a deviation of %g", i, rule->pattern, rule->b);
    DT_CHECK(rule->kind != DT_INIT_FAN_IN || rule->a > 0.0, DT_ERR_ARG,
             "rule %d (\"%s\"): a factor of %g", i, rule->pattern, rule->a);
    return DT_OK;
}

dt_status dt_layers_init(dt_layers *layers, dt_dtype dtype, uint64_t seed,
                         const dt_init_rule *rules, int n_rules)
{
    initialiser in = { .seed = seed, .rules = rules, .n_rules = n_rules };
    const dti_filler fill = { fill_param, &in };

    DT_CHECK(layers != NULL, DT_ERR_ARG, "layers is NULL");
    DT_CHECK(n_rules >= 0 && (rules != NULL || n_rules == 0), DT_ERR_ARG, "rules is a list of %d",
             n_rules);
    DT_CHECK(dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F16, DT_ERR_ARG,
             "dtype %s: parameters are f32, bf16 or f16", dt_dtype_name(dtype));
    for (int i = 0; i < n_rules; i++) DT_TRY(check_rule(&rules[i], i));
    DT_TRY(dti_layers_fill(layers, dtype, &fill));
    return DT_OK;
}
