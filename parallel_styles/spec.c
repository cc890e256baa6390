/* SPDX-License-Identifier: Apache-2.0
 *
 * What a spec says of its layer's parameters, before there is a layer, and whether it can be. */
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "parallel_styles/kind.h"

uint32_t dti_spec_params(const dt_layer_spec *spec)
{
    uint32_t bits = 0;

    for (int p = 0; p < DT_LAYER_MAX_PARAMS && spec->kind->params[p].name != NULL; p++) {
        const dt_kind_param *own = &spec->kind->params[p];
        if (!own->optional || dti_has_word(spec->with, own->name, strlen(own->name)))
            bits |= 1u << p;
    }
    return bits;
}

int dt_spec_n_params(const dt_layer_spec *spec)
{
    const uint32_t bits = spec != NULL && spec->kind != NULL ? dti_spec_params(spec) : 0;
    int n = 0;

    for (int p = 0; p < DT_LAYER_MAX_PARAMS; p++)
        if ((bits >> p & 1u) != 0) n = p + 1;
    return n;
}

int64_t dti_packed_inputs(dt_packed packed, const dt_packing *packing)
{
    const int64_t codes = packing->bits > 0 ? 8 / packing->bits : 1;
    const int64_t per = packed == DT_PACKED_CODES ? codes : packing->group;

    return packed == DT_PACKED_NOT || per < 1 ? 1 : per;
}

/* The last axis counts elements that are for several inputs. */
static void count_packed(dt_param_info *info)
{
    const int64_t per = dti_packed_inputs(info->packed, &info->packing);
    const int last = info->n_axes - 1;

    if (info->axis[last].unit != DT_UNIT_ROW) info->heads.head_dim /= per;
    info->axis[last].extent /= per;
    info->step[last] /= per;
}

dt_param_info dt_spec_param(const dt_layer_spec *spec, int param)
{
    dt_param_info info = { 0 };
    char letters[DT_LAYER_MAX_AXES + 1];
    const dt_kind_param *own;

    if (spec == NULL || spec->kind == NULL) return info;
    info.layer = spec->name;
    info.kind = spec->kind;
    info.name = info.letters = "";
    if (param < 0 || param >= DT_LAYER_MAX_PARAMS || (dti_spec_params(spec) >> param & 1u) == 0)
        return info;
    own = &spec->kind->params[param];
    info.name = own->name;
    info.letters = own->axes;
    info.n_axes = (int)strlen(own->axes);
    info.heads = spec->heads;
    info.frozen = own->frozen;
    info.wide = own->wide;
    info.bare = own->bare;
    info.adapter = own->adapter;
    info.reversed = spec->reversed && param == 0;
    memcpy(info.parts, spec->parts, sizeof info.parts);
    (void)dti_kind_letters(spec->kind, letters);
    for (int a = 0; a < info.n_axes; a++) {
        const ptrdiff_t of = strchr(letters, own->axes[a]) - letters;
        info.axis[a] = spec->axis[of];
        if (of < 2) info.blocks[a] = spec->blocks[of];
        if (of < 2) info.step[a] = spec->step[of];
    }
    info.packed = own->packed;
    info.packing = spec->packing;
    if (own->packed != DT_PACKED_NOT && info.n_axes >= 2) count_packed(&info);
    return info;
}

dt_param_info dti_param_plain(const dt_param_info *info)
{
    dt_param_info plain = *info;
    const int last = info->n_axes - 1;
    const int64_t per = dti_packed_inputs(info->packed, &info->packing);

    plain.name = "weight";
    plain.bare = dti_kind_is(info->kind, "experts");
    plain.axis[last].extent *= per;
    plain.step[last] *= per;
    plain.packed = DT_PACKED_NOT;
    return plain;
}

int dti_packed_param(const dt_layer *layer, dt_packed part)
{
    for (int p = 0; p < dt_layer_n_params(layer); p++)
        if (dt_layer_param_info(layer, p).packed == part) return p;
    return -1;
}

dt_dtype dti_param_dtype(const dt_param_info *info, dt_dtype model)
{
    if (info->wide || (info->packed == DT_PACKED_SCALES && info->packing.wide)) return DT_F32;
    return info->packed == DT_PACKED_CODES || info->packed == DT_PACKED_ZEROS ? DT_U8 : model;
}

dt_status dti_check_packing(const dt_layer_spec *spec)
{
    const dt_packing *p = &spec->packing;
    const dt_axis *in = &spec->axis[1];
    const int64_t together = in->unit == DT_UNIT_ROW ? spec->step[1] : spec->heads.head_dim;

    DT_CHECK(p->bits == 4 || p->bits == 8, DT_ERR_ARG, "%s: codes of %d bits, not 4 or 8",
             spec->name, p->bits);
    DT_CHECK(p->group >= 16 && (p->group & (p->group - 1)) == 0 && in->extent % p->group == 0,
             DT_ERR_ARG,
             "%s: groups of %lld of its %lld inputs; a power of two from 16 on is needed, which "
             "divides them",
             spec->name, (long long)p->group, (long long)in->extent);
    DT_CHECK(together > 0 && together % p->group == 0, DT_ERR_ARG,
             "%s: its inputs are cut in multiples of %lld, which parts groups of %lld", spec->name,
             (long long)together, (long long)p->group);
    DT_CHECK(spec->blocks[1].n == 0 &&
                 (in->unit == DT_UNIT_ROW || spec->axis[0].unit == DT_UNIT_ROW) &&
                 (in->unit == DT_UNIT_ROW || spec->blocks[0].n == 0),
             DT_ERR_ARG,
             "%s: inputs of packed weights are of one piece, and count heads where "
             "outputs do not",
             spec->name);
    DT_CHECK(!spec->reversed || p->form == DT_PACKED_PLAIN, DT_ERR_ARG,
             "%s: packed weights are not stored the other way round", spec->name);
    return DT_OK;
}

int64_t dti_spec_extent(const dt_layer_spec *spec, char letter)
{
    char letters[DT_LAYER_MAX_AXES + 1];
    const char *at;

    (void)dti_kind_letters(spec->kind, letters);
    at = letter != 0 ? strchr(letters, letter) : NULL;
    return at != NULL ? spec->axis[at - letters].extent : 0;
}

/* Digits with a point or without. strtod() would take letters, too: "inf", "nan", "0x". */
static double take_number(const char **text)
{
    double digits = 0.0, unit = 0.0;

    for (; **text != '\0' && strchr("0123456789.", **text) != NULL; (*text)++) {
        if (**text == '.') {
            unit = 1.0;
        } else {
            digits = 10.0 * digits + (**text - '0');
            unit *= 10.0;
        }
    }
    return unit > 0.0 ? digits / unit : digits;
}

/* "2 oi + 2 ri", which dti_kind_check() has looked at. */
double dti_spec_flops(const dt_layer_spec *spec)
{
    const char *at = spec->kind->cost != NULL ? spec->kind->cost : "";
    double sum = 0.0;

    while (*at != '\0') {
        double term = 1.0;
        while (*at != '\0' && *at != '+')
            if (*at == ' ')
                at++;
            else if (strchr("0123456789.", *at) != NULL)
                term *= take_number(&at);
            else
                term *= (double)dti_spec_extent(spec, *at++);
        if (*at == '+') at++;
        sum += term;
    }
    return sum;
}

/* --- checks ----------------------------------------------------------------------------------- */

static dt_status check_unit(const dt_layer_spec *spec, int axis, dt_axis_unit unit)
{
    const dt_head_counts *h = &spec->heads;

    DT_CHECK((int)unit >= DT_UNIT_ROW && unit <= DT_UNIT_KV_HEADS, DT_ERR_ARG,
             "%s: axis %d has unit %d, which is no dt_axis_unit", spec->name, axis, (int)unit);
    if (unit == DT_UNIT_ROW) return DT_OK;
    DT_CHECK(h->n_heads >= 1 && h->n_kv_heads >= 1 && h->head_dim >= 1 &&
                 h->n_heads % h->n_kv_heads == 0,
             DT_ERR_ARG,
             "%s: axis %d counts heads, but there are %lld heads, %lld kv heads, each of %lld "
             "rows; 1 or more are needed, and the kv heads have to divide the heads",
             spec->name, axis, (long long)h->n_heads, (long long)h->n_kv_heads,
             (long long)h->head_dim);
    return DT_OK;
}

/* Products of numbers of heads are taken without looking. */
static dt_status check_heads(const dt_layer_spec *spec)
{
    const dt_head_counts *h = &spec->heads;
    int64_t rows;

    DT_CHECK(h->n_heads < 0 || h->head_dim < 0 || dti_mul_i64(h->n_heads, h->head_dim, &rows),
             DT_ERR_ARG, "%s: %lld heads of %lld rows exceed 2^63 rows", spec->name,
             (long long)h->n_heads, (long long)h->head_dim);
    return DT_OK;
}

static dt_status check_axes(const dt_layer_spec *spec)
{
    char letters[DT_LAYER_MAX_AXES + 1];
    const int n = dti_kind_letters(spec->kind, letters);

    for (int a = 0; a < n; a++) {
        const dt_axis *axis = &spec->axis[a];
        DT_CHECK(axis->extent >= 1, DT_ERR_ARG,
                 "%s: axis %d, '%c' of %s, has extent %lld, must be 1 or more", spec->name, a,
                 letters[a], dti_kind_text(spec->kind), (long long)axis->extent);
        DT_TRY(check_unit(spec, a, axis->unit));
        for (int b = 0; a < 2 && b < spec->blocks[a].n && b < DT_AXIS_MAX_BLOCKS; b++)
            DT_TRY(check_unit(spec, a, spec->blocks[a].block[b].unit));
    }
    return DT_OK;
}

static dt_status check_bytes(const dt_layer_spec *spec)
{
    for (int p = 0; p < dt_spec_n_params(spec); p++) {
        const dt_param_info info = dt_spec_param(spec, p);
        int64_t bytes = 8; /* of the widest dtype */
        for (int a = 0; a < info.n_axes; a++)
            DT_CHECK(dti_mul_i64(bytes, info.axis[a].extent, &bytes), DT_ERR_ARG,
                     "%s: its %s exceeds 2^63 bytes at axis %d of %lld", spec->name, info.name, a,
                     (long long)info.axis[a].extent);
    }
    return DT_OK;
}

/* Every word of `with` is an optional parameter, or one that the layer has anyway. */
static dt_status check_with(const dt_layer_spec *spec)
{
    const char *at = spec->with;

    for (size_t n; (n = dti_next_word(&at)) > 0; at += n) {
        bool known = false;
        for (int p = 0; p < DT_LAYER_MAX_PARAMS && spec->kind->params[p].name != NULL; p++)
            known = known || (strlen(spec->kind->params[p].name) == n &&
                              strncmp(at, spec->kind->params[p].name, n) == 0);
        DT_CHECK(known, DT_ERR_ARG, "%s is %s, which has no parameter \"%.*s\"", spec->name,
                 dti_kind_text(spec->kind), (int)n, at);
    }
    return DT_OK;
}

static dt_status check_names(const dt_layer_spec *spec)
{
    for (int p = 0; p < DT_LAYER_MAX_PARAMS && spec->kind->params[p].name != NULL; p++) {
        const char *param = spec->kind->params[p].name;
        const size_t n = strlen(spec->name) + 1 + strlen(param);
        DT_CHECK(n < DT_PARAM_NAME_BYTES, DT_ERR_ARG,
                 "%.80s...: the layer's name and that of its %.80s have %zu bytes with a dot, at "
                 "most %d are possible",
                 spec->name, param, n, DT_PARAM_NAME_BYTES - 1);
    }
    return DT_OK;
}

dt_status dti_spec_check(const dt_layer_spec *spec)
{
    DT_CHECK(spec->name != NULL && spec->name[0] != '\0', DT_ERR_ARG, "a layer needs a name");
    if (spec->kind == NULL || dti_kind_is_own(spec->kind)) {
        const dt_status st = dti_kind_check(spec->kind);
        if (st != DT_OK) dti_error_prefix("%s", spec->name);
        DT_TRY(st);
    }
    DT_TRY(check_names(spec));
    DT_TRY(check_with(spec));
    DT_TRY(check_axes(spec));
    DT_TRY(check_bytes(spec));
    DT_TRY(check_heads(spec));
    DT_TRY(dti_check_blocks(spec));
    if (spec->kind->check != NULL) DT_TRY(spec->kind->check(spec));
    return DT_OK;
}
