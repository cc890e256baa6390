/* SPDX-License-Identifier: Apache-2.0
 *
 * Every call of tensor.h, inspect.h and factories.h on dry tensors: it works on what there is
 * (shape, layout, dtype), or says that there are no elements. */
#include <dtensor/factories.h>
#include <dtensor/inspect.h>
#include <dtensor/ops.h>

#include "tests/support/dt_test.h"

typedef struct dry_state {
    dt_mesh *mesh, *other; /* dry, "dp=2,tp=2" and "world=4" */
    dt_tensor *x;          /* dry [6, 4] on mesh */
    dt_tensor *real;       /* the same with bytes, on a mesh of one rank */
    dt_tensor *likewise;   /* dry, on a mesh of one rank */
    dt_tape *tape;
    dt_tensor *y; /* what a call makes */
} dry_state;

static const dt_placement cut[] = { { .kind = DT_PLACE_SHARD }, { .kind = DT_PLACE_REPLICATE } };
static const dt_placement whole[] = { { 0 }, { 0 } };
static const int64_t shape[] = { 6, 4 };
static const dt_random key = { 7, 0 };

#define CALL(name_, call_)                      \
    static dt_status name_##_call(dry_state *d) \
    {                                           \
        DT_TRY(call_);                          \
        return DT_OK;                           \
    }
#define MAKES(name_, ...) \
    CALL(name_, dt_##name_(d->mesh, cut, DT_F32, 2, shape, __VA_ARGS__, &d->y))

MAKES(from_local, NULL)
MAKES(distribute, (dt_source){ NULL, 0 })
MAKES(distribute_checked, (dt_source){ NULL, 0 })
MAKES(full, 2.0)
MAKES(rand, key)
MAKES(randn, key)
MAKES(from_local_checked, NULL)
CALL(arange, dt_arange(d->mesh, cut, DT_I64, 2, shape, ((dt_steps){ 0, 1 }), &d->y))
CALL(zeros, dt_zeros(d->mesh, cut, DT_F32, 2, shape, &d->y))
CALL(empty, dt_empty(d->mesh, cut, DT_F32, 2, shape, &d->y))
CALL(ones, dt_ones(d->mesh, cut, DT_F32, 2, shape, &d->y))
CALL(copies,
     dt_distribute(d->mesh, cut, DT_F32, 2, shape, ((dt_source){ NULL, DT_EQUAL_COPIES }), &d->y))
CALL(pieces, dt_from_pieces(d->mesh, cut, DT_F32, 2, shape, NULL, &d->y))
CALL(fill, dt_fill(d->x, 1.0))
CALL(fill_arange, dt_fill_arange(d->x, ((dt_steps){ 0, 1 })))
CALL(fill_rand, dt_fill_rand(d->x, key, 0.0, 1.0))
CALL(fill_randn, dt_fill_randn(d->x, key, 0.0, 1.0))
CALL(fill_randint, dt_fill_randint(d->x, key, 0, 9))
CALL(redistribute, dt_redistribute(d->x, whole, &d->y))
CALL(redistribute_cast, dt_redistribute_cast(d->x, whole, DT_BF16, &d->y))
CALL(full_tensor, dt_full_tensor(d->x, &d->y))
CALL(copy_to, dt_copy_to(d->x, d->other, cut, &d->y))
CALL(move, (dt_move(d->tape, d->x, whole), dt_tape_status(d->tape)))
CALL(move_cast, (dt_move_cast(d->tape, d->x, whole, DT_F16), dt_tape_status(d->tape)))
CALL(move_to, (dt_move_to(d->tape, d->x, d->other, cut), dt_tape_status(d->tape)))
CALL(move_dim, (dt_move_dim(d->tape, d->x, 1, DT_SHARD(1)), dt_tape_status(d->tape)))

static dt_status equal_call(dry_state *d)
{
    bool same;
    return dt_equal(d->x, d->x, &same);
}

static dt_status equal_real_call(dry_state *d)
{
    bool same;
    return dt_equal(d->real, d->likewise, &same);
}

static dt_status allclose_real_call(dry_state *d)
{
    bool same;
    return dt_allclose(d->likewise, d->real, 0.1, 0.1, &same);
}

static dt_status item_call(dry_state *d)
{
    const int64_t origin[] = { 0, 0 };
    double v;
    return dt_item(d->x, origin, &v);
}

static dt_status visualize_call(dry_state *d)
{
    char text[400];
    DT_TRY(dt_visualize(d->x, DT_DRAW_TEXT, text, sizeof text, NULL));
    return dt_visualize_layout(d->mesh, dt_tensor_layout(d->x), shape, DT_DRAW_SVG, text,
                               sizeof text, NULL);
}

static dt_status copy_to_real_call(dry_state *d)
{
    return dt_copy_to(d->likewise, dt_tensor_mesh(d->real), whole, &d->y);
}

typedef struct dry_call {
    const char *name;
    dt_status (*call)(dry_state *d);
    dt_status code;
    const char *message;
} dry_call;

static const dry_call calls[] = {
#define WORKS(name_)                      \
    {                                     \
#name_, name_##_call, DT_OK, NULL \
    }
    WORKS(zeros),
    WORKS(empty),
    WORKS(ones),
    WORKS(full),
    WORKS(arange),
    WORKS(rand),
    WORKS(randn),
    WORKS(from_local),
    WORKS(from_local_checked),
    WORKS(distribute),
    WORKS(distribute_checked),
    WORKS(copies),
    WORKS(fill),
    WORKS(fill_arange),
    WORKS(fill_rand),
    WORKS(fill_randn),
    WORKS(fill_randint),
    WORKS(redistribute),
    WORKS(redistribute_cast),
    WORKS(full_tensor),
    WORKS(copy_to),
    WORKS(move),
    WORKS(move_cast),
    WORKS(move_to),
    WORKS(move_dim),
    WORKS(visualize),
    { "pieces", pieces_call, DT_ERR_UNSUPPORTED, "a dry mesh has no ranks" },
    { "equal", equal_call, DT_ERR_UNSUPPORTED, "dry tensors have no elements" },
    { "equal_real", equal_real_call, DT_ERR_LAYOUT, "different meshes, one of them dry" },
    { "allclose_real", allclose_real_call, DT_ERR_LAYOUT, "different meshes, one of them dry" },
    { "item", item_call, DT_ERR_UNSUPPORTED, "a dry tensor has no elements" },
    { "copy_to_real", copy_to_real_call, DT_ERR_ARG, "different runtimes" },
};

/* What a call has made has the shape of x, or of its piece, and no bytes. */
static dt_status check(dry_state *d, const dry_call *c)
{
    const dt_status got = c->call(d);

    DT_TRY(dt_test_expect_status(c->name, __FILE__, __LINE__, got, c->code, c->message));
    if (d->y == NULL) return DT_OK;
    for (int a = 0; a < 2; a++) DT_EXPECT_EQ_INT(dt_tensor_extent(d->y, a), shape[a]);
    DT_EXPECT(dt_tensor_local(d->y)->data == NULL, "%s made bytes", c->name);
    return DT_OK;
}

static dt_status every_call(dt_mesh *one, const void *arg)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;
    dt_runtime *rt[2] = { NULL, NULL };
    dry_state d = { .y = NULL };
    dt_mesh *dry_one = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY_TO(done, st, dt_runtime_create_dry(&o, 0, dt_mesh_runtime(one), &rt[1]));
    o.n_ranks = 4;
    DT_TRY_TO(done, st, dt_runtime_create_dry(&o, 2, NULL, &rt[0]));
    DT_TRY_TO(done, st, dt_mesh_create(rt[0], "dp=2,tp=2", &d.mesh));
    DT_TRY_TO(done, st, dt_mesh_create(rt[0], "world=4", &d.other));
    DT_TRY_TO(done, st, dt_mesh_create(rt[1], "tp=1", &dry_one));
    DT_TRY_TO(done, st, dt_tape_create(rt[0], &d.tape));
    DT_TRY_TO(done, st, dt_zeros(d.mesh, cut, DT_F32, 2, shape, &d.x));
    DT_TRY_TO(done, st, dt_zeros(one, whole, DT_F32, 2, shape, &d.real));
    DT_TRY_TO(done, st, dt_zeros(dry_one, whole, DT_F32, 2, shape, &d.likewise));
    for (size_t i = 0; i < DT_COUNT(calls); i++) {
        st = check(&d, &calls[i]);
        dt_tensor_release(&d.y);
        dt_tape_reset(d.tape);
        if (st != DT_OK) goto done;
    }
done:
    dt_tape_release(&d.tape);
    dt_tensor_release(&d.x);
    dt_tensor_release(&d.real);
    dt_tensor_release(&d.likewise);
    dt_mesh_release(&dry_one);
    dt_mesh_release(&d.other);
    dt_mesh_release(&d.mesh);
    for (int i = 0; i < 2; i++) dt_runtime_release_dry(&rt[i]);
    return st;
}

DT_TEST(dry_calls, every_call_works_or_says_that_there_are_no_bytes)
{
    dt_test_on_ranks("tp=1", every_call, NULL);
}
