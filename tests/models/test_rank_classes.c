/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that cost the same: of moves between the same layouts each shape counts. That the classes
 * are those of whole models is in test_predict.c. */
#include "models/judge/rank_classes.h"

#include "tests/support/dt_test.h"

/* From rows to columns: of 4 x 4 each rank holds one element of its own already, of 5 x 4 the rows
 * are 2, 2, 1 and 0. */
DT_TEST(rank_classes, moves_of_every_shape_are_watched)
{
    static const int64_t square[] = { 4, 4 }, tall[] = { 5, 4 };
    const dt_placement rows[] = { DT_SHARD(0) }, columns[] = { DT_SHARD(1) };
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    dti_move_step step = { .kind = DTI_MOVE_EXCHANGE, .dims = 1, .divisor = 1 };
    dti_rank_classes classes;
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    dti_watched w = { 0 };
    DT_HELD(mesh) *mesh = NULL;

    options.n_ranks = 4;
    DT_ASSERT_OK(dt_runtime_create_dry(&options, 0, NULL, &rt));
    DT_ASSERT_OK(dt_mesh_create(rt, "tp=4", &mesh));
    DT_ASSERT_OK(dt_layout_get(mesh, 2, rows, NULL, &step.from));
    DT_ASSERT_OK(dt_layout_get(mesh, 2, columns, NULL, &step.to));
    DT_ASSERT_OK(dti_watch_step(&w, &step, square));
    DT_ASSERT_OK(dti_watch_step(&w, &step, square));
    DT_ASSERT_EQ_INT(w.n_steps, 1);
    DT_ASSERT_OK(dti_rank_classes_find(&w, mesh, &classes));
    DT_ASSERT_EQ_INT(classes.n, 1);
    dti_rank_classes_free(&classes);
    DT_ASSERT_OK(dti_watch_step(&w, &step, tall));
    DT_ASSERT_OK(dti_rank_classes_find(&w, mesh, &classes));
    DT_ASSERT_EQ_INT(classes.n, 3);
    for (int rank = 0; rank < 4; rank++)
        DT_ASSERT_EQ_INT(classes.of[rank], rank < 2 ? 0 : rank - 1);
    dti_rank_classes_free(&classes);
    dti_watched_free(&w);
}
