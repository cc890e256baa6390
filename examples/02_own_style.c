/* SPDX-License-Identifier: Apache-2.0
 *
 * A style of one's own, registered from outside the library: a column-wise linear layer whose
 * partition function is written here. It must be equal, bit for bit, to the built-in "colwise". */
#include <dtensor.h>
#include <stdio.h>
#include <string.h>

enum { IN = 6, OUT = 10, ROWS = 3 };

/* Weight [out, in] and bias [out] are both cut along their outputs, axis 0. Called before any byte
 * is read, for any number of ranks: it only names a placement. */
static dt_status my_partition(const dt_style *style, const dt_param_info *param, int n_parts,
                              dt_cut_room *room, dt_placement *out)
{
    (void)style;
    *out = dt_cut_param(param, 0, n_parts, room);
    return DT_OK;
}

/* The product needs the whole of x on every rank; from Replicate this moves nothing. */
static void my_input(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim, int n,
                     dt_tensor **x)
{
    (void)style, (void)layer;
    for (int i = 0; i < n; i++) x[i] = dt_move_dim(tape, x[i], dim, DT_REPLICATE);
}

/* What this style does not want, it says, before weights are read. */
static dt_status my_validate(const dt_style *style, const dt_layer *layer, int n_parts)
{
    const dt_param_info weight = dt_layer_param_info(layer, DT_PARAM_WEIGHT);

    (void)style;
    if (weight.axis[0].extent >= n_parts) return DT_OK;
    return dt_fail(DT_ERR_LAYOUT, "%d ranks for %lld outputs", n_parts,
                   (long long)weight.axis[0].extent);
}

static const dt_style my_colwise = {
    .size = sizeof(dt_style),
    .summary = "outputs cut by a function of the user's",
    .kinds = "linear",
    .partition_param = my_partition,
    .prepare_input = my_input,
    .validate = my_validate,
};

/* Gives `layer` the same weights on every mesh: w[o, i] and b[o] are functions of o and i. */
static dt_status fill(dt_mesh *mesh, dt_layer *layer)
{
    float weight[OUT * IN], bias[OUT];
    const void *const full[] = { weight, bias };
    const int64_t shape[] = { OUT, IN };

    for (int o = 0; o < OUT; o++) {
        bias[o] = 0.25f * (float)o;
        for (int i = 0; i < IN; i++) weight[o * IN + i] = (float)(o - 2 * i) / 7.0f;
    }
    for (int p = 0; p < 2; p++) {
        const dt_layout *layout = dt_layer_param_layout(layer, p);
        dt_placement place[DT_MAX_DIMS];
        dt_tensor *x = NULL;
        dt_status st;
        for (int m = 0; m < dt_mesh_n_dims(mesh); m++) place[m] = dt_layout_placement(layout, m);
        st = dt_distribute(mesh, place, DT_F32, p == 0 ? 2 : 1, shape,
                           (dt_source){ full[p], DT_EQUAL_COPIES }, &x);
        if (st == DT_OK) st = dt_layer_set_param(layer, p, x);
        dt_tensor_release(&x);
        if (st != DT_OK) return st;
    }
    return DT_OK;
}

/* Runs x through the layer under `style` and gathers the result into y [ROWS, OUT]. */
static dt_status run(dt_mesh *mesh, const char *style, float *y)
{
    const dt_layer_spec spec = { .name = "mlp.up_proj",
                                 .kind = &dt_linear_kind,
                                 .axis = { { OUT, DT_UNIT_ROW }, { IN, DT_UNIT_ROW } },
                                 .with = "bias",
                                 .style = style };
    const dt_placement whole[] = { DT_REPLICATE };
    const int64_t shape[] = { ROWS, IN };
    dt_tensor *x = NULL, *full = NULL;
    dt_layers *layers = NULL;
    dt_tape *tape = NULL;
    float values[ROWS * IN];
    dt_status st;

    for (int i = 0; i < ROWS * IN; i++) values[i] = (float)(i % 5) - 1.5f;
    st = dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers);
    if (st == DT_OK) st = fill(mesh, dt_layers_at(layers, 0));
    if (st == DT_OK) st = dt_tape_create(dt_mesh_runtime(mesh), &tape);
    if (st == DT_OK)
        st = dt_distribute(mesh, whole, DT_F32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES },
                           &x);
    if (st == DT_OK) {
        dt_tensor *out = dt_layer_forward(tape, dt_layers_at(layers, 0), x);
        st = dt_tape_status(tape);
        if (st == DT_OK) st = dt_full_tensor(out, &full);
    }
    if (st == DT_OK) memcpy(y, dt_tensor_local(full)->data, ROWS * OUT * sizeof *y);
    dt_tensor_release(&full);
    dt_tensor_release(&x);
    dt_tape_release(&tape);
    dt_layers_release(&layers);
    return st;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    float mine[ROWS * OUT], theirs[ROWS * OUT];
    dt_mesh *mesh = NULL;
    dt_status st;

    (void)arg;
    st = dt_style_register(rt, "my_colwise", &my_colwise);
    if (st == DT_OK) st = dt_mesh_create(rt, "tp=4", &mesh);
    if (st == DT_OK) st = run(mesh, "my_colwise", mine);
    if (st == DT_OK) st = run(mesh, "colwise", theirs);
    if (st == DT_OK && memcmp(mine, theirs, sizeof mine) != 0)
        st = dt_fail(DT_ERR_INTERNAL, "my_colwise differs from colwise");
    if (st == DT_OK && dt_runtime_rank(rt) == 0) printf("my_colwise equals colwise on 4 ranks\n");
    dt_mesh_release(&mesh);
    return st;
}

int main(void)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;

    options.n_ranks = 4;
    if (dt_run(&options, rank_main, NULL) == DT_OK) return 0;
    fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
