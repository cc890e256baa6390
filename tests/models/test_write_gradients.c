/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients as a file of the model's checkpoint names them: of the sum of all squares, so that each
 * is twice what the checkpoint holds under that name. */
#include <dtensor.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "files/checkpoint.h"
#include "tests/support/golden.h"

/* sum w^2 of every parameter, backward, and settled. */
static dt_status differentiate(dt_model *model, dt_gradients *g)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    dt_layers *layers = dt_model_layers(model);
    DT_HELD(tape) *t = NULL;

    DT_TRY(dt_layers_watch(layers, g));
    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(model)), &t));
    dt_tape_record(t, g);
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            dt_tensor *w;
            if (!dt_layer_owns_param(layer, p)) continue;
            w = dt_move(t, dt_layer_param(layer, p), whole);
            dt_backward(t, dt_sum(t, dt_mul(t, w, w), DT_ALL_AXES),
                        &(dt_backward_options){ .keep = true });
        }
    }
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_gradients_settle(g, NULL));
    return DT_OK;
}

typedef struct scene {
    const char *folder, *path;
    int n_told;
    double squares; /* of all gradients, as told */
} scene;

static void told(void *arg, const dt_gradient_facts *facts)
{
    scene *s = arg;

    s->n_told++;
    s->squares += facts->rms * facts->rms * (double)facts->n;
}

static dt_status write(dt_mesh *mesh, const void *arg)
{
    scene *s = (scene *)(uintptr_t)arg;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    DT_HELD(model) *model = NULL;
    DT_HELD(gradients) *g = NULL;

    load.keep_dtype = false;
    load.dtype = DT_F32;
    DT_TRY(dt_model_load(mesh, s->folder, &load, &model));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(differentiate(model, g));
    DT_TRY(dt_model_write_gradients(model, g, s->path, told, s));
    return DT_OK;
}

static float *read_all(const dti_ckpt *c, const dti_st_entry *e, int64_t *n)
{
    dti_st_stage stage;
    float *values;

    *n = 1;
    for (int a = 0; a < e->n_axes; a++) *n *= e->shape[a];
    values = malloc((size_t)*n * sizeof *values);
    DT_ASSERT(values != NULL);
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    DT_ASSERT_OK(dti_ckpt_read(c, e->name, NULL, NULL, DT_F32, &stage, values));
    dti_st_stage_destroy(&stage);
    return values;
}

/* Every tensor of the file is twice the checkpoint's; returns the sum of squares. */
static double compare(const dti_ckpt *ckpt, const dti_ckpt *file, const char *fixture)
{
    double squares = 0;

    for (size_t i = 0; i < dti_ckpt_count(file); i++) {
        const dti_st_entry *g = dti_ckpt_at(file, i), *w = dti_ckpt_find(ckpt, g->name);
        int64_t n, n_w;
        float *ours, *theirs;
        if (w == NULL) dt_test_fail(__FILE__, __LINE__, "%s has no %s", fixture, g->name);
        DT_ASSERT_EQ_INT(g->n_axes, w->n_axes);
        for (int a = 0; a < g->n_axes; a++) DT_ASSERT_EQ_INT(g->shape[a], w->shape[a]);
        ours = read_all(file, g, &n);
        theirs = read_all(ckpt, w, &n_w);
        for (int64_t k = 0; k < n; k++) {
            if (ours[k] != 2 * theirs[k])
                dt_test_fail(__FILE__, __LINE__, "%s: element %lld of %s is %g, not %g", fixture,
                             (long long)k, g->name, (double)ours[k], 2 * (double)theirs[k]);
            squares += (double)ours[k] * (double)ours[k];
        }
        free(ours);
        free(theirs);
    }
    return squares;
}

/* Packed blocks, experts apart, another spelling, a tied head, several files. */
DT_TEST(write_gradients, have_the_names_and_shapes_of_the_checkpoint)
{
    static const char *const fixtures[] = { "qwen3_moe/base", "phi3/base",     "gemma3/multimodal",
                                            "gpt_neo/base",   "llama/sharded", "llama/tied" };
    static const char *const meshes[] = { "tp=1", "tp=3", "dp=2,tp=2" };

    for (size_t f = 0; f < DT_COUNT(fixtures); f++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            char folder[DT_TEST_PATH_BYTES], temporary[DT_TEST_PATH_BYTES];
            char path[DT_TEST_PATH_BYTES + 32];
            dti_ckpt *ckpt, *file;
            scene s = { folder, path, 0, 0 };
            double squares;
            (void)dt_test_source_path(folder, "tests/golden/%s", fixtures[f]);
            (void)snprintf(path, sizeof path, "%s/g.safetensors", dt_test_temp_dir(temporary));
            dt_test_on_ranks(meshes[m], write, &s);
            DT_ASSERT_OK(dti_ckpt_open_weights(folder, &ckpt));
            DT_ASSERT_OK(dti_ckpt_open_weights(path, &file));
            DT_ASSERT_EQ_INT(dti_ckpt_count(file), s.n_told);
            squares = compare(ckpt, file, fixtures[f]);
            DT_ASSERT_CLOSE(s.squares, squares, 1e-9 * squares);
            dti_ckpt_close(&file);
            dti_ckpt_close(&ckpt);
        }
}
