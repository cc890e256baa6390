/* SPDX-License-Identifier: Apache-2.0
 *
 * Kinds of one's own, what the library refuses of them, styles that prepare parameters, costs,
 * states of other layers, names that mean another style in one run or one model. examples/15 and 16
 * run kinds with their numbers. */
#include <dtensor/ops.h>
#include <dtensor/parallel_styles.h>
#include <stdio.h>
#include <string.h>

#include "dtensor/device/device.h"
#include "parallel_styles/kind.h"
#include "parallel_styles/layer_hash.h"
#include "parallel_styles/layer_rules.h"
#include "parallel_styles/layers_internal.h"
#include "tests/support/dt_test.h"
#include "tests/support/layers.h"
#include "tests/support/tensors.h"

enum { O = 6, I = 4 };

static dt_tensor *product(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    return dt_linear(t, x, dt_layer_use(t, layer, 0), NULL);
}

static const dt_layer_kind plain = {
    .name = "plain", .like = &dt_linear_kind, .params = { { "w", "oi" } }, .forward = product
};

/* --- refusals --------------------------------------------------------------------------------- */

static dt_status refused_kinds(dt_mesh *mesh, const void *arg)
{
    static const struct {
        dt_layer_kind kind;
        const char *says;
    } rows[] = {
        { { .params = { { "w", "o" } }, .forward = product }, "a kind of layer needs a name" },
        { { .name = "a b", .forward = product }, "a kind of layer needs a name" },
        { { .name = "k", .params = { { "w", "oO" } }, .forward = product }, "axes are letters" },
        { { .name = "k", .params = { { "w", "o`" } }, .forward = product }, "axes are letters" },
        { { .name = "k", .params = { { "w", "o{" } }, .forward = product }, "axes are letters" },
        { { .name = "k", .params = { { "w", "oo" } }, .forward = product }, "two axes 'o'" },
        { { .name = "k", .params = { { "w", "abcde" } }, .forward = product }, "has 5 axes" },
        { { .name = "k", .params = { { "w", "o" }, { "w", "o" } }, .forward = product },
          "two parameters \"w\"" },
        { { .name = "k", .params = { { "w", "abcd" }, { "v", "efg" } }, .forward = product },
          "has 7 letters" },
        { { .name = "k", .params = { { "w", "o" } }, .rows = 'i', .forward = product },
          "its rows are axis 'i', but its axes are \"o\"" },
        { { .name = "k",
            .params = { { "w", "o" } },
            .states = { { "s", "z" } },
            .forward = product },
          "state \"s\" has an axis 'z'" },
        { { .name = "k", .params = { { "w", "o" } }, .cost = "2 oz", .forward = product },
          "its cost \"2 oz\" is no sum" },
        { { .name = "k", .params = { { "w", "o" } }, .values = "...o", .forward = product },
          "lack \" -> \"" },
        { { .name = "k", .params = { { "w", "o" } } }, "no forward that uses them" },
        { { .name = "linear", .forward = product }, "there is a kind of layer \"linear\" already" },
    };
    static const dt_layer_kind ends = { .name = "ends",
                                        .params = { { "w", "az" } },
                                        .forward = product };
    dt_runtime *rt = dt_mesh_runtime(mesh);

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(rows); i++)
        DT_EXPECT_STATUS(dt_kind_register(rt, &rows[i].kind), DT_ERR_ARG, rows[i].says);
    DT_TRY(dt_kind_register(rt, &plain));
    DT_EXPECT(dt_kind_find(rt, "plain") == &plain && dt_kind_at(rt, 0) == &plain,
              "found, and first");
    DT_EXPECT(dt_kind_find(rt, "embedding") == &dt_embedding_kind, "the library's as well");
    DT_EXPECT(dt_kind_find(rt, "nope") == NULL && dt_kind_at(rt, 12) == NULL, "no others");
    DT_EXPECT(dt_kind_at(NULL, 0) == NULL && dt_kind_at(rt, -1) == NULL, "none of no runtime");
    DT_EXPECT_STATUS(dt_kind_register(NULL, &ends), DT_ERR_ARG, "rt or kind is NULL");
    DT_TRY(dt_kind_register(rt, &ends));
    return DT_OK;
}

/* A name that is longer than the room for it is cut there. */
DT_TEST(own_kinds, names_of_parameters_are_as_long_as_they_like)
{
    const char *const name =
        "a_name_of_more_bytes_than_messages_have_for_a_parameter_and_its_shape_"
        "together";
    const dt_param_info info = { .name = name, .n_axes = 2, .axis = { { 6, 0 }, { 4, 0 } } };
    char room[2 * DTI_PARAM_TEXT_BYTES];

    memset(room, '#', sizeof room);
    (void)dti_param_text(&info, room);
    DT_ASSERT_EQ_INT(strlen(room), DTI_PARAM_TEXT_BYTES - 1);
    DT_ASSERT(strncmp(room, name, DTI_PARAM_TEXT_BYTES - 1) == 0);
    for (size_t i = DTI_PARAM_TEXT_BYTES; i < sizeof room; i++) DT_ASSERT(room[i] == '#');
}

DT_TEST(own_kinds, what_is_no_kind_is_refused)
{
    dt_test_on_ranks("tp=1", refused_kinds, NULL);
}

static dt_status refused_specs(dt_mesh *mesh, const void *arg)
{
    static const dt_layer_kind other = { .name = "plain", .forward = product };
    const dt_layer_spec good = { .name = "a", .kind = &plain, .axis = { { O, 0 }, { I, 0 } } };
    dt_layer_spec specs[] = { good, { .name = "b", .kind = &other } };
    char long_name[DT_PARAM_NAME_BYTES - 1] = "";
    dt_layers *layers = NULL;

    (void)arg;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 2, NULL, &layers), DT_ERR_ARG,
                     "b: there is another kind of layer \"plain\"");
    specs[0].kind = NULL;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 1, NULL, &layers), DT_ERR_ARG,
                     "a layer needs a kind");
    specs[0] = good;
    specs[0].with = "w bias";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 1, NULL, &layers), DT_ERR_ARG,
                     "a is plain, which has no parameter \"bias\"");
    specs[0] = good;
    specs[0].name = long_name; /* and ".w" */
    for (size_t i = 0; i < sizeof long_name - 1; i++) long_name[i] = "layer."[i % 6];
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 1, NULL, &layers), DT_ERR_ARG,
                     "...: the layer's name and that of its w have 256 bytes with a dot, at most "
                     "255 are possible");
    long_name[sizeof long_name - 2] = '\0';
    DT_TRY(dt_layers_create(mesh, "tp", specs, 1, NULL, &layers));
    dt_layers_release(&layers);
    specs[0] = good;
    specs[0].style = "embedding_rowwise";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "does not fit a, plain with w [6, 4]; there it can be: colwise");
    return DT_OK;
}

DT_TEST(own_kinds, specs_that_do_not_fit_their_kind_are_refused)
{
    dt_test_on_ranks("tp=2", refused_specs, NULL);
}

static dt_status without_a_value(dt_mesh *mesh, const void *arg)
{
    const dt_layer_spec spec = { .name = "a", .kind = &plain, .axis = { { O, 0 }, { I, 0 } } };
    const dt_placement whole = DT_REPLICATE;
    const int64_t shape[] = { 2, I };
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    DT_TRY(dt_zeros(mesh, &whole, DT_F32, 2, shape, &x));
    (void)dt_layer_forward(t, dt_layers_at(layers, 0), x);
    return dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_ARG,
                                 "a: w has no value yet: dt_layer_set_param() gives it one");
}

DT_TEST(own_kinds, a_layer_without_a_value_says_what_gives_it_one)
{
    dt_test_on_ranks("tp=2", without_a_value, NULL);
}

/* --- what ranks compare ----------------------------------------------------------------------- */

static dt_status hash_of(dt_mesh *mesh, const dt_layer_spec *spec, uint64_t *hash)
{
    dt_layers *layers;

    DT_TRY(dt_layers_create(mesh, "tp", spec, 1, NULL, &layers));
    *hash = dti_layer_hash(dt_layers_at(layers, 0));
    dt_layers_release(&layers);
    return DT_OK;
}

static void touch(const dt_style *s, dt_tape *t, const dt_layer *layer, int dim, int n,
                  dt_tensor **x)
{
    (void)s, (void)t, (void)layer, (void)dim, (void)n, (void)x;
}

static dt_status hashes(dt_mesh *mesh, const void *arg)
{
    static const char *const styles[] = { "colwise",
                                          "colwise(comes=R)",
                                          "colwise(input=[R])",
                                          "colwise(output=S(0))",
                                          "colwise(output=S(1))",
                                          "rowwise",
                                          "mine",
                                          "mine_too" };
    const dt_style mine = { .size = sizeof mine, .cut = DT_CUT_COLUMNS };
    const dt_style too = { .size = sizeof too, .cut = DT_CUT_COLUMNS, .prepare_input = touch };
    dt_layer_spec spec = { .name = "a", .kind = &plain, .axis = { { O, 0 }, { I, 0 } } };
    /* what a parameter is beside its axes */
    static const dt_layer_kind kinds[] = {
        { .name = "k", .params = { { "w", "oi" }, { "b", "o" } }, .forward = product },
        { .name = "k",
          .params = { { "w", "oi" }, { "b", "o", .optional = true } },
          .forward = product },
        { .name = "k",
          .params = { { "w", "oi" }, { "b", "o", .frozen = true } },
          .forward = product },
        { .name = "k",
          .params = { { "w", "oi" }, { "b", "o", .added = true } },
          .forward = product },
        { .name = "k",
          .params = { { "w", "oi" }, { "b", "o", .bare = true } },
          .forward = product },
    };
    uint64_t seen[DT_COUNT(styles) + 3 + DT_COUNT(kinds)];
    size_t n = 0;

    (void)arg;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "mine", &mine));
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "mine_too", &too));
    for (size_t i = 0; i < DT_COUNT(styles); i++) {
        spec.style = styles[i];
        DT_TRY(hash_of(mesh, &spec, &seen[n++]));
    }
    spec.eps = 0.5f;
    DT_TRY(hash_of(mesh, &spec, &seen[n++]));
    spec.own = &spec;
    DT_TRY(hash_of(mesh, &spec, &seen[n++]));
    spec.kind = &dt_linear_kind;
    DT_TRY(hash_of(mesh, &spec, &seen[n++]));
    spec = (dt_layer_spec){ .name = "a", .axis = { { O, 0 }, { I, 0 } }, .style = "replicate" };
    for (size_t i = 0; i < DT_COUNT(kinds); i++) {
        spec.kind = &kinds[i];
        spec.with = kinds[i].params[1].optional ? "b" : NULL;
        DT_TRY(hash_of(mesh, &spec, &seen[n++]));
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++) DT_EXPECT(seen[i] != seen[k], "%zu and %zu agree", i, k);
    return DT_OK;
}

DT_TEST(own_kinds, ranks_compare_all_that_decides_what_a_layer_does)
{
    dt_test_on_ranks("tp=2", hashes, NULL);
}

/* --- parameters that are prepared ------------------------------------------------------------- */

/* Stored cut along the first axis, gathered for the computation: as fully sharded layers are. */
static dt_status stored_cut(const dt_style *style, const dt_param_info *param, int n_parts,
                            dt_cut_room *room, dt_placement *out)
{
    (void)style, (void)param, (void)n_parts, (void)room;
    *out = DT_SHARD(0);
    return DT_OK;
}

static dt_tensor *gathered(const dt_style *style, dt_tape *t, const dt_layer *layer, int dim,
                           int param, dt_tensor *w)
{
    (void)style, (void)layer, (void)param;
    return dt_move_dim(t, w, dim, DT_REPLICATE);
}

static dt_status prepared(dt_mesh *mesh, const void *arg)
{
    const dt_style sharded = { .size = sizeof sharded,
                               .partition_param = stored_cut,
                               .prepare_param = gathered };
    const dt_plan_rule rule = { "a", "sharded" };
    const dt_plan plan = { .rules = &rule, .n_rules = 1, .dim = "dp" };
    const dt_layer_spec spec = { .name = "a",
                                 .kind = &dt_linear_kind,
                                 .axis = { { O, 0 }, { I, 0 } },
                                 .with = "bias",
                                 .style = "rowwise" };
    const dt_placement whole[] = { DT_REPLICATE, DT_REPLICATE };
    const int64_t shape[] = { 3, I };
    float values[3 * I];
    DT_HELD(layers) *one = NULL, *two = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y[2] = { NULL, NULL };

    (void)arg;
    dt_test_random(values, 3 * I, 3);
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "sharded", &sharded));
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, &plan, &one));
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &two));
    DT_TRY(dt_test_fill_layers(mesh, one, DT_F32, 1));
    DT_TRY(dt_test_fill_layers(mesh, two, DT_F32, 1));
    DT_TRY(
        dt_distribute(mesh, whole, DT_F32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES }, &x));
    y[0] = dt_layer_forward(t, dt_layers_at(one, 0), x);
    y[1] = dt_layer_forward(t, dt_layers_at(two, 0), x);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_tape_comm(t, DT_COMM_ALL_GATHER).calls == 2, "weight and bias");
    DT_EXPECT(memcmp(dt_tensor_local(y[0])->data, dt_tensor_local(y[1])->data,
                     sizeof(float) * 3 * O) == 0,
              "as with whole parameters");
    return DT_OK;
}

DT_TEST(own_kinds, a_style_prepares_parameters_for_the_computation)
{
    dt_test_on_ranks("dp=2,tp=2", prepared, NULL);
}

/* --- costs and states ------------------------------------------------------------------------- */

static dt_tensor *by_state(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *zeros = dt_layer_state(t, layer, 0, x);
    dti_device *d;

    if (dti_device_of(dt_mesh_runtime(dt_tensor_mesh(x)), &d) != DT_OK ||
        dti_memory_of_kind(d->memory, DTI_KIND_CACHES) != 0)
        return dt_tape_fail(t, DT_ERR_INTERNAL, "zeros count as carried before they are");
    return dt_mul(t, x, zeros);
}

/* Its letters spell what strtod() takes for numbers. */
static const dt_layer_kind lettered = { .name = "lettered",
                                        .axes = "infax",
                                        .states = { { "s", "i" } },
                                        .cost = "inf + 1.5 nan + 2x3",
                                        .forward = by_state };

static dt_status of_other_layers(dt_mesh *mesh, const void *arg)
{
    const dt_layer_spec specs[] = {
        { .name = "a",
          .kind = &lettered,
          .axis = { { 2, 0 }, { 3, 0 }, { 5, 0 }, { 7, 0 }, { 11, 0 } } },
        { .name = "b",
          .kind = &lettered,
          .axis = { { 2, 0 }, { 3, 0 }, { 5, 0 }, { 7, 0 }, { 11, 0 } } },
    };
    const int64_t shape[] = { 3, 2 };
    DT_HELD(layers) *one = NULL, *two = NULL;
    DT_HELD(carry) *carry = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp", specs, 1, NULL, &one));
    DT_TRY(dt_layers_create(mesh, "tp", specs, 2, NULL, &two));
    DT_EXPECT(dti_spec_flops(&specs[0]) == 2 * 3 * 5 + 1.5 * 3 * 7 * 3 + 2 * 11 * 3, "%g FLOPs",
              dti_spec_flops(&specs[0]));
    DT_TRY(dt_carry_create(one, &carry));
    DT_TRY(dt_ones(mesh, (const dt_placement[]){ DT_REPLICATE }, DT_F32, 2, shape, &x));
    DT_EXPECT(dt_layers_carry(two, carry) == NULL, "none before");
    DT_EXPECT(dt_layer_forward(t, dt_layers_at(two, 1), x) == NULL, "refused");
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "the carry of other layers");
    dt_tape_reset(t);
    (void)dt_layers_carry(one, carry);
    (void)dt_layers_carry(two, NULL);
    (void)dt_layer_forward(t, dt_layers_at(one, 0), x);
    (void)dt_layer_forward(t, dt_layers_at(two, 1), x);
    DT_TRY(dt_tape_status(t));
    return DT_OK;
}

DT_TEST(own_kinds, costs_are_letters_and_states_are_of_their_layers)
{
    dt_test_on_ranks("tp=1", of_other_layers, NULL);
}

/* --- names that mean another style ------------------------------------------------------------ */

static dt_status cut_of(dt_mesh *mesh, const dt_plan *plan, const char *style, dt_cut *cut)
{
    const dt_layer_spec spec = {
        .name = "a", .kind = &plain, .axis = { { O, 0 }, { I, 0 } }, .style = style
    };
    dt_layers *layers;

    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, plan, &layers));
    *cut = dt_layer_style(dt_layers_at(layers, 0))->cut;
    dt_layers_release(&layers);
    return DT_OK;
}

static dt_status mapped(dt_mesh *mesh, const void *arg)
{
    const dt_style none = { .size = sizeof none },
                   rows = { .size = sizeof rows, .cut = DT_CUT_ROWS };
    dt_style tokens = { .size = sizeof tokens,
                        .cut = DT_CUT_COLUMNS,
                        .out = { .of = { { .to = { DT_LAY_SEQUENCE, 0 } } } } };
    const dt_style_mapping local = { "colwise", &none }, wrong = { "colwize", &none };
    const dt_plan without = { .dim = NULL };
    dt_plan plan = { .overrides = &local, .n_overrides = 1 };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_cut cut;

    (void)arg;
    DT_TRY(cut_of(mesh, &plan, "colwise", &cut));
    DT_EXPECT(cut == DT_CUT_NONE, "of this model");
    DT_TRY(cut_of(mesh, &plan, "ColwiseParallel(output_layouts=R)", &cut));
    DT_EXPECT(cut == DT_CUT_NONE, "by its other name, with arguments");
    DT_TRY(cut_of(mesh, NULL, "ColwiseParallel(output_layouts=R)", &cut));
    DT_EXPECT(cut == DT_CUT_COLUMNS, "others do not know of it");
    plan.more = &without;
    DT_TRY(cut_of(mesh, &plan, "colwise", &cut));
    DT_EXPECT(cut == DT_CUT_NONE, "where a second plan says nothing more");
    plan.overrides = NULL;
    DT_EXPECT_STATUS(cut_of(mesh, &plan, "colwise", &cut), DT_ERR_ARG, "a plan with 1 overrides");
    plan.overrides = &wrong;
    DT_EXPECT_STATUS(cut_of(mesh, &plan, "colwise", &cut), DT_ERR_ARG,
                     "overrides of a plan: unknown style \"colwize\", did you mean");
    DT_TRY(dt_style_override(rt, "colwise", &rows));
    DT_TRY(cut_of(mesh, NULL, "colwise", &cut));
    DT_EXPECT(cut == DT_CUT_ROWS, "of this run");
    DT_TRY(cut_of(mesh, NULL, "ColwiseParallel(output_layouts=R)", &cut));
    DT_EXPECT(cut == DT_CUT_ROWS, "made anew with arguments");
    DT_EXPECT(strcmp(dt_style_at(rt, 0)->name, "colwise") == 0, "a program's own come first");
    DT_TRY(dt_style_register(rt, "tokens", &tokens));
    tokens.cut = DT_CUT_ROWS;
    DT_TRY(dt_style_override(rt, "tokens", &tokens));
    DT_TRY(cut_of(mesh, NULL, "tokens", &cut));
    DT_EXPECT(cut == DT_CUT_ROWS, "and its twin, which lays parameters as it does");
    DT_EXPECT_STATUS(dt_style_override(rt, "nope", &rows), DT_ERR_ARG, "unknown style \"nope\"");
    return DT_OK;
}

/* The name of a twin is kept with the style's. */
static dt_status named_at_length(dt_mesh *mesh, const void *arg)
{
    const dt_style tokens = { .size = sizeof tokens,
                              .out = { .of = { { .to = { DT_LAY_SEQUENCE, 0 } } } } };
    char name[DTI_STYLE_TEXT_BYTES + 1] = "";

    (void)arg;
    memset(name, 'n', sizeof name - 1);
    DT_EXPECT_STATUS(dt_style_register(dt_mesh_runtime(mesh), name, &tokens), DT_ERR_ARG,
                     "a style cannot have a name of 256 bytes: 255 at most");
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), name + 1, &tokens));
    return DT_OK;
}

DT_TEST(own_kinds, the_longest_name_of_a_style_is_said)
{
    dt_test_on_ranks("tp=1", named_at_length, NULL);
}

DT_TEST(own_kinds, a_name_means_another_style_in_one_model_or_one_run)
{
    dt_test_on_ranks("tp=2", mapped, NULL);
}

/* --- what a plan came to ---------------------------------------------------------------------- */

static dt_status printed(dt_mesh *mesh, const void *arg)
{
    const dt_style mine = { .size = sizeof mine, .cut = DT_CUT_COLUMNS };
    const dt_layer_spec specs[] = {
        { .name = "a", .kind = &plain, .axis = { { O, 0 }, { I, 0 } }, .style = "mine" },
        { .name = "here", .kind = &dt_point_kind },
        { .name = "b",
          .kind = &dt_linear_kind,
          .axis = { { O, 0 }, { I, 0 } },
          .with = "bias",
          .style = "rowwise",
          .tied_to = NULL },
    };
    DT_HELD(layers) *layers = NULL;
    char text[1024], few[8], here[512];

    (void)arg;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "mine", &mine));
    DT_TRY(dt_layers_create(mesh, "tp", specs, 3, NULL, &layers));
    (void)snprintf(here, sizeof here,
                   "parameter     n  style    placement  on rank %d      bytes\n"
                   "a.w           1  mine     S(0)       [3, 4]      24 bytes\n"
                   "b.weight      1  rowwise  S(1)       [6, 2]      24 bytes\n"
                   "b.bias        1  rowwise  R          [6]         12 bytes\n",
                   dt_runtime_rank(dt_mesh_runtime(mesh)));
    const int n = dt_layers_print(layers, DT_BF16, false, text, sizeof text);
    DT_EXPECT(strcmp(text, here) == 0, "%s", text);
    DT_EXPECT(n == (int)strlen(text), "its length");
    DT_EXPECT(dt_layers_print(layers, DT_BF16, false, few, sizeof few) == n, "all");
    DT_EXPECT(strcmp(few, "paramet") == 0, "cut");
    (void)dt_layers_print(layers, DT_F32, true, text, sizeof text);
    DT_EXPECT(strstr(text, "{\"name\": \"a.w\", \"style\": {\"tp\": \"mine\"}, \"step_style\": "
                           "{\"tp\": \"mine\"}, \"from\": \"built-in\", \"placement\": [\"S(0)\"], "
                           "\"shape\": [6, 4], \"local_shape\": [3, 4], \"bytes\": 48, "
                           "\"tied_to\": null}") != NULL &&
                  strstr(text, "\"points\": [\n {\"name\": \"here\", ") != NULL,
              "%s", text);
    return DT_OK;
}

DT_TEST(own_kinds, layers_print_how_they_lie_under_styles_of_ones_own)
{
    dt_test_on_ranks("tp=2", printed, NULL);
}
