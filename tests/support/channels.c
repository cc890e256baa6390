/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/channels.h"

#include <dtensor/factories.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"

/* Message k is these numbers: other ones for each k. */
static dt_status fill(dt_tensor *x, int k)
{
    return dt_fill_randint(x, (dt_random){ 7, (uint64_t)k }, -1000, 1000);
}

dt_status dt_test_message(dt_mesh *mesh, const char *layout_text, dt_dtype dtype, int n_axes,
                          const int64_t *shape, int k, dt_tensor **out)
{
    const dt_layout *layout;

    DT_TRY(dt_layout_parse(mesh, n_axes, layout_text, &layout));
    DT_TRY(dt_empty_laid(mesh, layout, dtype, shape, out));
    DT_TRY(fill(*out, k));
    return DT_OK;
}

/* y lies so, on this mesh, and is message k. */
dt_status dt_test_is_message(const dt_tensor *y, dt_mesh *mesh, const char *layout_text, int k)
{
    const dt_local *l = dt_tensor_local(y);
    DT_HELD(tensor) *want = NULL;
    DT_FREED char *read = NULL;
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
    DT_TRY(dti_alloc(2 * bytes + 1, (void **)&read));
    DT_TRY(dt_tensor_read(y, read, bytes));
    DT_TRY(dt_tensor_read(want, read + bytes, bytes));
    DT_EXPECT(memcmp(read, read + bytes, bytes) == 0, "message %d, %s: %zu bytes differ", k, text,
              bytes);
    return DT_OK;
}

void dt_test_release_stages(dt_test_stages *s)
{
    dt_channel_release(&s->to_next);
    dt_channel_release(&s->from_before);
    dt_channel_release(&s->to_before);
    dt_channel_release(&s->from_next);
    dt_mesh_release(&s->mine);
    dt_mesh_release(&s->next);
    dt_mesh_release(&s->before);
}

dt_status dt_test_make_stages(dt_mesh *mesh, dt_test_stages *s)
{
    const int pp = dt_mesh_find_dim(mesh, "pp");

    *s = (dt_test_stages){ .stage = dt_mesh_coord(mesh, pp), .n = dt_mesh_dim_size(mesh, pp) };
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

enum { MESSAGES = 24 };

static void release_all(dt_parcel *(*parcels)[MESSAGES])
{
    for (int k = 0; k < MESSAGES; k++) dt_parcel_release(&(*parcels)[k]);
}

/* Message by message from the first stage to the last, all of them begun before the first is
 * waited for, which are waited for from the last one on; and the same back beside it. */
static dt_status travel(dt_test_stages *s, const dt_test_journey *j)
{
    DT_ENDS(release_all) dt_parcel *there[MESSAGES] = { NULL }, *back[MESSAGES] = { NULL };

    for (int k = 0; k < MESSAGES; k++) {
        if (s->from_before != NULL) DT_TRY(dt_channel_recv(s->from_before, NULL, &there[k]));
        if (s->from_next != NULL) DT_TRY(dt_channel_recv(s->from_next, NULL, &back[k]));
    }
    for (int k = 0; k < MESSAGES; k++) {
        DT_HELD(tensor) *x = NULL, *g = NULL;
        DT_TRY(dt_test_message(s->mine, j->layout, j->dtype, j->n_axes, j->shape, k, &x));
        DT_TRY(dt_test_message(s->mine, j->layout, j->dtype, j->n_axes, j->shape, 100 + k, &g));
        if (s->to_next != NULL) DT_TRY(dt_channel_send(s->to_next, x, NULL));
        if (s->to_before != NULL) DT_TRY(dt_channel_send(s->to_before, g, NULL));
    }
    for (int k = MESSAGES - 1; k >= 0; k--) {
        DT_HELD(tensor) *y = NULL, *g = NULL;
        if (there[k] != NULL) DT_TRY(dt_parcel_wait(&there[k], &y));
        if (back[k] != NULL) DT_TRY(dt_parcel_wait(&back[k], &g));
        if (y != NULL) DT_TRY(dt_test_is_message(y, s->mine, j->layout, k));
        if (g != NULL) DT_TRY(dt_test_is_message(g, s->mine, j->layout, 100 + k));
        DT_EXPECT(there[k] == NULL && back[k] == NULL, "a message that was waited for is there");
    }
    if (s->to_next != NULL) DT_TRY(dt_channel_wait(s->to_next));
    if (s->to_before != NULL) DT_TRY(dt_channel_wait(s->to_before));
    return DT_OK;
}

dt_status dt_test_journeys(dt_mesh *mesh, const void *arg)
{
    const dt_test_journey *j = arg;
    dt_status st;
    dt_test_stages s;

    st = dt_test_make_stages(mesh, &s);
    if (st == DT_OK) st = travel(&s, j);
    dt_test_release_stages(&s);
    return st;
}

void dt_test_release_pair(dt_test_pair *p)
{
    dt_channel_release(&p->channel);
    dt_mesh_release(&p->first);
    dt_mesh_release(&p->second);
}

dt_status dt_test_make_pair(dt_mesh *mesh, dt_test_pair *p)
{
    *p = (dt_test_pair){ .sends = dt_mesh_coord(mesh, 0) == 0 };
    DT_TRY(dt_mesh_stage(mesh, "pp", 0, &p->first));
    DT_TRY(dt_mesh_stage(mesh, "pp", 1, &p->second));
    DT_TRY(dt_channel_create(p->first, p->second, "pp 0 to 1", &p->channel));
    return DT_OK;
}
