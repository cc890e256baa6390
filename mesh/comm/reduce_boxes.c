/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions of terms that lie in strided boxes. Long rows are reduced where they are; short ones
 * pass through a block that stays in the first cache level. */
#include "base/dtype.h"
#include "base/numbers.h"
#include "mesh/comm/call.h"
#include "mesh/comm/copy.h"
#include "mesh/comm/reduce.h"

/* Rows of fewer bytes are packed first: they are not worth a call for each. */
enum { ROW_BYTES = 256, PACKED_BLOCK = 1024, FEW_SOURCES = 16 };

static bool same_strides(const dti_box *a, const dti_box *b)
{
    for (int i = 0; i < a->n_axes; i++)
        if (a->stride[i] != b->stride[i]) return false;
    return true;
}

void dti_box_terms_look(dti_box_terms *t)
{
    const dti_box *first, *other;

    t->row = 0;
    (void)t->source(t->arg, 0, &first);
    for (int k = 1; k < t->n_sources; k++) {
        (void)t->source(t->arg, k, &other);
        if (!same_strides(first, other)) return;
    }
    if (!dti_box_merge(first, &t->rows) || t->rows.stride[t->rows.n_axes - 1] != 1) return;
    t->row = t->rows.extent[t->rows.n_axes - 1];
}

/* Where element i of the box lies behind its first one. */
static int64_t place_in(const dti_box *box, int64_t i)
{
    int64_t place = 0;

    for (int a = box->n_axes - 1; a > 0; a--) {
        place += i % box->extent[a] * box->stride[a];
        i /= box->extent[a];
    }
    return place + i * box->stride[0];
}

/* The first element of a source's box. */
static const char *first_of(const dti_box_terms *t, int source)
{
    const dti_box *box;
    const char *base = t->source(t->arg, source, &box);

    return base + box->offset * (int64_t)dt_dtype_size(t->dtype);
}

/* The result of elements that begin at `to`, from the reducer. */
static void put(dti_reducer *r, char *to, int64_t n, bool stream)
{
    const void *result = dti_reducer_finish(r, n);

    if (to != result) dti_copy(to, result, (size_t)n * dt_dtype_size(r->dtype), stream);
}

static void reduce_rows(const dti_box_terms *t, char *to, const int64_t range[2])
{
    const int64_t bytes = (int64_t)dt_dtype_size(t->dtype);
    const char *first[FEW_SOURCES];
    dti_reducer r;
    int64_t n;

    for (int k = 0; k < t->n_sources && k < FEW_SOURCES; k++) first[k] = first_of(t, k);
    r.dtype = t->dtype;
    r.op = t->op;
    for (int64_t i = range[0]; i < range[1]; i += n) {
        const int64_t place = place_in(&t->rows, i) * bytes;
        n = dti_min(dti_min(range[1] - i, t->row - i % t->row), DTI_REDUCE_BLOCK);
        dti_reducer_first_two(&r, t->stream ? NULL : to + i * bytes, first[0] + place,
                              first[1] + place, n);
        for (int k = 2; k < t->n_sources; k++)
            dti_reducer_add(&r, (k < FEW_SOURCES ? first[k] : first_of(t, k)) + place, n);
        put(&r, to + i * bytes, n, t->stream);
    }
}

static void pack(const dti_box_terms *t, int source, void *block, int64_t first, int64_t n)
{
    const dti_box *box;
    const void *base = t->source(t->arg, source, &box);

    dti_box_pack(block, base, box, first, n, dt_dtype_size(t->dtype));
}

static void reduce_packed(const dti_box_terms *t, char *to, const int64_t range[2])
{
    const int64_t bytes = (int64_t)dt_dtype_size(t->dtype);
    _Alignas(64) char block[2][PACKED_BLOCK * 8];
    dti_reducer r;

    r.dtype = t->dtype;
    r.op = t->op;
    for (int64_t i = range[0]; i < range[1]; i += PACKED_BLOCK) {
        const int64_t n = dti_min(range[1] - i, PACKED_BLOCK);
        pack(t, 0, block[0], i, n);
        pack(t, 1, block[1], i, n);
        dti_reducer_first_two(&r, t->stream ? NULL : to + i * bytes, block[0], block[1], n);
        for (int k = 2; k < t->n_sources; k++) {
            pack(t, k, block[0], i, n);
            dti_reducer_add(&r, block[0], n);
        }
        put(&r, to + i * bytes, n, t->stream);
    }
}

void dti_reduce_boxes(const dti_box_terms *t, void *to, int64_t begin, int64_t end)
{
    const int64_t range[2] = { begin, end };

    if (begin >= end) return;
    if (t->row >= ROW_BYTES / (int64_t)dt_dtype_size(t->dtype))
        reduce_rows(t, to, range);
    else
        reduce_packed(t, to, range);
}
