/* SPDX-License-Identifier: Apache-2.0
 *
 * Defects that other systems of parallel training had, each a test that would find it here, beside
 * a control: the same comparison of a run that has the defect. */
#include <dtensor/ops.h>
#include <dtensor/ops_loss.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/train_steps.h"

enum { STEPS = 2, ROWS = 4, LENGTH = 12, N_TOKENS = STEPS * ROWS * LENGTH + 1, MAX_VALUES = 20000 };

/* One parameter before and after, on the mesh's first rank, and the norm of the first step. */
typedef struct seen {
    const char *layer;
    int param;
    int64_t n;
    float before[MAX_VALUES], after[MAX_VALUES];
    double norm;
} seen;

typedef struct scene {
    dt_test_steps steps;
    seen *out;
} scene;

/* `folder` becomes that of a checkpoint of tests/golden. */
static dt_test_steps steps_of(const char *fixture, char folder[DT_TEST_PATH_BYTES],
                              int32_t tokens[N_TOKENS])
{
    dt_test_steps t = { .folder = folder,
                        .tokens = tokens,
                        .rows = ROWS,
                        .length = LENGTH,
                        .steps = STEPS,
                        .microbatches = 1,
                        .lr = 3e-3,
                        .optimizer = dt_test_optimizer("sgd") };

    (void)dt_test_source_path(folder, "tests/golden/%s", fixture);
    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (i * i * 5 + i * 11 + 3) % 90;
    return t;
}

static dt_status keep(dt_layers *layers, const seen *which, float *to, int64_t *n)
{
    const dt_layer *layer = dt_layers_find(layers, which->layer);
    dt_tensor *full = NULL;
    dt_status st;

    DT_EXPECT(layer != NULL && dt_layer_has_param(layer, which->param), "no %s", which->layer);
    DT_TRY(dt_full_tensor(dt_layer_param(layer, which->param), &full));
    *n = 1;
    for (int a = 0; a < dt_tensor_n_axes(full); a++) *n *= dt_tensor_extent(full, a);
    st = *n <= MAX_VALUES ? dt_tensor_read(full, to, (size_t)*n * sizeof *to) : DT_ERR_INTERNAL;
    dt_tensor_release(&full);
    return st;
}

static dt_status train(dt_mesh *mesh, const void *arg)
{
    static float unused[4][MAX_VALUES];
    const scene *s = arg;
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    const bool first = rank == 0;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_model *model = NULL;
    dt_test_losses losses;
    int64_t n;
    dt_status st;

    load.keep_dtype = false;
    DT_TRY(dt_model_load(mesh, s->steps.folder, &load, &model));
    st = keep(dt_model_layers(model), s->out, first ? s->out->before : unused[rank], &n);
    dt_model_release(&model);
    DT_TRY(st);
    DT_TRY(dt_test_train_model(mesh, &s->steps, &losses, &model));
    st = keep(dt_model_layers(model), s->out, first ? s->out->after : unused[rank], &n);
    dt_model_release(&model);
    DT_TRY(st);
    if (first) s->out->n = n;
    if (first) s->out->norm = losses.norm[0];
    return DT_OK;
}

/* How far apart the ways are that a parameter has come in two runs, of the longest of `b`. */
static double apart(const seen *a, const seen *b)
{
    double longest = 0.0, off = 0.0;

    DT_ASSERT(a->n == b->n && a->n > 0);
    for (int64_t i = 0; i < a->n; i++) {
        const double x = (double)a->after[i] - (double)a->before[i];
        const double y = (double)b->after[i] - (double)b->before[i];
        longest = fmax(longest, fabs(y));
        off = fmax(off, fabs(x - y));
    }
    DT_ASSERT(longest > 0.0);
    return off / longest;
}

static void run(const char *mesh, const dt_test_steps *steps, seen *out)
{
    const scene s = { *steps, out };

    dt_test_on_ranks(mesh, train, &s);
}

/* Values of f32 near 1 have their last digit at 6e-8, which is some 1e-4 of what such a parameter
 * moves in two steps. */
static const double rounding = 2e-3, plain = 2e-2;

/* --- 1: copies of a parameter that differ ----------------------------------------------------- */

enum { MAX_RANKS = 4, MAX_PARAMS = 64 };

/* What each rank holds of each parameter: which piece, and its bits. */
typedef struct pieces {
    const char *folder;
    const int32_t *tokens;
    const char *fully_shard;
    int steps; /* 0: as it was loaded; negative: with random weights */
    bool spoiled;
    struct {
        int64_t place;
        uint64_t bits;
    } piece[MAX_RANKS][MAX_PARAMS];
    int n;
} pieces;

static dt_status note(pieces *out, int rank, int i, dt_tensor *w, bool spoils)
{
    const dt_local *mine = dt_tensor_local(w);
    const dt_mesh *mesh = dt_tensor_mesh(w);
    size_t bytes = dt_dtype_size(dt_tensor_dtype(w));
    uint64_t bits = 0xcbf29ce484222325u;
    int64_t place = 0;
    unsigned char *values;
    dt_status st;

    for (int a = 0; a < mine->n_axes; a++) bytes *= (size_t)mine->shape[a];
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++)
        if (dt_layout_placement(dt_tensor_layout(w), m).kind != DT_PLACE_REPLICATE)
            place = place * 16 + 1 + dt_mesh_coord(mesh, m);
    DT_TRY(dti_alloc_array(bytes + 1, 1, (void **)&values));
    st = dt_tensor_read(w, values, bytes);
    if (spoils && bytes > 0) values[bytes - 1] ^= 1; /* one bit on one rank */
    for (size_t k = 0; k < bytes; k++) bits = (bits ^ values[k]) * 0x100000001b3u;
    dti_free(values);
    out->piece[rank][i].place = place;
    out->piece[rank][i].bits = bits;
    return st;
}

static dt_status hold(dt_mesh *mesh, const void *arg)
{
    pieces *out = *(pieces *const *)arg;
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_test_losses losses;
    dt_model *model = NULL;
    dt_layers *layers;
    dt_status st = DT_OK;
    int n = 0;

    load.keep_dtype = false;
    load.fully_shard = out->fully_shard;
    if (out->steps < 0) {
        DT_TRY(dt_model_create_random(mesh, out->folder, &load, 5, &model));
    } else if (out->steps == 0) {
        DT_TRY(dt_model_load(mesh, out->folder, &load, &model));
    } else {
        const dt_test_steps t = { .folder = out->folder,
                                  .tokens = out->tokens,
                                  .rows = ROWS,
                                  .length = LENGTH,
                                  .steps = out->steps,
                                  .microbatches = 1,
                                  .lr = 1e-3,
                                  .optimizer = dt_test_optimizer("adamw"),
                                  .fully_shard = out->fully_shard };
        DT_TRY(dt_test_train_model(mesh, &t, &losses, &model));
    }
    layers = dt_model_layers(model);
    for (int i = 0; i < dt_layers_count(layers) && st == DT_OK; i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer) && st == DT_OK; p++)
            if (dt_layer_owns_param(layer, p) && n < MAX_PARAMS) {
                st = note(out, rank, n, dt_layer_param(layer, p),
                          out->spoiled && rank == 1 && n == 1);
                n++;
            }
    }
    if (rank == 0) out->n = n;
    dt_model_release(&model);
    return st;
}

/* Pairs of ranks that hold the same piece of a parameter; how many of them have other bits. */
static int count_pairs(const pieces *p, int n_ranks, int *n_apart)
{
    int n = 0;

    *n_apart = 0;
    for (int i = 0; i < p->n; i++)
        for (int a = 0; a < n_ranks; a++)
            for (int b = 0; b < a; b++)
                if (p->piece[a][i].place == p->piece[b][i].place) {
                    n++;
                    *n_apart += p->piece[a][i].bits != p->piece[b][i].bits;
                }
    return n;
}

/* Weights drawn apart, or sums in another order on each rank (Automodel 1291): copies have the same
 * bits once they are drawn, once they are read, and after each step. */
DT_TEST(defects_elsewhere, copies_of_a_parameter_stay_equal)
{
    static const struct {
        const char *mesh, *fully_shard;
        int n_ranks;
    } meshes[] = {
        { "tp=2", NULL, 2 },
        { "dp=2", NULL, 2 },
        { "dp=2,tp=2", NULL, 4 },
        { "dp=2,tp=2", "dp", 4 },
        { "dp_replicate=2,dp_shard=2", "dp_shard", 4 },
    };
    static const int moments[] = { -1, 0, 1, 2 };
    char folder[DT_TEST_PATH_BYTES];
    int32_t tokens[N_TOKENS];
    const dt_test_steps t = steps_of("qwen3/base", folder, tokens);
    static pieces p;
    const pieces *arg = &p;

    if (dt_test_processes() > 1) dt_test_skip("runs are compared in one process");
    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t k = 0; k < DT_COUNT(moments); k++) {
            int n_apart, n_pairs;
            p = (pieces){ .folder = t.folder,
                          .tokens = tokens,
                          .fully_shard = meshes[m].fully_shard,
                          .steps = moments[k] };
            dt_test_on_ranks(meshes[m].mesh, hold, &arg);
            n_pairs = count_pairs(&p, meshes[m].n_ranks, &n_apart);
            DT_ASSERT(n_pairs > 0);
            DT_ASSERT_EQ_INT(n_apart, 0);
        }
    p.steps = 1; /* on the last mesh, where ranks 0 and 2, 1 and 3 hold the same */
    p.spoiled = true;
    {
        int n_apart;
        dt_test_on_ranks(meshes[4].mesh, hold, &arg);
        (void)count_pairs(&p, 4, &n_apart);
        DT_ASSERT_EQ_INT(n_apart, 1);
    }
}

/* --- 2: gradients of what is whole are not added over tp -------------------------------------- */

/* Norms of q and k, whose heads are divided; norms and biases where tokens are (NeMo RL 3716,
 * TransformerEngine 435, Automodel 3822). */
DT_TEST(defects_elsewhere, gradients_of_whole_parameters_are_added_over_tp)
{
    static const struct {
        const char *fixture, *layer;
        int param;
        bool sequence_parallel;
    } cases[] = {
        { "qwen3/base", "model.layers.0.self_attn.q_norm", DT_PARAM_WEIGHT, false },
        { "qwen3/base", "model.layers.1.self_attn.k_norm", DT_PARAM_WEIGHT, false },
        { "qwen3/base", "model.layers.1.self_attn.q_norm", DT_PARAM_WEIGHT, true },
        { "llama/uneven", "model.layers.0.input_layernorm", DT_PARAM_WEIGHT, true },
        { "llama/uneven", "model.norm", DT_PARAM_WEIGHT, true },
        { "llama/biases", "model.layers.0.self_attn.o_proj", DT_PARAM_BIAS, true },
        { "llama/biases", "model.layers.1.mlp.down_proj", DT_PARAM_BIAS, true },
    };
    static seen whole, cut, wrong;
    int32_t tokens[N_TOKENS];

    if (dt_test_processes() > 1) dt_test_skip("runs are compared in one process");
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        char folder[DT_TEST_PATH_BYTES];
        dt_test_steps t = steps_of(cases[i].fixture, folder, tokens);
        whole.layer = cut.layer = wrong.layer = t.spoiled = cases[i].layer;
        whole.param = cut.param = wrong.param = t.spoiled_param = cases[i].param;
        run("tp=1", &t, &whole);
        t.sequence_parallel = cases[i].sequence_parallel;
        run("tp=2", &t, &cut);
        t.fault = DT_FAULT_LOST_SUM;
        run("tp=2", &t, &wrong);
        if (apart(&cut, &whole) > rounding || apart(&wrong, &whole) < plain)
            dt_test_fail(__FILE__, __LINE__, "%s: off by %.3g; without the sum by %.3g",
                         cases[i].layer, apart(&cut, &whole), apart(&wrong, &whole));
    }
}

/* --- 3: the norm counts what is whole once for each rank -------------------------------------- */

/* NeMo RL 3788, TransformerEngine for ROCm 715: 1.36 to 1.52 times as large. */
DT_TEST(defects_elsewhere, the_norm_counts_each_parameter_once)
{
    static const char *const meshes[] = { "tp=2", "tp=3", "tp=4", "dp=2", "dp=2,tp=2" };
    static seen one, some;
    char folder[DT_TEST_PATH_BYTES];
    int32_t tokens[N_TOKENS];
    dt_test_steps t = steps_of("qwen3/base", folder, tokens);
    double squares = 0.0;

    if (dt_test_processes() > 1) dt_test_skip("runs are compared in one process");
    t.steps = 1; /* so a parameter has moved by lr times its gradient */
    one.layer = some.layer = "model.norm";
    run("tp=1", &t, &one);
    for (int sp = 0; sp < 2; sp++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            t.sequence_parallel = sp == 1 && strchr(meshes[m], 't') != NULL;
            run(meshes[m], &t, &some);
            DT_ASSERT_CLOSE(some.norm, one.norm, 1e-6 * one.norm);
        }
    /* What counting this one norm twice would make of it is far more. */
    for (int64_t i = 0; i < one.n; i++)
        squares += pow(((double)one.after[i] - (double)one.before[i]) / t.lr, 2.0);
    DT_ASSERT(sqrt(one.norm * one.norm + squares) > (1.0 + 1e-5) * one.norm);
}

/* --- 6: tied weights -------------------------------------------------------------------------- */

enum { V = 14, D = 6, N_IDS = 10 };

/* The gradient of an embedding, of the head, or of the one weight that is both. */
typedef struct ties {
    bool tied;
    float table[V * D], head[V * D];
} ties;

static dt_status differentiate_tied(dt_mesh *mesh, const void *arg)
{
    static const dt_init_rule alike[] = { { "**", DT_INIT_CONSTANT, 0.0, 0.0 } };
    ties *out = *(ties *const *)arg, own = *out;
    const dt_layer_spec specs[] = {
        { .name = "table",
          .kind = &dt_embedding_kind,
          .axis = { { V, DT_UNIT_ROW }, { D, DT_UNIT_ROW } },
          .style = "rowwise" },
        { .name = "head",
          .kind = &dt_linear_kind,
          .axis = { { V, DT_UNIT_ROW }, { D, DT_UNIT_ROW } },
          .style = "colwise",
          .tied_to = own.tied ? "table" : NULL },
    };
    const int64_t shape[] = { 2, N_IDS / 2 };
    dt_placement whole[DT_MAX_DIMS], place[DT_MAX_DIMS];
    int32_t ids[N_IDS], targets[N_IDS];
    float weight[V * D];
    DT_HELD(layers) *layers = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *y = NULL, *w = NULL, *full = NULL;

    for (int m = 0; m < DT_MAX_DIMS; m++) whole[m] = DT_REPLICATE;
    for (int i = 0; i < N_IDS; i++) {
        ids[i] = (i * 5 + 2) % V;
        targets[i] = (i * 3 + 1) % V;
    }
    for (int i = 0; i < V * D; i++) weight[i] = (float)((i * 7) % 13) * 0.1f - 0.6f;
    DT_TRY(dt_layers_create(mesh, "tp?", specs, 2, NULL, &layers));
    DT_TRY(dt_layers_init(layers, DT_F32, 1, alike, 1));
    for (int i = 0; i < (own.tied ? 1 : 2); i++) {
        const int64_t extents[] = { V, D };
        dt_layout_placements(dt_layer_param_layout(dt_layers_at(layers, i), 0), place);
        DT_TRY(dt_distribute(mesh, place, DT_F32, 2, extents,
                             (dt_source){ weight, DT_EQUAL_COPIES }, &w));
        DT_TRY(dt_layer_set_param(dt_layers_at(layers, i), 0, w));
        dt_tensor_release(&w);
    }
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_layers_watch(layers, g));
    DT_TRY(dt_distribute(mesh, whole, DT_I32, 2, shape, (dt_source){ ids, DT_EQUAL_COPIES }, &x));
    DT_TRY(
        dt_distribute(mesh, whole, DT_I32, 2, shape, (dt_source){ targets, DT_EQUAL_COPIES }, &y));
    dt_tape_record(t, g);
    dt_backward(t,
                dt_cross_entropy(t,
                                 dt_layer_forward(t, dt_layers_at(layers, 1),
                                                  dt_layer_forward(t, dt_layers_at(layers, 0), x)),
                                 y, NULL),
                NULL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_gradients_settle(g, t));
    for (int i = 0; i < (own.tied ? 1 : 2); i++) {
        DT_TRY(dt_full_tensor(dt_gradient(g, dt_layer_param(dt_layers_at(layers, i), 0)), &full));
        DT_TRY(dt_tensor_read(full, i == 0 ? own.table : own.head, sizeof own.table));
        dt_tensor_release(&full);
    }
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) *out = own;
    return DT_OK;
}

/* Its gradient is the embedding's and the head's together (Automodel 2571, 1904, Megatron-LM 844):
 * either alone is far off. */
DT_TEST(defects_elsewhere, a_tied_weight_has_both_gradients)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };
    static ties tied, apart_from;
    const ties *both[] = { &tied, &apart_from };

    if (dt_test_processes() > 1) dt_test_skip("runs are compared in one process");
    apart_from.tied = false;
    dt_test_on_ranks("tp=1", differentiate_tied, &both[1]);
    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        double off = 0.0, table = 0.0, head = 0.0;
        tied.tied = true;
        dt_test_on_ranks(meshes[m], differentiate_tied, &both[0]);
        for (int i = 0; i < V * D; i++) {
            const double a = (double)apart_from.table[i], b = (double)apart_from.head[i];
            off = fmax(off, fabs((double)tied.table[i] - a - b));
            table = fmax(table, fabs((double)tied.table[i] - a));
            head = fmax(head, fabs((double)tied.table[i] - b));
        }
        DT_ASSERT(off < 1e-6 && table > 0.01 && head > 0.01);
    }
}

/* --- 7: loss of unequal masks ----------------------------------------------------------------- */

/* Each target counts alike, whatever microbatch and rank it is in (NeMo, DeepSpeed 7773,
 * 8154): the sum is divided once, by the count of the step. */
DT_TEST(defects_elsewhere, each_target_counts_alike)
{
    static const struct {
        const char *mesh;
        int microbatches;
    } runs[] = { { "tp=1", 2 }, { "tp=1", 4 }, { "dp=2", 1 },     { "dp=2", 2 },
                 { "dp=4", 1 }, { "tp=2", 2 }, { "dp=2,tp=2", 2 } };
    static seen one, some, wrong;
    char folder[DT_TEST_PATH_BYTES];
    int32_t tokens[N_TOKENS];
    dt_test_steps t = steps_of("llama/tied", folder, tokens);

    if (dt_test_processes() > 1) dt_test_skip("runs are compared in one process");
    one.layer = some.layer = wrong.layer = "model.embed_tokens";
    t.masked = true;
    run("tp=1", &t, &one);
    for (size_t i = 0; i < DT_COUNT(runs); i++) {
        t.microbatches = runs[i].microbatches;
        t.fault = DT_FAULT_NONE;
        run(runs[i].mesh, &t, &some);
        if (apart(&some, &one) > rounding)
            dt_test_fail(__FILE__, __LINE__, "%s, %d microbatches: off by %.3g", runs[i].mesh,
                         runs[i].microbatches, apart(&some, &one));
        t.fault = DT_FAULT_MEANS;
        if (runs[i].microbatches == 1) continue;
        run(runs[i].mesh, &t, &wrong);
        DT_ASSERT(apart(&wrong, &one) > plain);
    }
}
