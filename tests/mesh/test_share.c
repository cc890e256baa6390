/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ranks of a process have in common: made once, destroyed once. */
#include "mesh/share.h"

#include <stdatomic.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"

enum { RANKS = 4 };

typedef struct sharing {
    atomic_int n_made, n_destroyed, n_refused;
    int refusals; /* of the first calls */
    void *seen[RANKS];
} sharing;

typedef struct thing {
    sharing *s;
} thing;

static dt_status make_thing(void *arg, void **out)
{
    sharing *s = arg;
    thing *t;

    DT_CHECK(atomic_fetch_add(&s->n_refused, 1) >= s->refusals, DT_ERR_FORMAT, "not yet");
    DT_TRY(dti_new(sizeof *t, &t));
    t->s = s;
    atomic_fetch_add(&s->n_made, 1);
    *out = t;
    return DT_OK;
}

static void destroy_thing(void *object)
{
    DT_FREED thing *t = object;

    atomic_fetch_add(&t->s->n_destroyed, 1);
}

static dt_status share_one(dt_mesh *mesh, const void *arg)
{
    sharing *s = (sharing *)(uintptr_t)arg;
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const int rank = dt_runtime_rank(rt);
    dti_share *share = NULL, *other = NULL;

    DT_TRY(dti_share_get(rt, "one", make_thing, s, destroy_thing, &share));
    s->seen[rank] = share->object;
    DT_TRY(dti_barrier(dti_runtime_world(rt)));
    for (int r = 0; r < RANKS; r++)
        DT_EXPECT(s->seen[r] == share->object || dt_test_processes() > 1, "rank %d has its own", r);
    DT_EXPECT(atomic_load(&s->n_made) == 1, "made %d times", atomic_load(&s->n_made));
    DT_TRY(dti_barrier(dti_runtime_world(rt)));
    if (rank == 1) { /* another name is another thing */
        DT_TRY(dti_share_get(rt, "two", make_thing, s, destroy_thing, &other));
        DT_EXPECT(other->object != share->object, "the same");
        dti_share_put(&other);
    }
    dti_share_put(&share);
    DT_EXPECT(share == NULL, "share");
    return DT_OK;
}

DT_TEST(share, ranks_of_a_process_make_a_thing_once)
{
    static sharing s;

    dt_test_on_ranks("tp=4", share_one, &s);
    DT_ASSERT_EQ_INT(atomic_load(&s.n_made), 2);
    DT_ASSERT_EQ_INT(atomic_load(&s.n_destroyed), 2);
}

static dt_status share_after_failure(dt_mesh *mesh, const void *arg)
{
    sharing *s = (sharing *)(uintptr_t)arg;
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dti_share *share;
    dt_status st = DT_ERR_FORMAT;

    for (int i = 0; i < 3 && st != DT_OK; i++) {
        st = dti_share_get(rt, "one", make_thing, s, destroy_thing, &share);
        DT_EXPECT(st == DT_OK || share == NULL, "an object without success");
    }
    DT_TRY(st);
    DT_TRY(dti_barrier(dti_runtime_world(rt)));
    dti_share_put(&share);
    return DT_OK;
}

/* Whoever comes next tries again: an error belongs to the rank that got it. */
DT_TEST(share, what_could_not_be_made_is_tried_again)
{
    static sharing s = { .refusals = 2 };

    dt_test_on_ranks("tp=4", share_after_failure, &s);
    DT_ASSERT_EQ_INT(atomic_load(&s.n_made), 1);
    DT_ASSERT_EQ_INT(atomic_load(&s.n_destroyed), 1);
}
