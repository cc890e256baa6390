/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of layers as a file: of sum w^2, so that each is twice its parameter. */
#include <dtensor/ops.h>
#include <dtensor/weights.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "files/safetensors.h"
#include "tests/support/dt_test.h"

enum { F = 10, D = 6, N_PARAMS = 4 };

/* "down" lies transposed in files, as GPT-2's. */
static const dt_layer_spec specs[] = {
    { .name = "mlp.up",
      .kind = &dt_linear_kind,
      .axis = { { F, DT_UNIT_ROW }, { D, DT_UNIT_ROW } },
      .with = "bias",
      .style = "colwise" },
    { .name = "mlp.down",
      .kind = &dt_linear_kind,
      .axis = { { D, DT_UNIT_ROW }, { F, DT_UNIT_ROW } },
      .reversed = true,
      .style = "rowwise" },
    { .name = "norm", .kind = &dt_rms_norm_kind, .axis = { { D, DT_UNIT_ROW } }, .eps = 1e-5f },
};

typedef struct told {
    int n;
    double largest[N_PARAMS], rms[N_PARAMS];
    char names[N_PARAMS][32];
} told;

typedef struct scene {
    const char *path; /* NULL: no file */
    told *told;
} scene;

static void tell(void *arg, const dt_gradient_facts *facts)
{
    told *t = arg;

    if (t->n < N_PARAMS) {
        t->largest[t->n] = facts->largest;
        t->rms[t->n] = facts->rms;
        (void)snprintf(t->names[t->n], sizeof t->names[0], "%s", facts->name);
    }
    t->n++;
}

/* Of all but the norm, which no backward pass reaches. */
static dt_status differentiate(dt_layers *layers, dt_gradients *g)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    static const struct {
        int layer, param;
    } reached[] = { { 0, 0 }, { 0, 1 }, { 1, 0 } };
    dt_tape *t = NULL;
    dt_status st;

    DT_TRY(dt_layers_watch(layers, g));
    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_layers_mesh(layers)), &t));
    dt_tape_record(t, g);
    for (size_t i = 0; i < DT_COUNT(reached); i++) {
        const dt_layer *layer = dt_layers_at(layers, reached[i].layer);
        dt_tensor *w = dt_move(t, dt_layer_param(layer, reached[i].param), whole);
        dt_backward(t, w, &(dt_backward_options){ .seed = dt_mul_scalar(t, w, 2.0), .keep = true });
    }
    st = dt_tape_status(t);
    if (st == DT_OK) st = dt_gradients_settle(g, t);
    dt_tape_release(&t);
    return st;
}

static dt_status write(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    dt_gradient_file_options o = DT_GRADIENT_FILE_OPTIONS_INIT;
    DT_HELD(layers) *layers = NULL;
    DT_HELD(gradients) *g = NULL;

    o.told = tell;
    o.told_arg = s->told;
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers));
    DT_TRY(dt_layers_init(layers, DT_F32, 7, NULL, 0));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(differentiate(layers, g));
    DT_TRY(dt_layers_write_gradients(layers, g, s->path, &o));
    if (s->path != NULL && dt_mesh_n_ranks(mesh) == 1) {
        char folder[DT_TEST_PATH_BYTES];
        (void)snprintf(folder, sizeof folder, "%s.weights", s->path);
        DT_TRY(dt_layers_write(layers, folder, NULL));
    }
    return DT_OK;
}

static void read_file(const char *path, const char *name, int64_t n, float *to)
{
    const dti_st_entry *e;
    DT_ENDS(dti_st_close) dti_st_file *file = NULL;
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage;
    int64_t have = 1;

    DT_ASSERT_OK(dti_st_open(path, &file));
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    DT_ASSERT_EQ_INT(dti_st_count(file), N_PARAMS);
    e = dti_st_find(file, name);
    DT_ASSERT(e != NULL && e->dtype == DT_F32);
    for (int a = 0; a < e->n_axes; a++) have *= e->shape[a];
    DT_ASSERT_EQ_INT(have, n);
    DT_ASSERT_OK(dti_st_read_slice(file, e, NULL, NULL, DT_F32, &stage, to));
}

static const struct {
    const char *name;
    int64_t n;
    double factor;
} params[] = { { "mlp.up.weight", (int64_t)F *D, 2 },
               { "mlp.up.bias", F, 2 },
               { "mlp.down.weight", (int64_t)F *D, 2 },
               { "norm.weight", D, 0 } };

DT_TEST(write_gradients, are_named_and_shaped_as_the_parameters_are_written)
{
    static const char *const meshes[] = { "tp=1", "tp=3", "dp=2,tp=2" };
    char temporary[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 8];
    char weights[DT_TEST_PATH_BYTES + 48];

    (void)snprintf(path, sizeof path, "%s/g", dt_test_temp_dir(temporary));
    (void)snprintf(weights, sizeof weights, "%s.weights/model.safetensors", path);
    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        told t = { 0 }, without = { 0 };
        dt_test_on_ranks(meshes[m], write, &(scene){ path, &t });
        dt_test_on_ranks(meshes[m], write, &(scene){ NULL, &without });
        DT_ASSERT_EQ_INT(t.n, N_PARAMS);
        DT_ASSERT(memcmp(&t, &without, sizeof t) == 0);
        for (int p = 0; p < N_PARAMS; p++) {
            float w[F * D], g[F * D];
            double largest = 0, squares = 0;
            read_file(weights, params[p].name, params[p].n, w);
            read_file(path, params[p].name, params[p].n, g);
            for (int64_t i = 0; i < params[p].n; i++) {
                DT_ASSERT_CLOSE((double)g[i], params[p].factor * (double)w[i], 0);
                largest = fmax(largest, fabs((double)g[i]));
                squares += (double)g[i] * (double)g[i];
            }
            DT_ASSERT_EQ_STR(t.names[p], params[p].name);
            DT_ASSERT_CLOSE(t.largest[p], largest, 0);
            DT_ASSERT_CLOSE(t.rms[p], sqrt(squares / (double)params[p].n), 1e-12);
        }
    }
}

static dt_status misuse(dt_mesh *mesh, const void *arg)
{
    dt_gradient_file_options o = DT_GRADIENT_FILE_OPTIONS_INIT;
    DT_HELD(layers) *layers = NULL;
    DT_HELD(gradients) *g = NULL;

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_EXPECT_STATUS(dt_layers_write_gradients(NULL, g, "g", NULL), DT_ERR_ARG, "NULL");
    DT_EXPECT_STATUS(dt_layers_write_gradients(layers, g, "", NULL), DT_ERR_ARG, "empty");
    DT_EXPECT_STATUS(dt_layers_write_gradients(layers, g, "/nowhere/g", NULL), DT_ERR_ARG,
                     "mlp.up.weight has no value yet");
    DT_TRY(dt_layers_init(layers, DT_F32, 7, NULL, 0));
    DT_EXPECT_STATUS(dt_layers_write_gradients(layers, g, "/nowhere/g", NULL), DT_ERR_IO,
                     "/nowhere/g");
    o.like = "/nowhere";
    DT_EXPECT_STATUS(dt_layers_write_gradients(layers, g, NULL, &o), DT_ERR_IO, "/nowhere");
    o.size = 3;
    DT_EXPECT_STATUS(dt_layers_write_gradients(layers, g, NULL, &o), DT_ERR_ARG,
                     "start from DT_GRADIENT_FILE_OPTIONS_INIT");
    return DT_OK;
}

DT_TEST(write_gradients, that_cannot_be_had_are_refused_on_all_ranks)
{
    dt_test_on_ranks("tp=1", misuse, NULL);
    dt_test_on_ranks("tp=2", misuse, NULL);
    DT_ASSERT_STATUS(dt_gradients_check_file(NULL), DT_ERR_ARG, "NULL");
    DT_ASSERT_STATUS(dt_gradients_check_file("/"), DT_ERR_ARG, "a folder");
    DT_ASSERT_STATUS(dt_gradients_check_file("/nowhere/g"), DT_ERR_IO, "cannot be created");
}
