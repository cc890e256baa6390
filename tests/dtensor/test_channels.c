/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages from mesh to mesh: what comes is what was sent, in any layout, between any meshes, in
 * any order of waits, beside collectives and other channels; what is counted; and how ranks that
 * fail, leave or never come end the wait. */
#include <dtensor/channels.h>
#include <dtensor/collectives.h>
#include <dtensor/factories.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/sync.h"
#include "tests/support/dt_test.h"

/* Message k is these numbers: other ones for each k. */
static dt_status fill(dt_tensor *x, int k)
{
    return dt_fill_randint(x, (dt_random){ 7, (uint64_t)k }, -1000, 1000);
}

static dt_status make(dt_mesh *mesh, const char *layout_text, dt_dtype dtype, int n_axes,
                      const int64_t *shape, int k, dt_tensor **out)
{
    const dt_layout *layout;

    DT_TRY(dt_layout_parse(mesh, n_axes, layout_text, &layout));
    DT_TRY(dt_empty_laid(mesh, layout, dtype, shape, out));
    DT_TRY(fill(*out, k));
    return DT_OK;
}

/* y lies so, on this mesh, and is message k. */
static dt_status is_message(const dt_tensor *y, dt_mesh *mesh, const char *layout_text, int k)
{
    const dt_local *l = dt_tensor_local(y);
    DT_HELD(tensor) *want = NULL;
    const dt_layout *layout;
    char text[512];
    size_t bytes = dt_dtype_size(l->dtype);

    (void)dt_layout_print(dt_tensor_layout(y), text, sizeof text);
    DT_TRY(dt_layout_parse(mesh, l->n_axes, layout_text, &layout));
    DT_EXPECT(dt_tensor_layout(y) == layout, "message %d lies as %s, not as %s", k, text,
              layout_text);
    DT_EXPECT(dt_mesh_equal(dt_tensor_mesh(y), mesh), "message %d is on another mesh", k);
    DT_TRY(dt_empty_like(y, &want));
    DT_TRY(fill(want, k));
    for (int a = 0; a < l->n_axes; a++) bytes *= (size_t)l->shape[a];
    DT_EXPECT(bytes == 0 || memcmp(l->data, dt_tensor_local(want)->data, bytes) == 0,
              "message %d, %s: %zu bytes differ", k, text, bytes);
    return DT_OK;
}

/* --- between stages --------------------------------------------------------------------------- */

/* Stages of "pp" of a mesh, and channels both ways between neighbours. */
typedef struct stages {
    dt_mesh *mine, *next, *before;
    dt_channel *to_next, *from_before; /* forward */
    dt_channel *to_before, *from_next; /* back */
    int stage, n;
} stages;

static void release_stages(stages *s)
{
    dt_channel_release(&s->to_next);
    dt_channel_release(&s->from_before);
    dt_channel_release(&s->to_before);
    dt_channel_release(&s->from_next);
    dt_mesh_release(&s->mine);
    dt_mesh_release(&s->next);
    dt_mesh_release(&s->before);
}

static dt_status make_stages(dt_mesh *mesh, stages *s)
{
    const int pp = dt_mesh_find_dim(mesh, "pp");

    *s = (stages){ .stage = dt_mesh_coord(mesh, pp), .n = dt_mesh_dim_size(mesh, pp) };
    DT_TRY(dt_mesh_stage(mesh, "pp", s->stage, &s->mine));
    if (s->stage > 0) {
        DT_TRY(dt_mesh_stage(mesh, "pp", s->stage - 1, &s->before));
        DT_TRY(dt_channel_create(s->before, s->mine, "pp", &s->from_before));
        DT_TRY(dt_channel_create(s->mine, s->before, "pp", &s->to_before));
    }
    if (s->stage + 1 < s->n) {
        DT_TRY(dt_mesh_stage(mesh, "pp", s->stage + 1, &s->next));
        DT_TRY(dt_channel_create(s->mine, s->next, "pp", &s->to_next));
        DT_TRY(dt_channel_create(s->next, s->mine, "pp", &s->from_next));
    }
    return DT_OK;
}

typedef struct journey {
    const char *layout;
    dt_dtype dtype;
    int n_axes;
    int64_t shape[4];
} journey;

enum { MESSAGES = 24 };

/* Message by message from the first stage to the last, all of them begun before the first is
 * waited for, which are waited for from the last one on; and the same back beside it. */
static dt_status travel(stages *s, const journey *j)
{
    dt_parcel *there[MESSAGES] = { NULL }, *back[MESSAGES] = { NULL };

    for (int k = 0; k < MESSAGES; k++) {
        if (s->from_before != NULL) DT_TRY(dt_channel_recv(s->from_before, NULL, &there[k]));
        if (s->from_next != NULL) DT_TRY(dt_channel_recv(s->from_next, NULL, &back[k]));
    }
    for (int k = 0; k < MESSAGES; k++) {
        DT_HELD(tensor) *x = NULL, *g = NULL;
        DT_TRY(make(s->mine, j->layout, j->dtype, j->n_axes, j->shape, k, &x));
        DT_TRY(make(s->mine, j->layout, j->dtype, j->n_axes, j->shape, 100 + k, &g));
        if (s->to_next != NULL) DT_TRY(dt_channel_send(s->to_next, x, NULL));
        if (s->to_before != NULL) DT_TRY(dt_channel_send(s->to_before, g, NULL));
    }
    for (int k = MESSAGES - 1; k >= 0; k--) {
        DT_HELD(tensor) *y = NULL, *g = NULL;
        if (there[k] != NULL) DT_TRY(dt_parcel_wait(&there[k], &y));
        if (back[k] != NULL) DT_TRY(dt_parcel_wait(&back[k], &g));
        if (y != NULL) DT_TRY(is_message(y, s->mine, j->layout, k));
        if (g != NULL) DT_TRY(is_message(g, s->mine, j->layout, 100 + k));
        DT_EXPECT(there[k] == NULL && back[k] == NULL, "a message that was waited for is there");
    }
    if (s->to_next != NULL) DT_TRY(dt_channel_wait(s->to_next));
    if (s->to_before != NULL) DT_TRY(dt_channel_wait(s->to_before));
    return DT_OK;
}

static dt_status journeys(dt_mesh *mesh, const void *arg)
{
    const journey *j = arg;
    dt_status st;
    stages s;

    st = make_stages(mesh, &s);
    if (st == DT_OK) st = travel(&s, j);
    release_stages(&s);
    return st;
}

DT_TEST(channels, stages_hand_each_other_what_they_have)
{
    static const journey cases[] = {
        { "RRR", DT_F32, 2, { 5, 7 } },
        { "RS(0)S(1)", DT_F32, 2, { 5, 7 } },
        { "RS(0)S(1)", DT_BF16, 3, { 4, 6, 3 } },
        { "RS(0)S(0)", DT_I64, 1, { 3 } }, /* a rank without rows */
        { "RRS(0,blocks=4:2:2)", DT_F32, 2, { 8, 3 } },
        { "RRS(1,offsets=0:1:6)", DT_F32, 2, { 2, 6 } },
        { "RS(0)[1]S(0)[0]", DT_F32, 1, { 9 } },
        { "RRR", DT_F32, 0, { 0 } },
        { "RRR", DT_F32, 2, { 0, 4 } },
        { "RS(0)R", DT_F32, 2, { 64, 4096 } },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks("pp=2,dp=2,tp=2", journeys, &cases[i]);
    dt_test_on_ranks("pp=4", journeys, &(journey){ "R", DT_F32, 2, { 3, 5 } });
    dt_test_on_ranks("pp=1", journeys, &(journey){ "R", DT_F32, 2, { 3, 5 } });
}
