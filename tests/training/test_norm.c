/* SPDX-License-Identifier: Apache-2.0
 *
 * The norm of gradients of given values: the same bits wherever they lie, and right. What is not
 * finite stops all ranks. */
#include <dtensor/collectives.h>
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <dtensor/ops_general.h>
#include <dtensor/optimizers.h>
#include <dtensor/weights.h>
#include <math.h>
#include <string.h>

#include "dtensor/kernels/kernel.h"
#include "tests/support/dt_test.h"

/* --- of a model ------------------------------------------------------------------------------- */

enum { HEADS = 8, KV = 2, E = 2, D = 10 };

#define KV_ROW(name_, kind_, n, unit_, style_, tied_)                                       \
    {                                                                                       \
        .name = (name_), .kind = (kind_), .axis = { { (n), (unit_) }, { D, DT_UNIT_ROW } }, \
        .heads = { HEADS, KV, E }, .style = (style_), .tied_to = (tied_)                    \
    }

/* kv heads that ranks share from tp=4 on, a tied table, a norm that all hold. */
static const dt_layer_spec layers_of[] = {
    KV_ROW("embed", &dt_embedding_kind, 7, DT_UNIT_ROW, "embedding_rowwise", NULL),
    KV_ROW("norm", &dt_rms_norm_kind, D, DT_UNIT_ROW, "replicate", NULL),
    KV_ROW("q", &dt_linear_kind, HEADS *E, DT_UNIT_HEADS, "colwise", NULL),
    KV_ROW("k", &dt_linear_kind, KV *E, DT_UNIT_KV_HEADS, "colwise", NULL),
    KV_ROW("head", &dt_linear_kind, 7, DT_UNIT_ROW, "colwise", "embed"),
};
enum { N_LAYERS = (int)DT_COUNT(layers_of) };

/* Sum of parameter times constant: its gradient is the constant, in the bits of a key, wherever it
 * lies. Tied weights have it once. */
static dt_tensor *slopes(dt_tape *t, dt_layers *m)
{
    dt_tensor *loss = NULL;

    for (int i = 0; i < N_LAYERS; i++) {
        const dt_layer *layer = dt_layers_at(m, i);
        dt_placement place[DT_MAX_DIMS];
        int64_t shape[DT_MAX_AXES];
        dt_tensor *w, *c, *term;
        if (!dt_layer_owns_param(layer, 0)) continue;
        w = dt_layer_param(layer, 0);
        for (int a = 0; a < dt_tensor_n_axes(w); a++) shape[a] = dt_tensor_extent(w, a);
        (void)dt_layout_placements(dt_tensor_layout(w), place);
        if (dt_randn(dt_layers_mesh(m), place, DT_F32, dt_tensor_n_axes(w), shape,
                     (dt_random){ 9, (uint64_t)i }, &c) != DT_OK)
            return dt_tape_fail(t, DT_ERR_INTERNAL, "no constant");
        term = dt_mul(t, w, dt_tape_own(t, c));
        for (int d = 0; d < dt_mesh_n_dims(dt_layers_mesh(m)); d++)
            term = dt_move_dim(t, term, d, DT_REPLICATE);
        term = dt_sum(t, term, DT_ALL_AXES);
        loss = loss == NULL ? term : dt_add(t, loss, term);
    }
    return loss;
}

typedef struct told {
    double *norm;
    int zero;
} told;

static dt_status norm_of(dt_mesh *mesh, const void *arg)
{
    const told *to = arg;
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    DT_HELD(layers) *m = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_step_report report;
    double least, most;

    o.zero = to->zero;
    o.over = dt_mesh_find_dim(mesh, "dp") >= 0 ? NULL : dt_mesh_dim_name(mesh, 0);
    DT_TRY(dt_layers_create(mesh, "tp?", layers_of, N_LAYERS, NULL, &m));
    DT_TRY(dt_layers_init(m, DT_F32, 4, NULL, 0));
    DT_TRY(dt_optimizer_create(m, &o, &opt));
    dt_tape_record(t, dt_optimizer_gradients(opt));
    dt_optimizer_backward(opt, t, slopes(t, m), true, NULL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_optimizer_step(opt, 0.1, &report));
    DT_TRY(dt_all_reduce(mesh, NULL, &report.norm, &least, 1, DT_F64, DT_MIN));
    DT_TRY(dt_all_reduce(mesh, NULL, &report.norm, &most, 1, DT_F64, DT_MAX));
    DT_EXPECT(least == most && least > 5.0, "%.17g to %.17g", least, most);
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) *to->norm = least;
    return DT_OK;
}

DT_TEST(norm, the_same_bits_on_every_mesh)
{
    static const char *const meshes[] = { "tp=1",      "tp=2",      "tp=3",      "tp=4",
                                          "dp=2",      "dp=3",      "dp=2,tp=2", "tp=8",
                                          "dp=2,tp=4", "tp=4,dp=2", "pp=2,tp=2" };
    double first = 0.0, norm = 0.0;

    dt_test_on_ranks(meshes[0], norm_of, &(told){ &first, 0 });
    for (size_t i = 0; i < DT_COUNT(meshes); i++)
        for (int zero = 0; zero <= 2; zero++) {
            norm = first;
            dt_test_on_ranks(meshes[i], norm_of, &(told){ &norm, zero });
            DT_ASSERT(norm == first);
        }
}

/* --- not finite ------------------------------------------------------------------------------- */

static const dt_layer_spec two[] = {
    KV_ROW("first", &dt_linear_kind, 6, DT_UNIT_ROW, "colwise", NULL),
    KV_ROW("second", &dt_linear_kind, 6, DT_UNIT_ROW, "colwise", NULL),
};

typedef struct poison {
    int rank; /* -1: all */
    int layer, zero, step;
    float what;
    const char *says;
    int64_t bucket_bytes;
} poison;

/* Sum of a product with rows of a batch, each rank's own; of one rank one is poisoned. */
static dt_tensor *poisoned(dt_tape *t, dt_layers *m, const poison *p, int step)
{
    dt_mesh *mesh = dt_layers_mesh(m);
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    const bool mine = (p->rank < 0 || rank == p->rank) && step == p->step;
    dt_placement place[DT_MAX_DIMS] = { DT_SHARD(0) };
    const int64_t shape[] = { dt_mesh_dim_size(mesh, 0), D };
    dt_tensor *y[2];

    for (int i = 0; i < 2; i++) {
        float row[D];
        dt_tensor *x;
        for (int k = 0; k < D; k++) row[k] = mine && i == p->layer && k == 3 ? p->what : 0.5f;
        if (dt_from_local(mesh, place, DT_F32, 2, shape, row, &x) != DT_OK) return NULL;
        y[i] = dt_layer_forward(t, dt_layers_at(m, i), dt_tape_own(t, x));
        y[i] = dt_sum(t, y[i], DT_ALL_AXES);
    }
    return dt_add(t, y[0], y[1]);
}

static dt_status stays(dt_layers *m, const float *before)
{
    for (int i = 0; i < 2; i++) {
        const dt_local *w = dt_tensor_local(dt_layer_param(dt_layers_at(m, i), 0));
        DT_EXPECT(
            memcmp(w->data, before + i * 6 * D, (size_t)dti_local_count(w) * sizeof *before) == 0,
            "weights were written");
    }
    return DT_OK;
}

static dt_status stops(dt_mesh *mesh, const void *arg)
{
    const poison *p = arg;
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    float before[2 * 6 * D];
    DT_HELD(layers) *m = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    o.zero = p->zero;
    o.bucket_bytes = p->bucket_bytes;
    DT_TRY(dt_layers_create(mesh, "tp?", two, 2, NULL, &m));
    DT_TRY(dt_layers_init(m, DT_F32, 4, NULL, 0));
    DT_TRY(dt_optimizer_create(m, &o, &opt));
    for (int step = 1; step <= p->step; step++) {
        for (int i = 0; i < 2; i++) {
            const dt_local *w = dt_tensor_local(dt_layer_param(dt_layers_at(m, i), 0));
            memcpy(before + i * 6 * D, w->data, (size_t)dti_local_count(w) * sizeof *before);
        }
        dt_tape_record(t, dt_optimizer_gradients(opt));
        dt_optimizer_backward(opt, t, poisoned(t, m, p, step), true, NULL);
        DT_TRY(dt_tape_status(t));
        dt_tape_reset(t);
        if (step < p->step) DT_TRY(dt_optimizer_step(opt, 0.1, NULL));
    }
    DT_TRY(dt_test_expect_status(__func__, __FILE__, __LINE__, dt_optimizer_step(opt, 0.1, NULL),
                                 DT_ERR_ARG, p->says));
    DT_TRY(stays(m, before));
    DT_EXPECT(dt_optimizer_steps(opt) == p->step - 1, "the step counts");
    dt_gradients_clear(dt_optimizer_gradients(opt)); /* the next batch is a good one */
    dt_tape_record(t, dt_optimizer_gradients(opt));
    dt_optimizer_backward(opt, t, poisoned(t, m, p, 0), true, NULL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_optimizer_step(opt, 0.1, NULL));
    return DT_OK;
}

/* Every rank says the same, also where the terms were added up long before. */
DT_TEST(norm, what_is_not_finite_stops_all)
{
    static const poison cases[] = {
        { 1, 1, 0, 1, NAN, "rank 1: the gradient of second.weight is not finite at step 1", 0 },
        { 3, 0, 1, 2, INFINITY, "rank 3: the gradient of first.weight is not finite at step 2", 0 },
        { 2, 1, 2, 3, NAN, "rank 2: the gradient of second.weight is not finite at step 3", 0 },
        /* each term is finite, their sum is not */
        { -1, 0, 0, 1, 3e38f,
          "rank 0: the gradient of first.weight is not finite once terms are "
          "added up at step 1",
          0 },
    };
    for (size_t i = 0; i < DT_COUNT(cases); i++) dt_test_on_ranks("dp=4", stops, &cases[i]);
    dt_test_on_ranks("dp=2,tp=2", stops, &cases[0]);
}

/* Where there is one rank nothing is added up, and nothing is said of it. */
DT_TEST(norm, what_is_not_finite_on_one_rank)
{
    static const poison alone = {
        0, 0, 0, 2, NAN, "rank 0: the gradient of first.weight is not finite at step 2", 0
    };

    dt_test_on_ranks("dp=1", stops, &alone);
}
