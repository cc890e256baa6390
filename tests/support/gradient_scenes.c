/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/ops_loss.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/device/device.h"
#include "tests/support/gradient_golden.h"

/* Of the largest gradient of a parameter in f32. */
#define BOUND 1e-5

/* What none is off by. The fixtures' models have large random weights: on most tokens Transformers'
 * own f32 is off by 0.5e-5 to 2e-5 there. Tokens were chosen on which four orders of additions come
 * to 1.1e-5 at most; ours is a fifth. */
#define TOLERANCE 3e-5

typedef struct gradient_run {
    const dt_gradient_golden *golden;
    const dt_gradient_scene *how;
    double worst;   /* of all parameters */
    double squares; /* sum of the squares of what each is off by */
    int n, n_over;  /* compared; over BOUND */
    char name[256];
} gradient_run;

static dt_status compare(void *arg, const dt_golden_gradient *theirs, const float *ours)
{
    gradient_run *s = arg;
    const double off = s->how->dtype == DT_F32 ? dt_golden_gradient_off_f32(theirs, ours)
                                               : dt_golden_gradient_off_bf16(theirs, ours);

    s->n++;
    s->n_over += off > BOUND;
    s->squares += off * off;
    if (!(off <= s->worst)) {
        s->worst = off;
        (void)snprintf(s->name, sizeof s->name, "%s", theirs->name);
    }
    return DT_OK;
}

/* As files hold it that have the last two axes the other way round. */
static dt_status turn(const dt_param_info *info, float *values)
{
    const int64_t rows = info->axis[info->n_axes - 2].extent;
    const int64_t columns = info->axis[info->n_axes - 1].extent;
    const int64_t n = info->n_axes > 2 ? info->axis[0].extent : 1;
    DT_FREED float *one = NULL;

    DT_TRY(dti_alloc_array((size_t)(rows * columns), sizeof *one, (void **)&one));
    for (float *m = values; m < values + n * rows * columns; m += rows * columns) {
        memcpy(one, m, (size_t)(rows * columns) * sizeof *one);
        for (int64_t i = 0; i < rows * columns; i++) m[i % columns * rows + i / columns] = one[i];
    }
    return DT_OK;
}

static dt_status compare_param(gradient_run *s, const dt_layer *layer, int p, dt_tensor *gradient)
{
    const dt_param_info info = dt_layer_param_info(layer, p);
    int64_t n = 1;
    DT_HELD(tensor) *full = NULL;
    DT_FREED float *ours = NULL;

    for (int a = 0; a < info.n_axes; a++) n *= info.axis[a].extent;
    if (gradient != NULL) DT_TRY(dt_full_tensor(gradient, &full));
    DT_TRY(dti_alloc_array((size_t)n, sizeof *ours, (void **)&ours));
    if (full != NULL) DT_TRY(dt_tensor_read(full, ours, (size_t)n * sizeof *ours));
    for (int64_t i = 0; i < n; i++) ours[i] *= (float)s->how->factor;
    if (info.reversed) DT_TRY(turn(&info, ours));
    return dt_golden_each(s->golden, &info, ours, compare, s);
}

static dt_status compare_all(gradient_run *s, dt_layers *layers, const dt_gradients *g)
{
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            if (dt_layer_owns_param(layer, p))
                DT_TRY(compare_param(s, layer, p, dt_gradient(g, dt_layer_param(layer, p))));
    }
    return DT_OK;
}

/* In f32 nearly all are within BOUND. In bf16 both are about as far from f64: the rms over a
 * checkpoint's parameters of our distance in theirs is near 1, and that over all at most 1.1. */
static dt_status judge(const gradient_run *s)
{
    const double rms = sqrt(s->squares / s->n);

    DT_EXPECT((size_t)s->n == s->golden->n_gradients, "%s: %d gradients, not %zu",
              s->golden->folder, s->n, s->golden->n_gradients);
    if (s->how->factor != 1.0) {
        DT_EXPECT(s->worst > 0.4, "%s: a factor of %g is not seen", s->golden->folder,
                  s->how->factor);
    } else if (s->how->dtype == DT_F32) {
        DT_EXPECT(s->worst <= TOLERANCE, "%s: %s is off by %.3g of its largest", s->golden->folder,
                  s->name, s->worst);
        DT_EXPECT(4 * s->n_over <= s->n, "%s: %d of %d parameters are off by more than %g",
                  s->golden->folder, s->n_over, s->n, BOUND);
    } else {
        DT_EXPECT(rms <= (s->golden->length > 9 ? 1.25 : 2.0), "%s: %.3f times as far as theirs",
                  s->golden->folder, rms);
        DT_EXPECT(s->worst <= (s->golden->length > 9 ? 4.0 : 3.0),
                  "%s: %s is %.3g times as far as theirs", s->golden->folder, s->name, s->worst);
    }
    return DT_OK;
}

static dt_status run(dt_mesh *mesh, const void *arg)
{
    gradient_run own = *(const gradient_run *)arg, *const s = &own;
    const dt_gradient_golden *golden = s->golden;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    dt_gradients *g = NULL;
    dt_model *model = NULL;
    dt_tensor *ids, *targets, *loss;
    dti_device *device;
    dt_tape *t = NULL;
    float value = 0.0f;
    dt_status st = DT_OK;

    load.keep_dtype = false;
    load.dtype = s->how->dtype;
    load.sequence_parallel = s->how->sequence_parallel;
    how.recompute = s->how->recompute;
    how.chunk = s->how->chunk;
    DT_TRY(dt_model_load(mesh, golden->folder, &load, &model));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY_TO(done, st, dt_layers_watch(dt_model_layers(model), g));
    dt_tape_record(t, g);
    ids = dt_model_ids(t, model, golden->tokens, golden->rows, golden->length);
    targets = dt_model_ids(t, model, golden->targets, golden->rows, golden->length);
    loss = dt_model_loss(t, model, ids, targets, &how);
    dt_backward(t, loss, NULL);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, dt_gradients_settle(g, t));
    DT_TRY_TO(done, st, dti_device_of(dt_mesh_runtime(mesh), &device));
    DT_EXPECT_TO(done, st, device->n_on_host == 0, "%s: %d operators ran on copies",
                 s->golden->folder, (int)device->n_on_host);
    DT_TRY_TO(done, st, dt_tensor_read(loss, &value, sizeof value));
    if (s->how->dtype == DT_F32)
        DT_EXPECT_TO(done, st, fabs((double)value - golden->loss_f64) <= 2e-6 * golden->loss_f64,
                     "%s: loss %.9g, not %.9g", s->golden->folder, (double)value, golden->loss_f64);
    st = compare_all(s, dt_model_layers(model), g);
    if (st != DT_OK) goto done;
    st = judge(s);
    if (s->how->total != NULL && dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) {
        s->how->total[0] += s->squares;
        s->how->total[1] += s->n;
    }
done:
    dt_tape_release(&t);
    dt_gradients_release(&g);
    dt_model_release(&model);
    return st;
}

void dt_gradient_golden_check(const char *fixture, const char *which, const char *const *meshes,
                              const dt_run_options *options, const dt_gradient_scene *how)
{
    DT_ENDS(dt_gradient_golden_close) dt_gradient_golden golden;

    DT_ASSERT_OK(dt_gradient_golden_open(fixture, which, &golden));
    for (; *meshes != NULL; meshes++)
        dt_test_ok(
            __FILE__, __LINE__, *meshes,
            dt_test_run(options, *meshes, run, &(gradient_run){ .golden = &golden, .how = how }));
}
