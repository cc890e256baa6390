/* SPDX-License-Identifier: Apache-2.0
 *
 * The row of the padding token: it takes no gradient from where it is looked up, in the
 * architectures whose Transformers class builds nn.Embedding with a padding_idx. */
#include <dtensor/factories.h>
#include <dtensor/model_training.h>
#include <dtensor/ops.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

/* --- tied and untied tables, of operators ----------------------------------------------------- */

enum { V = 7, D = 4, N_IDS = 6, PADDING = 3 };

/* Gradients of sum(seed * (table[ids] head^T)), gathered. The head may be the table. */
static dt_status differentiate(dt_mesh *mesh, dt_tensor *table, dt_tensor *head, int64_t padding,
                               float dtable[V * D], float dhead[V * D])
{
    static const int32_t numbers[N_IDS] = { 3, 1, 3, 6, 1, 0 };
    const int64_t n = N_IDS;
    dt_tensor *const leaves[] = { table, head };
    float *const to[] = { dtable, dhead };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tensor) *ids = NULL, *weights = NULL;
    dt_tensor *y;

    DT_TRY(dt_distribute(mesh, &(dt_placement){ 0 }, DT_I32, 1, &n,
                         (dt_source){ numbers, DT_EQUAL_COPIES }, &ids));
    DT_TRY(
        dt_test_arange(mesh, &(dt_placement){ 0 }, DT_F32, 2, (int64_t[]){ N_IDS, V }, &weights));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    for (int i = 0; i < (head == table ? 1 : 2); i++) DT_TRY(dt_gradients_watch(g, leaves[i]));
    dt_tape_record(t, g);
    y = dt_test_reduced(t, dt_embedding_padded(t, ids, table, padding));
    y = dt_test_reduced(t, dt_linear(t, y, head, NULL));
    dt_backward(t, dt_sum(t, dt_mul(t, y, weights), DT_ALL_AXES), NULL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_gradients_settle(g, t));
    for (int i = 0; i < (head == table ? 1 : 2); i++) {
        DT_HELD(tensor) *whole = NULL;
        DT_TRY(dt_full_tensor(dt_gradient(g, leaves[i]), &whole));
        DT_TRY(dt_tensor_read(whole, to[i], sizeof(float[V * D])));
    }
    return DT_OK;
}

/* Whole numbers, so that no sum is rounded and every comparison is one of bits. */
static dt_status rows_of(dt_mesh *mesh, const void *arg)
{
    const dt_placement *place = arg;
    const size_t row_bytes = D * sizeof(float);
    const float zeros[D] = { 0.0f };
    float all[V * D], left[V * D], tied[V * D], head[V * D];
    DT_HELD(tensor) *table = NULL, *copy = NULL;

    DT_TRY(dt_test_arange(mesh, place, DT_F32, 2, (int64_t[]){ V, D }, &table));
    DT_TRY(dt_test_arange(mesh, place, DT_F32, 2, (int64_t[]){ V, D }, &copy));
    DT_TRY(differentiate(mesh, table, table, PADDING, tied, NULL));
    DT_TRY(differentiate(mesh, table, copy, V, all, head)); /* an id that no row has: none */
    DT_TRY(differentiate(mesh, table, copy, PADDING, left, head));
    for (int r = 0; r < V; r++) {
        const bool is_padding = r == PADDING;
        DT_EXPECT(memcmp(left + r * D, is_padding ? zeros : all + r * D, row_bytes) == 0,
                  "row %d of the table", r);
        for (int k = r * D; k < (r + 1) * D; k++)
            DT_EXPECT_CLOSE(tied[k], (double)head[k] + (double)left[k], 0);
    }
    DT_EXPECT(memcmp(all + PADDING * D, zeros, row_bytes) != 0, "padding was not looked up");
    DT_EXPECT(memcmp(tied + PADDING * D, zeros, row_bytes) != 0, "the head's gradient is lost");
    return DT_OK;
}

DT_TEST(padding, a_row_takes_no_gradient_from_where_it_is_looked_up)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3" };
    const dt_placement places[] = { DT_REPLICATE, DT_SHARD(0), DT_SHARD(1) };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t p = 0; p < DT_COUNT(places); p++)
            dt_test_on_ranks(meshes[m], rows_of, &places[p]);
}

/* --- models ----------------------------------------------------------------------------------- */

enum { ROWS = 2, TOKENS = 9, ID = 8 }; /* ID is read, in both rows */

typedef struct padded_case {
    const char *fixture, *key; /* of config.json with pad_token_id; NULL: its root */
    bool leaves_out;           /* a gradient */
    bool sequence_parallel, documents;
    char with[DT_TEST_PATH_BYTES], without[DT_TEST_PATH_BYTES];
} padded_case;

/* A copy of a checkpoint whose pad_token_id is `id`, -1: null. */
static void make_folder(const padded_case *c, int id, char folder[DT_TEST_PATH_BYTES])
{
    char from[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32], to[DT_TEST_PATH_BYTES + 32];
    json_t *config, *at;
    json_error_t e;
    char *text, *weights;

    (void)dt_test_source_path(from, "tests/golden/%s", c->fixture);
    (void)dt_test_shared_dir(folder);
    (void)snprintf(path, sizeof path, "%s/config.json", from);
    config = json_load_file(path, 0, &e);
    at = c->key != NULL ? json_object_get(config, c->key) : config;
    DT_ASSERT(json_object_set_new(at, "pad_token_id", id < 0 ? json_null() : json_integer(id)) ==
              0);
    text = json_dumps(config, 0);
    dt_test_write_file(folder, "config.json", text, strlen(text));
    (void)snprintf(path, sizeof path, "%s/model.safetensors", from);
    (void)snprintf(to, sizeof to, "%s/model.safetensors", folder);
    weights = realpath(path, NULL);
    DT_ASSERT(weights != NULL && (symlink(weights, to) == 0 || access(to, R_OK) == 0));
    free(weights);
    free(text);
    json_decref(config);
}

static dt_status gradients_of(dt_model *model, const padded_case *c, dt_gradients *g)
{
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    int32_t ids[ROWS * TOKENS], next[ROWS * TOKENS], starts[ROWS * TOKENS];
    DT_HELD(tape) *t = dt_test_tape(dt_model_mesh(model));
    dt_tensor *loss;

    for (int i = 0; i < ROWS * TOKENS; i++) {
        ids[i] = i % 4 == 1 ? ID : 3 + 5 * i % 17;
        next[i] = 3 + 5 * (i + 1) % 17;
        starts[i] = i % TOKENS < 4 ? 0 : 4;
    }
    how.starts = c->documents ? starts : NULL;
    DT_TRY(dt_layers_watch(dt_model_layers(model), g));
    dt_tape_record(t, g);
    loss = dt_model_loss(t, model, dt_model_ids(t, model, ids, ROWS, TOKENS),
                         dt_model_ids(t, model, next, ROWS, TOKENS), &how);
    dt_backward(t, loss, NULL);
    DT_TRY(dt_tape_status(t));
    return dt_gradients_settle(g, t);
}

static dt_status read_whole(dt_tensor *x, float **out, size_t *n)
{
    DT_HELD(tensor) *whole = NULL;

    DT_EXPECT(x != NULL, "a parameter without gradient");
    DT_TRY(dt_full_tensor(x, &whole));
    *n = 1;
    for (int a = 0; a < dt_tensor_n_axes(whole); a++) *n *= (size_t)dt_tensor_extent(whole, a);
    DT_TRY(dti_alloc_array(*n, sizeof **out, (void **)out));
    return dt_tensor_read(whole, *out, *n * sizeof **out);
}

/* a of the model whose padding leaves out what b's does not: the same bits but in one row. */
static dt_status compare(const padded_case *c, const dt_layer *layer, const float *a,
                         const float *b, size_t n, bool tied, int *n_rows)
{
    const dt_layer_spec *spec = dt_layer_spec_of(layer);
    const size_t width = spec->padding > 0 ? (size_t)spec->axis[1].extent : 0, at = ID * width;
    bool is_zero = true;

    if (width == 0) {
        DT_EXPECT(memcmp(a, b, n * sizeof *a) == 0, "%s: %s", c->fixture, spec->name);
        return DT_OK;
    }
    ++*n_rows;
    DT_EXPECT_EQ_INT(spec->padding, ID + 1);
    DT_EXPECT(memcmp(a, b, at * sizeof *a) == 0 &&
                  memcmp(a + at + width, b + at + width, (n - at - width) * sizeof *a) == 0,
              "%s: other rows", c->fixture);
    DT_EXPECT(memcmp(a + at, b + at, width * sizeof *a) != 0, "%s: the row", c->fixture);
    for (size_t k = at; k < at + width; k++) is_zero = is_zero && a[k] == 0.0f;
    DT_EXPECT(is_zero != tied, "%s: zeros, or the head's", c->fixture);
    return DT_OK;
}

static dt_status of_models(dt_mesh *mesh, const void *arg)
{
    const padded_case *c = arg;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    DT_HELD(model) *with = NULL, *without = NULL;
    DT_HELD(gradients) *a = NULL, *b = NULL;
    int n_rows = 0;

    load.keep_dtype = false;
    load.dtype = DT_F32;
    load.sequence_parallel = c->sequence_parallel;
    DT_TRY(dt_model_load(mesh, c->with, &load, &with));
    DT_TRY(dt_model_load(mesh, c->without, &load, &without));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &a));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &b));
    DT_TRY(gradients_of(with, c, a));
    DT_TRY(gradients_of(without, c, b));
    for (int i = 0; i < dt_layers_count(dt_model_layers(with)); i++) {
        const dt_layer *one = dt_layers_at(dt_model_layers(with), i);
        const dt_layer *other = dt_layers_at(dt_model_layers(without), i);
        for (int p = 0; p < dt_layer_n_params(one); p++) {
            DT_FREED float *of_a = NULL, *of_b = NULL;
            size_t n;
            if (!dt_layer_owns_param(one, p)) continue;
            DT_TRY(read_whole(dt_gradient(a, dt_layer_param(one, p)), &of_a, &n));
            DT_TRY(read_whole(dt_gradient(b, dt_layer_param(other, p)), &of_b, &n));
            DT_TRY(compare(c, one, of_a, of_b, n, dt_model_info_of(with)->tied, &n_rows));
        }
    }
    DT_EXPECT_EQ_INT(n_rows, c->leaves_out);
    return DT_OK;
}

DT_TEST(padding, models_leave_out_what_transformers_leaves_out)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "dp=2,tp=2" };
    static const padded_case cases[] = {
        { .fixture = "llama/uneven", .leaves_out = true },
        { .fixture = "llama/tied", .leaves_out = true, .documents = true },
        { .fixture = "qwen2/windows", .leaves_out = true },
        { .fixture = "qwen3/uneven", .leaves_out = true, .sequence_parallel = true },
        { .fixture = "qwen3_moe/base", .leaves_out = true },
        { .fixture = "phi3/uneven",
          .leaves_out = true,
          .sequence_parallel = true,
          .documents = true },
        { .fixture = "gemma3/uneven", .leaves_out = true },
        { .fixture = "gemma3/multimodal",
          .key = "text_config",
          .leaves_out = true,
          .sequence_parallel = true },
        { .fixture = "gpt_neo/uneven", .leaves_out = false },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        padded_case c = cases[i];
        make_folder(&c, ID, c.with);
        make_folder(&c, -1, c.without);
        for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], of_models, &c);
    }
}
