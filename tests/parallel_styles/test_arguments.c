/* SPDX-License-Identifier: Apache-2.0
 *
 * Styles with arguments in their names, and layers with several inputs and outputs. */
#include <dtensor/factories.h>
#include <dtensor/parallel_styles.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "tests/support/layers.h"

/* --- text ------------------------------------------------------------------------------------- */

static dt_status read_arguments(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const dt_style *s, *again;

    (void)arg;
    DT_TRY(dt_style_find(rt, "rowwise(output=shard(1))", NULL, &s));
    DT_EXPECT(s->cut == DT_CUT_ROWS && dt_test_lies(s->in.of[0].to, DT_LAY_LAST, 0),
              "the rest is rowwise");
    DT_EXPECT(dt_test_lies(s->out.of[0].to, DT_LAY_SHARD, 1) && s->out.n == 0, "%d",
              s->out.of[0].to.axis);
    DT_EXPECT_EQ_STR(s->name, "rowwise(output=shard(1))");
    DT_TRY(dt_style_find(rt, "rowwise(output=shard(1))", NULL, &again));
    DT_EXPECT(s == again, "made once");
    DT_TRY(dt_style_find(rt, "colwise( input_layouts = Shard(-2) , output_layouts=Replicate() )",
                         NULL, &s));
    DT_EXPECT(dt_test_lies(s->in.of[0].to, DT_LAY_REPLICATE, 0) &&
                  dt_test_lies(s->out.of[0].to, DT_LAY_REPLICATE, 0),
              "as asked");
    DT_EXPECT(dt_test_lies(s->in.of[0].comes, DT_LAY_SHARD, -2), "x has to come so");
    DT_TRY(dt_style_find(rt,
                         "PrepareModuleInputOutput(input_layouts=(S(1), None), "
                         "desired_input_layouts=(R, None), output_layouts=(P,), "
                         "desired_output_layouts=[sequence])",
                         NULL, &s));
    DT_EXPECT(s->in.n == 2 && dt_test_lies(s->in.of[0].to, DT_LAY_REPLICATE, 0) &&
                  dt_test_lies(s->in.of[1].to, DT_LAY_KEEP, 0) &&
                  dt_test_lies(s->in.of[0].comes, DT_LAY_SHARD, 1),
              "inputs");
    DT_EXPECT(s->out.n == 1 && dt_test_lies(s->out.of[0].comes, DT_LAY_PARTIAL, 0) &&
                  dt_test_lies(s->out.of[0].to, DT_LAY_SEQUENCE, 0),
              "outputs");
    DT_TRY(dt_style_find(rt, "sequence_parallel(comes=sequence)", "v4.56", &s));
    DT_EXPECT(dt_test_lies(s->out.of[0].to, DT_LAY_REPLICATE, 0), "that of v4.56");
    DT_TRY(dt_style_find(rt, "sequence_parallel(comes=sequence)", NULL, &s));
    DT_EXPECT(dt_test_lies(s->out.of[0].to, DT_LAY_KEEP, 0), "the newest");
    DT_TRY(dt_style_find(rt, "colwise()", NULL, &s));
    DT_EXPECT(dt_test_lies(s->out.of[0].to, DT_LAY_KEEP, 0), "no argument changes nothing");
    return DT_OK;
}

DT_TEST(arguments, names_carry_layouts)
{
    dt_test_on_ranks("tp=1", read_arguments, NULL);
}

static void keep(const dt_style *s, dt_tape *t, const dt_layer *layer, int dim, int n,
                 dt_tensor **x)
{
    (void)s, (void)t, (void)layer, (void)dim, (void)n, (void)x;
}

static dt_status refused_arguments(dt_mesh *mesh, const void *arg)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        { "sideways(output=keep)", "unknown style \"sideways\"; there are: mine, colwise" },
        { "rowwise(output=shard(1)", "\",\" or \")\" is missing at character 24" },
        { "rowwise(output=shard)", "\"(\" and an axis are missing after \"shard\"" },
        { "rowwise(output=shard(9))", "an axis is -8 to 7, and is not at character 22" },
        { "rowwise(output=shard(12))", "\")\" is missing at character 23" },
        { "rowwise(output=sideways)",
          "a layout (keep, replicate, shard(axis), sequence, partial)" },
        { "rowwise(outptu=keep)",
          "\"outptu\" is no argument of a style (input, output, comes, gives" },
        { "rowwise(=keep)", "an argument (input, output, comes, gives" },
        { "rowwise(output=keep, output=keep)", "an argument is given twice" },
        { "rowwise(output_layouts=R, gives=R, )", "output_layouts beside gives" },
        { "rowwise(output keep)", "\"=\" is missing at character 16" },
        { "rowwise(output=keep) x", "nothing may follow" },
        { "rowwise(output=[R, R)", "the end of the list is missing" },
        { "rowwise(output=[R,R,R,R,R,R,R,R,R])", "more than 8 layouts" },
        { "rowwise(comes=[R,R], input=[R])", "says how 2 values are (comes) and how 1 are made" },
        { "rowwise(use_local_output=R)", "true or false is missing at character 27" },
        { "rowwise(use_local_output)", "\"=\" is missing" },
        { "rowwise(\n)", "style \"rowwise(\\n)\"" },
        { "mine(input=R)", "its input is laid out by a function of its own" },
    };
    const dt_style mine = { .size = sizeof mine, .prepare_input = keep };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const dt_style *s;
    char much[400];

    (void)arg;
    DT_TRY(dt_style_register(rt, "mine", &mine));
    for (size_t i = 0; i < DT_COUNT(wrong); i++)
        DT_EXPECT_STATUS(dt_style_find(rt, wrong[i].text, NULL, &s), DT_ERR_ARG, wrong[i].says);
    memset(much, 'x', sizeof much);
    much[sizeof much - 1] = '\0';
    DT_EXPECT_STATUS(dt_style_find(rt, much, NULL, &s), DT_ERR_ARG, "a style's name of 399");
    DT_EXPECT_STATUS(dt_style_register(rt, "mine(too)", &mine), DT_ERR_ARG,
                     "what follows \"(\" are arguments");
    return DT_OK;
}

DT_TEST(arguments, what_cannot_be_read_is_refused_with_the_place)
{
    dt_test_on_ranks("tp=1", refused_arguments, NULL);
}

/* --- several values --------------------------------------------------------------------------- */

static const dt_layer_spec point = { .name = "block", .kind = &dt_point_kind };

static dt_status make_point(dt_mesh *mesh, const char *style, dt_layers **out)
{
    const dt_plan_rule rule = { "block", style };
    const dt_plan plan = { .rules = &rule, .n_rules = 1, .strict = true };

    return dt_layers_create(mesh, "tp", &point, 1, &plan, out);
}

static dt_status expect_ones(dt_tensor *x, int64_t n)
{
    DT_EXPECT(dt_tensor_local(x)->shape[0] == n, "%lld rows here",
              (long long)dt_tensor_local(x)->shape[0]);
    for (int64_t i = 0; i < n * 16; i++)
        DT_EXPECT(((const float *)dt_tensor_local(x)->data)[i] == 1.0f, "element %lld",
                  (long long)i);
    return DT_OK;
}

/* `gathers` values of that many rows, cut by rows, were made whole, and nothing else moved. */
static dt_status expect_gathers(const dt_tape *t, const dt_mesh *mesh, int64_t rows,
                                int64_t gathers)
{
    const int p = dt_mesh_n_ranks(mesh);
    const dt_test_move move = {
        .kind = DT_COMM_ALL_GATHER, .n_axes = 2, .shape = { rows, 16 }, .each = sizeof(float)
    };
    dt_comm_counter want[DT_N_COMM_KINDS] = { { 0, 0 } };

    if (p > 1)
        want[DT_COMM_ALL_GATHER] =
            (dt_comm_counter){ gathers,
                               gathers * dt_test_move_bytes(&move, p, dt_mesh_coord(mesh, 0)) };
    return dt_test_expect_counts(t, want);
}

/* Two inputs cut by rows; those that the style speaks of are gathered. */
static dt_status two_inputs(dt_mesh *mesh, const char *style, int64_t rows, int gathered)
{
    const int64_t shape[] = { rows, 16 };
    const int64_t own = dt_test_piece(&rows, 1, 0, dt_mesh_n_ranks(mesh), dt_mesh_coord(mesh, 0));
    const dt_placement cut = DT_SHARD(0);
    dt_layers *layers = NULL;
    dt_tensor *x[2] = { NULL }, *y[2];
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, make_point(mesh, style, &layers));
    for (int i = 0; i < 2; i++) DT_TRY_TO(done, st, dt_ones(mesh, &cut, DT_F32, 2, shape, &x[i]));
    memcpy(y, x, sizeof y);
    dt_layer_enter_all(t, dt_layers_at(layers, 0), 2, y);
    DT_TRY_TO(done, st, dt_tape_status(t));
    for (int i = 0; i < 2; i++) DT_TRY_TO(done, st, expect_ones(y[i], i < gathered ? rows : own));
    DT_TRY_TO(done, st, expect_gathers(t, mesh, rows, gathered));
    dt_layer_leave_all(t, dt_layers_at(layers, 0), 2, y);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, expect_ones(y[0], strstr(style, "desired_output") != NULL ? own : rows));
    DT_TRY_TO(done, st, expect_gathers(t, mesh, rows, gathered)); /* slices are free */
done:
    for (int i = 0; i < 2; i++) dt_tensor_release(&x[i]);
    dt_layers_release(&layers);
    dt_tape_release(&t);
    return st;
}

/* Rows of values: four ranks divide them, they do not, there are fewer than ranks. */
static const int64_t row_counts[] = { 12, 7, 2 };

static dt_status several(dt_mesh *mesh, const void *arg)
{
    (void)arg;
    for (size_t i = 0; i < DT_COUNT(row_counts); i++) {
        const int64_t rows = row_counts[i];
        DT_TRY(two_inputs(mesh, "module_allgather", rows, 1)); /* speaks of the first */
        DT_TRY(two_inputs(mesh, "PrepareModuleInput(desired_input_layouts=[R, keep])", rows, 1));
        DT_TRY(two_inputs(mesh,
                          "PrepareModuleInput(input_layouts=(S(0), S(0)), "
                          "desired_input_layouts=(R, R))",
                          rows, 2));
        DT_TRY(two_inputs(mesh,
                          "PrepareModuleInputOutput(desired_input_layouts=[R, R], "
                          "desired_output_layouts=[shard(0), keep])",
                          rows, 2));
    }
    return DT_OK;
}

static void on_all_ranks(dt_test_body body)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], body, NULL);
}

DT_TEST(arguments, a_point_lays_out_several_values)
{
    on_all_ranks(several);
}

/* A style of x and y of a point: which of them it makes whole (or leaves so) and which it cuts. */
typedef struct constructed_case {
    const char *name;
    dt_style style;
    bool inside_is_whole, outside_is_whole;
    int64_t gathers;
} constructed_case;

/* x comes cut; inside it is made whole, as a module's result may be, and leaves the point. */
static dt_status point_of(dt_mesh *mesh, const constructed_case *c, int64_t rows)
{
    const int64_t shape[] = { rows, 16 };
    const int64_t own = dt_test_piece(&rows, 1, 0, dt_mesh_n_ranks(mesh), dt_mesh_coord(mesh, 0));
    const dt_placement cut = DT_SHARD(0);
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tape) *t = NULL, *aside = NULL;
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y;

    DT_TRY(make_point(mesh, c->name, &layers));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &aside));
    DT_TRY(dt_ones(mesh, &cut, DT_F32, 2, shape, &x));
    y = dt_layer_enter(t, dt_layers_at(layers, 0), x);
    DT_TRY(dt_tape_status(t));
    DT_TRY(expect_ones(y, c->inside_is_whole ? rows : own));
    y = dt_move_dim(aside, y, 0, DT_REPLICATE);
    y = dt_layer_leave(t, dt_layers_at(layers, 0), y);
    DT_TRY(dt_tape_status(t));
    DT_TRY(expect_ones(y, c->outside_is_whole ? rows : own));
    DT_TRY(expect_gathers(t, mesh, rows, c->gathers));
    return DT_OK;
}

static dt_status constructed(dt_mesh *mesh, const void *arg)
{
    const dt_lay cut = { DT_LAY_SHARD, 0 }, whole = { DT_LAY_REPLICATE, 0 };
    const dt_prepare_args args = { .inputs = { 1, { { .comes = cut, .to = whole } } },
                                   .outputs = { 1, { { .comes = whole, .to = cut } } } };
    const constructed_case cases[] = {
        { "in", dt_prepare_input(args), true, true, 1 },
        { "out", dt_prepare_output(args), false, false, 0 },
        { "both", dt_prepare_input_output(args), true, false, 1 },
    };

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        DT_TRY(dt_style_register(dt_mesh_runtime(mesh), cases[i].name, &cases[i].style));
        for (size_t k = 0; k < DT_COUNT(row_counts); k++)
            DT_TRY(point_of(mesh, &cases[i], row_counts[k]));
    }
    return DT_OK;
}

DT_TEST(arguments, inputs_and_outputs_of_constructors)
{
    on_all_ranks(constructed);
}

/* --- values that do not come as expected ------------------------------------------------------ */

static dt_status refused_values(dt_mesh *mesh, const void *arg)
{
    static const struct {
        const char *style;
        int n;
        bool leave;
        dt_status status;
        const char *says;
    } cases[] = {
        { "PrepareModuleInput(input_layouts=[S(1), keep])", 2, false, DT_ERR_LAYOUT,
          "wants input 0 of block to come as shard(1), but it is Shard(0) on mesh dim \"tp\" of "
          "2" },
        { "local(comes=[keep, R])", 2, false, DT_ERR_LAYOUT,
          "wants input 1 of block to come as rep" },
        { "local(gives=partial)", 1, true, DT_ERR_LAYOUT,
          "wants output 0 of block to come as part" },
        { "local(comes=sequence)", 1, false, DT_ERR_LAYOUT, "" },
        { "local(input=[R, R])", 1, false, DT_ERR_ARG, "speaks of 2 inputs, block has 1" },
        { "local(output=[R])", 2, true, DT_ERR_ARG, "speaks of 1 outputs, block has 2" },
        { "local", 0, false, DT_ERR_ARG, "0 inputs of block: a layer has 1 to 8" },
        { "local", 9, true, DT_ERR_ARG, "9 outputs of block: a layer has 1 to 8" },
        { "local", 3, false, DT_ERR_ARG, "input 2 of block is NULL" },
    };
    const dt_placement rows = DT_SHARD(0);
    const int64_t shape[] = { 3, 4, 2 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *one = NULL;
    DT_HELD(layers) *layers = NULL;

    (void)arg;
    DT_TRY(dt_zeros(mesh, &rows, DT_F32, 3, shape, &one));
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        dt_tensor *x[9] = { one, one };
        DT_TRY(make_point(mesh, cases[i].style, &layers));
        if (cases[i].leave)
            dt_layer_leave_all(t, dt_layers_at(layers, 0), cases[i].n, x);
        else
            dt_layer_enter_all(t, dt_layers_at(layers, 0), cases[i].n, x);
        dt_layers_release(&layers);
        DT_EXPECT_STATUS(dt_tape_status(t), cases[i].status, cases[i].says);
        DT_EXPECT(cases[i].n == 0 || x[0] == NULL, "nothing is left");
        dt_tape_reset(t);
    }
    return DT_OK;
}

DT_TEST(arguments, values_that_come_otherwise_are_refused)
{
    dt_test_on_ranks("tp=2", refused_values, NULL);
}
