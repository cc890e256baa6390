/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor compare: meshes agree within rounding, and where they differ first is named. */
#include <jansson.h>

#include "tests/cli/command.h"

#define COMPARE(model, ...)                                                                      \
    COMMAND("compare", "-q", "-m", model, "-t", "0,5,6,250,17,3,99", "--dtype", "f32", "--mesh", \
            "tp=1", "--mesh", __VA_ARGS__)

static const char *model_path(char path[DT_TEST_PATH_BYTES])
{
    return dt_test_source_path(path, "examples/checkpoint");
}

/* The result for mesh i behind the first; *all is released by the caller. */
static const json_t *result_of(const command_result *r, size_t i, json_t **all)
{
    *all = json_loads(r->out, 0, NULL);
    if (*all == NULL) dt_test_fail(__FILE__, __LINE__, "no JSON: %s%s", r->out, r->err);
    return json_array_get(json_object_get(*all, "meshes"), i);
}

DT_TEST(cli_compare, meshes_agree_within_rounding)
{
    char model[DT_TEST_PATH_BYTES];
    command_result r;
    json_t *all;

    (void)model_path(model);
    r = COMMAND_ENDS(0, COMPARE(model, "tp=2", "--mesh", "tp=3", "--mesh", "dp=2,tp=2", "--mesh",
                                "pp=2,tp=2", "--mesh", "pp=4", "--json"));
    for (size_t i = 0; i < 5; i++) {
        const json_t *one = result_of(&r, i, &all), *largest = json_object_get(one, "largest");
        DT_ASSERT(json_is_true(json_object_get(one, "agrees")));
        DT_ASSERT(json_is_null(json_object_get(one, "first")));
        DT_ASSERT_EQ_INT(json_integer_value(json_object_get(one, "compared")), 52);
        DT_ASSERT(json_number_value(json_object_get(largest, "relative")) < 1e-5);
        json_decref(all);
    }
    COMMAND_ENDS(0, COMPARE(model, "tp=2", "--sequence-parallel"),
                 "tp=2 agrees with tp=1 within 0.0001: 52 of 52 tensors compared\n");
    COMMAND_ENDS(0, COMPARE(model, "pp=3", "--tolerance", "0"), "52 of 52 tensors compared\n");
}

/* Parameters that are cut over "dp" and gathered give the text of whole ones. */
DT_TEST(cli_compare, fully_sharded_models_say_the_same)
{
    char model[DT_TEST_PATH_BYTES];
    command_result whole, cut, missing;

    (void)model_path(model);
    whole = COMMAND("generate", "-q", "-m", model, "-p", "ROMEO:", "-n", "12", "--dtype", "f32");
    cut = COMMAND("generate", "-q", "-m", model, "-p", "ROMEO:", "-n", "12", "--dtype", "f32",
                  "--mesh", "dp=2,tp=1", "--fully-shard", "dp");
    missing = COMMAND("generate", "-q", "-m", model, "-p", "ROMEO:", "--fully-shard", "dp");
    COMMAND_ENDS(0, whole);
    COMMAND_ENDS(0, cut);
    DT_ASSERT_EQ_STR(cut.out, whole.out);
    COMMAND_ENDS(2, missing, "--fully-shard: --mesh tp=1 has no dim \"dp\"");
}

/* With a tolerance that the largest difference alone exceeds, it is the first one too. */
DT_TEST(cli_compare, the_first_difference_is_where_the_tolerance_ends)
{
    static const char *const members[] = { "layer", "position", "element" };
    char model[DT_TEST_PATH_BYTES], tolerance[32];
    const json_t *one, *first, *largest;
    command_result r;
    json_t *all;

    (void)model_path(model);
    r = COMMAND_ENDS(1, COMPARE(model, "tp=2", "--json", "--tolerance", "0"));
    one = result_of(&r, 0, &all);
    first = json_object_get(one, "first");
    largest = json_object_get(one, "largest");
    DT_ASSERT_EQ_STR(json_string_value(json_object_get(first, "layer")),
                     "model.layers.0.self_attn.o_proj"); /* sums of two ranks come first here */
    DT_ASSERT(json_number_value(json_object_get(first, "relative")) > 0);
    DT_ASSERT(json_real_value(json_object_get(first, "was")) !=
              json_real_value(json_object_get(first, "is")));
    COMMAND_ASSERT_HAS(r.err, "mesh tp=2 differs from tp=1 by ");
    (void)snprintf(tolerance, sizeof tolerance, "%.17g",
                   0.999999 * json_real_value(json_object_get(largest, "relative")));
    json_decref(all);

    r = COMMAND_ENDS(1, COMPARE(model, "tp=2", "--json", "--tolerance", tolerance));
    one = result_of(&r, 0, &all);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        DT_ASSERT(json_equal(json_object_get(json_object_get(one, "first"), members[i]),
                             json_object_get(json_object_get(one, "largest"), members[i])));
    json_decref(all);
}

/* Numbers that are none on both meshes are no difference, are counted, and hide none. */
DT_TEST(cli_compare, infinities_are_counted_and_hide_nothing)
{
    static char weights[8 << 20];
    char folder[DT_TEST_PATH_BYTES], source[DT_TEST_PATH_BYTES];
    const json_t *one;
    command_result r;
    json_t *all;
    char *config;
    size_t n = 0;
    FILE *f;

    (void)dt_test_temp_dir(folder);
    config = command_read(dt_test_source_path(source, "examples/checkpoint/config.json"));
    dt_test_write_file(folder, "config.json", config, strlen(config));
    f = fopen(dt_test_source_path(source, "examples/checkpoint/model.safetensors"), "rb");
    DT_ASSERT(f != NULL && (n = fread(weights, 1, sizeof weights, f)) > 2 && n < sizeof weights);
    (void)fclose(f);
    memcpy(weights + n - 2, "\x80\x7f", 2); /* the last number, in bf16 */
    dt_test_write_file(folder, "model.safetensors", weights, n);
    r = COMMAND_ENDS(0, COMPARE(folder, "tp=2", "--json"));
    one = result_of(&r, 0, &all);
    DT_ASSERT(json_integer_value(json_object_get(one, "not_finite")) > 0);
    json_decref(all);
    COMMAND_ENDS(0, COMPARE(folder, "tp=2"), "  not finite         ",
                 "on both meshes, the first in ");
    r = COMMAND_ENDS(1, COMPARE(folder, "tp=2", "--json", "--tolerance", "0"));
    one = result_of(&r, 0, &all); /* of the tensor that holds it, too */
    DT_ASSERT(json_number_value(json_object_get(json_object_get(one, "largest"), "relative")) > 0);
    json_decref(all);
}

DT_TEST(cli_compare, mistakes_are_named)
{
    char model[DT_TEST_PATH_BYTES];

    (void)model_path(model);
    COMMAND_ENDS(2, COMMAND("compare", "-m", model, "-t", "1", "--mesh", "tp=1"),
                 "two meshes or more: --mesh tp=1 --mesh tp=2");
    COMMAND_ENDS(2, COMPARE(model, "tp=2", "--tolerance", "-1"),
                 "--tolerance: -1 is not a difference");
    COMMAND_ENDS(2, COMPARE(model, "tp=none"), "--mesh");
    COMMAND_ENDS(2, COMMAND("compare", "-m", model, "--mesh", "tp=1", "--mesh", "tp=2"),
                 "no prompt; give one of");
}
