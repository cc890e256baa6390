/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a box of a tensor to where its elements do not follow each other: a block of a packed
 * axis, a transposed weight, one expert of many. Long contiguous parts are read straight into
 * place; short ones go through half of the stage. */
#include <string.h>

#include "files/safetensors_internal.h"

enum { DIRECT_BYTES = 64 << 10 };

typedef struct target {
    const dti_st_file *file;
    const dti_st_entry *entry;
    dt_dtype want;
    const dti_st_stage *stage;
    char *dst;
    const int64_t *stride;
    int64_t begin[DT_MAX_AXES]; /* of the whole box */
    int64_t extent[DT_MAX_AXES];
} target;

/* How many leading axes have to be walked until what is left lies contiguously; *inner: its
 * elements. */
static int axes_to_walk(const target *t, int64_t *inner)
{
    int a = t->entry->n_axes - 1;

    *inner = 1;
    for (; a >= 0; a--) {
        if (t->extent[a] == 1) continue;
        if (t->stride[a] != *inner) break;
        *inner *= t->extent[a];
    }
    return a + 1;
}

/* Elements of the box that follow axis a. */
static int64_t elements_after(const target *t, int a)
{
    int64_t n = 1;

    for (int i = a + 1; i < t->entry->n_axes; i++) n *= t->extent[i];
    return n;
}

/* `n` elements, `from_step` and `to_step` apart, of the wanted dtype. */
static void copy_line(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n,
                      size_t size)
{
    if (to_step == 1 && from_step == 1)
        memcpy(to, from, (size_t)n * size);
    else if (size == 2)
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)(void *)to)[i * to_step] =
                ((const uint16_t *)(const void *)from)[i * from_step];
    else
        for (int64_t i = 0; i < n; i++)
            memcpy(to + (size_t)(i * to_step) * size, from + (size_t)(i * from_step) * size, size);
}

/* Copies a contiguous box of `extent` to where the target wants it, `at` being its first index
 * within the target's box. The line that is copied at a time runs along the axis whose elements are
 * neighbours in the target. */
static void scatter(const target *t, const char *from, const int64_t *at, const int64_t *extent)
{
    const size_t size = dt_dtype_size(t->want);
    const int n_axes = t->entry->n_axes;
    int64_t step[DT_MAX_AXES], index[DT_MAX_AXES] = { 0 }, first = 0, all = 1;
    int line = n_axes - 1;

    for (int a = n_axes - 1; a >= 0; a--) {
        step[a] = all;
        all *= extent[a];
        first += at[a] * t->stride[a];
        if (extent[a] > 1 && (extent[line] == 1 || t->stride[a] < t->stride[line])) line = a;
    }
    for (int64_t done = 0; done < all; done += extent[line]) {
        int64_t to = first, source = 0;
        for (int a = 0; a < n_axes; a++) {
            to += index[a] * t->stride[a];
            source += index[a] * step[a];
        }
        copy_line(t->dst + (size_t)to * size, t->stride[line], from + (size_t)source * size,
                  step[line], extent[line], size);
        for (int a = n_axes - 1; a >= 0; a--) {
            if (a == line) continue;
            if (++index[a] < extent[a]) break;
            index[a] = 0;
        }
    }
}

/* Reads the part of the box at `at` of `extent`: into place if `direct`, else by way of `room`. */
static dt_status read_part(const target *t, const int64_t *at, const int64_t *extent, bool direct,
                           void *room, const dti_st_stage *stage)
{
    int64_t begin[DT_MAX_AXES], end[DT_MAX_AXES], first = 0;

    for (int a = 0; a < t->entry->n_axes; a++) {
        begin[a] = t->begin[a] + at[a];
        end[a] = begin[a] + extent[a];
        first += at[a] * t->stride[a];
    }
    if (direct) room = t->dst + (size_t)first * dt_dtype_size(t->want);
    DT_TRY(dti_st_read_slice(t->file, t->entry, begin, end, t->want, stage, room));
    if (!direct) scatter(t, room, at, extent);
    return DT_OK;
}

/* Walks axes 0 .. axis, `rows` of the last of them at a time. */
static dt_status walk(const target *t, int axis, int64_t rows, bool direct)
{
    const size_t half = direct ? 0 : t->stage->bytes / 2 / 64 * 64;
    const dti_st_stage stage = { (char *)t->stage->data + half, t->stage->bytes - half,
                                 t->stage->pool };
    int64_t at[DT_MAX_AXES] = { 0 }, extent[DT_MAX_AXES];

    for (int a = 0; a < t->entry->n_axes; a++) extent[a] = a < axis ? 1 : t->extent[a];
    for (int a = 0; a >= 0;) {
        const int64_t left = t->extent[axis] - at[axis];
        extent[axis] = left < rows ? left : rows;
        DT_TRY(read_part(t, at, extent, direct, t->stage->data, &stage));
        for (a = axis; a >= 0; a--) {
            at[a] += a == axis ? rows : 1;
            if (at[a] < t->extent[a]) break;
            at[a] = 0;
        }
    }
    return DT_OK;
}

dt_status dti_st_read_strided(const dti_st_file *file, const dti_st_entry *entry,
                              const dti_st_box *box, dt_dtype want, const dti_st_stage *stage,
                              void *dst)
{
    target t = { .file = file,
                 .entry = entry,
                 .want = want,
                 .stage = stage,
                 .dst = dst,
                 .stride = box->stride };
    int64_t inner, room;
    int axes, axis = 0;
    bool nothing = false;

    for (int a = 0; a < entry->n_axes; a++) {
        t.begin[a] = box->begin[a];
        t.extent[a] = box->end[a] - box->begin[a];
        nothing = nothing || t.extent[a] <= 0;
    }
    if (nothing) { /* which read_slice() judges */
        DT_TRY(dti_st_read_slice(file, entry, box->begin, box->end, want, stage, dst));
        return DT_OK;
    }
    axes = axes_to_walk(&t, &inner);
    if (axes == 0 || entry->n_axes == 0) {
        DT_TRY(dti_st_read_slice(file, entry, box->begin, box->end, want, stage, dst));
        return DT_OK;
    }
    if (inner * (int64_t)dt_dtype_size(want) >= DIRECT_BYTES) return walk(&t, axes - 1, 1, true);
    room = (int64_t)(stage->bytes / 2 / 64 * 64 / dt_dtype_size(want));
    while (axis < entry->n_axes - 1 && elements_after(&t, axis) > room) axis++;
    return walk(&t, axis, room / elements_after(&t, axis), false);
}
