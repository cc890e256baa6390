/* SPDX-License-Identifier: Apache-2.0
 *
 * A routed mixture of experts, and what rows of choices make of it, trained: the same bits whatever
 * is wanted of it, on every rank and in every run; warm steps; dry runs. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <dtensor/ops_backward.h>
#include <dtensor/ops_general.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"

enum { T = 6, D = 4, E = 7, F = 3, K = 2, X = 0, ROUTER, GATE_UP, DOWN, N_LEAVES };

static const int64_t shapes[N_LEAVES][3] = { { T, D }, { E, D }, { E, 2 * F, D }, { E, D, F } };

typedef struct scene {
    dt_tape *t;
    dt_gradients *g;
    dt_tensor *x[N_LEAVES], *ids;
} scene;

/* Experts are cut, the rest is whole. wanted: bit i, of leaf i. */
static dt_status open_scene(dt_mesh *mesh, unsigned wanted, scene *s)
{
    static const int32_t ids[] = { 3, 0, 3 };
    const dt_placement whole = DT_REPLICATE, cut = DT_SHARD(0);
    const int64_t n_ids = 3;

    *s = (scene){ 0 };
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &s->t));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &s->g));
    for (int i = 0; i < N_LEAVES; i++) {
        DT_TRY(dt_randn(mesh, i < GATE_UP ? &whole : &cut, DT_F32, i < GATE_UP ? 2 : 3, shapes[i],
                        (dt_random){ 5, (uint64_t)i }, &s->x[i]));
        if ((wanted >> i & 1u) != 0) DT_TRY(dt_gradients_watch(s->g, s->x[i]));
    }
    return dt_distribute(mesh, &whole, DT_I32, 1, &n_ids, (dt_source){ ids, DT_EQUAL_COPIES },
                         &s->ids);
}

static dt_status close_scene(scene *s, dt_status st)
{
    dt_tape_release(&s->t);
    dt_gradients_release(&s->g);
    for (int i = 0; i < N_LEAVES; i++) dt_tensor_release(&s->x[i]);
    dt_tensor_release(&s->ids);
    return st;
}

static dt_tensor *forward(scene *s)
{
    const dt_placement whole = DT_REPLICATE;
    dt_tensor *x = s->x[X], *logits, *ids, *y, *z;
    dt_tape *t = s->t;

    dt_tape_reset(t);
    dt_tape_record(t, s->g);
    logits = dt_linear(t, x, s->x[ROUTER], NULL);
    ids = dt_route_ids(t, logits, K);
    y = dt_experts(t, x, ids, dt_route_weights(t, logits, ids, true), s->x[GATE_UP], s->x[DOWN]);
    y = dt_move(t, y, &whole);
    z = dt_where(t, dt_compare(t, x, DT_LESS, y), y, x);
    z = dt_add(t, dt_cumsum(t, z, 0), dt_max(t, z, 0));
    z = dt_mul(t, z, y);
    return dt_sum(t, dt_index_select(t, z, 1, s->ids), DT_ALL_AXES);
}

static dt_status step(scene *s)
{
    dt_backward(s->t, forward(s), NULL);
    DT_TRY(dt_tape_status(s->t));
    return dt_gradients_settle(s->g, s->t);
}

/* --- bits ------------------------------------------------------------------------------------- */

/* Gradients of leaf i in two scenes, which lie alike. */
static dt_status same_bits(const scene *a, const scene *b, int i)
{
    const dt_local *x = dt_tensor_local(dt_gradient(a->g, a->x[i]));
    const dt_local *y = dt_tensor_local(dt_gradient(b->g, b->x[i]));
    size_t n = sizeof(float);

    for (int k = 0; k < x->n_axes; k++) n *= (size_t)x->shape[k];
    DT_EXPECT(n == 0 || memcmp(x->data, y->data, n) == 0, "leaf %d has other bits", i);
    return DT_OK;
}

/* All leaves, then each alone: of frozen experts another row gives the same, with less work. */
static dt_status wanted(dt_mesh *mesh, const void *arg)
{
    scene all, one;
    dt_status st = open_scene(mesh, 15, &all);

    (void)arg;
    if (st == DT_OK) st = step(&all);
    for (unsigned some = 1; some < 16 && st == DT_OK; some++) {
        st = open_scene(mesh, some, &one);
        if (st == DT_OK) st = step(&one);
        for (int i = 0; i < N_LEAVES && st == DT_OK; i++)
            if ((some >> i & 1u) != 0) st = same_bits(&all, &one, i);
        if (st == DT_OK && some < 1u << GATE_UP && dt_mesh_n_ranks(mesh) <= E &&
            !(dt_tape_work(one.t).flops < dt_tape_work(all.t).flops))
            st = dt_test_unexpected(__func__, __FILE__, __LINE__, "less", "of leaves %x", some);
        st = close_scene(&one, st);
    }
    for (int i = 0; i < GATE_UP && st == DT_OK; i++) { /* whole ones, on every rank */
        dt_tensor *root = NULL;
        const dt_local *mine = dt_tensor_local(dt_gradient(all.g, all.x[i]));
        const dt_placement whole = DT_REPLICATE;
        st = dt_distribute(mesh, &whole, DT_F32, 2, shapes[i], (dt_source){ mine->data, 0 }, &root);
        if (st == DT_OK && memcmp(dt_tensor_local(root)->data, mine->data,
                                  (size_t)(shapes[i][0] * shapes[i][1]) * sizeof(float)) != 0)
            st = dt_test_unexpected(__func__, __FILE__, __LINE__, "bits", "leaf %d of rank 0", i);
        dt_tensor_release(&root);
    }
    return close_scene(&all, st);
}

DT_TEST(experts_gradients, have_the_same_bits_whatever_is_wanted)
{
    dt_test_on_ranks("tp=1", wanted, NULL);
    dt_test_on_ranks("tp=2", wanted, NULL);
    dt_test_on_ranks("tp=4", wanted, NULL);
}

/* --- steps ------------------------------------------------------------------------------------ */

static dt_status warm(dt_mesh *mesh, const void *arg)
{
    uint64_t misses = 0, before = 0, allocated = 0;
    scene s;
    dt_status st = open_scene(mesh, 15, &s);

    (void)arg;
    for (int k = 0; k < 6 && st == DT_OK; k++) {
        if (k == 3) {
            dt_op_counts(dt_mesh_runtime(mesh), NULL, &before);
            allocated = dti_alloc_count();
        }
        st = step(&s);
        dt_gradients_clear(s.g);
    }
    dt_op_counts(dt_mesh_runtime(mesh), NULL, &misses);
    if (st == DT_OK && (misses != before || dti_alloc_count() != allocated))
        st = dt_test_unexpected(__func__, __FILE__, __LINE__, "warm",
                                "%d decisions missed, %d blocks from the system",
                                (int)(misses - before), (int)(dti_alloc_count() - allocated));
    return close_scene(&s, st);
}

DT_TEST(experts_gradients, take_no_memory_in_a_warm_step)
{
    dt_test_on_ranks("tp=1", warm, NULL);
    dt_test_on_ranks("tp=2", warm, NULL);
}

/* The same work and bytes as the real run, rank by rank. */
static dt_status dry(dt_mesh *mesh, const void *arg)
{
    const int n = dt_mesh_n_ranks(mesh);
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    dt_runtime *rt = NULL;
    dt_mesh *planned = NULL;
    scene real = { 0 }, s = { 0 };
    dt_status st = DT_OK;

    o.n_ranks = n;
    DT_TRY_TO(done, st, open_scene(mesh, 15, &real));
    DT_TRY_TO(done, st, step(&real));
    DT_TRY_TO(done, st, dt_runtime_create_dry(&o, dt_mesh_coord(mesh, 0), NULL, &rt));
    DT_TRY_TO(done, st, dt_mesh_create(rt, arg, &planned));
    DT_TRY_TO(done, st, open_scene(planned, 15, &s));
    DT_TRY_TO(done, st, step(&s));
    DT_EXPECT_TO(done, st, dt_tape_work(s.t).flops == dt_tape_work(real.t).flops,
                 "%g operations, not %g", dt_tape_work(s.t).flops, dt_tape_work(real.t).flops);
    for (int kind = 0; kind < DT_N_COMM_KINDS; kind++)
        DT_EXPECT_TO(done, st,
                     dt_tape_comm(s.t, (dt_comm_kind)kind).bytes ==
                         dt_tape_comm(real.t, (dt_comm_kind)kind).bytes,
                     "bytes of kind %d", kind);
done:
    st = close_scene(&s, st);
    dt_mesh_release(&planned);
    dt_runtime_release_dry(&rt);
    return close_scene(&real, st);
}

DT_TEST(experts_gradients, of_a_dry_run_cost_the_same)
{
    dt_test_on_ranks("tp=1", dry, "tp=1");
    dt_test_on_ranks("tp=3", dry, "tp=3");
}

/* --- bad use ---------------------------------------------------------------------------------- */

static dt_status misuse(dt_mesh *mesh, const void *arg)
{
    const dt_experts_gradients nothing = { NULL };
    dt_tensor *dx = NULL;
    scene s;
    dt_status st = open_scene(mesh, 15, &s);

    (void)arg;
    if (st != DT_OK) return close_scene(&s, st);
    dt_experts_backward(s.t, s.x[X], NULL, &nothing);
    st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(s.t), DT_ERR_ARG,
                               "kept or out is NULL");
    if (st != DT_OK) return close_scene(&s, st);
    dt_tape_reset(s.t);
    dt_experts_backward(s.t, s.x[X], &(dt_experts_kept){ NULL }, &nothing); /* nothing is wanted */
    st = dt_tape_status(s.t);
    if (st != DT_OK) return close_scene(&s, st);
    dx = dt_index_select_backward(s.t, s.x[X], 1, s.ids, 5);
    st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(s.t), DT_ERR_SHAPE,
                               "4 rows along axis 1, but 3 ids");
    if (st == DT_OK && dx != NULL)
        st = dt_test_unexpected(__func__, __FILE__, __LINE__, "dx", "a result");
    return close_scene(&s, st);
}

DT_TEST(experts_gradients, bad_use_is_refused)
{
    dt_test_on_ranks("tp=1", misuse, NULL);
}
