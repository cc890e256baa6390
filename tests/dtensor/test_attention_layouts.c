/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention and its cache on meshes of two dims, and what they refuse: contents and layouts that
 * no letter can judge. */
#include <dtensor/ops.h>
#include <math.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { B = 2, T = 3, S = 6, H = 4, KV = 2, E = 2 };

static const dt_attention_options options = { .n_heads = H, .n_kv_heads = KV, .scale = 0.5f };

static dt_status make(dt_tape *t, dt_mesh *mesh, const dt_placement *place, int64_t rows,
                      int64_t heads, uint32_t seed, dt_tensor **out)
{
    const int64_t shape[] = { B, rows, heads, E };
    float values[B * S * H * E];
    dt_tensor *x;

    dt_test_random(values, B * rows * heads * E, seed);
    DT_TRY(
        dt_distribute(mesh, place, DT_F32, 4, shape, (dt_source){ values, DT_EQUAL_COPIES }, &x));
    *out = dt_tape_own(t, x);
    return DT_OK;
}

static dt_status make_positions(dt_tape *t, dt_mesh *mesh, const dt_placement *place, int32_t last,
                                dt_tensor **out)
{
    const int32_t values[B * T] = { 1, 2, 3, 2, 4, last };
    const int64_t shape[] = { B, T };
    dt_tensor *x;

    DT_TRY(
        dt_distribute(mesh, place, DT_I32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES }, &x));
    *out = dt_tape_own(t, x);
    return DT_OK;
}

typedef struct layout_case {
    dt_placement q[2], kv[2], positions[2];
    bool accepted;
} layout_case;

/* q's layout and k's, against whole operands. */
static dt_status attends(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole[2] = { { 0 } };
    const layout_case *c = arg;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *full = NULL;
    dt_tensor *q, *k, *v, *p, *y, *want;

    DT_TRY(make(t, mesh, whole, T, H, 1, &q));
    DT_TRY(make(t, mesh, whole, S, KV, 2, &k));
    DT_TRY(make(t, mesh, whole, S, KV, 3, &v));
    DT_TRY(make_positions(t, mesh, whole, 5, &p));
    want = dt_attention(t, q, k, v, p, &options);
    DT_TRY(dt_tape_status(t));
    DT_TRY(make(t, mesh, c->q, T, H, 1, &q));
    DT_TRY(make(t, mesh, c->kv, S, KV, 2, &k));
    DT_TRY(make(t, mesh, c->kv, S, KV, 3, &v));
    DT_TRY(make_positions(t, mesh, c->positions, 5, &p));
    y = dt_attention(t, q, k, v, p, &options);
    if (!c->accepted) {
        DT_EXPECT(y == NULL && dt_tape_status(t) == DT_ERR_LAYOUT, "accepted");
        DT_EXPECT(strstr(dt_last_error()->message, "would miss the kv heads") != NULL, "%s",
                  dt_last_error()->message);
        return DT_OK;
    }
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(y, &full));
    for (int i = 0; i < B * T * H * E; i++)
        DT_EXPECT(fabsf(((const float *)dt_tensor_local(full)->data)[i] -
                        ((const float *)dt_tensor_local(want)->data)[i]) <= 1e-6f,
                  "element %d", i);
    return DT_OK;
}

DT_TEST(attention, batch_and_heads_are_cut_on_different_mesh_dims)
{
    const dt_placement none = DT_REPLICATE, batch = DT_SHARD(0), heads = DT_SHARD(2);
    const layout_case cases[] = {
        { { batch, heads }, { batch, heads }, { batch, none }, true },
        { { heads, batch }, { heads, batch }, { none, batch }, true },
        { { batch, heads }, { batch, none }, { batch, none }, true },
        { { heads, heads }, { none, none }, { none, none }, true },
        /* Four ranks hold a query head each, but only two of them a kv head. */
        { { heads, heads }, { heads, heads }, { none, none }, false },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) dt_test_on_ranks("dp=2,tp=2", attends, &cases[i]);
}

static dt_status views_of_two_widths(dt_mesh *mesh, const void *arg)
{
    const dt_placement cut = DT_SHARD(2);
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    (void)arg;
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    for (int64_t e = 2; e <= 5; e += 3) {
        const int64_t shape[] = { 1, 1, 5, e };
        dt_tensor *x, *full = NULL;
        DT_TRY_TO(done, st, dt_test_arange(mesh, &cut, DT_F32, 4, shape, &x));
        x = dt_unheads(t, dt_tape_own(t, x));
        DT_TRY_TO(done, st, dt_tape_status(t));
        DT_TRY_TO(done, st, dt_full_tensor(x, &full));
        st = dt_test_expect_arange(full);
        dt_tensor_release(&full);
        DT_TRY_TO(done, st, st);
    }
done:
    dt_tape_release(&t);
    return st;
}

DT_TEST(attention, views_of_heads_of_two_widths_do_not_share_a_decision)
{
    dt_test_on_ranks("tp=4", views_of_two_widths, NULL);
    dt_test_on_ranks("tp=3", views_of_two_widths, NULL);
}

static dt_status cache_writes(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE, heads = DT_SHARD(2);
    dt_tensor *k, *p, *cache, *y;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    (void)arg;
    DT_TRY(make(t, mesh, &heads, T, KV, 1, &k));
    DT_TRY(make(t, mesh, &whole, S, KV, 2, &cache));
    DT_TRY(make_positions(t, mesh, &whole, 5, &p));
    /* Writing to a slice of the cache would be lost. */
    DT_EXPECT(dt_kv_write(t, k, p, cache) == NULL, "a whole cache, cut keys");
    DT_EXPECT(dt_tape_status(t) == DT_ERR_LAYOUT, "refused");
    dt_tape_reset(t);
    DT_TRY(make(t, mesh, &heads, T, KV, 1, &k));
    DT_TRY(make(t, mesh, &heads, S, KV, 2, &cache));
    DT_TRY(make_positions(t, mesh, &whole, 5, &p));
    y = dt_kv_write(t, k, p, cache);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_tensor_local(y)->data == dt_tensor_local(cache)->data, "in place");
    if (dt_tensor_local(k)->shape[2] > 0) {
        const int64_t width = dt_tensor_local(k)->shape[2] * E;
        const float *from = dt_tensor_local(k)->data, *to = dt_tensor_local(cache)->data;
        DT_EXPECT(memcmp(to + 1 * width, from, (size_t)width * 4) == 0, "row 1 of batch 0");
        DT_EXPECT(memcmp(to + (S + 5) * width, from + 5 * width, (size_t)width * 4) == 0,
                  "row 5 of batch 1");
    }
    for (int bad = 0; bad < 2; bad++) {
        dt_tape_reset(t);
        DT_TRY(make(t, mesh, &heads, T, KV, 1, &k));
        DT_TRY(make(t, mesh, &heads, S, KV, 2, &cache));
        DT_TRY(make_positions(t, mesh, &whole, bad ? -1 : S, &p));
        DT_EXPECT(dt_kv_write(t, k, p, cache) == NULL, "position outside the cache");
        DT_EXPECT(dt_tape_status(t) == DT_ERR_ARG, "%s", dt_last_error()->message);
    }
    return DT_OK;
}

DT_TEST(attention, a_cache_is_written_in_place_or_not_at_all)
{
    dt_test_on_ranks("tp=2", cache_writes, NULL);
}
