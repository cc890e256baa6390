/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed weights as compressed-tensors writes them. Codes lie there as they do here, byte for byte,
 * or with a sign; a scale may be for more inputs than here, and is repeated then, which changes
 * nothing; zero points of words are packed along outputs. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "dtensor/create.h"
#include "dtensor/kernels/kernel.h"
#include "files/checkpoint.h"
#include "parallel_styles/kind.h"
#include "placements/layout.h"
#include "weights/packed_params.h"

/* A tensor of the file, as far as this rank needs it. */
typedef struct side {
    dt_tensor *x;
    dti_host host;
} side;

/* How it lies beside codes: cut as they are, elements of four of their bytes; in their rows, with
 * all columns; all of it. */
typedef enum how { AS_WORDS, IN_ROWS, WHOLE } how;

static dt_status side_layout(dt_tensor *codes, how as, const dt_layout **out)
{
    dt_placement place[DT_MAX_DIMS];
    const int n = dt_layout_placements(dt_tensor_layout(codes), place);

    for (int m = 0; m < n; m++) {
        const bool cut = place[m].kind == DT_PLACE_SHARD;
        if (as == WHOLE || (as == IN_ROWS && cut && place[m].axis == 1)) place[m] = DT_REPLICATE;
        if (as == AS_WORDS && cut && place[m].axis == 1) place[m].unit /= 4;
    }
    DT_TRY(dt_layout_get(dt_tensor_mesh(codes), 2, place, NULL, out));
    return DT_OK;
}

static dt_status open_side(dt_tensor *codes, const dti_packed_source *from,
                           const dti_param_tensor *t, dt_dtype dtype, how as, side *out)
{
    const dt_layout *layout;
    dt_status st;

    DT_TRY(side_layout(codes, as, &layout));
    DT_TRY(dti_tensor_create_exact(dt_tensor_mesh(codes), layout, dtype, t->shape, &out->x));
    st = dti_host_open(out->x, DTI_HOST_WRITES, &out->host);
    if (st == DT_OK) {
        st = dti_read_param(from->ckpt, t, false, &out->host, from->stage);
        if (st != DT_OK) st = dti_host_close(&out->host, st);
    }
    if (st != DT_OK) dt_tensor_release(&out->x);
    return st;
}

static dt_status close_side(side *s, dt_status st)
{
    st = dti_host_close(&s->host, st);
    dt_tensor_release(&s->x);
    return st;
}

/* --- codes ------------------------------------------------------------------------------------ */

static void flip_signs(uint8_t *bytes, int64_t n)
{
    for (int64_t i = 0; i < n; i++) bytes[i] ^= 0x80u;
}

static dt_status read_codes(dti_packed_layer *l, const dti_packed_source *from)
{
    dti_host *codes = &l->host[DTI_PACKED_CODES];
    const int64_t n = dti_local_count(&codes->local);
    side words;

    if (l->packing.form == DT_PACKED_BYTES) {
        DT_TRY(dti_read_param(from->ckpt, from->codes, false, codes, from->stage));
        flip_signs(codes->local.data, n);
        return DT_OK;
    }
    DT_TRY(open_side(codes->x, from, from->codes, DT_I32, AS_WORDS, &words));
    if (n > 0) memcpy(codes->local.data, words.host.local.data, (size_t)n);
    return close_side(&words, DT_OK);
}

/* --- scales and zero points ------------------------------------------------------------------- */

/* The column of the file that this rank's group g has. */
static int64_t column_of(const dti_packed_layer *l, int64_t g)
{
    const dt_packing *p = &l->packing;
    const int64_t first = l->host[DTI_PACKED_CODES].local.offset[1] * (8 / p->bits);

    return (first + g * p->group) / (p->file_group > 0 ? p->file_group : p->group);
}

static dt_status spread_scales(dti_packed_layer *l, const dt_local *from, const char *name)
{
    dt_local *to = &l->host[DTI_PACKED_SCALES].local;

    for (int64_t o = 0; o < to->shape[0]; o++)
        for (int64_t g = 0; g < to->shape[1]; g++) {
            const float s =
                dti_load_f32(from->data, from->dtype, o * from->shape[1] + column_of(l, g));
            DT_CHECK(isfinite(s), DT_ERR_FORMAT, "tensor \"%s\": a scale is %f, no number", name,
                     (double)s);
            dti_store_f32(to->data, to->dtype, o * to->shape[1] + g, s);
        }
    return DT_OK;
}

static dt_status read_scales(dti_packed_layer *l, const dti_packed_source *from)
{
    const dt_dtype dtype = l->host[DTI_PACKED_SCALES].local.dtype;
    side s;

    DT_TRY(open_side(l->part[DTI_PACKED_CODES], from, from->scales, dtype, IN_ROWS, &s));
    return close_side(&s, spread_scales(l, &s.host.local, from->scales->name));
}

/* Words hold the zero points of neighbouring outputs, whatever outputs this rank has. */
static void unpack_zeros(dti_packed_layer *l, const dt_local *from)
{
    const dt_tensor *x = l->part[DTI_PACKED_ZEROS];
    const dt_local *to = &l->host[DTI_PACKED_ZEROS].local;
    const int bits = l->packing.bits, per = 32 / bits;
    int coord[DT_MAX_DIMS];
    int64_t o = 0;
    dti_runs rows;

    for (int m = 0; m < dt_mesh_n_dims(dt_tensor_mesh(x)); m++)
        coord[m] = dt_mesh_coord(dt_tensor_mesh(x), m);
    dti_layout_axis_runs(dt_tensor_layout(x), 0, dt_tensor_extent(x, 0), coord, &rows);
    for (int r = 0; r < rows.n; r++)
        for (int64_t row = rows.run[r].begin; row < rows.run[r].end; row++, o++)
            for (int64_t g = 0; g < to->shape[1]; g++) {
                const int64_t at = row / per * from->shape[1] + column_of(l, g);
                const uint32_t word = ((const uint32_t *)from->data)[at];
                ((uint8_t *)to->data)[o * to->shape[1] + g] =
                    (uint8_t)(word >> (row % per * bits) & ((1u << bits) - 1));
            }
}

static void spread_zeros(dti_packed_layer *l, const dt_local *from)
{
    const dt_local *to = &l->host[DTI_PACKED_ZEROS].local;

    for (int64_t o = 0; o < to->shape[0]; o++)
        for (int64_t g = 0; g < to->shape[1]; g++)
            ((uint8_t *)to->data)[o * to->shape[1] + g] =
                ((const uint8_t *)from->data)[o * from->shape[1] + column_of(l, g)] ^ 0x80u;
}

static dt_status read_zeros(dti_packed_layer *l, const dti_packed_source *from)
{
    const bool words = l->packing.form == DT_PACKED_WORDS;
    side s;

    if (l->part[DTI_PACKED_ZEROS] == NULL) return DT_OK;
    DT_TRY(open_side(l->part[DTI_PACKED_CODES], from, from->zeros, words ? DT_I32 : DT_U8,
                     words ? WHOLE : IN_ROWS, &s));
    if (words)
        unpack_zeros(l, &s.host.local);
    else
        spread_zeros(l, &s.host.local);
    return close_side(&s, DT_OK);
}

dt_status dti_packed_from_files(dti_packed_layer *l, const dti_packed_source *from)
{
    DT_TRY(read_codes(l, from));
    DT_TRY(read_scales(l, from));
    DT_TRY(read_zeros(l, from));
    return DT_OK;
}
