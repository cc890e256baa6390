/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects that nobody released before their run ended: they are named, lose their memory with the
 * run, and can be released at any time after it. */
#include <dtensor/async.h>
#include <dtensor/factories.h>
#include <dtensor/tensor.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"

enum { RANKS = 2 };

/* What each rank leaves behind, and what was logged of it. */
typedef struct leftovers {
    dt_mesh *mesh[RANKS], *part[RANKS];
    dt_tensor *x[RANKS], *view[RANKS], *owned[RANKS];
    dt_tape *tape[RANKS];
    bool fails;
    dt_log_level level[RANKS];
    char summary[RANKS][512], named[RANKS][512];
} leftovers;

static void keep_line(void *arg, dt_log_level level, int rank, const char *line)
{
    leftovers *l = arg;

    if (strstr(line, "lost their memory") != NULL) {
        (void)snprintf(l->summary[rank], sizeof l->summary[rank], "%s", line);
        l->level[rank] = level;
    } else if (strstr(line, "outlives the run") != NULL) {
        const size_t used = strlen(l->named[rank]);
        (void)snprintf(l->named[rank] + used, sizeof l->named[rank] - used, "%s\n", line);
    }
}

static dt_status leave(dt_runtime *rt, void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) }, whole[] = { DT_REPLICATE };
    static const int64_t shape[] = { 6, 4 };
    leftovers *l = arg;
    const int r = dt_runtime_rank(rt);
    const char *dims[] = { "tp" };

    DT_TRY(dt_mesh_create(rt, "tp=2", &l->mesh[r]));
    DT_TRY(dt_mesh_slice(l->mesh[r], dims, 1, &l->part[r]));
    DT_TRY(dt_zeros(l->mesh[r], whole, DT_F32, 2, shape, &l->x[r]));
    DT_TRY(dt_redistribute(l->x[r], rows, &l->view[r])); /* a view or a slice of x */
    DT_TRY(dt_tape_create(rt, &l->tape[r]));
    l->owned[r] = dt_move(l->tape[r], l->view[r], whole);
    DT_TRY(dt_tape_status(l->tape[r]));
    DT_EXPECT(!l->fails, "this rank fails on purpose");
    return DT_OK;
}

static void release_all(leftovers *l)
{
    for (int r = 0; r < RANKS; r++) {
        dt_tensor_release(&l->x[r]);
        dt_mesh_release(&l->mesh[r]);
        dt_tape_release(&l->tape[r]);
        dt_mesh_release(&l->part[r]);
        dt_tensor_release(&l->view[r]);
    }
}

DT_TEST(outlive, objects_are_named_and_can_be_released_after_the_run)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    DT_ENDS(release_all) leftovers l = { 0 };

    if (dt_test_processes() > 1) dt_test_skip("the handles are this process's");
    o.n_ranks = RANKS;
    o.log = keep_line;
    o.log_arg = &l;
    DT_ASSERT_OK(dt_run(&o, leave, &l));
    for (int r = 0; r < RANKS; r++) {
        DT_ASSERT(strstr(l.summary[r], "3 tensors, 1 tape") != NULL);
        DT_ASSERT(strstr(l.summary[r], "mesh") != NULL);
        DT_ASSERT(l.level[r] == DT_LOG_WARNING);
        DT_ASSERT(strstr(l.named[r], "tensor f32 [6, 4] S(0)") != NULL);
    }
}

/* They lost their memory: whoever uses them is told so. */
DT_TEST(outlive, what_is_left_of_them_refuses_to_be_used)
{
    const dt_placement whole[] = { DT_REPLICATE }, rows[] = { DT_SHARD(0) };
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    dt_pending *move = NULL;
    dt_tensor *y = NULL;
    DT_ENDS(release_all) leftovers l = { 0 };
    float values[24];

    if (dt_test_processes() > 1) dt_test_skip("the handles are this process's");
    o.n_ranks = RANKS;
    DT_ASSERT_OK(dt_run(&o, leave, &l));
    DT_ASSERT(dt_tensor_local(l.x[0])->data == NULL);
    DT_ASSERT_EQ_INT(dt_tensor_extent(l.x[0], 0), 6);
    DT_ASSERT_EQ_INT(dt_mesh_n_ranks(l.mesh[0]), 2);
    DT_ASSERT_STATUS(dt_tensor_read(l.x[0], values, sizeof values), DT_ERR_ARG, "has ended");
    DT_ASSERT_STATUS(dt_redistribute(l.view[0], whole, &y), DT_ERR_ARG, "has ended");
    DT_ASSERT_STATUS(dt_redistribute_cast(l.view[0], whole, DT_BF16, &y), DT_ERR_ARG, "has ended");
    DT_ASSERT_STATUS(dt_redistribute_begin(l.view[0], whole, &move), DT_ERR_ARG, "has ended");
    DT_ASSERT_STATUS(dt_copy_to(l.view[0], l.part[0], whole, &y), DT_ERR_ARG, "has ended");
    DT_ASSERT_STATUS(dt_empty_like(l.view[0], &y), DT_ERR_ARG, "has ended");
    DT_ASSERT(dt_move(l.tape[0], l.x[0], rows) == NULL);
    DT_ASSERT_STATUS(dt_tape_status(l.tape[0]), DT_ERR_ARG, "has ended");
    DT_ASSERT_STATUS(dt_zeros(l.mesh[0], whole, DT_F32, 0, NULL, &y), DT_ERR_ARG, "has ended");
}

DT_TEST(outlive, a_rank_that_fails_leaves_objects_behind_as_a_matter_of_course)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    DT_ENDS(release_all) leftovers l = { .fails = true };

    if (dt_test_processes() > 1) dt_test_skip("the handles are this process's");
    o.n_ranks = RANKS;
    o.log = keep_line;
    o.log_arg = &l;
    DT_ASSERT_STATUS(dt_run(&o, leave, &l), DT_ERR_INTERNAL, "on purpose");
    for (int r = 0; r < RANKS; r++)
        if (l.tape[r] != NULL && l.summary[r][0] != '\0') DT_ASSERT(l.level[r] == DT_LOG_INFO);
}

/* A dry runtime ends as a run does. */
DT_TEST(outlive, dry_objects_may_be_released_after_their_runtime)
{
    const dt_placement rows[] = { DT_SHARD(0) };
    static const int64_t shape[] = { 8 };
    const dt_run_options o = { .size = sizeof o, .n_ranks = 4, .timeout_ms = 1000 };
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(tensor) *x = NULL;

    DT_ASSERT_OK(dt_runtime_create_dry(&o, 0, NULL, &rt));
    DT_ASSERT_OK(dt_mesh_create(rt, "tp=4", &mesh));
    DT_ASSERT_OK(dt_zeros(mesh, rows, DT_F32, 1, shape, &x));
}
