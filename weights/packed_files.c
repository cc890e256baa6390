/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed weights as others write them: compressed-tensors, whose codes lie as they do here, byte
 * for byte or with a sign; floats of 8 bits with scales of blocks; GPTQ and AWQ, whose words lie
 * turned. A scale may be for more inputs or outputs than here, and is repeated then, which changes
 * nothing. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
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
 * all columns; its rows the inputs that codes have, with all columns; all of it. */
typedef enum how { AS_WORDS, IN_ROWS, BY_INPUTS, WHOLE } how;

static dt_status side_layout(const dti_packed_layer *l, int n_axes, how as, const dt_layout **out)
{
    const dt_tensor *codes = l->part[DTI_PACKED_CODES];
    dt_placement place[DT_MAX_DIMS];
    const int n = dt_layout_placements(dt_tensor_layout(codes), place);

    for (int m = 0; m < n; m++) {
        dt_placement *p = &place[m];
        const bool inputs = p->kind == DT_PLACE_SHARD && p->axis == 1;
        if (as == WHOLE || (as == IN_ROWS && inputs) || (as == BY_INPUTS && !inputs))
            *p = DT_REPLICATE;
        if (as == AS_WORDS && inputs) p->unit /= 4;
        if (as != BY_INPUTS || !inputs) continue;
        p->unit *= 8 / l->packing.bits;
        p->axis = 0;
    }
    DT_TRY(dt_layout_get(dt_tensor_mesh(codes), n_axes, place, NULL, out));
    return DT_OK;
}

/* With `turned` the file's axes stand the other way round. */
static dt_status open_side(const dti_packed_layer *l, const dti_packed_source *from,
                           const dti_param_tensor *t, dt_dtype dtype, how as, bool turned,
                           side *out)
{
    const dti_st_entry *e = t->entry;
    const int64_t shape[] = { turned ? e->shape[1] : e->shape[0],
                              turned ? e->shape[0] : e->shape[1] };
    const dt_layout *layout;
    dt_status st;

    DT_TRY(side_layout(l, e->n_axes, as, &layout));
    DT_TRY(dti_tensor_create_exact(dt_tensor_mesh(l->part[DTI_PACKED_CODES]), layout, dtype,
                                   e->n_axes == 2 ? shape : e->shape, &out->x));
    st = dti_host_open(out->x, DTI_HOST_WRITES, &out->host);
    if (st == DT_OK) {
        st = dti_read_param(from->ckpt, t, turned, &out->host, from->stage);
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

/* The rows of the whole that this rank has. */
static void global_rows(const dti_packed_layer *l, int64_t *rows)
{
    const dt_tensor *x = l->part[DTI_PACKED_CODES];
    int coord[DT_MAX_DIMS];
    int64_t n = 0;
    dti_runs runs;

    for (int m = 0; m < dt_mesh_n_dims(dt_tensor_mesh(x)); m++)
        coord[m] = dt_mesh_coord(dt_tensor_mesh(x), m);
    dti_layout_axis_runs(dt_tensor_layout(x), 0, dt_tensor_extent(x, 0), coord, &runs);
    for (int r = 0; r < runs.n; r++)
        for (int64_t row = runs.run[r].begin; row < runs.run[r].end; row++) rows[n++] = row;
}

/* --- codes ------------------------------------------------------------------------------------ */

/* AWQ: which of eight neighbouring outputs a word has first, second, ... */
static const int awq_place[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };

static unsigned awq_code(uint32_t word, int64_t row)
{
    return word >> (4 * awq_place[row % 8]) & 15u;
}

static void unpack_awq(const dti_packed_layer *l, const dt_local *words, const int64_t *rows)
{
    const dt_local *codes = &l->host[DTI_PACKED_CODES].local;
    const int64_t n_in = words->shape[0], columns = words->shape[1];

    for (int64_t o = 0; o < codes->shape[0]; o++)
        for (int64_t i = 0; i < n_in; i += 2) {
            const uint32_t *at = (const uint32_t *)words->data + i * columns + rows[o] / 8;
            ((uint8_t *)codes->data)[(o * n_in + i) / 2] =
                (uint8_t)(awq_code(at[0], rows[o]) | awq_code(at[columns], rows[o]) << 4);
        }
}

static dt_status read_words(const dti_packed_layer *l, const dti_packed_source *from,
                            const int64_t *rows)
{
    const dt_local *codes = &l->host[DTI_PACKED_CODES].local;
    const bool awq = l->packing.form == DT_PACKED_AWQ;
    const bool turned = !awq && l->packing.form != DT_PACKED_WORDS;
    const int64_t n = dti_local_count(codes);
    side words;

    DT_TRY(open_side(l, from, from->codes, DT_I32, awq ? BY_INPUTS : AS_WORDS, turned, &words));
    if (awq && n > 0) unpack_awq(l, &words.host.local, rows);
    if (!awq && n > 0) memcpy(codes->data, words.host.local.data, (size_t)n);
    return close_side(&words, DT_OK);
}

/* Bytes with a sign become such without, as words have them; floats stay. */
static dt_status read_bytes(dti_packed_layer *l, const dti_packed_source *from)
{
    dti_host *codes = &l->host[DTI_PACKED_CODES];
    const int64_t n = dti_local_count(&codes->local);
    uint8_t *bytes = codes->local.data;

    DT_TRY(dti_read_param(from->ckpt, from->codes, false, codes, from->stage));
    for (int64_t i = 0; i < n && !l->packing.floats; i++) bytes[i] ^= 0x80u;
    for (int64_t i = 0; i < n && l->packing.floats; i++)
        DT_CHECK((bytes[i] & 0x7fu) != 0x7fu, DT_ERR_FORMAT,
                 "tensor \"%s\": one of its floats of 8 bits is no number", from->codes->name);
    return DT_OK;
}

/* Groups of inputs that follow each other alone are what layers have. */
dt_status dti_check_input_groups(const dti_ckpt *ckpt, const dti_param_tensor *t,
                                 const dti_st_stage *stage)
{
    const int64_t begin = 0, n = t->shape[0];
    int32_t *group;
    dt_status st;

    DT_TRY(dti_alloc_array((size_t)n + 1, sizeof *group, (void **)&group));
    st = dti_ckpt_read(ckpt, t->entry->name, &begin, &n, DT_I32, stage, group);
    for (int64_t i = 0; i < n && st == DT_OK; i++)
        if (group[i] != i / t->input_group)
            st = dt_fail(DT_ERR_UNSUPPORTED,
                         "tensor \"%s\": input %" PRId64 " is of group %d, not of %" PRId64
                         ": groups of inputs that do not follow each other (desc_act, act_order) "
                         "are not read",
                         t->entry->name, i, (int)group[i], i / t->input_group);
    dti_free(group);
    return st;
}

/* --- scales and zero points ------------------------------------------------------------------- */

/* The column of the file that this rank's group g has. */
static int64_t column_of(const dti_packed_layer *l, int64_t g)
{
    const dt_packing *p = &l->packing;
    const int64_t first = l->host[DTI_PACKED_CODES].local.offset[1] * (8 / p->bits);

    return (first + g * p->group) / (p->file_group > 0 ? p->file_group : p->group);
}

static dt_status spread_scales(const dti_packed_layer *l, const dt_local *from, const char *name,
                               const int64_t *rows)
{
    const dt_local *to = &l->host[DTI_PACKED_SCALES].local;
    const int64_t every = l->packing.file_rows, columns = from->n_axes == 2 ? from->shape[1] : 1;

    for (int64_t o = 0; o < to->shape[0]; o++)
        for (int64_t g = 0; g < to->shape[1]; g++) {
            const int64_t row = every > 1 ? rows[o] / every : o;
            const float s = dti_load_f32(from->data, from->dtype, row * columns + column_of(l, g));
            DT_CHECK(isfinite(s), DT_ERR_FORMAT, "tensor \"%s\": a scale is %f, no number", name,
                     (double)s);
            dti_store_f32(to->data, to->dtype, o * to->shape[1] + g, s);
        }
    return DT_OK;
}

static dt_status read_scales(const dti_packed_layer *l, const dti_packed_source *from,
                             const int64_t *rows)
{
    const bool blocks = l->packing.file_rows > 1, turned = l->packing.form >= DT_PACKED_GPTQ;
    const dt_dtype dtype = l->host[DTI_PACKED_SCALES].local.dtype;
    side s;

    DT_TRY(open_side(l, from, from->scales, dtype, blocks ? WHOLE : IN_ROWS, turned, &s));
    return close_side(&s, spread_scales(l, &s.host.local, from->scales->name, rows));
}

/* The zero point of a row in a column: in words of neighbouring outputs, or bytes with a sign. */
static unsigned zero_of(const dt_packing *p, const dt_local *from, int64_t o, int64_t row,
                        int64_t column)
{
    const int64_t per = 32 / p->bits;
    const unsigned most = (1u << p->bits) - 1;
    const uint32_t *words = from->data;

    switch (p->form) {
    case DT_PACKED_WORDS:
        return words[row / per * from->shape[1] + column] >> (row % per * p->bits) & most;
    case DT_PACKED_GPTQ:
        return ((words[column * from->shape[1] + row / per] >> (row % per * p->bits)) + 1u) & most;
    case DT_PACKED_GPTQ_V2:
        return words[column * from->shape[1] + row / per] >> (row % per * p->bits) & most;
    case DT_PACKED_AWQ:
        return awq_code(words[column * from->shape[1] + row / 8], row);
    default:
        return ((const uint8_t *)from->data)[o * from->shape[1] + column] ^ 0x80u;
    }
}

static dt_status read_zeros(const dti_packed_layer *l, const dti_packed_source *from,
                            const int64_t *rows)
{
    const dt_local *to = &l->host[DTI_PACKED_ZEROS].local;
    const bool bytes = l->packing.form == DT_PACKED_BYTES;
    side s;

    if (l->part[DTI_PACKED_ZEROS] == NULL) return DT_OK;
    DT_TRY(open_side(l, from, from->zeros, bytes ? DT_U8 : DT_I32, bytes ? IN_ROWS : WHOLE, false,
                     &s));
    for (int64_t o = 0; o < to->shape[0]; o++)
        for (int64_t g = 0; g < to->shape[1]; g++)
            ((uint8_t *)to->data)[o * to->shape[1] + g] =
                (uint8_t)zero_of(&l->packing, &s.host.local, o, rows[o], column_of(l, g));
    return close_side(&s, DT_OK);
}

dt_status dti_packed_from_files(dti_packed_layer *l, const dti_packed_source *from)
{
    const bool bytes = l->packing.form == DT_PACKED_BYTES || l->packing.floats;
    const int64_t n = l->host[DTI_PACKED_CODES].local.shape[0];
    int64_t *rows;
    dt_status st = DT_OK;

    DT_TRY(dti_alloc_array((size_t)n + 1, sizeof *rows, (void **)&rows));
    global_rows(l, rows);
    if (from->order != NULL)
        DT_TRY_TO(done, st, dti_check_input_groups(from->ckpt, from->order, from->stage));
    st = bytes ? read_bytes(l, from) : read_words(l, from, rows);
    DT_TRY_TO(done, st, st);
    DT_TRY_TO(done, st, read_scales(l, from, rows));
    DT_TRY_TO(done, st, read_zeros(l, from, rows));
done:
    dti_free(rows);
    return st;
}
