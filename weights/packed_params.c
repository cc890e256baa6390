/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights become codes of few bits, group by group of inputs. A rank has whole groups, so it packs
 * what it has, and codes are the same on every mesh. */
#include "weights/packed_params.h"

#include <math.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "dtensor/create.h"
#include "files/checkpoint.h"
#include "parallel_styles/kind.h"
#include "weights/read_layers.h"

enum { CODES = DTI_PACKED_CODES, SCALES = DTI_PACKED_SCALES, ZEROS = DTI_PACKED_ZEROS };

/* The layout of the weight that these codes are of. */
static dt_status plain_layout(const dt_layer *layer, dt_tensor *codes, const dt_layout **out)
{
    const int64_t per = dti_packed_inputs(DT_PACKED_CODES, &dt_layer_spec_of(layer)->packing);
    dt_placement place[DT_MAX_DIMS];
    const int n = dt_layout_placements(dt_tensor_layout(codes), place);

    for (int m = 0; m < n; m++)
        if (place[m].kind == DT_PLACE_SHARD && place[m].axis == 1) place[m].unit *= per;
    DT_TRY(dt_layout_get(dt_tensor_mesh(codes), 2, place, NULL, out));
    return DT_OK;
}

/* --- one group -------------------------------------------------------------------------------- */

/* As compressed-tensors has it: symmetric, the largest magnitude is half of all codes but half a
 * code away from zero; otherwise the least and the largest number, zero among them, are the first
 * and the last code. A scale is rounded before codes are found with it. */
typedef struct group_codes {
    float scale;
    int zero;
} group_codes;

static group_codes measure(const float *w, int64_t n, const dt_packing *p, bool zeros,
                           dt_dtype dtype)
{
    const int codes = 1 << p->bits;
    float least = 0.0f, most = 0.0f, span;
    group_codes g = { 0.0f, codes / 2 };
    double stored; /* room for an element of any dtype */

    for (int64_t i = 0; i < n; i++) {
        least = w[i] < least ? w[i] : least;
        most = w[i] > most ? w[i] : most;
    }
    span = zeros ? (most - least) / (float)(codes - 1)
                 : fmaxf(-least, most) / ((float)(codes - 1) / 2.0f);
    dti_store_f32(&stored, dtype, 0, span);
    g.scale = dti_load_f32(&stored, dtype, 0);
    if (g.scale > 0.0f && zeros) g.zero = (int)fminf(rintf(-least / g.scale), (float)(codes - 1));
    if (!(g.scale > 0.0f)) g.scale = 1.0f; /* nothing but zeros, or below all numbers of dtype */
    return g;
}

static unsigned code_of(float w, group_codes g, int bits)
{
    const float q = rintf(w / g.scale) + (float)g.zero, last = (float)((1 << bits) - 1);

    return (unsigned)(q < 0.0f ? 0.0f : q > last ? last : q);
}

/* n weights of one row, whole groups, into codes, scales and zero points, which may be NULL. False
 * if one of them is no number. */
static bool pack_row(const float *w, int64_t n, const dt_packing *p, uint8_t *codes,
                     const dt_local *scales, int64_t first, uint8_t *zeros)
{
    bool finite = true;

    for (int64_t i = 0; i < n; i++) finite = finite && isfinite(w[i]);
    for (int64_t i = 0; i < n && finite; i += p->group, first++) {
        const group_codes g = measure(w + i, p->group, p, zeros != NULL, scales->dtype);
        dti_store_f32(scales->data, scales->dtype, first, g.scale);
        if (zeros != NULL) zeros[first] = (uint8_t)g.zero;
        finite = isfinite(g.scale);
        for (int64_t k = i; k < i + p->group && p->bits == 8; k++)
            codes[k] = (uint8_t)code_of(w[k], g, 8);
        for (int64_t k = i; k < i + p->group && p->bits == 4; k += 2)
            codes[k / 2] = (uint8_t)(code_of(w[k], g, 4) | code_of(w[k + 1], g, 4) << 4);
    }
    return finite;
}

/* --- a layer ---------------------------------------------------------------------------------- */

static dt_status pack(dti_packed_layer *l, const dt_local *w, const char *name)
{
    const int64_t rows = w->shape[0], n = w->shape[1], groups = n / l->packing.group;
    uint8_t *zeros = l->part[ZEROS] != NULL ? l->host[ZEROS].local.data : NULL;
    const int64_t row_bytes = n * (int64_t)dt_dtype_size(w->dtype);
    dt_status st = DT_OK;
    float *row;

    if (rows == 0 || n == 0) return DT_OK;
    DT_TRY(dti_alloc_array((size_t)n, sizeof *row, (void **)&row));
    for (int64_t o = 0; o < rows; o++) {
        dti_convert(row, DT_F32, (const char *)w->data + o * row_bytes, w->dtype, n);
        DT_CHECK_TO(done, st,
                    pack_row(row, n, &l->packing,
                             (uint8_t *)l->host[CODES].local.data + o * n * l->packing.bits / 8,
                             &l->host[SCALES].local, o * groups, zeros),
                    DT_ERR_FORMAT,
                    "tensor \"%s\": row %lld has numbers that are not finite, or too large for a "
                    "scale in %s: codes of %d bits cannot have them",
                    name, (long long)(w->offset[0] + o), dt_dtype_name(l->host[SCALES].local.dtype),
                    l->packing.bits);
    }
done:
    dti_free(row);
    return st;
}

/* Reads the rank's piece of the weight, in the dtype of its file, and packs it. */
static dt_status pack_plain(dti_packed_layer *l, const dti_packed_source *from)
{
    const dt_layer_spec *spec = dt_layer_spec_of(l->layer);
    const dt_param_info info = dti_spec_plain(spec);
    const int64_t shape[] = { info.axis[0].extent, info.axis[1].extent };
    const dti_param_tensor *t = from->codes;
    const dt_layout *layout;
    dt_tensor *w = NULL;
    dt_status st = DT_OK;
    dti_host host;

    DT_TRY(plain_layout(l->layer, l->part[CODES], &layout));
    DT_TRY(dti_tensor_create_exact(dt_tensor_mesh(l->part[CODES]), layout, t->entry->dtype, shape,
                                   &w));
    DT_TRY_TO(done, st, dti_host_open(w, DTI_HOST_WRITES, &host));
    st = dti_read_param(from->ckpt, t, info.reversed, &host, from->stage);
    if (st == DT_OK) st = pack(l, &host.local, t->name);
    st = dti_host_close(&host, st);
done:
    dt_tensor_release(&w);
    return st;
}

static dt_status read_parts(dti_packed_layer *l, const dti_packed_source *from)
{
    dt_status st = DT_OK;
    int n = 0;

    for (; n < DTI_PACKED_PARTS && st == DT_OK; n++)
        if (l->part[n] != NULL) st = dti_host_open(l->part[n], DTI_HOST_WRITES, &l->host[n]);
    if (st != DT_OK) n--; /* that one is not open */
    if (st == DT_OK)
        st = l->packing.form == DT_PACKED_PLAIN ? pack_plain(l, from)
                                                : dti_packed_from_files(l, from);
    for (int p = 0; p < n; p++)
        if (l->part[p] != NULL) st = dti_host_close(&l->host[p], st);
    return st;
}

dt_status dti_read_packed(dt_layer *layer, const dti_packed_source *from, dt_dtype dtype)
{
    static const int parts[] = { CODES, SCALES, ZEROS };
    dti_packed_layer l = { .layer = layer, .packing = dt_layer_spec_of(layer)->packing };
    dt_status st = DT_OK;

    for (size_t i = 0; i < DT_COUNT(parts); i++)
        if (dt_layer_has_param(layer, parts[i]))
            DT_TRY_TO(done, st, dti_make_param(layer, parts[i], dtype, &l.part[parts[i]]));
    if (dt_mesh_is_member(dt_layer_mesh(layer))) DT_TRY_TO(done, st, read_parts(&l, from));
    for (size_t i = 0; i < DT_COUNT(parts); i++)
        if (l.part[parts[i]] != NULL)
            DT_TRY_TO(done, st, dt_layer_set_param(layer, parts[i], l.part[parts[i]]));
done:
    for (size_t i = 0; i < DT_COUNT(parts); i++) dt_tensor_release(&l.part[parts[i]]);
    return st;
}
