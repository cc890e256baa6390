/* SPDX-License-Identifier: Apache-2.0
 *
 * The tape: what scopes keep, how errors latch, which operands do not fit together. */
#include <dtensor/ops.h>
#include <string.h>

#include "dtensor/create.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

static const int64_t shape[] = { 4, 6 };

static dt_status scopes(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    dt_runtime *rt = dt_mesh_runtime(mesh);
    DT_HELD(tape) *t = NULL;
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y, *kept;
    int64_t live;

    (void)arg;
    DT_TRY(dt_tape_create(rt, &t));
    DT_TRY(dt_test_arange(mesh, &whole, DT_F32, 2, shape, &x));
    live = dt_runtime_live(rt);
    dt_scope_begin(t, "outer");
    dt_scope_begin(t, "inner");
    y = dt_silu(t, dt_add(t, x, x));
    DT_EXPECT(dt_runtime_live(rt) == live + 2, "two temporaries");
    kept = dt_scope_end(t, y);
    DT_EXPECT(kept == y && dt_runtime_live(rt) == live + 1, "one is kept");
    dt_scope_begin(t, "again");
    DT_EXPECT(dt_scope_end(t, kept) == kept, "an outer tensor passes through");
    DT_EXPECT(dt_runtime_live(rt) == live + 1, "and is still alive");
    (void)dt_scope_end(t, NULL);
    DT_EXPECT(dt_runtime_live(rt) == live, "the outer scope released it");
    DT_EXPECT(dt_scope_end(t, NULL) == NULL && dt_tape_status(t) == DT_ERR_ARG,
              "an end without a begin");
    return DT_OK;
}

DT_TEST(tape, scopes_keep_what_they_return_and_nothing_else)
{
    dt_test_on_ranks("tp=1", scopes, NULL);
}

/* What an onlooker has seen. */
typedef struct seen {
    char names[64];
    dt_tensor *last;
    bool refuses;
} seen;

static dt_status see(void *arg, const char *scope, dt_tensor *x)
{
    seen *s = arg;

    DT_CHECK(!s->refuses, DT_ERR_ARG, "seen enough");
    (void)strcat(strcat(s->names, scope), " ");
    s->last = x;
    return DT_OK;
}

static dt_status observes(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    dt_runtime *rt = dt_mesh_runtime(mesh);
    DT_HELD(tape) *t = NULL;
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y;
    seen s = { 0 };

    (void)arg;
    DT_TRY(dt_tape_create(rt, &t));
    DT_TRY(dt_test_arange(mesh, &whole, DT_F32, 2, shape, &x));
    dt_tape_observe(t, see, &s);
    dt_scope_begin(t, "outer");
    dt_scope_begin(t, "inner");
    y = dt_scope_end(t, dt_silu(t, x));
    DT_EXPECT(y != NULL && s.last == y, "the inner scope's tensor is shown");
    dt_scope_begin(t, "empty");
    (void)dt_scope_end(t, NULL);
    DT_EXPECT(dt_scope_end(t, y) == y && strcmp(s.names, "inner outer ") == 0,
              "scopes that keep something are shown as they end");
    s.refuses = true;
    dt_scope_begin(t, "third");
    DT_EXPECT(dt_scope_end(t, x) == NULL && dt_tape_status(t) == DT_ERR_ARG,
              "what the onlooker refuses latches");
    return DT_OK;
}

DT_TEST(tape, an_onlooker_sees_what_scopes_give)
{
    dt_test_on_ranks("tp=1", observes, NULL);
}

/* Of a loop's values one is alive at a time, whatever was made before. */
static dt_status drops(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    dt_runtime *rt = dt_mesh_runtime(mesh);
    DT_HELD(tape) *t = NULL;
    DT_HELD(tensor) *given = NULL;
    dt_tensor *x, *before, *after;
    int64_t live;

    (void)arg;
    DT_TRY(dt_tape_create(rt, &t));
    DT_TRY(dt_test_arange(mesh, &whole, DT_F32, 2, shape, &given));
    before = dt_add(t, given, given);
    dt_scope_begin(t, "loop");
    x = dt_add(t, given, given);
    live = dt_runtime_live(rt);
    for (int i = 0; i < 5; i++) {
        dt_tensor *y;
        dt_scope_begin(t, "block");
        y = dt_scope_end(t, dt_silu(t, dt_add(t, x, before)));
        dt_tape_drop(t, x);
        x = y;
        DT_EXPECT(dt_runtime_live(rt) == live, "round %d", i);
    }
    dt_tape_drop(t, given);  /* no tape's */
    dt_tape_drop(t, before); /* another scope's */
    dt_tape_drop(t, NULL);
    after = dt_add(t, before, given);
    DT_EXPECT(dt_runtime_live(rt) == live + 1 && after != NULL, "all are alive");
    (void)dt_scope_end(t, NULL);
    DT_TRY(dt_tape_status(t));
    return DT_OK;
}

DT_TEST(tape, a_dropped_tensor_is_released_at_once)
{
    dt_test_on_ranks("tp=1", drops, NULL);
}

static dt_status latches(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows = DT_SHARD(0), columns = DT_SHARD(1);
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *y = NULL;
    dt_tensor *z;

    (void)arg;
    DT_TRY(dt_test_arange(mesh, &rows, DT_F32, 2, shape, &x));
    DT_TRY(dt_test_arange(mesh, &columns, DT_F32, 2, shape, &y));
    dt_scope_begin(t, "block");
    z = dt_silu(t, dt_add(t, x, y));
    DT_EXPECT(z == NULL && dt_tape_status(t) == DT_ERR_LAYOUT, "latched");
    DT_EXPECT(strncmp(dt_last_error()->message, "block: add ", 11) == 0, "%s",
              dt_last_error()->message);
    DT_EXPECT(dt_linear(t, x, x, NULL) == NULL, "later operators do nothing");
    DT_EXPECT(strstr(dt_last_error()->message, "add") != NULL, "the first error stays");
    dt_tape_reset(t);
    DT_EXPECT(dt_add(t, x, x) != NULL && dt_tape_status(t) == DT_OK,
              "the mesh and the tape live on");
    dt_tape_set_moves(t, DT_MOVES_ALLOW);
    DT_EXPECT(dt_add(t, x, y) != NULL, "%s", dt_last_error()->message);
    DT_EXPECT(dt_tape_comm(t, DT_COMM_ALL_GATHER).calls == 2, "both were gathered");
    return DT_OK;
}

DT_TEST(tape, the_first_error_latches_and_a_reset_clears_it)
{
    dt_test_on_ranks("tp=2", latches, NULL);
}

/* Two meshes of the same shape whose ranks stand the other way round: a decision made on one must
 * not serve the other, and their tensors do not mix. */
static dt_status two_meshes(dt_mesh *mesh, const void *arg)
{
    const int reversed[] = { 1, 0 };
    const dt_placement rows = DT_SHARD(0);
    DT_HELD(mesh) *other = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *y = NULL, *full = NULL;

    (void)arg;
    DT_TRY(dt_mesh_create_ranks(dt_mesh_runtime(mesh), "tp=2", reversed, &other));
    DT_TRY(dt_test_arange(mesh, &rows, DT_F32, 2, (const int64_t[]){ 3, 2 }, &x));
    DT_TRY(dt_test_arange(other, &rows, DT_F32, 2, (const int64_t[]){ 3, 2 }, &y));
    DT_EXPECT(dt_add(t, x, x) != NULL, "on the first");
    DT_TRY(dt_full_tensor(dt_cast(t, dt_cast(t, y, DT_F64), DT_F32), &full));
    DT_TRY(dt_test_expect_arange(full));
    DT_EXPECT(dt_tensor_local(dt_add(t, y, y))->shape[0] == dt_tensor_local(y)->shape[0],
              "shapes of the second mesh");
    DT_EXPECT(dt_add(t, x, y) == NULL && dt_tape_status(t) == DT_ERR_LAYOUT, "mixed");
    DT_EXPECT(strstr(dt_last_error()->message, "different meshes") != NULL, "message");
    return DT_OK;
}

DT_TEST(tape, decisions_know_where_a_rank_stands)
{
    dt_test_on_ranks("tp=2", two_meshes, NULL);
}
