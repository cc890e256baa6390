/* SPDX-License-Identifier: Apache-2.0 */
#include "models/architectures/config_keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "files/input.h"

static bool is_absent(const dt_config *config, const char *key)
{
    const dt_config v = dt_config_member(config, key);

    return dt_config_kind_of(&v) == DT_CONFIG_ABSENT;
}

/* Which typed access refuses, and says so. */
static bool is_null(const dt_config *config, const char *key)
{
    const dt_config v = dt_config_member(config, key);

    return dt_config_kind_of(&v) == DT_CONFIG_NULL;
}

static dt_status check_key(const dt_config *config, const char *key, const void *out)
{
    DT_CHECK(config != NULL && key != NULL && out != NULL, DT_ERR_ARG,
             "config, key or out is NULL%s%s", key != NULL ? ": key " : "", key != NULL ? key : "");
    return DT_OK;
}

dt_status dt_config_int(const dt_config *config, const char *key, int64_t fallback, int64_t min,
                        int64_t max, int64_t *out)
{
    DT_TRY(check_key(config, key, out));
    if (is_null(config, key)) return dti_json_int(config, key, min, max, out);
    return dti_json_int_or(config, key, fallback, min, max, out);
}

dt_status dt_config_number(const dt_config *config, const char *key, double fallback, double min,
                           double max, double *out)
{
    DT_TRY(check_key(config, key, out));
    if (is_null(config, key)) return dti_json_number(config, key, min, max, out);
    return dti_json_number_or(config, key, fallback, min, max, out);
}

dt_status dt_config_bool(const dt_config *config, const char *key, bool fallback, bool *out)
{
    DT_TRY(check_key(config, key, out));
    if (is_null(config, key)) return dti_json_bool(config, key, out);
    return dti_json_bool_or(config, key, fallback, out);
}

dt_status dt_config_string(const dt_config *config, const char *key, const char *fallback,
                           const char **out)
{
    DT_TRY(check_key(config, key, out));
    if (is_null(config, key)) return dti_json_string(config, key, out);
    return dti_json_string_or(config, key, fallback, out);
}

dt_status dt_config_refuse(const dt_config *config, const char *key, dt_status code,
                           const char *what)
{
    const dt_config v = dt_config_member(config, key);

    return dt_config_must_be(&v, code, "%s", what);
}

dt_status dti_config_dtype(const dt_config *config, dt_dtype *out)
{
    static const struct {
        const char *name;
        dt_dtype dtype;
    } names[] = { { "float32", DT_F32 }, { "bfloat16", DT_BF16 }, { "float16", DT_F16 } };
    dt_config v = dt_config_member(config, "dtype");
    const char *name;

    if (!dt_config_is_set(&v)) v = dt_config_member(config, "torch_dtype");
    *out = DT_N_DTYPES;
    if (!dt_config_is_set(&v)) return DT_OK;
    DT_TRY(dt_config_as_string(&v, &name));
    for (size_t i = 0; i < DT_COUNT(names); i++)
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].dtype;
            return DT_OK;
        }
    return dt_config_must_be(&v, DT_ERR_UNSUPPORTED, "float32, bfloat16 or float16");
}

/* One id, a list of them, or nothing. */
dt_status dti_config_eos(const dt_config *config, dt_model_info *info)
{
    const dt_config v = dt_config_member(config, "eos_token_id");
    const bool list = dt_config_kind_of(&v) == DT_CONFIG_ARRAY;
    const size_t n = list ? dt_config_count(&v) : dt_config_is_set(&v) ? 1 : 0;

    info->n_eos = 0;
    if (n > DT_MAX_EOS)
        return dt_config_must_be(&v, DT_ERR_UNSUPPORTED, "at most %d token ids", (int)DT_MAX_EOS);
    for (size_t i = 0; i < n; i++) {
        const dt_config one = list ? dt_config_item(&v, i) : v;
        int64_t id;
        DT_TRY(dt_config_as_int(&one, -1, INT32_MAX, &id));
        /* alone it says that there is none; in a list it stays, and is remarked upon */
        if (id >= 0 || list) info->eos[info->n_eos++] = (int32_t)id;
    }
    return DT_OK;
}

/* The architecture's own key, or the common one where a file has only that. */
static const char *spelled(const dt_config *config, const char *own, const char *common)
{
    return own != NULL && (!is_absent(config, own) || is_absent(config, common)) ? own : common;
}

/* null means as many as heads; an absent key the architecture's default, which may be another. */
static dt_status read_kv_heads(const dt_config *config, const dt_config_defaults *d,
                               dt_model_info *info)
{
    const char *key = spelled(config, d->kv_heads_key, "num_key_value_heads");
    int64_t fallback = info->n_heads;

    if (is_absent(config, key) && d->kv_heads != 0) fallback = d->kv_heads;
    return dt_config_int_or(config, key, fallback, 1, 65536, &info->n_kv_heads);
}

static dt_status read_heads(const dt_config *config, const dt_config_defaults *d,
                            dt_model_info *info)
{
    const char *heads_key = spelled(config, d->heads_key, "num_attention_heads");
    const int64_t max = DTI_CONFIG_MAX_EXTENT;
    const dt_config width = dt_config_member(config, "head_dim");
    int64_t head_dim = d->head_dim;

    DT_TRY(dt_config_int(config, heads_key, d->heads, 1, 65536, &info->n_heads));
    info->n_kv_heads = d->plain_heads && d->kv_heads > 0 ? d->kv_heads : info->n_heads;
    if (!d->plain_heads) DT_TRY(read_kv_heads(config, d, info));
    if (info->n_heads % info->n_kv_heads != 0) {
        const dt_config v =
            dt_config_member(config, spelled(config, d->kv_heads_key, "num_key_value_heads"));
        return dt_config_must_be(&v, DT_ERR_FORMAT, "a divisor of %s, %lld", heads_key,
                                 (long long)info->n_heads);
    }
    /* null means hidden / heads where that is the default as well */
    if (!d->plain_heads && (dt_config_is_set(&width) || head_dim != 0))
        DT_TRY(dt_config_int(config, "head_dim", head_dim, 1, 65536, &head_dim));
    if (head_dim == 0) {
        const dt_config v = dt_config_member(config, spelled(config, d->hidden_key, "hidden_size"));
        if (info->hidden_size % info->n_heads != 0)
            return dt_config_must_be(&v, DT_ERR_FORMAT,
                                     "a multiple of %s, %lld, or head_dim has to be "
                                     "given",
                                     heads_key, (long long)info->n_heads);
        head_dim = info->hidden_size / info->n_heads;
    }
    info->head_dim = head_dim;
    if (info->n_heads * head_dim > max) {
        const dt_config v = dt_config_member(config, "head_dim");
        return dt_config_must_be(&v, DT_ERR_FORMAT, "at most %lld for %lld heads",
                                 (long long)(max / info->n_heads), (long long)info->n_heads);
    }
    return DT_OK;
}

static dt_status refuse_quantised(const dt_config *config)
{
    /* by models/describe, which knows the layers */
    static const char *const read_elsewhere[] = { "compressed-tensors", "fp8", "gptq", "awq",
                                                  "mxfp4" };
    const dt_config quantised = dt_config_member(config, "quantization_config");
    const dt_config method = dt_config_member(&quantised, "quant_method");
    const char *name = "";
    char shown[64];

    if (!dt_config_is_set(&quantised)) return DT_OK;
    if (dt_config_kind_of(&method) == DT_CONFIG_STRING) DT_TRY(dt_config_as_string(&method, &name));
    for (size_t i = 0; i < DT_COUNT(read_elsewhere); i++)
        if (strcmp(name, read_elsewhere[i]) == 0) return DT_OK;
    return dt_config_must_be(&quantised, DT_ERR_UNSUPPORTED,
                             "absent: quantised checkpoints%s%s%s are not supported, use one in "
                             "float32, bfloat16 or float16",
                             name[0] ? " (here by \"" : "",
                             dti_printable(name, shown, sizeof shown), name[0] ? "\")" : "");
}

/* Special tokens: an absent key means the architecture's, null means none. */
static dt_status read_tokens(const dt_config *config, const dt_config_defaults *d,
                             dt_model_info *info)
{
    int64_t bos;

    DT_TRY(dt_config_int_or(config, "bos_token_id", -1, -1, INT32_MAX, &bos));
    info->bos = (int32_t)bos;
    if (d->bos > 0 && is_absent(config, "bos_token_id")) info->bos = d->bos;
    DT_TRY(dti_config_eos(config, info));
    if (d->eos > 0 && is_absent(config, "eos_token_id")) {
        info->n_eos = 1;
        info->eos[0] = d->eos;
    }
    return DT_OK;
}

dt_status dt_config_decoder(const dt_config *config, const dt_config_defaults *d,
                            dt_model_info *info)
{
    const int64_t max = DTI_CONFIG_MAX_EXTENT;
    dt_config quiet; /* `info` has the sizes, and is said itself */

    DT_TRY(check_key(config, "vocab_size", info));
    quiet = dt_config_quietly(config);
    config = &quiet;
    DT_TRY(refuse_quantised(config));
    DT_TRY(dti_config_dtype(config, &info->dtype));
    DT_TRY(dt_config_int(config, "vocab_size", d->vocab, 1, max, &info->vocab_size));
    DT_TRY(dt_config_int(config, spelled(config, d->hidden_key, "hidden_size"), d->hidden, 1, max,
                         &info->hidden_size));
    DT_TRY(dt_config_int(config, spelled(config, d->layers_key, "num_hidden_layers"), d->layers, 1,
                         DTI_CONFIG_MAX_LAYERS, &info->n_layers));
    DT_TRY(dt_config_int(config, spelled(config, d->positions_key, "max_position_embeddings"),
                         d->positions, 1, max, &info->max_positions));
    DT_TRY(read_heads(config, d, info));
    DT_TRY(dt_config_bool(config, "tie_word_embeddings", d->tied, &info->tied));
    return read_tokens(config, d, info);
}

dt_status dti_config_outer(const dt_config *root, dt_model_info *info)
{
    const dt_config bos = dt_config_member(root, "bos_token_id"),
                    eos = dt_config_member(root, "eos_token_id");
    int64_t id;
    dt_dtype dtype;

    DT_TRY(refuse_quantised(root));
    DT_TRY(dti_config_dtype(root, &dtype));
    if (dtype != DT_N_DTYPES) info->dtype = dtype;
    if (dt_config_is_set(&bos)) {
        DT_TRY(dt_config_as_int(&bos, -1, INT32_MAX, &id));
        info->bos = (int32_t)id;
    }
    if (dt_config_is_set(&eos)) DT_TRY(dti_config_eos(root, info));
    return dt_config_bool(root, "tie_word_embeddings", info->tied, &info->tied);
}

dt_status dti_config_padding(const dt_config *config, int64_t fallback, int64_t vocab, int64_t *out)
{
    const dt_config quiet = dt_config_quietly(config), v = dt_config_member(config, "pad_token_id");
    int64_t id;

    DT_TRY(dt_config_int_or(&quiet, "pad_token_id", INT32_MIN, INT32_MIN, INT32_MAX, &id));
    *out = is_absent(config, "pad_token_id") ? fallback : id < 0 ? id + vocab + 1 : id + 1;
    if (*out < 1 || *out > vocab) *out = 0;
    return *out > 0 ? dt_config_say(&v, "%lld", (long long)*out - 1) : dt_config_say(&v, "none");
}

dt_status dti_config_eps(const dt_config *config, const char *key, double fallback, float *out)
{
    double eps;

    DT_TRY(dt_config_number(config, key, fallback, 0.0, 1.0, &eps));
    *out = (float)eps;
    return DT_OK;
}

dt_status dti_config_word(const dt_config *config, const char *key, const char *fallback,
                          const char *supported)
{
    const char *word;

    DT_TRY(dt_config_string(config, key, fallback, &word));
    if (strcmp(word, supported) != 0) {
        const dt_config v = dt_config_member(config, key);
        return dt_config_must_be(&v, DT_ERR_UNSUPPORTED, "\"%s\": nothing else is supported",
                                 supported);
    }
    return DT_OK;
}

dt_status dt_config_activation(const dt_config *config, const char *key, const char *fallback,
                               const dt_activation **out)
{
    char names[512] = "";
    const char *name;
    size_t at = 0;

    DT_CHECK(out != NULL, DT_ERR_ARG, "dt_config_activation: out is NULL");
    DT_TRY(dt_config_string(config, key, fallback, &name));
    *out = dt_activation_find(name);
    if (*out != NULL) return DT_OK;
    for (int i = 0; dt_activation_at(i) != NULL && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i > 0 ? ", " : "one of ",
                               dt_activation_at(i)->name);
    return dt_config_refuse(config, key, DT_ERR_UNSUPPORTED, names);
}

dt_status dti_config_window(const dt_config *config, int64_t fallback, int64_t *out)
{
    const dt_config v = dt_config_member(config, "sliding_window");

    *out = 0;
    if (dt_config_kind_of(&v) == DT_CONFIG_NULL) return DT_OK;
    return dt_config_int(config, "sliding_window", fallback, 1, DTI_CONFIG_MAX_EXTENT, out);
}

dt_status dti_config_layer_types(const dt_config *config, int64_t n_layers, dt_config *types)
{
    DT_TRY(dt_config_array(config, "layer_types", types));
    if (dt_config_is_set(types) && (int64_t)dt_config_count(types) != n_layers)
        return dt_config_must_be(types, DT_ERR_FORMAT, "as long as num_hidden_layers, %lld",
                                 (long long)n_layers);
    return DT_OK;
}

dt_status dti_config_slides(const dt_config *types, int64_t i, bool *slides)
{
    const dt_config type = dt_config_item(types, (size_t)i);
    const char *word;

    if (!dt_config_is_set(types)) return DT_OK;
    DT_TRY(dt_config_as_string(&type, &word));
    *slides = strcmp(word, "sliding_attention") == 0;
    if (!*slides && strcmp(word, "full_attention") != 0)
        return dt_config_must_be(&type, DT_ERR_UNSUPPORTED,
                                 "\"full_attention\" or \"sliding_attention\"");
    return DT_OK;
}

dt_status dti_config_say_window(const dt_config *config, int64_t i, int64_t window)
{
    const dt_config types = dt_config_member(config, "layer_types");
    const dt_config one = dt_config_item(&types, (size_t)i);

    if (window == 0) return dt_config_say(&one, "full_attention");
    return dt_config_say(&one, "sliding_attention of %lld", (long long)window);
}

dt_attention_options dt_config_attention(const dt_model_info *info)
{
    if (info == NULL) return (dt_attention_options){ 0 };
    return (dt_attention_options){ .n_heads = info->n_heads,
                                   .n_kv_heads = info->n_kv_heads,
                                   .scale = (float)(1.0 / sqrt((double)info->head_dim)) };
}
