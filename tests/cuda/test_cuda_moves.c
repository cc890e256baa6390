/* SPDX-License-Identifier: Apache-2.0
 *
 * What only moves bytes is exact: embedding, kv_write, slice, blocks, copies of boxes and fills. */
#include "tests/cuda/rows.h"

#include "mesh/comm/comm.h"

static dt_local ids_of(int64_t n, int32_t first, int32_t step, int32_t modulus)
{
    dt_local x = kt_local(DT_I32, 1, &n);

    for (int64_t i = 0; i < n; i++)
        ((int32_t *)x.data)[i] = (first + (int32_t)i * step) % modulus - 2;
    return x;
}

DT_TEST(cuda_moves, embedding_reads_the_rows_of_this_rank)
{
    static const struct {
        int64_t n_ids, rows, width, first;
    } shapes[] = { { 0, 5, 4, 0 }, { 1, 9, 1, 0 },    { 7, 4, 3, 5 },   { 13, 10, 64, 3 },
                   { 3, 0, 8, 4 }, { 2, 6, 4096, 1 }, { 5, 20, 33, 0 }, { 4, 3, 0, 0 } };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            for (int64_t skew = 0; skew < 2; skew++) {
                const int64_t table[] = { shapes[s].rows, shapes[s].width };
                cr_case c = { .row = "embedding",
                              .cpu = dti_embedding_cpu,
                              .n_in = 2,
                              .skew = skew,
                              .out = { .dtype = kt_floats[t],
                                       .n_axes = 2,
                                       .shape = { shapes[s].n_ids, shapes[s].width } } };
                c.in[0] = ids_of(shapes[s].n_ids, 1, 5, 17);
                c.in[1] = kt_filled(kt_floats[t], 2, table, KT_UNIFORM, 4);
                c.in[1].offset[0] = shapes[s].first;
                cr_run(&c, &d);
            }
}

/* --- caches ----------------------------------------------------------------------------------- */

static cr_case cache_case(dt_dtype t, const int64_t k[4], int64_t n_rows)
{
    const int64_t cache[] = { k[0], n_rows, k[2], k[3] };
    cr_case c = { .row = "kv_write",
                  .cpu = dti_kv_write_cpu,
                  .n_in = 3,
                  .in_place = 3,
                  .out = { .dtype = t, .n_axes = 4, .shape = { k[0], n_rows, k[2], k[3] } } };

    c.in[0] = kt_filled(t, 4, k, KT_UNIFORM, 8);
    c.in[1] = kt_local(DT_I32, 2, k);
    for (int64_t i = 0; i < k[0] * k[1]; i++)
        ((int32_t *)c.in[1].data)[i] = (int32_t)((5 * i + 2) % n_rows);
    c.in[2] = kt_filled(t, 4, cache, KT_UNIFORM, 9);
    return c;
}

DT_TEST(cuda_moves, kv_write_puts_rows_at_their_positions)
{
    static const int64_t shapes[][5] = { { 1, 1, 1, 1, 1 },   { 2, 3, 2, 5, 7 },
                                         { 1, 4, 8, 16, 11 }, { 3, 1, 2, 64, 32 },
                                         { 2, 0, 2, 8, 4 },   { 1, 2, 0, 8, 4 } };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            for (int64_t skew = 0; skew < 2; skew++) {
                cr_case c = cache_case(kt_floats[t], shapes[s], shapes[s][4]);
                c.skew = skew;
                cr_run(&c, &d);
            }
}

/* Good tokens arrive, the bad one is written nowhere, and sync() names it, once. */
DT_TEST(cuda_moves, a_position_outside_the_cache_is_reported)
{
    static const int64_t k[] = { 1, 3, 2, 4 };
    static const int32_t bad[] = { 6, -1 };
    CR_DEVICE d = cr_open();

    for (size_t b = 0; b < DT_COUNT(bad); b++) {
        cr_case c = cache_case(DT_BF16, k, 6);
        dt_local in[3];
        char words[64];
        const dt_kargs args = { .in = in, .out = &in[2], .n_in = 3, .n_out = 1 };
        uint16_t cache[6][8];
        ((int32_t *)c.in[1].data)[1] = bad[b];
        for (int i = 0; i < 3; i++) {
            in[i] = c.in[i];
            in[i].data = cr_up(&d, &c.in[i], 0);
        }
        DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "kv_write")(d.c, &args));
        (void)snprintf(words, sizeof words, "position %d", bad[b]);
        DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), words);
        DT_ASSERT(strstr(d.m->why(), "6 rows") != NULL);
        DT_ASSERT_CUDA(d.m, d.m->sync(d.c));
        DT_ASSERT_CUDA(d.m, d.m->copy(d.c, cache, in[2].data, sizeof cache, DTI_CUDA_DOWN));
        DT_ASSERT(memcmp(cache[2], c.in[0].data, sizeof cache[2]) == 0);
        DT_ASSERT(memcmp(cache[0], (const uint16_t *)c.in[0].data + 16, sizeof cache[0]) == 0);
        for (int row = 0; row < 6; row++)
            if (row != 0 && row != 2)
                DT_ASSERT(memcmp(cache[row], (const uint16_t *)c.in[2].data + row * 8,
                                 sizeof cache[row]) == 0);
        for (int i = 0; i < 3; i++) {
            cr_release(&d, &c.in[i], in[i].data, 0);
            kt_release(&c.in[i]);
        }
    }
}

/* --- parts of axes ---------------------------------------------------------------------------- */

static void run_slice(const cr_device *d, dt_dtype t, int64_t axis, int64_t begin, int64_t count,
                      int64_t offset)
{
    static const int64_t shape[] = { 3, 7, 4 };
    const dti_slice_attr attr = { axis, begin, count };

    for (int64_t skew = 0; skew < 2; skew++) {
        cr_case c = { .row = "slice",
                      .cpu = dti_slice_cpu,
                      .n_in = 1,
                      .attr = &attr,
                      .skew = skew,
                      .out = { .dtype = t, .n_axes = 3, .shape = { 3, 7, 4 } } };
        c.out.shape[axis] = count;
        c.in[0] = kt_filled(t, 3, shape, KT_UNIFORM, 12);
        c.in[0].offset[axis] = offset;
        cr_run(&c, d);
    }
}

DT_TEST(cuda_moves, slices_have_zeros_for_rows_of_other_ranks)
{
    static const dt_dtype types[] = { DT_F32, DT_BF16, DT_F64 };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(types); t++)
        for (int64_t axis = 0; axis < 3; axis++) {
            run_slice(&d, types[t], axis, 1, 2, 0);
            run_slice(&d, types[t], axis, -2, 2, 0);
            run_slice(&d, types[t], axis, 0, 0, 0);
            run_slice(&d, types[t], axis, 0, 3, 0);
            for (int64_t begin = 0; begin < 12; begin += 3) /* a cut axis: rows 4 on are ours */
                run_slice(&d, types[t], axis, begin, 5, 4);
        }
}

DT_TEST(cuda_moves, blocks_are_copied)
{
    static const int64_t shape[] = { 5, 12, 6 };
    CR_DEVICE d = cr_open();

    for (int64_t axis = 0; axis < 3; axis++)
        for (int64_t begin = 0; begin < 4; begin++) {
            const dti_blocks_attr attr = { axis, 0, 2, begin };
            cr_case c = { .row = "blocks",
                          .cpu = dti_blocks_cpu,
                          .n_in = 1,
                          .attr = &attr,
                          .out = { .dtype = DT_F16, .n_axes = 3, .shape = { 5, 12, 6 } } };
            c.out.shape[axis] = 1 + begin % 2;
            c.in[0] = kt_filled(DT_F16, 3, shape, KT_UNIFORM, 13);
            cr_run(&c, &d);
        }
}

/* --- boxes ------------------------------------------------------------------------------------ */

enum { ROOM = 6000 };

/* A box of the extents, whose axes have gaps behind them, or another order of axes in memory. */
static dti_cuda_box box_of(int n_axes, const int64_t *extent, int64_t gap, bool turned)
{
    dti_cuda_box box = { .n_axes = n_axes, .offset = 3 * gap };
    int64_t stride = 1;

    for (int i = n_axes - 1; i >= 0; i--) {
        const int a = turned ? n_axes - 1 - i : i;
        box.extent[a] = extent[a];
        box.stride[a] = stride;
        stride *= extent[a] + gap;
    }
    return box;
}

static dti_box host_box(const dti_cuda_box *box)
{
    dti_box b = { .n_axes = box->n_axes, .offset = box->offset };

    for (int a = 0; a < box->n_axes; a++) {
        b.extent[a] = box->extent[a];
        b.stride[a] = box->stride[a];
    }
    return b;
}

static void run_box(const cr_device *d, const dti_cuda_box *to, const dti_cuda_box *from,
                    size_t bytes, int64_t skew)
{
    const dti_box host_to = host_box(to), host_from = host_box(from);
    dt_local a = { .dtype = DT_U8, .n_axes = 1, .shape = { (int64_t)bytes * ROOM } }, b = a;
    unsigned char *room, *got;
    void *there, *here;

    DT_ASSERT_OK(dti_alloc(3 * bytes * ROOM, (void **)&room));
    a.data = room;
    b.data = room + bytes * ROOM;
    got = room + 2 * bytes * ROOM;
    for (size_t i = 0; i < 2 * bytes * ROOM; i++) room[i] = (unsigned char)(i * 2654435761u >> 13);
    there = cr_up(d, &a, skew * (int64_t)bytes);
    here = cr_up(d, &b, skew * (int64_t)bytes);
    DT_ASSERT_CUDA(d->m, d->m->copy_box(d->c, here, to, there, from, bytes));
    DT_ASSERT_CUDA(d->m, d->m->copy(d->c, got, here, bytes * ROOM, DTI_CUDA_DOWN));
    dti_box_copy(b.data, &host_to, a.data, &host_from, bytes);
    if (memcmp(got, b.data, bytes * ROOM) != 0)
        dt_test_fail(__FILE__, __LINE__, "a box of %d axes of %zu bytes", to->n_axes, bytes);
    cr_release(d, &a, there, skew * (int64_t)bytes);
    cr_release(d, &b, here, skew * (int64_t)bytes);
    dti_free(room);
}

DT_TEST(cuda_moves, boxes_are_copied_as_on_the_cpu)
{
    static const int64_t extents[][8] = { { 1 },          { 700 },
                                          { 5, 64 },      { 3, 4, 16 },
                                          { 0, 4 },       { 7, 1, 33 },
                                          { 2, 3, 2, 8 }, { 2, 1, 2, 1, 2, 2, 3, 2 } };
    static const int n_axes[] = { 0, 1, 2, 3, 2, 3, 4, 8 };
    CR_DEVICE d = cr_open();

    for (size_t e = 0; e < DT_COUNT(extents); e++)
        for (size_t bytes = 1; bytes <= 8; bytes *= 2)
            for (int form = 0; form < 8; form++) {
                const int64_t gap = form & 1 ? (n_axes[e] > 3 ? 1 : 8) : 0;
                const dti_cuda_box to = box_of(n_axes[e], extents[e], gap, (form & 2) != 0);
                const dti_cuda_box from = box_of(n_axes[e], extents[e], form & 4 ? 1 : 0, false);
                run_box(&d, &to, &from, bytes, form & 1);
            }
    DT_ASSERT_CUDA_FAILS(d.m, d.m->copy_box(d.c, NULL, NULL, NULL, NULL, 3), "3 bytes");
}

/* --- fills ------------------------------------------------------------------------------------ */

DT_TEST(cuda_moves, fills_repeat_the_pattern)
{
    static const unsigned char pattern[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    static const int64_t sizes[] = { 0, 1, 3, 16, 1023, 4099 };
    unsigned char got[8 * 4099];
    CR_DEVICE d = cr_open();

    for (size_t s = 0; s < DT_COUNT(sizes); s++)
        for (size_t bytes = 1; bytes <= 8; bytes *= 2)
            for (int64_t skew = 0; skew < 2; skew++) {
                const int64_t n = sizes[s];
                const cr_case c = {
                    .row = "fill",
                    .out = { .dtype = DT_U8, .n_axes = 1, .shape = { n * (int64_t)bytes } }
                };
                void *there = cr_up(&d, &c.out, skew * (int64_t)bytes);
                DT_ASSERT_CUDA(d.m, d.m->fill(d.c, there, n, pattern, bytes));
                cr_down(&c, &d, there, got);
                for (int64_t i = 0; i < n * (int64_t)bytes; i++)
                    DT_ASSERT_EQ_INT(got[i], pattern[(size_t)i % bytes]);
                cr_release(&d, &c.out, there, skew * (int64_t)bytes);
            }
    DT_ASSERT_CUDA_FAILS(d.m, d.m->fill(d.c, NULL, 1, pattern, 3), "3 bytes");
    DT_ASSERT_CUDA_FAILS(d.m, d.m->fill(d.c, NULL, 1, pattern, 0), "0 bytes");
}

/* --- terms that neighbours hold */

/* 8 x 3 in pieces of 4 rows, of which two ranks each have terms: i + 1 + the rank. */
static dt_status move_terms(dt_mesh *mesh, const void *arg)
{
    static const char *const ways[] = {
        "S(0,replicas=2)", "S(0)", "S(1)", "R", "S(0,replicas=2,sum)", "S(1,replicas=2,sum)"
    };
    const dt_placement terms = dt_shard_terms(0, 1, 2), whole = DT_REPLICATE;
    const int64_t shape[] = { 8, 3 };
    float mine[12], all[24];

    (void)arg;
    for (int i = 0; i < 12; i++) mine[i] = (float)(i + 1 + dt_mesh_coord(mesh, 0));
    for (size_t k = 0; k < DT_COUNT(ways); k++) {
        dt_tensor *x = NULL, *y = NULL, *z = NULL, *back = NULL;
        dt_placement place[1];
        const dt_layout *to;
        dt_status st = DT_OK;
        DT_TRY(dt_layout_parse(mesh, 2, ways[k], &to));
        (void)dt_layout_placements(to, place);
        DT_TRY_TO(done, st, dt_from_local(mesh, &terms, DT_F32, 2, shape, mine, &x));
        DT_TRY_TO(done, st, dt_redistribute(x, place, &y));
        DT_TRY_TO(done, st, dt_redistribute(y, &terms, &back));
        DT_TRY_TO(done, st, dt_redistribute(back, &whole, &z));
        DT_TRY_TO(done, st, dt_tensor_read(z, all, sizeof all));
        for (int i = 0; i < 24; i++) {
            const int piece = i / 12, want = 2 * (i % 12 + 1) + 4 * piece + 1;
            DT_EXPECT_TO(done, st, all[i] > (float)want - 0.5F && all[i] < (float)want + 0.5F,
                         "%s: element %d is %g, not %d", ways[k], i, (double)all[i], want);
        }
    done:
        dt_tensor_release(&x);
        dt_tensor_release(&y);
        dt_tensor_release(&z);
        dt_tensor_release(&back);
        if (st != DT_OK) return st;
    }
    return DT_OK;
}

DT_TEST(cuda_moves, terms_of_neighbours_are_reduced_and_made)
{
    dt_test_on_gpus("tp=4", move_terms, NULL);
}
