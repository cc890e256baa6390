/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of attention that is cut, through the tape: those of whole operands, or refused. */
#include <dtensor/ops_backward.h>

#include "tests/dtensor/test_kernels.h"
#include "tests/support/tensors.h"

enum { B = 2, T = 5, H = 4, KV = 2, E = 3 };

typedef struct placed {
    const char *name;
    int q, kv; /* axes that are cut; -1: whole */
    bool sums; /* dk and dv are terms */
} placed;

static dt_status make(dt_mesh *mesh, dt_tape *t, int seed, int n_axes, const int64_t *extents,
                      int axis, dt_tensor **out)
{
    dt_placement place[DT_MAX_DIMS] = { { 0 } };
    float values[B * T * H * T];
    dt_tensor *x;
    int64_t n = 1;

    for (int a = 0; a < n_axes; a++) n *= extents[a];
    dt_test_random(values, n, (uint32_t)seed);
    for (int m = 0; m < dt_mesh_n_dims(mesh) && axis >= 0; m++) place[m] = DT_SHARD(axis);
    DT_TRY(dt_distribute(mesh, place, DT_F32, n_axes, extents,
                         (dt_source){ values, DT_EQUAL_COPIES }, &x));
    *out = dt_tape_own(t, x);
    return DT_OK;
}

static dt_status integers(dt_mesh *mesh, dt_tape *t, bool segments, int axis, dt_tensor **out)
{
    const int64_t extents[] = { B, T };
    dt_placement place[DT_MAX_DIMS] = { { 0 } };
    int32_t values[B * T];
    dt_tensor *x;

    for (int32_t i = 0; i < B * T; i++) values[i] = segments ? (i % T) / (2 + i / T) : i % T;
    for (int m = 0; m < dt_mesh_n_dims(mesh) && axis == 0; m++) place[m] = DT_SHARD(0);
    DT_TRY(
        dt_distribute(mesh, place, DT_I32, 2, extents, (dt_source){ values, DT_EQUAL_COPIES }, &x));
    *out = dt_tape_own(t, x);
    return DT_OK;
}

enum { N_GRADIENTS = 5 };

static dt_status run_placed(dt_mesh *mesh, dt_tape *t, const placed *p,
                            dt_tensor *y[N_GRADIENTS + 1])
{
    const int64_t q[] = { B, T, H, E }, k[] = { B, T, KV, E }, bias[] = { 1, H, 1, T }, h[] = { H };
    dt_attention_options o = {
        .n_heads = H, .n_kv_heads = KV, .scale = 0.6f, .dropout = 0.25, .key = { 3, 4 }
    };
    dt_attention_gradients g;
    dt_attention_kept kept;
    dt_tensor *dy;

    DT_TRY(make(mesh, t, 1, 4, q, p->q, &kept.q));
    DT_TRY(make(mesh, t, 2, 4, k, p->kv, &kept.k));
    DT_TRY(make(mesh, t, 3, 4, k, p->kv, &kept.v));
    DT_TRY(make(mesh, t, 4, 4, q, p->q, &dy));
    DT_TRY(make(mesh, t, 5, 4, bias, -1, &o.bias));
    DT_TRY(make(mesh, t, 6, 1, h, -1, &o.sinks));
    DT_TRY(integers(mesh, t, false, p->q, &kept.positions));
    DT_TRY(integers(mesh, t, true, -1, &o.segments));
    y[N_GRADIENTS] = kept.y =
        dt_attention_lse(t, kept.q, kept.k, kept.v, kept.positions, &o, &kept.lse);
    dt_attention_backward(t, dy, &kept, &o, &g);
    memcpy(y, (dt_tensor *[]){ g.q, g.k, g.v, g.bias, g.sinks }, N_GRADIENTS * sizeof(dt_tensor *));
    return dt_tape_status(t);
}

static bool close_to(const dt_tensor *a, const dt_tensor *b)
{
    const dt_local *x = dt_tensor_local(a), *y = dt_tensor_local(b);
    bool same = kt_count(x) == kt_count(y);

    for (int64_t i = 0; same && i < kt_count(y); i++)
        same = fabs(kt_get(x, i) - kt_get(y, i)) <= 3e-6 * (1.0 + fabs(kt_get(y, i)));
    return same;
}

static dt_status one_placement(dt_mesh *mesh, const void *arg)
{
    static const placed whole = { "whole", -1, -1, false };
    const placed *p = arg;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *full = NULL;
    dt_tensor *want[N_GRADIENTS + 1], *got[N_GRADIENTS + 1];

    DT_TRY(run_placed(mesh, t, &whole, want));
    DT_TRY(run_placed(mesh, t, p, got));
    for (int i = 0; i <= N_GRADIENTS; i++) {
        const bool terms =
            dt_layout_placement(dt_tensor_layout(got[i]), 0).kind == DT_PLACE_PARTIAL;
        const bool parts = (p->sums && (i == 1 || i == 2)) || (p->q == 0 && (i == 3 || i == 4));
        DT_EXPECT(terms == (parts && dt_mesh_dim_size(mesh, 0) > 1),
                  "%s: gradient %d is %sa sum of terms", p->name, i, terms ? "" : "not ");
        DT_TRY(dt_full_tensor(got[i], &full));
        DT_EXPECT(close_to(full, want[i]), "%s: gradient %d", p->name, i);
        DT_EXPECT(!terms || !close_to(got[i], want[i]), "%s: a term of gradient %d is the sum",
                  p->name, i);
        dt_tensor_release(&full);
    }
    return DT_OK;
}

DT_TEST(attention_backward_cuts, every_legal_placement_gives_the_whole_gradients)
{
    static const placed cases[] = { { "whole", -1, -1, false },
                                    { "batch", 0, 0, false },
                                    { "heads", 2, 2, false },
                                    { "query heads", 2, -1, true } };
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (size_t c = 0; c < DT_COUNT(cases); c++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            if (cases[c].kv == 2 && m > 1) continue; /* two kv heads */
            dt_test_on_ranks(meshes[m], one_placement, &cases[c]);
        }
}

static dt_status same_whole(dt_tensor *a, dt_tensor *b)
{
    DT_HELD(tensor) *x = NULL, *y = NULL;

    DT_TRY(dt_full_tensor(a, &x));
    DT_TRY(dt_full_tensor(b, &y));
    DT_EXPECT(close_to(x, y), "gradients of copied and whole kv heads");
    return DT_OK;
}

/* --- copies of kv heads, and refusals --------------------------------------------------------- */

static dt_status refusals(dt_mesh *mesh, const void *arg)
{
    const int64_t q[] = { B, T, H, E }, k[] = { B, T, KV, E }, ids[] = { B, T };
    const dt_placement whole = DT_REPLICATE;
    const int32_t falling[B * T] = { 0, 1, 0 };
    dt_attention_options o = { .n_heads = H, .n_kv_heads = KV, .scale = 1.0f };
    dt_placement copies = DT_SHARD(2);
    dt_attention_gradients g, whole_g;
    dt_attention_kept kept;
    dt_tensor *dy, *segments;
    dt_status st = DT_OK;
    dt_tape *t;

    (void)arg;
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, make(mesh, t, 1, 4, q, 2, &kept.q));
    DT_TRY_TO(done, st, make(mesh, t, 2, 4, k, -1, &kept.k));
    DT_TRY_TO(done, st, make(mesh, t, 3, 4, k, -1, &kept.v));
    DT_TRY_TO(done, st, make(mesh, t, 4, 4, q, 2, &dy));
    DT_TRY_TO(done, st, integers(mesh, t, false, -1, &kept.positions));
    kept.y = dt_attention_lse(t, kept.q, kept.k, kept.v, kept.positions, &o, &kept.lse);
    dt_attention_backward(t, dy, &kept, &o, &whole_g);
    copies.replicas = 2;
    kept.k = dt_move(t, kept.k, &copies);
    kept.v = dt_move(t, kept.v, &copies);
    dt_attention_backward(t, dy, &kept, &o, &g);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_EXPECT_TO(done, st, dt_layout_placement(dt_tensor_layout(g.k), 0).terms, "terms of copies");
    DT_TRY_TO(done, st, same_whole(g.k, whole_g.k));
    DT_TRY_TO(done, st, same_whole(g.v, whole_g.v));
    dt_tape_reset(t);
    DT_TRY_TO(done, st, make(mesh, t, 1, 4, q, -1, &kept.q));
    DT_TRY_TO(done, st, make(mesh, t, 2, 4, k, -1, &kept.k));
    DT_TRY_TO(done, st, integers(mesh, t, false, -1, &kept.positions));
    DT_TRY_TO(done, st,
              dt_distribute(mesh, (dt_placement[]){ whole }, DT_I32, 2, ids,
                            (dt_source){ falling, DT_EQUAL_COPIES }, &segments));
    o.segments = dt_tape_own(t, segments);
    DT_EXPECT_TO(done, st, dt_attention(t, kept.q, kept.k, kept.k, kept.positions, &o) == NULL,
                 "documents that come back");
    st = dt_tape_status(t); /* each rank alone finds it, which ends the mesh */
done:
    dt_tape_release(&t);
    return st;
}

DT_TEST(attention_backward_cuts,
        copies_of_kv_heads_give_terms_and_documents_that_come_back_are_refused)
{
    dt_test_on_ranks_fail("tp=4", refusals, NULL, DT_ERR_ARG, "their numbers do not fall");
}
