/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of one's own, without a folder of Hugging Face: a gated feed-forward layer with its norm.
 * A table says what it is made of and how that lies over "tp", a key what it begins with, a
 * function what it computes. One rank makes and writes it, two and three read it, each only its
 * slices, and compute the same. docs/own_model.md walks through it.
 * D width, F inner width (no number of ranks divides it), B rows. */
#include <dtensor.h>
#include <dtensor/weights.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { D = 16, F = 23, B = 4 };

#define LINEAR(name_, out, in, style_)                                            \
    {                                                                             \
        .name = (name_), .kind = &dt_linear_kind, .style = (style_),              \
        .axis = { { (out), DT_UNIT_ROW }, { (in), DT_UNIT_ROW } }, .with = "bias" \
    }

static const dt_layer_spec model[] = {
    { .name = "norm", .kind = &dt_rms_norm_kind, .axis = { { D, DT_UNIT_ROW } }, .eps = 1e-6f },
    LINEAR("gate", F, D, "colwise"),
    LINEAR("up", F, D, "colwise"),
    LINEAR("down", D, F, "rowwise"),
};
enum { NORM, GATE, UP, DOWN, N_LAYERS };

/* x [B, D] -> [B, D] */
static dt_tensor *forward(dt_tape *t, dt_layers *m, dt_tensor *x)
{
    dt_tensor *n = dt_layer_forward(t, dt_layers_at(m, NORM), x);
    dt_tensor *gate = dt_silu(t, dt_layer_forward(t, dt_layers_at(m, GATE), n));
    dt_tensor *h = dt_mul(t, gate, dt_layer_forward(t, dt_layers_at(m, UP), n));
    return dt_add(t, x, dt_layer_forward(t, dt_layers_at(m, DOWN), h));
}

typedef struct job {
    char folder[32];
    float y[B * D]; /* written by rank 0 */
} job;

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const dt_placement whole[] = { DT_REPLICATE };
    const int64_t shape[] = { B, D };
    dt_tensor *x = NULL, *y = NULL, *full = NULL;
    dt_layers *layers = NULL;
    dt_tape *tape = NULL;
    dt_mesh *mesh = NULL;
    job *j = arg;
    char spec[16];
    dt_status st;

    (void)snprintf(spec, sizeof spec, "tp=%d", dt_runtime_size(rt));
    st = dt_mesh_create(rt, spec, &mesh);
    if (st == DT_OK) st = dt_layers_create(mesh, "tp", model, N_LAYERS, NULL, &layers);
    if (st == DT_OK && dt_runtime_size(rt) == 1) {
        st = dt_layers_init(layers, DT_F32, 2026, NULL, 0); /* the same values on any mesh */
        if (st == DT_OK) st = dt_layers_write(layers, j->folder, NULL);
    } else if (st == DT_OK) {
        st = dt_layers_read(layers, j->folder, NULL);
    }
    if (st == DT_OK) st = dt_randn(mesh, whole, DT_F32, 2, shape, (dt_random){ 7, 0 }, &x);
    if (st == DT_OK) st = dt_tape_create(rt, &tape);
    if (st == DT_OK) {
        y = forward(tape, layers, x);
        st = dt_tape_status(tape);
    }
    if (st == DT_OK) st = dt_full_tensor(y, &full);
    if (st == DT_OK && dt_runtime_rank(rt) == 0) {
        memcpy(j->y, dt_tensor_local(full)->data, sizeof j->y);
        printf("%s: %lld bytes of weights on rank 0\n", spec,
               (long long)dt_layers_local_bytes(layers));
    }
    dt_tensor_release(&full);
    dt_tape_release(&tape);
    dt_tensor_release(&x);
    dt_layers_release(&layers);
    dt_mesh_release(&mesh);
    return st;
}

int main(void)
{
    job one = { .folder = "/tmp/own_model.XXXXXX" }, more;
    char file[64];
    dt_status st = DT_OK;

    if (mkdtemp(one.folder) == NULL) return perror(one.folder), 1;
    for (int n = 1; n <= 3 && st == DT_OK; n++) {
        dt_run_options options = DT_RUN_OPTIONS_INIT;
        options.n_ranks = n;
        more = one;
        st = dt_run(&options, rank_main, n == 1 ? &one : &more);
        for (int i = 0; i < B * D && n > 1 && st == DT_OK; i++)
            if (fabsf(more.y[i] - one.y[i]) > 1e-5f * fmaxf(1, fabsf(one.y[i])))
                st = dt_fail(DT_ERR_INTERNAL, "element %d is %g on %d ranks, %g on one", i,
                             (double)more.y[i], n, (double)one.y[i]);
    }
    (void)snprintf(file, sizeof file, "%s/model.safetensors", one.folder);
    (void)unlink(file);
    (void)rmdir(one.folder);
    if (st != DT_OK) (void)fprintf(stderr, "%s\n", dt_last_error()->message);
    return st == DT_OK ? 0 : 1;
}
