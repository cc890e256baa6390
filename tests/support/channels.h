/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of channels whose contents are known, and stages that send them. */
#ifndef DT_TEST_CHANNELS_H
#define DT_TEST_CHANNELS_H

#include <dtensor/channels.h>

/* Message k: other numbers for each k. */
dt_status dt_test_message(dt_mesh *mesh, const char *layout, dt_dtype dtype, int n_axes,
                          const int64_t *shape, int k, dt_tensor **out) DT_MUST_USE;

/* y lies so, on this mesh, and is message k. */
dt_status dt_test_is_message(const dt_tensor *y, dt_mesh *mesh, const char *layout,
                             int k) DT_MUST_USE;

/* Stages of "pp" of a mesh, and channels both ways between neighbours. */
typedef struct dt_test_stages {
    dt_mesh *mine, *next, *before;
    dt_channel *to_next, *from_before; /* forward */
    dt_channel *to_before, *from_next; /* back */
    int stage, n;
} dt_test_stages;
dt_status dt_test_make_stages(dt_mesh *mesh, dt_test_stages *out) DT_MUST_USE;
void dt_test_release_stages(dt_test_stages *s);

/* Body of ranks: messages of this form from the first stage of "pp" to the last and back, all of
 * them begun before the first is waited for, which are waited for from the last one on. */
typedef struct dt_test_journey {
    const char *layout;
    dt_dtype dtype;
    int n_axes;
    int64_t shape[4];
} dt_test_journey;
dt_status dt_test_journeys(dt_mesh *mesh, const void *journey) DT_MUST_USE;

/* Stages of two ranks each: the mesh, its first and its second one, and a channel. */
typedef struct dt_test_pair {
    dt_mesh *first, *second;
    dt_channel *channel;
    bool sends;
} dt_test_pair;
dt_status dt_test_make_pair(dt_mesh *mesh, dt_test_pair *out) DT_MUST_USE;
void dt_test_release_pair(dt_test_pair *p);
#define DT_TEST_WITH_PAIR(mesh, p)                           \
    DT_ENDS(dt_test_release_pair) dt_test_pair p = { NULL }; \
    DT_TRY(dt_test_make_pair(mesh, &p))

#endif
