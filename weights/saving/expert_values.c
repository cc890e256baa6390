/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed experts on their way into files, which have each of their matrices as a tensor of its own:
 * a parameter of all of them is moved once, so that every rank has whole ones, and ranks write
 * what they have. */
#include <string.h>

#include "base/dtype.h"
#include "dtensor/kernels/kernel.h"
#include "weights/saving/save.h"

dt_status dti_save_experts_end(dti_saver *s)
{
    const dt_status st = s->experts.open ? dti_host_close(&s->experts.host, DT_OK) : DT_OK;

    dt_tensor_release(&s->experts.rows);
    s->experts.of = NULL;
    s->experts.open = false;
    return st;
}

/* The rows of x, whole experts; *writes: this rank is the one that writes those that it has. */
static dt_status turn_to(dti_saver *s, dt_tensor *x, bool *writes)
{
    dt_placement want[DT_MAX_DIMS];

    dti_save_rows(x, 0, want, writes);
    if (s->experts.of == x) return DT_OK;
    DT_TRY(dti_save_experts_end(s));
    DT_TRY(dt_redistribute(x, want, &s->experts.rows));
    s->experts.of = x;
    if (dti_local_count(dt_tensor_local(s->experts.rows)) == 0) return DT_OK;
    DT_TRY(dti_host_open(s->experts.rows, DTI_HOST_READS, &s->experts.host));
    s->experts.open = true;
    return DT_OK;
}

/* Zero points [rows, columns] as words along rows. */
static dt_status write_zeros(dti_save_file *f, const dt_local *zeros, int bits, int64_t at)
{
    const int64_t rows = zeros->shape[0], columns = zeros->shape[1], per = 32 / bits;
    const int64_t n = (rows + per - 1) / per * columns;
    dt_local words = { .dtype = DT_I32, .n_axes = 1, .shape = { n } };
    const uint8_t *from = zeros->data;
    dt_status st;

    DT_TRY(dti_alloc_array((size_t)n, sizeof(uint32_t), &words.data));
    memset(words.data, 0, (size_t)n * sizeof(uint32_t));
    for (int64_t o = 0; o < rows; o++)
        for (int64_t g = 0; g < columns; g++)
            ((uint32_t *)words.data)[o / per * columns + g] |= (uint32_t)from[o * columns + g]
                                                               << (o % per * bits);
    st = dti_save_elements(f, &words, DT_I32, n, at);
    dti_free(words.data);
    return st;
}

dt_status dti_save_expert(dti_saver *s, dti_save_file *f, size_t i)
{
    const dti_saved *v = &s->values[i];
    const dt_local *all;
    dt_local one;
    int64_t e;
    bool writes;

    DT_TRY(turn_to(s, v->x, &writes));
    all = &s->experts.host.local;
    if (!writes || !s->experts.open) return DT_OK;
    e = v->expert - all->offset[0];
    if (e < 0 || e >= all->shape[0]) return DT_OK;
    one = *all;
    one.n_axes = 2;
    one.shape[0] = v->rows;
    one.shape[1] = all->shape[2];
    one.data = (char *)all->data +
               (e * all->shape[1] + v->first) * all->shape[2] * (int64_t)dt_dtype_size(all->dtype);
    DT_TRY(dti_save_open(f));
    if (v->zero_bits > 0)
        DT_TRY(write_zeros(f, &one, v->zero_bits, f->plan.begin[i - f->first]));
    else
        DT_TRY(dti_save_elements(f, &one, v->words ? one.dtype : s->specs[i].dtype,
                                 v->rows * one.shape[1], f->plan.begin[i - f->first]));
    return DT_OK;
}
