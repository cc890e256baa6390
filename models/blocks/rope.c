/* SPDX-License-Identifier: Apache-2.0 */
#include "models/blocks/rope.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "models/config.h"

static dt_status read_llama3(const dti_json *config, const dti_json *scaling, int64_t max_positions,
                             dti_rope *out)
{
    double original;

    DT_TRY(dti_json_number(scaling, "low_freq_factor", 1e-6, 1e6, &out->low_freq_factor));
    DT_TRY(dti_json_number(scaling, "high_freq_factor", 1e-6, 1e6, &out->high_freq_factor));
    DT_TRY(dti_config_number(config, "original_max_position_embeddings", (double)max_positions, 1.0,
                             1e12, &original));
    DT_TRY(dti_config_number(scaling, "original_max_position_embeddings", original, 1.0, 1e12,
                             &out->original_positions));
    if (out->high_freq_factor <= out->low_freq_factor) {
        const dti_json v = dti_json_get(scaling, "high_freq_factor");
        return dti_json_refuse(&v, DT_ERR_FORMAT, "larger than low_freq_factor, %g",
                               out->low_freq_factor);
    }
    return DT_OK;
}

/* rope_theta stands at the root (Transformers 4) or inside the scaling object (5). */
static dt_status read_theta(const dti_json *config, const dti_json *scaling, double *out)
{
    const dti_json inner = dti_json_get(scaling, "rope_theta");
    const dti_json outer = dti_json_get(config, "rope_theta");
    double root;

    if (dti_json_kind_of(&inner) == DTI_JSON_ABSENT)
        return dti_config_number(config, "rope_theta", 10000.0, 1.0, 1e15, out);
    DT_TRY(dti_json_as_number(&inner, 1.0, 1e15, out));
    DT_TRY(dti_json_number_or(config, "rope_theta", *out, 1.0, 1e15, &root));
    if (dti_json_is_set(&outer) && root != *out)
        return dti_json_refuse(&inner, DT_ERR_FORMAT, "equal to rope_theta at the root, %g", root);
    return DT_OK;
}

/* Heads rotate whole; they must have an even width. */
static dt_status check_width(const dti_json *config, const dti_json *parameters,
                             const dt_model_info *info)
{
    const dti_json head_dim = dti_json_get(config, "head_dim");
    const dti_json *const places[] = { config, parameters };

    for (size_t i = 0; i < DT_COUNT(places); i++) {
        const dti_json part = dti_json_get(places[i], "partial_rotary_factor");
        double factor;
        DT_TRY(dti_json_number_or(places[i], "partial_rotary_factor", 1.0, 0.0, 1.0, &factor));
        if (factor < 1.0)
            return dti_json_refuse(&part, DT_ERR_UNSUPPORTED,
                                   "1: partial rotation is not supported yet");
    }
    if (info->head_dim % 2 != 0)
        return dti_json_refuse(&head_dim, DT_ERR_FORMAT,
                               "even for rotary positions; heads have %lld columns",
                               (long long)info->head_dim);
    return DT_OK;
}

dt_status dti_rope_read(const dti_json *config, const dt_model_info *info, dti_rope *out)
{
    dti_json scaling, old, type;
    const char *name = "default";

    *out = (dti_rope){ .type = DTI_ROPE_DEFAULT, .factor = 1.0 };
    DT_TRY(dti_json_object_or_none(config, "rope_parameters", &scaling));
    DT_TRY(dti_json_object_or_none(config, "rope_scaling", &old));
    if (dti_json_is_set(&scaling) && dti_json_is_set(&old))
        return dti_json_refuse(&old, DT_ERR_FORMAT,
                               "absent where rope_parameters stands: both say the same thing");
    if (!dti_json_is_set(&scaling)) scaling = old;
    DT_TRY(read_theta(config, &scaling, &out->theta));
    DT_TRY(check_width(config, &scaling, info));
    if (!dti_json_is_set(&scaling)) return DT_OK;
    type = dti_json_get(&scaling, "rope_type");
    if (dti_json_kind_of(&type) == DTI_JSON_ABSENT) type = dti_json_get(&scaling, "type");
    if (dti_json_kind_of(&type) != DTI_JSON_ABSENT) DT_TRY(dti_json_as_string(&type, &name));
    if (strcmp(name, "default") == 0) return DT_OK;
    if (strcmp(name, "linear") != 0 && strcmp(name, "llama3") != 0)
        return dti_json_refuse(
            &type, DT_ERR_UNSUPPORTED,
            "\"default\", \"linear\" or \"llama3\": other kinds of rotary scaling are "
            "not supported yet");
    DT_TRY(dti_json_number(&scaling, "factor", 1e-6, 1e6, &out->factor));
    out->type = DTI_ROPE_LINEAR;
    if (strcmp(name, "linear") == 0) return DT_OK;
    out->type = DTI_ROPE_LLAMA3;
    return read_llama3(config, &scaling, info->max_positions, out);
}

/* Llama 3.1: long wavelengths are stretched by `factor`, short ones stay, those between are
 * blended. */
static float llama3(const dti_rope *rope, float inv)
{
    const double two_pi = 6.283185307179586476925;
    const double wavelength = two_pi / (double)inv;
    const double low = rope->original_positions / rope->low_freq_factor;
    const double high = rope->original_positions / rope->high_freq_factor;
    double s;

    if (wavelength > low) return (float)((double)inv / rope->factor);
    if (wavelength < high) return inv;
    s = (rope->original_positions / wavelength - rope->low_freq_factor) /
        (rope->high_freq_factor - rope->low_freq_factor);
    return (float)((1.0 - s) * (double)inv / rope->factor + s * (double)inv);
}

void dti_rope_frequencies(const dti_rope *rope, int64_t dim, float *inv_freq)
{
    for (int64_t i = 0; i < dim / 2; i++) {
        const float exponent = (float)(2 * i) / (float)dim;
        const float inv = 1.0f / powf((float)rope->theta, exponent);
        inv_freq[i] = rope->type == DTI_ROPE_LINEAR   ? inv / (float)rope->factor
                      : rope->type == DTI_ROPE_LLAMA3 ? llama3(rope, inv)
                                                      : inv;
    }
}

dt_status dti_rope_tensor(const dti_rope *rope, int64_t dim, dt_mesh *mesh, dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const int64_t n = dim / 2;
    float *inv_freq;
    dt_status st;

    *out = NULL;
    DT_TRY(dti_alloc_array((size_t)n, sizeof *inv_freq, (void **)&inv_freq));
    dti_rope_frequencies(rope, dim, inv_freq);
    st = dt_from_local(mesh, whole, DT_F32, 1, &n, inv_freq, out);
    dti_free(inv_freq);
    return st;
}
