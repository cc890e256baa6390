/* SPDX-License-Identifier: Apache-2.0
 *
 * quantization_config of FP8 with scales of blocks (DeepSeek, Qwen), of GPTQ and of AWQ: one way
 * for all linear layers and experts but the head, routers and those that are listed. And of MXFP4,
 * for experts that files hold in one tensor: these are read as plain ones. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "models/describe/describe.h"
#include "models/describe/packed_config.h"

enum { MXFP4_BLOCK = 32 }; /* inputs */

static dt_status refuse(const dti_json *config, const char *key, const char *words)
{
    const dti_json v = dti_json_get(config, key);

    return dti_json_refuse(&v, DT_ERR_UNSUPPORTED, "%s", words);
}

/* --- methods ---------------------------------------------------------------------------------- */

static dt_status read_fp8(const dti_json *config, dt_packing *p, bool *zeros)
{
    dti_json size, rows, columns;
    int64_t every, group;

    *p = (dt_packing){ .bits = 8, .floats = true, .form = DT_PACKED_E4M3_INV };
    *zeros = false;
    DT_TRY(dti_json_array_or_none(config, "weight_block_size", &size));
    if (!dti_json_is_set(&size)) {
        p->file_rows = INT64_MAX; /* of all outputs and inputs */
        return DT_OK;
    }
    if (dti_json_count(&size) != 2)
        return dti_json_refuse(&size, DT_ERR_FORMAT, "[outputs, inputs] of a block");
    rows = dti_json_at(&size, 0);
    columns = dti_json_at(&size, 1);
    DT_TRY(dti_json_as_int(&rows, 1, INT32_MAX, &every));
    DT_TRY(dti_json_as_int(&columns, 1, INT32_MAX, &group));
    p->file_rows = every;
    p->file_group = group;
    return DT_OK;
}

static dt_status read_group_size(const dti_json *config, dt_packing *p)
{
    int64_t bits;

    DT_TRY(dti_json_int(config, "bits", 1, 32, &bits));
    DT_TRY(dti_json_int(config, "group_size", -1, INT32_MAX, &p->file_group));
    if (p->file_group < 1) p->file_group = 0; /* all inputs */
    p->bits = (int)bits;
    return DT_OK;
}

static dt_status read_gptq(const dti_json *config, dt_packing *p, bool *zeros)
{
    const dti_json dynamic = dti_json_get(config, "dynamic"),
                   only = dti_json_get(config, "modules_in_block_to_quantize");
    const char *form;
    bool head;

    *p = (dt_packing){ .form = DT_PACKED_GPTQ };
    *zeros = true;
    DT_TRY(read_group_size(config, p));
    if (p->bits != 4 && p->bits != 8) return refuse(config, "bits", "4 or 8");
    DT_TRY(dti_json_string_or(config, "checkpoint_format", "gptq", &form));
    if (strcmp(form, "gptq_v2") == 0)
        p->form = DT_PACKED_GPTQ_V2;
    else if (strcmp(form, "gptq") != 0)
        return refuse(config, "checkpoint_format", "\"gptq\" or \"gptq_v2\"");
    DT_TRY(dti_json_bool_or(config, "lm_head", false, &head));
    if (head) return refuse(config, "lm_head", "false: a head of packed weights is not read");
    if (dti_json_count(&dynamic) > 0)
        return refuse(config, "dynamic",
                      "empty: layers that are packed in other ways are not read");
    if (dti_json_is_set(&only))
        return refuse(config, "modules_in_block_to_quantize",
                      "absent: all linear layers are packed");
    return DT_OK;
}

static dt_status read_awq(const dti_json *config, dt_packing *p, bool *zeros)
{
    const char *version;

    *p = (dt_packing){ .form = DT_PACKED_AWQ };
    DT_TRY(read_group_size(config, p));
    if (p->bits != 4) return refuse(config, "bits", "4");
    DT_TRY(dti_json_string_or(config, "version", "gemm", &version));
    if (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        return refuse(config, "version", "\"gemm\": other layouts of words are not read");
    DT_TRY(dti_json_bool_or(config, "zero_point", true, zeros));
    if (!*zeros) return refuse(config, "zero_point", "true");
    return DT_OK;
}

static dt_status read_mxfp4(const dti_json *config, dt_packing *p, bool *zeros)
{
    (void)config;
    *p = (dt_packing){ .form = DT_PACKED_MXFP4 };
    *zeros = false;
    return DT_OK;
}

static const struct {
    const char *name;
    dt_status (*read)(const dti_json *config, dt_packing *p, bool *zeros);
    const char *kept[2]; /* lists of modules that stay as they are */
} methods[] = {
    { "fp8", read_fp8, { "modules_to_not_convert", "ignored_layers" } },
    { "gptq", read_gptq, { "modules_to_not_convert", NULL } },
    { "awq", read_awq, { "modules_to_not_convert", NULL } },
    { "mxfp4", read_mxfp4, { "modules_to_not_convert", NULL } },
};

/* --- layers ----------------------------------------------------------------------------------- */

/* A name in a list is that of a module, or of one that it lies in, or the end of one; "*" is any
 * component. */
static bool names(const char *text, const char *name)
{
    const size_t n = strlen(text), all = strlen(name);
    char inside[DT_PARAM_NAME_BYTES];

    (void)snprintf(inside, sizeof inside, "%s.**", text);
    if (dti_name_matches(text, name) || dti_name_matches(inside, name)) return true;
    return (strncmp(name, text, n) == 0 && (name[n] == '\0' || name[n] == '.')) ||
           (all > n && strcmp(name + all - n, text) == 0);
}

static dt_status is_listed(const dti_described *d, const dti_json *config, const char *key,
                           const dt_layer_spec *spec, bool *out)
{
    dti_json all;

    if (key == NULL) return DT_OK;
    DT_TRY(dti_json_array_or_none(config, key, &all));
    for (size_t i = 0; i < dti_json_count(&all) && !*out; i++) {
        const dti_json one = dti_json_at(&all, i);
        char name[DT_PARAM_NAME_BYTES];
        const char *text;
        DT_TRY(dti_json_as_string(&one, &text));
        for (int k = 0; !*out && dti_packed_module(d, spec, k, name); k++) *out = names(text, name);
    }
    return DT_OK;
}

/* Heads, and what chooses experts: no tool packs it, and configurations are silent about it. */
static bool is_kept(const dti_described *d, int i)
{
    const char *outputs = d->builder.keys[i][0];

    return (outputs != NULL && strcmp(outputs, "vocab_size") == 0) || dti_chooses_experts(d, i);
}

/* Experts of a tensor each for gate and up and for down, of one piece: *n more of them. */
static dt_status unpack_spec(const dti_json *config, dt_layer_spec *spec, const dt_packing *packing,
                             int *n)
{
    if (spec->kind != &dt_experts_kind || spec->parts[0] != NULL || spec->blocks[0].n > 0)
        return DT_OK;
    if (spec->axis[1].extent % MXFP4_BLOCK != 0)
        return dti_json_refuse(config, DT_ERR_FORMAT,
                               "of a method whose blocks of %d divide the %lld inputs of %s",
                               (int)MXFP4_BLOCK, (long long)spec->axis[1].extent, spec->name);
    spec->packing = *packing;
    ++*n;
    return DT_OK;
}

dt_status dti_packed_method_read(const dti_json *config, const char *method, dti_described *d)
{
    size_t m = 0;
    dt_packing packing;
    bool zeros, mxfp4;
    int n = 0;

    while (m < DT_COUNT(methods) && strcmp(methods[m].name, method) != 0) m++;
    if (m == DT_COUNT(methods)) return refuse(config, "quant_method", "a method that is read");
    DT_TRY(methods[m].read(config, &packing, &zeros));
    mxfp4 = packing.form == DT_PACKED_MXFP4;
    for (int i = 0; i < d->builder.n; i++) {
        dt_layer_spec *spec = &d->builder.specs[i];
        bool kept = false;
        if (!dti_packed_may(spec) || is_kept(d, i)) continue;
        if (mxfp4 && spec->kind != &dt_experts_kind) continue;
        for (int k = 0; k < 2; k++) DT_TRY(is_listed(d, config, methods[m].kept[k], spec, &kept));
        if (!kept && mxfp4) DT_TRY(unpack_spec(config, spec, &packing, &n));
        if (!kept && !mxfp4) DT_TRY(dti_packed_spec(d, i, config, packing, zeros));
        n += kept;
    }
    if (mxfp4 && n == 0)
        return refuse(config, "quant_method",
                      "a method that is read: mxfp4 is, of experts that files hold in one tensor "
                      "(gpt_oss), which this model has not");
    return DT_OK;
}
