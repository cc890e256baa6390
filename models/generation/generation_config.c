/* SPDX-License-Identifier: Apache-2.0 */
#include "models/generation/generation_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/model.h"

enum { MAX_LIST = 1 << 20 };

/* clang-format off */
/* What would change a text, is not done here, and has this value where it does nothing. */
static const struct {
    const char *key;
    double nothing;
} unknown[] = {
    { "assistant_early_exit", 0 },       { "constraints", 0 },          { "diversity_penalty", 0 },
    { "dola_layers", 0 },                { "encoder_no_repeat_ngram_size", 0 },
    { "encoder_repetition_penalty", 1 }, { "exponential_decay_length_penalty", 0 },
    { "force_words_ids", 0 },            { "guidance_scale", 1 },       { "max_time", 0 },
    { "num_beam_groups", 1 },            { "penalty_alpha", 0 },        { "token_healing", 0 },
    { "top_h", 0 },                      { "watermarking_config", 0 },
};
/* clang-format on */

/* Lists are read by themselves. */
static dt_status read_knob(const dti_json *config, const dt_knob *k, dt_generate_options *o)
{
    const dti_json v = k->key != NULL ? dti_json_get(config, k->key) : (dti_json){ 0 };
    void *field = (char *)o + k->at;
    int64_t count;

    if (!dti_json_is_set(&v)) return DT_OK;
    switch (k->kind) {
    case DT_KNOB_FLAG:
        return dti_json_as_bool(&v, field);
    case DT_KNOB_NUMBER:
        return dti_json_as_number(&v, k->min, k->max, field);
    case DT_KNOB_COUNT:
        return dti_json_as_int(&v, (int64_t)k->min, (int64_t)k->max, field);
    case DT_KNOB_TOKEN:
        DT_TRY(dti_json_as_int(&v, (int64_t)k->min, (int64_t)k->max, &count));
        *(int32_t *)field = (int32_t)count;
        return DT_OK;
    default:
        return DT_OK;
    }
}

/* One id or a list of them. */
static dt_status read_ids(const dti_json *v, dti_arena *arena, dt_ids *out)
{
    const bool list = dti_json_kind_of(v) == DT_CONFIG_ARRAY;
    const size_t n = list ? dti_json_count(v) : 1;
    void *memory;
    int32_t *ids;

    *out = (dt_ids)DT_IDS_NONE;
    if (n > MAX_LIST) return dti_json_refuse(v, DT_ERR_FORMAT, "at most %d tokens", (int)MAX_LIST);
    DT_TRY(dti_arena_alloc(arena, (n + 1) * sizeof *ids, &memory));
    ids = memory;
    for (size_t i = 0; i < n; i++) {
        const dti_json one = list ? dti_json_at(v, i) : *v;
        int64_t id;
        DT_TRY(dti_json_as_int(&one, 0, INT32_MAX, &id));
        ids[i] = (int32_t)id;
    }
    *out = (dt_ids){ ids, (int64_t)n };
    return DT_OK;
}

static dt_status read_list(const dti_json *config, const char *key, dti_arena *arena, dt_ids *out)
{
    const dti_json v = dti_json_get(config, key);

    return dti_json_is_set(&v) ? read_ids(&v, arena, out) : DT_OK;
}

static dt_status read_bad_words(const dti_json *config, dti_arena *arena, dt_generate_options *o)
{
    const dti_json v = dti_json_get(config, "bad_words_ids");
    void *memory;
    dt_ids *words;

    if (!dti_json_is_set(&v)) return DT_OK;
    DT_TRY(dti_json_as_array(&v));
    if (dti_json_count(&v) > MAX_LIST)
        return dti_json_refuse(&v, DT_ERR_FORMAT, "at most %d lists", (int)MAX_LIST);
    DT_TRY(dti_arena_alloc(arena, (dti_json_count(&v) + 1) * sizeof *words, &memory));
    words = memory;
    for (size_t i = 0; i < dti_json_count(&v); i++) {
        const dti_json one = dti_json_at(&v, i);
        DT_TRY(dti_json_as_array(&one));
        if (dti_json_count(&one) == 0)
            return dti_json_refuse(&one, DT_ERR_FORMAT, "a list of at least one token");
        DT_TRY(read_ids(&one, arena, &words[i]));
    }
    o->bad_words = words;
    o->n_bad_words = (int64_t)dti_json_count(&v);
    return DT_OK;
}

/* [[[5, 6], -1.5], ...] */
static dt_status read_biases(const dti_json *config, dti_arena *arena, dt_generate_options *o)
{
    const dti_json v = dti_json_get(config, "sequence_bias");
    dt_bias *biases;

    if (!dti_json_is_set(&v)) return DT_OK;
    DT_TRY(dti_json_as_array(&v));
    if (dti_json_count(&v) > MAX_LIST)
        return dti_json_refuse(&v, DT_ERR_FORMAT, "at most %d lists", (int)MAX_LIST);
    DT_TRY(dti_arena_alloc(arena, (dti_json_count(&v) + 1) * sizeof *biases, (void **)&biases));
    for (size_t i = 0; i < dti_json_count(&v); i++) {
        const dti_json one = dti_json_at(&v, i), ids = dti_json_at(&one, 0);
        const dti_json bias = dti_json_at(&one, 1);
        DT_TRY(dti_json_as_array(&one));
        DT_TRY(dti_json_as_array(&ids));
        if (dti_json_count(&one) != 2 || dti_json_count(&ids) == 0)
            return dti_json_refuse(&one, DT_ERR_FORMAT, "a list of tokens and a number");
        DT_TRY(read_ids(&ids, arena, &biases[i].ids));
        DT_TRY(dti_json_as_number(&bias, -1e9, 1e9, &biases[i].bias));
    }
    o->sequence_bias = biases;
    o->n_sequence_bias = (int64_t)dti_json_count(&v);
    return DT_OK;
}

/* One string or a list of them. */
static dt_status read_strings(const dti_json *config, dti_arena *arena, dt_generate_options *o)
{
    const dti_json v = dti_json_get(config, "stop_strings");
    const bool list = dti_json_kind_of(&v) == DT_CONFIG_ARRAY;
    const size_t n = list ? dti_json_count(&v) : 1;
    const char **strings;
    void *memory;

    if (!dti_json_is_set(&v)) return DT_OK;
    if (n > MAX_LIST) return dti_json_refuse(&v, DT_ERR_FORMAT, "at most %d strings", MAX_LIST);
    DT_TRY(dti_arena_alloc(arena, (n + 1) * sizeof *strings, &memory));
    strings = memory;
    for (size_t i = 0; i < n; i++) {
        const dti_json one = list ? dti_json_at(&v, i) : v;
        const char *text;
        DT_TRY(dti_json_as_string(&one, &text));
        DT_TRY(dti_arena_strndup(arena, text, strlen(text), (char **)(uintptr_t)&strings[i]));
    }
    o->stop_strings = strings;
    o->n_stop_strings = (int64_t)n;
    return DT_OK;
}

/* false, true or "never". */
static dt_status read_early_stopping(const dti_json *config, dt_generate_options *o)
{
    const dti_json v = dti_json_get(config, "early_stopping");
    const char *word;
    bool flag;

    if (!dti_json_is_set(&v)) return DT_OK;
    if (dti_json_kind_of(&v) == DT_CONFIG_STRING) {
        DT_TRY(dti_json_as_string(&v, &word));
        o->early_stopping = DT_EARLY_STOPPING_NEVER;
        if (strcmp(word, "never") == 0) return DT_OK;
        return dti_json_refuse(&v, DT_ERR_FORMAT, "false, true or \"never\"");
    }
    DT_TRY(dti_json_as_bool(&v, &flag));
    o->early_stopping = flag ? DT_EARLY_STOPPING_TRUE : DT_EARLY_STOPPING_FALSE;
    return DT_OK;
}

static bool does_nothing(const dti_json *v, double nothing)
{
    double value;
    bool flag;

    switch (dti_json_kind_of(v)) {
    case DT_CONFIG_INT:
    case DT_CONFIG_REAL:
        return dti_json_as_number(v, -INFINITY, INFINITY, &value) == DT_OK && value == nothing;
    case DT_CONFIG_BOOL:
        return dti_json_as_bool(v, &flag) == DT_OK && !flag;
    case DT_CONFIG_ARRAY:
    case DT_CONFIG_OBJECT:
        return dti_json_count(v) == 0;
    default:
        return !dti_json_is_set(v);
    }
}

static void list_unknown(const dti_json *config, char *text, size_t bytes)
{
    size_t used = 0;

    for (size_t i = 0; i < DT_COUNT(unknown) && used < bytes; i++) {
        const dti_json v = dti_json_get(config, unknown[i].key);
        if (does_nothing(&v, unknown[i].nothing)) continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "",
                                 unknown[i].key);
    }
}

dt_status dti_generation_config_read(const dti_json *config, dti_generation_config *out)
{
    dt_generate_options *o = &out->options;
    int n;
    const dt_knob *knobs = dt_generate_knobs(&n);

    *out = (dti_generation_config){ .options = DT_GENERATE_OPTIONS_INIT };
    for (int i = 0; i < n; i++) DT_TRY(read_knob(config, &knobs[i], o));
    DT_TRY(read_list(config, "forced_eos_token_id", &out->arena, &o->forced_eos));
    DT_TRY(read_list(config, "suppress_tokens", &out->arena, &o->suppress_tokens));
    DT_TRY(read_list(config, "begin_suppress_tokens", &out->arena, &o->begin_suppress_tokens));
    DT_TRY(read_bad_words(config, &out->arena, o));
    DT_TRY(read_biases(config, &out->arena, o));
    DT_TRY(read_strings(config, &out->arena, o));
    DT_TRY(read_early_stopping(config, o));
    list_unknown(config, out->left_out, sizeof out->left_out);
    return DT_OK;
}

void dti_generation_config_free(dti_generation_config *config)
{
    dti_arena_free(&config->arena);
}

void dti_generation_config_release(dti_generation_config **config)
{
    if (*config == NULL) return;
    dti_generation_config_free(*config);
    dti_free(*config);
    *config = NULL;
}

dt_status dt_model_generate_options(const dt_model *model, dt_generate_options *out)
{
    DT_CHECK(model != NULL && out != NULL, DT_ERR_ARG, "model or out is NULL");
    DT_CHECK(model->generation != NULL, DT_ERR_FORMAT,
             "%s/generation_config.json could not be read when the model was loaded, so it is "
             "unknown how the model wants to be sampled; mend it, or start from "
             "DT_GENERATE_OPTIONS_INIT",
             model->folder);
    *out = model->generation->options;
    return DT_OK;
}
