/* SPDX-License-Identifier: Apache-2.0
 *
 * Boxes: packed axes, kv heads that ranks share, layers that get their values from a checkpoint
 * alone; and what is told of boxes that overlap or leave something out. */
#include <dtensor/training_checkpoints.h>
#include <dtensor/weights.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "training/saving/snapshot.h"

/* --- layers of all sorts of cuts --- */

enum { D = 6, GATE = 5, UP = 4, Q_HEADS = 4, KV_HEADS = 2, HEAD = 3, Q = 12, KV = 6 };

#define HEADS .heads = { Q_HEADS, KV_HEADS, HEAD }

static const dt_layer_spec specs[] = {
    { .name = "gate_up",
      .kind = &dt_linear_kind,
      .axis = { { GATE + UP, DT_UNIT_ROW }, { D, DT_UNIT_ROW } },
      .with = "bias",
      .style = "packed_colwise",
      .blocks = { { .n = 2, .block = { { GATE, DT_UNIT_ROW }, { UP, DT_UNIT_ROW } } } } },
    { .name = "qkv",
      .kind = &dt_linear_kind,
      .axis = { { Q + 2 * KV, DT_UNIT_ROW }, { D, DT_UNIT_ROW } },
      .style = "packed_colwise",
      HEADS,
      .blocks = { { .n = 3,
                    .block = { { Q, DT_UNIT_HEADS },
                               { KV, DT_UNIT_KV_HEADS },
                               { KV, DT_UNIT_KV_HEADS } } } } },
    { .name = "k",
      .kind = &dt_linear_kind,
      .axis = { { KV, DT_UNIT_KV_HEADS }, { D, DT_UNIT_ROW } },
      .style = "colwise",
      HEADS },
    { .name = "down",
      .kind = &dt_linear_kind,
      .axis = { { D, DT_UNIT_ROW }, { GATE + UP, DT_UNIT_ROW } },
      .style = "packed_rowwise",
      .blocks = { { .n = 0 },
                  { .n = 2, .block = { { GATE, DT_UNIT_ROW }, { UP, DT_UNIT_ROW } } } } },
    { .name = "norm", .kind = &dt_rms_norm_kind, .axis = { { D, DT_UNIT_ROW } }, .eps = 1e-5f },
};

typedef struct leg {
    const char *dir;
    bool saves;
    int64_t width; /* of the norm */
} leg;

static dt_status make(dt_mesh *mesh, const leg *l, bool values, dt_layers **out)
{
    dt_layer_spec own[DT_COUNT(specs)];
    dt_status st = DT_OK;

    memcpy(own, specs, sizeof specs);
    own[DT_COUNT(specs) - 1].axis[0].extent = l->width;
    DT_TRY(dt_layers_create(mesh, "tp?", own, DT_COUNT(specs), NULL, out));
    if (values) st = dt_layers_init(*out, DT_F32, 5, NULL, 0);
    if (st != DT_OK) dt_layers_release(out);
    return st;
}

static dt_status expect_same(dt_layers *a, dt_layers *b)
{
    for (int i = 0; i < dt_layers_count(a); i++)
        for (int p = 0; p < dt_layer_n_params(dt_layers_at(a, i)); p++) {
            const dt_tensor *x = dt_layer_param(dt_layers_at(a, i), p);
            const dt_tensor *y = dt_layer_param(dt_layers_at(b, i), p);
            const dt_local *l = x != NULL ? dt_tensor_local(x) : NULL;
            size_t bytes = 4;
            if (x == NULL && y == NULL) continue;
            DT_EXPECT(x != NULL && y != NULL, "layer %d has no parameter %d", i, p);
            for (int k = 0; k < l->n_axes; k++) bytes *= (size_t)l->shape[k];
            DT_EXPECT(memcmp(l->data, dt_tensor_local(y)->data, bytes) == 0, "parameter %d of %s",
                      p, dt_layer_name(dt_layers_at(a, i)));
        }
    return DT_OK;
}

/* Loads into layers without values, compares, saves as it lies here. */
static dt_status run_leg(dt_mesh *mesh, const void *arg)
{
    dt_run_folder_options options = DT_RUN_FOLDER_OPTIONS_INIT;
    DT_HELD(layers) *empty = NULL, *want = NULL;
    DT_HELD(run_folder) *run = NULL;
    const leg *l = arg;

    options.mode = DT_RUN_FOLDER_CONTINUE;
    DT_TRY(dt_run_folder_open(mesh, l->dir, &options, &run));
    DT_TRY(make(mesh, l, true, &want));
    if (dt_run_folder_latest(run) >= 0) {
        DT_TRY(make(mesh, l, false, &empty));
        DT_TRY(dt_run_folder_load(run, NULL, empty, NULL, NULL, NULL));
        DT_TRY(expect_same(empty, want));
    }
    if (l->saves)
        DT_TRY(dt_run_folder_save(run, empty != NULL ? empty : want, NULL,
                                  &(dt_run_progress){ .step = 1 }, NULL));
    return DT_OK;
}

DT_TEST(snapshot, packed_axes_and_shared_heads_come_back_on_any_mesh)
{
    static const char *const meshes[] = { "tp=4", "tp=3", "dp=2,tp=2", "tp=1", "tp=2", "tp=4" };
    char dir[DT_TEST_PATH_BYTES];
    leg l = { .dir = dt_test_shared_dir(dir), .saves = true, .width = D };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], run_leg, &l);
}

DT_TEST(snapshot, layers_of_another_width_are_refused)
{
    char dir[DT_TEST_PATH_BYTES];
    leg l = { .dir = dt_test_temp_dir(dir), .saves = true, .width = D };

    dt_test_on_ranks("tp=4", run_leg, &l);
    l.width = D + 1;
    dt_test_on_ranks_fail("tp=4", run_leg, &l, DT_ERR_ARG,
                          "\"norm.weight\" is [6] in the checkpoint, [7] in the model: it is of "
                          "another model");
}

/* --- what is there once --- */

static void add_tensor(dti_snapshot *s, int64_t rows, int64_t columns)
{
    const dti_stored_tensor t = {
        .name = "x", .dtype = DT_F32, .n_axes = 2, .shape = { rows, columns }
    };

    DT_ASSERT_OK(dti_snapshot_add(s, &t));
}

static void add_box(dti_snapshot *s, size_t file, int64_t row, int64_t column, int64_t rows,
                    int64_t columns)
{
    const dti_stored_box box = { .file = file,
                                 .begin = { row, column },
                                 .end = { row + rows, column + columns } };

    DT_ASSERT_OK(dti_snapshot_add_box(s, &box));
}

DT_TEST(snapshot, elements_that_are_missing_or_there_twice_are_told)
{
    static const struct {
        int64_t row, column, rows, columns;
        dt_status status;
        const char *words;
    } last[] = {
        { 2, 2, 2, 3, DT_OK, NULL },
        { 2, 2, 2, 2, DT_ERR_FORMAT, "2 of its 20 elements are in no file" },
        { 1, 2, 2, 3, DT_ERR_FORMAT, "3 elements are there twice, in one and two" },
        { 2, 2, 2, 4, DT_ERR_FORMAT, "two has elements 2 to 6 of axis 1, which has 5" },
        { 0, 0, 4, 5, DT_ERR_FORMAT, "some of its 20 elements are there twice" },
    };

    for (size_t i = 0; i < DT_COUNT(last); i++) {
        dti_snapshot s = DTI_SNAPSHOT_INIT;
        DT_ASSERT_OK(dti_snapshot_add_file(&s, &(dti_stored_file){ .name = "one" }));
        DT_ASSERT_OK(dti_snapshot_add_file(&s, &(dti_stored_file){ .name = "two" }));
        add_tensor(&s, 0, 5);
        add_tensor(&s, 4, 5);
        add_box(&s, 0, 0, 0, 2, 5);
        add_box(&s, 0, 2, 0, 2, 2);
        add_box(&s, 1, last[i].row, last[i].column, last[i].rows, last[i].columns);
        if (last[i].status == DT_OK)
            DT_ASSERT_OK(dti_snapshot_check_cover(&s));
        else
            DT_ASSERT_STATUS(dti_snapshot_check_cover(&s), last[i].status, last[i].words);
        dti_snapshot_free(&s);
    }
}
