/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary positions as config.json spells them: rope_theta and rope_scaling of Transformers 4,
 * rope_parameters of 5. Where two keys say one thing, that which Transformers takes counts. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "models/architectures/config_keys.h"
#include "models/architectures/rotary.h"

static const dti_rope_keys llama_keys = { .theta_key = "rope_theta", .theta = 10000.0 };

typedef struct reader {
    const dt_config *config, *parameters;
    const dti_rope_keys *keys;
    const dt_model_info *info;
    dti_rope *rope;
} reader;

/* The base stands at the root (Transformers 4) or among the parameters (5). */
static dt_status read_theta(const reader *r)
{
    const char *key = r->keys->theta_key;
    const dt_config inner = dt_config_member(r->parameters, "rope_theta");
    const dt_config outer = dt_config_member(r->config, key);
    double root;

    if (dt_config_kind_of(&inner) == DT_CONFIG_ABSENT)
        return dt_config_number(r->config, key, r->keys->theta, 1.0, 1e15, &r->rope->theta);
    DT_TRY(dt_config_as_number(&inner, 1.0, 1e15, &r->rope->theta));
    DT_TRY(dt_config_number_or(r->config, key, r->rope->theta, 1.0, 1e15, &root));
    if (dt_config_is_set(&outer) && root != r->rope->theta)
        return dt_config_must_be(&inner, DT_ERR_FORMAT, "equal to %s at the root, %g", key, root);
    return DT_OK;
}

/* Columns that rotate beside those of a head that do not: pairs. */
static dt_status read_columns_apart(const reader *r)
{
    const dt_config columns = dt_config_member(r->config, r->keys->columns_key);

    DT_TRY(dt_config_int(r->config, r->keys->columns_key, r->keys->columns, 2, 1 << 20,
                         &r->rope->dim));
    if (r->rope->dim % 2 != 0) return dt_config_must_be(&columns, DT_ERR_FORMAT, "even");
    return DT_OK;
}

/* How many columns of a head rotate. An odd number is rounded up by those who use it; a head that
 * rotates whole must be even. */
static dt_status read_width(const reader *r)
{
    const dt_config head_dim = dt_config_member(r->config, "head_dim");
    const char *word = "partial_rotary_factor";
    const char *root = r->keys->part_key != NULL ? r->keys->part_key : word;
    const dt_config inner = dt_config_member(r->parameters, word);
    const dt_config part = dt_config_is_set(&inner) ? inner : dt_config_member(r->config, root);
    double factor = r->keys->part > 0.0 ? r->keys->part : 1.0;

    if (r->keys->apart) return read_columns_apart(r);
    if (r->keys->columns_key != NULL)
        return dt_config_int(r->config, r->keys->columns_key, r->keys->columns, 1,
                             r->info->head_dim, &r->rope->dim);
    if (dt_config_is_set(&part)) DT_TRY(dt_config_as_number(&part, 0.0, 1.0, &factor));
    if (factor < 1.0 && !r->keys->partial)
        return dt_config_must_be(&part, DT_ERR_UNSUPPORTED,
                                 "1: heads of this architecture rotate whole");
    r->rope->dim = (int64_t)((double)r->info->head_dim * factor);
    if (r->rope->dim < 1)
        return dt_config_must_be(&part, DT_ERR_FORMAT,
                                 "larger: it leaves none of a head's %lld columns to rotate",
                                 (long long)r->info->head_dim);
    if (r->rope->dim == r->info->head_dim && r->rope->dim % 2 != 0)
        return dt_config_must_be(&head_dim, DT_ERR_FORMAT,
                                 "even for rotary positions; heads have %lld columns",
                                 (long long)r->info->head_dim);
    return DT_OK;
}

/* --- what the types want ---------------------------------------------------------------------- */

/* original_max_position_embeddings: the root's comes first. */
static dt_status read_original(const reader *r)
{
    const char *key = "original_max_position_embeddings";
    double *out = &r->rope->original_positions;

    DT_TRY(dt_config_number_or(r->config, key, r->keys->original, 0.0, 1e12, out));
    if (*out >= 1.0) return DT_OK;
    return dt_config_number_or(r->parameters, key, (double)r->info->max_positions, 1.0, 1e12, out);
}

/* Where null or no factor means how far the length of training was stretched. */
static dt_status read_factor_or_ratio(const reader *r)
{
    return dt_config_number_or(r->parameters, "factor",
                               (double)r->info->max_positions / r->rope->original_positions, 1e-6,
                               1e6, &r->rope->factor);
}

static dt_status read_llama3(const reader *r)
{
    dti_rope *rope = r->rope;

    DT_TRY(dti_json_number(r->parameters, "factor", 1e-6, 1e6, &rope->factor));
    DT_TRY(dti_json_number(r->parameters, "low_freq_factor", 1e-6, 1e6, &rope->low_freq_factor));
    DT_TRY(dti_json_number(r->parameters, "high_freq_factor", 1e-6, 1e6, &rope->high_freq_factor));
    DT_TRY(read_original(r));
    if (rope->high_freq_factor <= rope->low_freq_factor) {
        const dt_config v = dt_config_member(r->parameters, "high_freq_factor");
        return dt_config_must_be(&v, DT_ERR_FORMAT, "larger than low_freq_factor, %g",
                                 rope->low_freq_factor);
    }
    return DT_OK;
}

static dt_status read_linear(const reader *r)
{
    return dti_json_number(r->parameters, "factor", 1e-6, 1e6, &r->rope->factor);
}

static dt_status read_dynamic(const reader *r)
{
    const dt_config factor = dt_config_member(r->parameters, "factor");

    DT_TRY(dti_json_number(r->parameters, "factor", 1.0, 1e6, &r->rope->factor));
    r->rope->max_positions = (double)r->info->max_positions;
    if (r->rope->dim <= 2)
        return dt_config_must_be(&factor, DT_ERR_UNSUPPORTED,
                                 "absent: dynamic scaling needs heads of more than 2 columns");
    return DT_OK;
}

double dti_rope_stretch(double factor, double m)
{
    return factor <= 1.0 ? 1.0 : 0.1 * m * log(factor) + 1.0;
}

static dt_status read_yarn(const reader *r)
{
    const dt_config *p = r->parameters;
    dti_rope *rope = r->rope;
    double m, m_all, fallback;

    DT_TRY(read_original(r));
    DT_TRY(read_factor_or_ratio(r));
    DT_TRY(dt_config_number_or(p, "mscale", 0.0, 0.0, 1e6, &m));
    DT_TRY(dt_config_number_or(p, "mscale_all_dim", 0.0, 0.0, 1e6, &m_all));
    fallback = dti_rope_stretch(rope->factor, 1.0);
    if (m != 0.0 && m_all != 0.0)
        fallback = dti_rope_stretch(rope->factor, m) / dti_rope_stretch(rope->factor, m_all);
    DT_TRY(dt_config_number_or(p, "attention_factor", fallback, 0.0, 1e6, &rope->attention_factor));
    DT_TRY(dt_config_number_or(p, "beta_fast", 32.0, 0.0, 1e6, &rope->beta_fast));
    DT_TRY(dt_config_number_or(p, "beta_slow", 1.0, 0.0, 1e6, &rope->beta_slow));
    if (rope->beta_fast == 0.0) rope->beta_fast = 32.0;
    if (rope->beta_slow == 0.0) rope->beta_slow = 1.0;
    DT_TRY(dt_config_bool_or(p, "truncate", true, &rope->truncate));
    if (rope->theta <= 1.0) {
        const dt_config v = dt_config_member(p, "rope_type");
        return dt_config_must_be(&v, DT_ERR_FORMAT, "another type: with a base of 1 nothing turns");
    }
    return DT_OK;
}

/* short_factor or long_factor: one number per pair of columns. */
static dt_status read_factors(const reader *r, const char *key, float **out)
{
    const int64_t n = (r->rope->dim + 1) / 2;
    dt_config list;
    float *values;

    DT_TRY(dti_json_array(r->parameters, key, &list));
    if ((int64_t)dt_config_count(&list) != n)
        return dt_config_must_be(&list, DT_ERR_FORMAT,
                                 "of %lld numbers, one per two of the %lld columns that rotate",
                                 (long long)n, (long long)r->rope->dim);
    DT_TRY(dti_alloc_array((size_t)n, sizeof *values, (void **)&values));
    *out = values;
    for (int64_t i = 0; i < n; i++) {
        const dt_config one = dt_config_item(&list, (size_t)i);
        double x;
        DT_TRY(dt_config_as_number(&one, 1e-6, 1e9, &x));
        values[i] = (float)x;
    }
    return DT_OK;
}

static dt_status read_longrope(const reader *r)
{
    dti_rope *rope = r->rope;
    double fallback;

    DT_TRY(read_original(r));
    if (rope->original_positions < 2.0) {
        const dt_config v = dt_config_member(r->parameters, "original_max_position_embeddings");
        return dt_config_must_be(&v, DT_ERR_FORMAT, "at least 2, the length of training");
    }
    DT_TRY(read_factor_or_ratio(r));
    fallback =
        rope->factor <= 1.0 ? 1.0 : sqrt(1.0 + log(rope->factor) / log(rope->original_positions));
    DT_TRY(dt_config_number_or(r->parameters, "attention_factor", fallback, 0.0, 1e6,
                               &rope->attention_factor));
    DT_TRY(read_factors(r, "short_factor", &rope->short_factor));
    return read_factors(r, "long_factor", &rope->long_factor);
}

/* In f32 as Transformers does. */
static dt_status read_growth(const reader *r, const dt_config *parameters)
{
    dti_rope *rope = r->rope;

    DT_TRY(dti_json_number(parameters, "llama_4_scaling_beta", 0.0, 1e3, &rope->query_growth));
    if (rope->original_positions < 1.0) DT_TRY(read_original(r));
    if (rope->query_growth > 0.0 && rope->original_positions < (double)r->info->max_positions)
        rope->n_query_factors = r->info->max_positions;
    return DT_OK;
}

static dt_status read_nothing(const reader *r)
{
    (void)r;
    return DT_OK;
}

/* --- which type ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    dti_rope_type type;
    dt_status (*read)(const reader *r);
} types[] = {
    { "default", DTI_ROPE_DEFAULT, read_nothing }, { "linear", DTI_ROPE_LINEAR, read_linear },
    { "dynamic", DTI_ROPE_DYNAMIC, read_dynamic }, { "llama3", DTI_ROPE_LLAMA3, read_llama3 },
    { "yarn", DTI_ROPE_YARN, read_yarn },          { "longrope", DTI_ROPE_LONGROPE, read_longrope },
    { "su", DTI_ROPE_LONGROPE, read_longrope }, /* its name in the first Phi-3 files */
};

static dt_status read_type(const reader *r)
{
    const dt_config factors = dt_config_member(r->parameters, "short_factor");
    dt_config type = dt_config_member(r->parameters, "rope_type");
    const char *name = "default";

    if (dt_config_kind_of(&type) == DT_CONFIG_ABSENT)
        type = dt_config_member(r->parameters, "type");
    if (dt_config_kind_of(&type) != DT_CONFIG_ABSENT) DT_TRY(dt_config_as_string(&type, &name));
    /* So some Phi-3 files call longrope. */
    if (strcmp(name, "yarn") == 0 && dt_config_is_set(&factors)) name = "longrope";
    for (size_t i = 0; i < DT_COUNT(types); i++) {
        if (strcmp(types[i].name, name) != 0) continue;
        r->rope->type = types[i].type;
        return types[i].read(r);
    }
    return dt_config_must_be(&type, DT_ERR_UNSUPPORTED,
                             "\"default\", \"linear\", \"dynamic\", \"yarn\", \"longrope\" or "
                             "\"llama3\"");
}

/* What the keys come to, however they are spelled. */
static dt_status say(const reader *r, const dt_config *config)
{
    const dti_rope *rope = r->rope;
    const struct {
        const char *key;
        double value;
    } numbers[] = { { "factor", rope->factor },
                    { "attention_factor", rope->attention_factor },
                    { "max_position_embeddings", rope->max_positions },
                    { "original_max_position_embeddings", rope->original_positions },
                    { "low_freq_factor", rope->low_freq_factor },
                    { "high_freq_factor", rope->high_freq_factor },
                    { "beta_fast", rope->beta_fast },
                    { "beta_slow", rope->beta_slow },
                    { "truncate", rope->truncate } };
    const struct {
        const char *key;
        const float *values;
    } lists[] = { { "short_factor", rope->short_factor }, { "long_factor", rope->long_factor } };
    const dt_config theta = dt_config_member(config, r->keys->theta_key);
    dt_config of = dt_config_member(config, "rope_parameters"), v;

    if (r->keys->of != NULL) of = dt_config_member(&of, r->keys->of);
    DT_TRY(dti_json_say_number(&theta, rope->theta));
    v = dt_config_member(&of, "rope_type");
    for (size_t i = DT_COUNT(types); i-- > 0;)
        if (types[i].type == rope->type) DT_TRY(dt_config_say(&v, "%s", types[i].name));
    v = dt_config_member(&of, "partial_rotary_factor");
    DT_TRY(dti_json_say_number(&v, (double)rope->dim / (double)r->info->head_dim));
    for (size_t i = 0; rope->type != DTI_ROPE_DEFAULT && i < DT_COUNT(numbers); i++) {
        v = dt_config_member(&of, numbers[i].key);
        DT_TRY(dti_json_say_number(&v, numbers[i].value));
    }
    for (size_t i = 0; i < DT_COUNT(lists); i++) {
        const dt_config list = dt_config_member(&of, lists[i].key);
        for (int64_t k = 0; lists[i].values != NULL && k < (rope->dim + 1) / 2; k++) {
            v = dt_config_item(&list, (size_t)k);
            DT_TRY(dt_config_say(&v, "%.8g", (double)lists[i].values[k])); /* as f32 has it */
        }
    }
    return DT_OK;
}

dt_status dti_rope_read_parameters(const dt_config *config, const dt_config *parameters,
                                   const dti_rope_keys *keys, const dt_model_info *info,
                                   dti_rope *out)
{
    const dt_config quiet = dt_config_quietly(config), inner = dt_config_quietly(parameters);
    const reader r = { &quiet, &inner, keys != NULL ? keys : &llama_keys, info, out };
    dt_status st = DT_OK;

    *out = (dti_rope){ .factor = 1.0, .attention_factor = 1.0, .dim = info->head_dim };
    DT_TRY_TO(fail, st, read_theta(&r));
    DT_TRY_TO(fail, st, read_width(&r));
    if (dt_config_is_set(parameters)) DT_TRY_TO(fail, st, read_type(&r));
    if (r.keys->grows) DT_TRY_TO(fail, st, read_growth(&r, parameters));
    DT_TRY_TO(fail, st, say(&r, config));
    return DT_OK;

fail:
    dti_rope_release(out);
    return st;
}

dt_status dti_rope_read(const dt_config *config, const dti_rope_keys *keys,
                        const dt_model_info *info, dti_rope *out)
{
    static const char *const kinds[] = { "full_attention", "sliding_attention" };
    dt_config parameters, old, nested;

    *out = (dti_rope){ 0 };
    DT_TRY(dt_config_object(config, "rope_parameters", &parameters));
    DT_TRY(dt_config_object(config, "rope_scaling", &old));
    if (dt_config_is_set(&parameters) && dt_config_is_set(&old))
        return dt_config_must_be(&old, DT_ERR_FORMAT,
                                 "absent where rope_parameters stands: both say the same thing");
    if (!dt_config_is_set(&parameters)) parameters = old;
    for (size_t i = 0; i < DT_COUNT(kinds); i++) {
        nested = dt_config_member(&parameters, kinds[i]);
        if (dt_config_is_set(&nested))
            return dt_config_must_be(&nested, DT_ERR_UNSUPPORTED,
                                     "absent: all layers of this architecture rotate alike");
    }
    return dti_rope_read_parameters(config, &parameters, keys, info, out);
}

dt_status dti_rope_read_kinds(const dt_config *config, const dti_rope_keys *of_global,
                              const dti_rope_keys *of_local, const dt_model_info *info,
                              dti_rope out[2])
{
    dt_config all, scaling, global, local;

    DT_TRY(dt_config_object(config, "rope_parameters", &all));
    DT_TRY(dt_config_object(config, "rope_scaling", &scaling));
    DT_TRY(dt_config_object(&all, "full_attention", &global));
    DT_TRY(dt_config_object(&all, "sliding_attention", &local));
    if (dt_config_count(&all) > 0 && !dt_config_is_set(&global) && !dt_config_is_set(&local))
        return dt_config_must_be(&all, DT_ERR_FORMAT,
                                 "made of \"full_attention\" and \"sliding_attention\"");
    if (dt_config_is_set(&scaling) && dt_config_is_set(&global))
        return dt_config_must_be(&scaling, DT_ERR_FORMAT,
                                 "absent where rope_parameters stands: both say the same thing");
    if (!dt_config_is_set(&global)) global = scaling;
    DT_TRY(dti_rope_read_parameters(config, &global, of_global, info, &out[0]));
    return dti_rope_read_parameters(config, &local, of_local, info, &out[1]);
}

dt_status dt_rotary_create(const dt_model_info *info, double theta, dt_rotary **out)
{
    dti_rope *rope;

    DT_CHECK(info != NULL && out != NULL, DT_ERR_ARG, "info or out is NULL");
    *out = NULL;
    DT_CHECK(theta > 0 && isfinite(theta), DT_ERR_ARG, "theta is %g, must be above 0", theta);
    DT_CHECK(info->head_dim >= 2 && info->head_dim % 2 == 0, DT_ERR_ARG,
             "heads have %lld columns: pairs of them rotate", (long long)info->head_dim);
    DT_TRY(dti_new(sizeof *rope, &rope));
    *rope = (dti_rope){ .type = DTI_ROPE_DEFAULT,
                        .dim = info->head_dim,
                        .theta = theta,
                        .factor = 1.0,
                        .attention_factor = 1.0,
                        .max_positions = (double)info->max_positions,
                        .original_positions = (double)info->max_positions };
    *out = rope;
    return DT_OK;
}

dt_status dt_rotary_read(const dt_config *config, dt_model_info *info, dt_rotary **out)
{
    dt_status st = DT_OK;
    dti_rope *rope;

    *out = NULL;
    DT_TRY(dti_new(sizeof *rope, &rope));
    DT_TRY_TO(fail, st, dti_rope_read(config, NULL, info, rope));
    info->max_positions = dti_rope_longest(rope, info->max_positions);
    *out = rope;
    return DT_OK;

fail:
    dti_free(rope);
    return st;
}
