/* SPDX-License-Identifier: Apache-2.0
 *
 * A kind of layer of one's own: a linear layer with a low-rank adapter, W x + s B (A x). The kind
 * is one struct; being like "linear" it goes under the styles of linear layers, by outputs and by
 * inputs, bias included. On two ranks it gives what it gives on one.
 * I inputs, O outputs (no number of ranks divides either), R rank of the adapter. */
#include <dtensor.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { I = 7, O = 9, R = 3, ROWS = 4 };
enum { WEIGHT, BIAS, LORA_A, LORA_B }; /* rows of the kind's table */

/* Where I is cut, both products are terms of a sum, and so is what they add up to. */
static dt_tensor *lora_forward(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    const float *scale = dt_layer_own(layer);
    dt_tensor *low = dt_linear(t, x, dt_layer_use(t, layer, LORA_A), NULL);
    dt_tensor *delta = dt_linear(t, low, dt_layer_use(t, layer, LORA_B), NULL);
    dt_tensor *y = dt_linear(t, x, dt_layer_use(t, layer, WEIGHT), NULL);
    return dt_layer_add(t, layer, dt_add(t, y, dt_mul_scalar(t, delta, (double)*scale)));
}

static const dt_layer_kind lora = {
    .name = "lora",
    .like = &dt_linear_kind,
    .params = { { "weight", "oi", .frozen = true },
                { "bias", "o", .optional = true, .added = true },
                { "lora_A", "ri" },
                { "lora_B", "or", .begins = DT_BEGINS_ZEROS } },
    .cost = "2 oi + 2 ri + 2 or",
    .forward = lora_forward,
};

static const float scale = 0.5f;

static float value(int param, int64_t at)
{
    return 0.1f * (float)((at * 7 + param * 5) % 11 - 5);
}

/* y [ROWS, O] as one would write it down. */
static void reference(const float *x, float *y)
{
    for (int b = 0; b < ROWS; b++)
        for (int o = 0; o < O; o++) {
            double sum = (double)value(BIAS, o);
            for (int i = 0; i < I; i++) {
                double w = (double)value(WEIGHT, o * I + i);
                for (int r = 0; r < R; r++)
                    w += (double)scale * (double)value(LORA_B, o * R + r) *
                         (double)value(LORA_A, r * I + i);
                sum += w * (double)x[b * I + i];
            }
            y[b * O + o] = (float)sum;
        }
}

/* Parameter `p` of the layer, cut as its style says. */
static dt_status fill(dt_layer *layer, dt_mesh *mesh, int p)
{
    const dt_param_info info = dt_layer_param_info(layer, p);
    int64_t shape[DT_PARAM_MAX_AXES], n = 1;
    dt_placement place[DT_MAX_DIMS];
    float values[O * I];
    dt_tensor *w = NULL;
    dt_status st;

    for (int a = 0; a < info.n_axes; a++) n *= shape[a] = info.axis[a].extent;
    for (int64_t k = 0; k < n; k++) values[k] = value(p, k);
    dt_layout_placements(dt_layer_param_layout(layer, p), place);
    st = dt_distribute(mesh, place, DT_F32, info.n_axes, shape,
                       (dt_source){ values, DT_EQUAL_COPIES }, &w);
    if (st == DT_OK) st = dt_layer_set_param(layer, p, w);
    dt_tensor_release(&w);
    return st;
}

static dt_status run(dt_mesh *mesh, const char *style)
{
    const dt_layer_spec spec = {
        .name = "adapted",
        .kind = &lora,
        .axis = { { O, DT_UNIT_ROW }, { I, DT_UNIT_ROW }, { R, DT_UNIT_ROW } },
        .with = "bias",
        .own = &scale,
        .style = style
    };
    const dt_placement whole[] = { DT_REPLICATE };
    const int64_t shape[] = { ROWS, I };
    float values[ROWS * I], want[ROWS * O];
    dt_tensor *x = NULL, *y, *full = NULL;
    dt_layers *layers = NULL;
    dt_tape *t = NULL;
    dt_status st;

    for (int i = 0; i < ROWS * I; i++) values[i] = (float)(i % 5) - 1.5f;
    reference(values, want);
    st = dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers);
    for (int p = 0; p < 4 && st == DT_OK; p++) st = fill(dt_layers_at(layers, 0), mesh, p);
    if (st == DT_OK) st = dt_tape_create(dt_mesh_runtime(mesh), &t);
    if (st == DT_OK)
        st = dt_distribute(mesh, whole, DT_F32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES },
                           &x);
    if (st == DT_OK) {
        y = dt_layer_forward(t, dt_layers_at(layers, 0), x);
        st = dt_tape_status(t);
        if (st == DT_OK) st = dt_full_tensor(y, &full);
    }
    for (int i = 0; i < ROWS * O && st == DT_OK; i++) {
        const float got = ((const float *)dt_tensor_local(full)->data)[i];
        if (!(fabsf(got - want[i]) <= 1e-5f))
            st = dt_fail(DT_ERR_INTERNAL, "%s: element %d is %g, not %g", style, i, (double)got,
                         (double)want[i]);
    }
    if (st == DT_OK && dt_mesh_coord(mesh, 0) == 0)
        printf("lora %s on tp=%d: as written down, %.0f FLOPs a row\n", style,
               dt_mesh_dim_size(mesh, 0), dt_layer_flops(dt_layers_at(layers, 0)));
    dt_tensor_release(&full);
    dt_tensor_release(&x);
    dt_tape_release(&t);
    dt_layers_release(&layers);
    return st;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    static const char *const styles[] = { "replicate", "colwise", "rowwise",
                                          "colwise_gather_output" };
    dt_mesh *mesh = NULL;
    dt_status st = dt_mesh_create(rt, arg, &mesh);

    for (int i = 0; i < 4 && st == DT_OK; i++) st = run(mesh, styles[i]);
    dt_mesh_release(&mesh);
    return st;
}

int main(void)
{
    static char meshes[][8] = { "tp=1", "tp=2", "tp=3" };
    dt_status st = DT_OK;

    for (int i = 0; i < 3 && st == DT_OK; i++) {
        dt_run_options options = DT_RUN_OPTIONS_INIT;
        options.n_ranks = i + 1;
        st = dt_run(&options, rank_main, meshes[i]);
    }
    if (st != DT_OK) (void)fprintf(stderr, "%s\n", dt_last_error()->message);
    return st == DT_OK ? 0 : 1;
}
