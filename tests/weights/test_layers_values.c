/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of layers without a Hugging Face folder: from a key, from a file, from other layers. */
#include <dtensor/collectives.h>
#include <dtensor/factories.h>
#include <dtensor/weights.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "files/safetensors.h"
#include "tests/support/dt_test.h"

enum { F = 10, D = 6 };

static const dt_layer_spec specs[] = {
    { .name = "mlp.up",
      .kind = &dt_linear_kind,
      .axis = { { F, DT_UNIT_ROW }, { D, DT_UNIT_ROW } },
      .with = "bias",
      .style = "colwise" },
    { .name = "mlp.down",
      .kind = &dt_linear_kind,
      .axis = { { D, DT_UNIT_ROW }, { F, DT_UNIT_ROW } },
      .style = "rowwise" },
    { .name = "norm", .kind = &dt_layer_norm_kind, .axis = { { D, DT_UNIT_ROW } }, .eps = 1e-5f },
};

/* The whole of a parameter on every rank. */
static dt_status whole(dt_layers *layers, const char *name, int param, float *out, int64_t n)
{
    dt_tensor *full = NULL;
    dt_status st;

    DT_TRY(dt_full_tensor(dt_layer_param(dt_layers_find(layers, name), param), &full));
    st = dt_tensor_read(full, out, (size_t)n * sizeof *out);
    dt_tensor_release(&full);
    return st;
}

/* --- from a key --- */

static const dt_init_rule rules[] = {
    { "mlp.*.bias", DT_INIT_UNIFORM, 1.0, 2.0 },
    { "**.down.weight", DT_INIT_FAN_IN, 1.0, 0.0 },
    { "norm.weight", DT_INIT_CONSTANT, 0.5, 0.0 },
    { "**.weight", DT_INIT_NORMAL, 0.0, 3.0 },
};

typedef struct begun {
    float up[F * D], bias[F], down[D * F], norm[D];
} begun;

static begun on_one_rank;

static dt_status begin(dt_mesh *mesh, begun *out)
{
    DT_HELD(layers) *layers = NULL;

    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers));
    DT_TRY(dt_layers_init(layers, DT_F32, 7, rules, (int)DT_COUNT(rules)));
    DT_TRY(whole(layers, "mlp.up", 0, out->up, F * D));
    DT_TRY(whole(layers, "mlp.up", 1, out->bias, F));
    DT_TRY(whole(layers, "mlp.down", 0, out->down, D * F));
    DT_TRY(whole(layers, "norm", 0, out->norm, D));
    return DT_OK;
}

static dt_status begins_as_rules_say(dt_mesh *mesh, const void *arg)
{
    double up = 0.0, largest = 0.0;
    begun b;

    (void)arg;
    DT_TRY(begin(mesh, &b));
    for (int i = 0; i < F; i++)
        DT_EXPECT(b.bias[i] >= 1.0f && b.bias[i] < 2.0f, "bias %g", (double)b.bias[i]);
    for (int i = 0; i < F * D; i++) {
        up += (double)b.up[i] * (double)b.up[i] / (F * D);
        largest = fmax(largest, fabs((double)b.down[i]));
    }
    DT_EXPECT(up > 4.0 && up < 16.0, "variance %g, 9 was asked for", up);
    DT_EXPECT(largest > 0.2 && largest <= 1.0 / sqrt((double)F), "largest %g", largest);
    for (int i = 0; i < D; i++) DT_EXPECT(b.norm[i] == 0.5f, "norm %g", (double)b.norm[i]);
    if (dt_mesh_n_ranks(mesh) == 1) on_one_rank = b;
    DT_EXPECT(memcmp(&b, &on_one_rank, sizeof b) == 0, "other values than on one rank");
    return DT_OK;
}

DT_TEST(values, a_seed_gives_the_same_layers_on_every_mesh)
{
    dt_test_on_ranks("tp=1", begins_as_rules_say, NULL);
    dt_test_on_ranks("tp=2", begins_as_rules_say, NULL);
    dt_test_on_ranks("tp=3", begins_as_rules_say, NULL);
    dt_test_on_ranks("dp=2,tp=2", begins_as_rules_say, NULL);
}

/* Without rules, as Transformers begins. */
static dt_status begins_by_itself(dt_mesh *mesh, const void *arg)
{
    DT_HELD(layers) *layers = NULL;
    float up[F * D], bias[F], norm[D], norm_bias[D];
    double sum = 0.0;

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers));
    DT_TRY(dt_layers_init(layers, DT_F32, 7, NULL, 0));
    DT_TRY(whole(layers, "mlp.up", 0, up, F * D));
    DT_TRY(whole(layers, "mlp.up", 1, bias, F));
    DT_TRY(whole(layers, "norm", 0, norm, D));
    DT_TRY(whole(layers, "norm", 1, norm_bias, D));
    for (int i = 0; i < F * D; i++) sum += (double)up[i] * (double)up[i] / (F * D);
    DT_EXPECT(sqrt(sum) > 0.013 && sqrt(sum) < 0.027, "deviation %g", sqrt(sum));
    for (int i = 0; i < F; i++) DT_EXPECT(bias[i] == 0.0f, "bias %g", (double)bias[i]);
    for (int i = 0; i < D; i++)
        DT_EXPECT(norm[i] == 1.0f && norm_bias[i] == 0.0f, "norm %g, %g", (double)norm[i],
                  (double)norm_bias[i]);
    return DT_OK;
}

DT_TEST(values, without_rules_layers_begin_as_those_of_transformers)
{
    dt_test_on_ranks("tp=2", begins_by_itself, NULL);
}

static dt_status bad_rules(dt_mesh *mesh, const void *arg)
{
    static const dt_init_rule bad[] = {
        { NULL, DT_INIT_CONSTANT, 0.0, 0.0 }, { "a", DT_INIT_UNIFORM, 1.0, 1.0 },
        { "a", DT_INIT_NORMAL, 0.0, -1.0 },   { "a", DT_INIT_CONSTANT, NAN, 0.0 },
        { "a", (dt_init_kind)9, 0.0, 0.0 },   { "a", DT_INIT_FAN_IN, 0.0, 0.0 },
    };
    DT_HELD(layers) *layers = NULL;

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers));
    for (size_t i = 0; i < DT_COUNT(bad); i++)
        DT_EXPECT(dt_layers_init(layers, DT_F32, 1, &bad[i], 1) == DT_ERR_ARG, "rule %zu is taken",
                  i);
    DT_EXPECT(dt_layers_init(layers, DT_I32, 1, NULL, 0) == DT_ERR_ARG, "i32");
    DT_EXPECT(dt_layers_init(NULL, DT_F32, 1, NULL, 0) == DT_ERR_ARG, "NULL");
    return DT_OK;
}

DT_TEST(values, rules_without_sense_are_refused)
{
    dt_test_on_ranks("tp=1", bad_rules, NULL);
}

/* --- from a file --- */

static float element(size_t tensor, int64_t i)
{
    return (float)tensor * 1000.0f + (float)i;
}

static dt_status fill(void *arg, size_t t, int64_t first, int64_t count, void *to)
{
    (void)arg;
    for (int64_t i = 0; i < count; i++) ((float *)to)[i] = element(t, first + i);
    return DT_OK;
}

static const dti_st_spec stored[] = {
    { "net.mlp.up.weight", DT_F32, 2, { F, D } },
    { "mlp.up.bias", DT_F32, 1, { F } },
    { "mlp.down.weight", DT_F32, 2, { D, F } },
    { "norm.weight", DT_F32, 1, { D } },
    { "norm.bias", DT_F32, 1, { D } },
    { "more", DT_F32, 1, { 2 } },
};

static const dt_spelling spellings[] = { { "mlp.", "net.mlp." }, { NULL, NULL } };

static dt_status reads_a_file(dt_mesh *mesh, const void *arg)
{
    dt_read_options o = DT_READ_OPTIONS_INIT;
    DT_HELD(layers) *layers = NULL;
    float up[F * D], down[D * F];

    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers));
    o.spellings = spellings;
    DT_TRY(dt_layers_read(layers, arg, &o));
    DT_TRY(whole(layers, "mlp.up", 0, up, F * D));
    DT_TRY(whole(layers, "mlp.down", 0, down, D * F));
    for (int i = 0; i < F * D; i++)
        DT_EXPECT(up[i] == element(0, i) && down[i] == element(2, i), "element %d: %g, %g", i,
                  (double)up[i], (double)down[i]);
    o.keep_dtype = false;
    o.dtype = DT_BF16;
    DT_TRY(dt_layers_read(layers, arg, &o));
    DT_EXPECT(dt_tensor_dtype(dt_layer_param(dt_layers_at(layers, 0), 0)) == DT_BF16, "dtype");
    return DT_OK;
}

static dt_status refuses_a_file(dt_mesh *mesh, const void *arg)
{
    dt_read_options o = DT_READ_OPTIONS_INIT;
    DT_HELD(layers) *layers = NULL;

    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers));
    DT_EXPECT(dt_layers_read(layers, arg, NULL) == DT_ERR_FORMAT, "a missing tensor");
    DT_EXPECT(strstr(dt_last_error()->message, "\"mlp.up.weight\"") != NULL, "%s",
              dt_last_error()->message);
    o.spellings = spellings;
    o.strict = true;
    DT_EXPECT(dt_layers_read(layers, arg, &o) == DT_ERR_FORMAT, "an unused tensor");
    DT_EXPECT(strstr(dt_last_error()->message, "\"more\"") != NULL, "%s", dt_last_error()->message);
    return DT_OK;
}

static dt_status large(void *arg, size_t t, int64_t first, int64_t count, void *to)
{
    (void)arg, (void)t, (void)first;
    for (int64_t i = 0; i < count; i++) ((float *)to)[i] = 1e6f;
    return DT_OK;
}

static dt_status leaves_nothing(dt_mesh *mesh, const void *arg)
{
    dt_read_options o = DT_READ_OPTIONS_INIT;
    DT_HELD(layers) *layers = NULL;

    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers));
    o.spellings = spellings;
    o.keep_dtype = false;
    o.dtype = DT_F16;
    DT_EXPECT(dt_layers_read(layers, arg, &o) == DT_ERR_FORMAT, "1e6 as f16");
    DT_EXPECT(dt_layer_param(dt_layers_at(layers, 0), 0) == NULL,
              "a layer that was not read has values");
    return DT_OK;
}

DT_TEST(values, a_layer_that_cannot_be_read_has_no_values)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 8];

    (void)dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/w.bin", folder);
    DT_ASSERT_OK(dti_st_write(path, stored, DT_COUNT(stored), NULL, large, NULL));
    dt_test_on_ranks("tp=1", leaves_nothing, path);
}

DT_TEST(values, layers_are_read_from_one_file)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 8];

    (void)dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/w.bin", folder);
    DT_ASSERT_OK(dti_st_write(path, stored, DT_COUNT(stored), NULL, fill, NULL));
    dt_test_on_ranks("tp=1", reads_a_file, path);
    dt_test_on_ranks("tp=3", reads_a_file, path);
    dt_test_on_ranks("dp=2,tp=2", reads_a_file, path);
    dt_test_on_ranks("tp=1", refuses_a_file, path);
}

/* One tensor per expert and block, as files of Transformers 4 have them. */
enum { E = 3, G = 4 };

static const dti_st_spec stored_parts[] = {
    { "mlp.experts.0.gate_proj.weight", DT_F32, 2, { G, D } },
    { "mlp.experts.0.up_proj.weight", DT_F32, 2, { G, D } },
    { "mlp.experts.1.gate_proj.weight", DT_F32, 2, { G, D } },
    { "mlp.experts.1.up_proj.weight", DT_F32, 2, { G, D } },
    { "mlp.experts.2.gate_proj.weight", DT_F32, 2, { G, D } },
    { "mlp.experts.2.up_proj.weight", DT_F32, 2, { G, D } },
};

typedef struct parts_case {
    const char *path, *style;
} parts_case;

static dt_status reads_parts(dt_mesh *mesh, const void *arg)
{
    const parts_case *c = arg;
    const dt_layer_spec experts[] = {
        { .name = "mlp.experts", .kind = &dt_point_kind },
        { .name = "mlp.experts.gate_up",
          .kind = &dt_experts_kind,
          .axis = { { 2 * G, 0 }, { D, 0 }, { E, 0 } },
          .blocks = { { 2, { { G, 0 }, { G, 0 } } } },
          .parts = { "gate_proj", "up_proj" },
          .style = c->style },
    };
    DT_HELD(layers) *layers = NULL;
    float got[E * 2 * G * D];

    DT_TRY(dt_layers_create(mesh, "tp", experts, 2, NULL, &layers));
    DT_TRY(dt_layers_read(layers, c->path, NULL));
    DT_TRY(whole(layers, "mlp.experts.gate_up", 0, got, E * 2 * G * D));
    for (int i = 0; i < E * 2 * G * D; i++)
        DT_EXPECT(got[i] == element((size_t)(i / (G * D)), i % (G * D)), "element %d is %g", i,
                  (double)got[i]);
    return DT_OK;
}

DT_TEST(values, experts_are_read_from_a_tensor_for_each_and_each_block)
{
    static const char *const styles[] = { "packed_colwise", "rowwise", "grouped_gemm",
                                          "replicate" };
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3" };
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 16];
    parts_case c = { .path = path };

    (void)dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/w.safetensors", folder);
    DT_ASSERT_OK(dti_st_write(path, stored_parts, DT_COUNT(stored_parts), NULL, fill, NULL));
    for (size_t s = 0; s < DT_COUNT(styles); s++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            c.style = styles[s];
            dt_test_on_ranks(meshes[m], reads_parts, &c);
        }
}

/* --- from other layers --- */

static dt_status is_copied(dt_mesh *mesh, const void *arg)
{
    static const dt_plan_rule whole_up[] = { { "mlp.up", "replicate" },
                                             { "mlp.down", "replicate" } };
    const dt_plan plan = { .rules = whole_up, .n_rules = 2 };
    DT_HELD(layers) *from = NULL, *to = NULL;
    float before[F * D], after[F * D];

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &from));
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), &plan, &to));
    DT_EXPECT(dt_layers_copy(to, from) == DT_ERR_ARG, "nothing to copy yet");
    DT_TRY(dt_layers_init(from, DT_F32, 3, NULL, 0));
    DT_TRY(dt_layers_copy(to, from));
    DT_TRY(whole(from, "mlp.up", 0, before, F * D));
    DT_TRY(whole(to, "mlp.up", 0, after, F * D));
    DT_EXPECT(memcmp(before, after, sizeof before) == 0, "other values");
    DT_EXPECT(dt_tensor_local(dt_layer_param(dt_layers_at(to, 0), 0))->shape[0] == F, "laid out");
    return DT_OK;
}

/* Copies are their own, and of the dtype of what they were copied from. */
static dt_status is_its_own(dt_mesh *mesh, const void *arg)
{
    DT_HELD(layers) *from = NULL, *to = NULL;
    float before[F * D], after[F * D];
    dt_tensor *x;

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &from));
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &to));
    DT_TRY(dt_layers_init(from, DT_BF16, 3, NULL, 0));
    DT_TRY(dt_layers_init(to, DT_F32, 4, NULL, 0));
    DT_TRY(dt_layers_copy(to, from));
    x = dt_layer_param(dt_layers_find(to, "mlp.up"), 0);
    DT_EXPECT(dt_tensor_dtype(x) == DT_BF16, "dtype");
    DT_TRY(dt_layers_init(from, DT_F32, 5, NULL, 0));
    DT_TRY(dt_layers_copy(to, from));
    DT_TRY(whole(from, "mlp.up", 0, before, F * D));
    DT_TRY(dt_fill(dt_layer_param(dt_layers_find(to, "mlp.up"), 0), 7.0));
    DT_TRY(whole(from, "mlp.up", 0, after, F * D));
    DT_EXPECT(memcmp(before, after, sizeof before) == 0, "both share their values");
    DT_TRY(dt_layers_copy(to, to));
    return DT_OK;
}

DT_TEST(values, copies_are_values_of_their_own)
{
    dt_test_on_ranks("tp=1", is_its_own, NULL);
    dt_test_on_ranks("tp=2", is_its_own, NULL);
}

static dt_status lacks_a_layer(dt_mesh *mesh, const void *arg)
{
    DT_HELD(layers) *from = NULL, *to = NULL;

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp", specs, 1, NULL, &from));
    DT_TRY(dt_layers_create(mesh, "tp", specs, 2, NULL, &to));
    DT_TRY(dt_layers_init(from, DT_F32, 3, NULL, 0));
    return dt_test_expect_status(__func__, __FILE__, __LINE__, dt_layers_copy(to, from), DT_ERR_ARG,
                                 "there is no layer mlp.down to copy from");
}

DT_TEST(values, a_layer_that_is_not_there_is_named)
{
    dt_test_on_ranks("tp=1", lacks_a_layer, NULL);
}

DT_TEST(values, another_plan_takes_the_values_over)
{
    dt_test_on_ranks("tp=1", is_copied, NULL);
    dt_test_on_ranks("tp=3", is_copied, NULL);
}

/* --- into files --- */

typedef struct stored_case {
    const char *folder;
    int64_t max_file_bytes;
} stored_case;

static dt_status is_written(dt_mesh *mesh, const void *arg)
{
    const stored_case *c = arg;
    dt_save_options o = DT_SAVE_OPTIONS_INIT;
    DT_HELD(layers) *layers = NULL;

    o.max_file_bytes = c->max_file_bytes;
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers));
    DT_EXPECT(dt_layers_write(layers, c->folder, &o) == DT_ERR_ARG, "no values yet");
    DT_TRY(dt_layers_init(layers, DT_F32, 7, rules, (int)DT_COUNT(rules)));
    DT_TRY(dt_layers_write(layers, c->folder, &o));
    return DT_OK;
}

static dt_status is_read_again(dt_mesh *mesh, const void *arg)
{
    const stored_case *c = arg;
    dt_read_options o = DT_READ_OPTIONS_INIT;
    DT_HELD(layers) *layers = NULL;
    begun one, two;

    o.strict = true;
    DT_TRY(begin(mesh, &one));
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers));
    DT_TRY(dt_layers_read(layers, c->folder, &o));
    DT_TRY(whole(layers, "mlp.up", 0, two.up, F * D));
    DT_TRY(whole(layers, "mlp.up", 1, two.bias, F));
    DT_TRY(whole(layers, "mlp.down", 0, two.down, D * F));
    DT_TRY(whole(layers, "norm", 0, two.norm, D));
    DT_EXPECT(memcmp(&one, &two, sizeof one) == 0, "other values than written");
    return DT_OK;
}

/* The first of the replicas alone writes, and looks at what it writes; the others learn of it. */
static dt_status is_refused(dt_mesh *mesh, const void *arg)
{
    static const dt_init_rule bad[] = { { "mlp.up.bias", DT_INIT_CONSTANT, 1e6, 0.0 },
                                        { "**", DT_INIT_CONSTANT, 1.0, 0.0 } };
    dt_save_options o = DT_SAVE_OPTIONS_INIT;
    dt_layers *layers = NULL;
    dt_status st = DT_OK;

    o.keep_dtype = false;
    o.dtype = DT_F16;
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers));
    DT_TRY_TO(done, st, dt_layers_init(layers, DT_F32, 7, bad, (int)DT_COUNT(bad)));
    DT_EXPECT_TO(done, st, dt_layers_write(layers, arg, &o) == DT_ERR_ARG, "1e6 was saved");
    DT_EXPECT_TO(done, st, strstr(dt_last_error()->message, "tensor \"mlp.up.bias\": ") != NULL,
                 "%s", dt_last_error()->message);
    DT_TRY_TO(done, st, dt_barrier(mesh, NULL));
done:
    dt_layers_release(&layers);
    return st;
}

DT_TEST(values, that_do_not_fit_are_refused_on_all_ranks)
{
    static const char *const meshes[] = { "tp=1", "dp=2,tp=2" };

    for (size_t i = 0; i < DT_COUNT(meshes); i++) {
        char folder[DT_TEST_PATH_BYTES], inner[DT_TEST_PATH_BYTES + 8];
        (void)snprintf(inner, sizeof inner, "%s/new", dt_test_temp_dir(folder));
        dt_test_on_ranks(meshes[i], is_refused, inner);
        DT_ASSERT(access(inner, F_OK) != 0);
        dt_test_remove_dir(folder);
    }
}

DT_TEST(values, what_one_mesh_writes_another_reads)
{
    static const char *const meshes[] = { "tp=1", "tp=3", "dp=2,tp=2" };

    for (size_t i = 0; i < DT_COUNT(meshes); i++)
        for (int many = 0; many < 2; many++) {
            char folder[DT_TEST_PATH_BYTES], inner[DT_TEST_PATH_BYTES + 8];
            stored_case c = { inner, many ? 100 : 1 << 20 };
            (void)snprintf(inner, sizeof inner, "%s/new", dt_test_temp_dir(folder));
            dt_test_on_ranks(meshes[i], is_written, &c);
            dt_test_on_ranks(meshes[(i + 1) % DT_COUNT(meshes)], is_read_again, &c);
        }
}
