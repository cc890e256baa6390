/* SPDX-License-Identifier: Apache-2.0
 *
 * Adapters: parameters that stand beside those of a plain layer. Files may lack them, and a save
 * may make them part of the weights. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <dtensor/ops_general.h>
#include <dtensor/weights.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "files/safetensors.h"
#include "tests/support/dt_test.h"

enum { I = 10, O = 12, R = 3, ROWS = 4 };
enum { WEIGHT, BIAS, LORA_A, LORA_B };

static const double scale = 2.0;

static dt_tensor *forward(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *low = dt_linear(t, x, dt_layer_use(t, layer, LORA_A), NULL);
    dt_tensor *b = dt_cast(t, dt_layer_use(t, layer, LORA_B), dt_tensor_dtype(low));
    dt_tensor *delta = dt_linear(t, low, b, NULL);
    dt_tensor *y = dt_linear(t, x, dt_layer_use(t, layer, WEIGHT), NULL);

    return dt_layer_add(t, layer, dt_add(t, y, dt_mul_scalar(t, delta, scale)));
}

static dt_tensor *merged(dt_tape *t, const dt_layer *layer, int param)
{
    dt_tensor *w = dt_layer_use(t, layer, param), *a, *b;

    if (param != WEIGHT) return w;
    a = dt_cast(t, dt_layer_use(t, layer, LORA_A), DT_F32);
    b = dt_cast(t, dt_layer_use(t, layer, LORA_B), DT_F32);
    return dt_add(t, dt_cast(t, w, DT_F32),
                  dt_mul_scalar(t, dt_matmul(t, b, false, a, false), scale));
}

static dt_tensor *wrong_shape(dt_tape *t, const dt_layer *layer, int param)
{
    return dt_layer_use(t, layer, param == WEIGHT ? LORA_A : param);
}

#define PARAMS                                                                                \
    {                                                                                         \
        { "weight", "oi", .frozen = true }, { "bias", "o", .optional = true, .added = true }, \
            { "lora_A", "ri", .adapter = true },                                              \
        {                                                                                     \
            "lora_B", "or", .adapter = true, .begins = DT_BEGINS_ZEROS                        \
        }                                                                                     \
    }

static const dt_layer_kind lora = {
    .name = "lora", .like = &dt_linear_kind, .params = PARAMS, .forward = forward, .merged = merged
};
static const dt_layer_kind bad = { .name = "bad",
                                   .like = &dt_linear_kind,
                                   .params = PARAMS,
                                   .forward = forward,
                                   .merged = wrong_shape };
/* merges as the one that it is like */
static const dt_layer_kind child = {
    .name = "child", .like = &lora, .params = PARAMS, .forward = forward
};

typedef struct scene {
    const char *folder, *style;
    const dt_layer_kind *kind;
    dt_dtype dtype;
} scene;

static dt_status make(dt_mesh *mesh, const dt_layer_kind *kind, const char *style, dt_layers **out)
{
    const dt_layer_spec spec = {
        .name = "l",
        .kind = kind,
        .axis = { { O, DT_UNIT_ROW }, { I, DT_UNIT_ROW }, { R, DT_UNIT_ROW } },
        .with = "bias",
        .style = style
    };

    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, out));
    return DT_OK;
}

/* What the layer makes of some x, on every rank. */
static dt_status run(dt_mesh *mesh, dt_layers *layers, float y[ROWS * O])
{
    dt_placement whole[DT_MAX_DIMS];
    const int64_t shape[] = { ROWS, I };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *full = NULL;
    dt_tensor *f = NULL;
    float values[ROWS * I];

    for (int m = 0; m < DT_MAX_DIMS; m++) whole[m] = DT_REPLICATE;
    for (int i = 0; i < ROWS * I; i++) values[i] = (float)(i % 7) * 0.25f - 0.75f;
    DT_TRY(
        dt_distribute(mesh, whole, DT_F32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES }, &x));
    f = dt_layer_forward(
        t, dt_layers_at(layers, 0),
        dt_cast(t, x, dt_tensor_dtype(dt_layer_param(dt_layers_at(layers, 0), 0))));
    f = dt_cast(t, f, DT_F32);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(f, &full));
    DT_TRY(dt_tensor_read(full, y, sizeof(float) * ROWS * O));
    return DT_OK;
}

static const dt_init_rule large[] = { { "**", DT_INIT_NORMAL, 0.0, 0.5 } };

static dt_status near(const float *got, const float *want, double most)
{
    for (int i = 0; i < ROWS * O; i++)
        DT_EXPECT(fabs((double)(got[i] - want[i])) <= most, "element %d is %.9g, not %.9g", i,
                  (double)got[i], (double)want[i]);
    return DT_OK;
}

/* An adapted layer becomes files of a plain one, which computes the same. */
static dt_status merges(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    float adapted[ROWS * O], again[ROWS * O], plain[ROWS * O], off = 0.0f;
    dt_save_options save = DT_SAVE_OPTIONS_INIT;
    DT_HELD(layers) *a = NULL, *p = NULL;

    save.merged = true;
    DT_TRY(make(mesh, s->kind, s->style, &a));
    DT_TRY(dt_layers_init(a, s->dtype, 3, large, 1));
    DT_TRY(run(mesh, a, adapted));
    DT_TRY(dt_layers_write(a, s->folder, &save));
    DT_TRY(run(mesh, a, again));
    DT_EXPECT(memcmp(adapted, again, sizeof again) == 0, "a save changed the layer");
    DT_TRY(make(mesh, &dt_linear_kind, s->style, &p));
    DT_TRY(dt_layers_read(p, s->folder, NULL));
    DT_EXPECT(dt_tensor_dtype(dt_layer_param(dt_layers_at(p, 0), 0)) == s->dtype, "another dtype");
    DT_TRY(run(mesh, p, plain));
    DT_TRY(near(plain, adapted, s->dtype == DT_F32 ? 2e-6 : 0.06));
    /* and it is the adapters that were merged: a plain layer of the weight alone is far off */
    DT_TRY(dt_fill(dt_layer_param(dt_layers_at(a, 0), LORA_B), 0.0));
    DT_TRY(run(mesh, a, again));
    for (int i = 0; i < ROWS * O; i++) off = fmaxf(off, fabsf(again[i] - plain[i]));
    DT_EXPECT(off > 0.3f, "adapters that are merged change the result by %g only", (double)off);
    return DT_OK;
}

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "dp=2,tp=2" };
static const char *const styles[] = { "colwise", "rowwise", "replicate" };

static void on_all(dt_test_body body, scene s)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t k = 0; k < DT_COUNT(styles); k++) {
            char folder[DT_TEST_PATH_BYTES];
            s.folder = dt_test_temp_dir(folder);
            s.style = styles[k];
            dt_test_on_ranks(meshes[m], body, &s);
        }
}

DT_TEST(adapters, are_merged_into_files_of_a_plain_layer)
{
    on_all(merges, (scene){ .kind = &lora, .dtype = DT_F32 });
    on_all(merges, (scene){ .kind = &lora, .dtype = DT_BF16 });
    on_all(merges, (scene){ .kind = &child, .dtype = DT_F32 });
}

/* Files of a plain layer begin one: B is zeros, so it computes what the plain one does; A is as
 * dt_layers_init() has it, on every mesh. */
static dt_status begins(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    dt_read_options read = DT_READ_OPTIONS_INIT;
    float adapted[ROWS * O], plain[ROWS * O], a_read[R * I], a_made[R * I];
    DT_HELD(layers) *a = NULL, *p = NULL;
    DT_HELD(tensor) *full = NULL;

    read.seed = 11;
    read.strict = true;
    DT_TRY(make(mesh, &dt_linear_kind, s->style, &p));
    DT_TRY(dt_layers_init(p, s->dtype, 3, large, 1));
    DT_TRY(run(mesh, p, plain));
    DT_TRY(dt_layers_write(p, s->folder, NULL));
    DT_TRY(make(mesh, s->kind, s->style, &a));
    DT_TRY(dt_layers_read(a, s->folder, &read));
    DT_TRY(run(mesh, a, adapted));
    DT_TRY(near(adapted, plain, 1e-6));
    DT_TRY(dt_full_tensor(dt_layer_param(dt_layers_at(a, 0), LORA_A), &full));
    DT_TRY(dt_tensor_read(full, a_read, sizeof a_read));
    dt_tensor_release(&full);
    DT_TRY(dt_layers_init(a, s->dtype, 11, NULL, 0));
    DT_TRY(dt_full_tensor(dt_layer_param(dt_layers_at(a, 0), LORA_A), &full));
    DT_TRY(dt_tensor_read(full, a_made, sizeof a_made));
    DT_EXPECT(memcmp(a_read, a_made, sizeof a_read) == 0 && a_read[0] != 0.0f,
              "A does not begin as dt_layers_init() has it");
    return DT_OK;
}

DT_TEST(adapters, begin_where_files_lack_them)
{
    on_all(begins, (scene){ .kind = &lora, .dtype = DT_F32 });
}

/* Not merged, they are tensors like others, and are read again. */
static dt_status stay(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    float before[ROWS * O], after[ROWS * O];
    DT_HELD(layers) *a = NULL, *b = NULL;

    DT_TRY(make(mesh, s->kind, s->style, &a));
    DT_TRY(dt_layers_init(a, s->dtype, 3, large, 1));
    DT_TRY(run(mesh, a, before));
    DT_TRY(dt_layers_write(a, s->folder, NULL));
    DT_TRY(make(mesh, s->kind, s->style, &b));
    DT_TRY(dt_layers_read(b, s->folder, NULL));
    DT_TRY(run(mesh, b, after));
    DT_EXPECT(memcmp(before, after, sizeof after) == 0, "another result");
    return DT_OK;
}

DT_TEST(adapters, are_saved_beside_the_weight_otherwise)
{
    on_all(stay, (scene){ .kind = &lora, .dtype = DT_F32 });
}

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    dt_save_options save = DT_SAVE_OPTIONS_INIT;
    DT_HELD(layers) *a = NULL;

    save.merged = true;
    DT_TRY(make(mesh, &bad, s->style, &a));
    DT_TRY(dt_layers_init(a, DT_F32, 3, large, 1));
    return dt_layers_write(a, s->folder, &save);
}

DT_TEST(adapters, that_merge_to_another_shape_are_refused)
{
    char folder[DT_TEST_PATH_BYTES];
    const scene s = { .folder = dt_test_temp_dir(folder), .style = "colwise" };

    dt_test_on_ranks_fail("tp=1", refused, &s, DT_ERR_ARG, "what \"bad\" merges");
}
