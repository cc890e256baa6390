/* SPDX-License-Identifier: Apache-2.0
 *
 * What docs/gradients.md quotes, and what it says of rows. */
#include <dtensor.h>
#include <stdio.h>
#include <string.h>

#include "files/safetensors.h"
#include "tests/support/dt_test.h"

/* Rows that a gradient cannot pass, without those of gradients, whose names have "backward". */
static const char *const no_backward[] = {
    /* choices and counts: there is no slope */
    "compare", "argmax_key", "argmax_id", "top_k_keys", "top_k", "route_ids", "route_ids_bias",
    "count_targets",
    /* parts of a row that has one, caches, tables, sums of gradients */
    "attention", "attention_bias", "attention_sinks", "attention_bias_sinks", "attention_stats",
    "cross_entropy_sums", "kv_write", "rope_table", "accumulate",
    /* rows of many sequences, whose keys lie in blocks and states in slots, for serving */
    "kv_write_paged", "attention_paged", "attention_paged_bias", "attention_paged_sinks",
    "attention_paged_bias_sinks", "causal_conv_slots", "gated_delta_slots",
    /* weights of few bits, which nobody trains */
    "linear_packed", "linear_packed_zeros", "linear_e4m3", "experts_packed", "experts_packed_zeros",
    "experts_e4m3"
};

static bool is_listed(const char *name)
{
    for (size_t i = 0; i < DT_COUNT(no_backward); i++)
        if (strcmp(no_backward[i], name) == 0) return true;
    return false;
}

DT_TEST(gradients_page, lists_the_rows_without_a_backward)
{
    const dt_op *op;
    size_t n = 0;

    for (int i = 0; (op = dt_op_at(i)) != NULL; i++) {
        if (strstr(op->name, "backward") != NULL) continue;
        if (is_listed(op->name) == (op->backward != NULL))
            dt_test_fail(__FILE__, __LINE__, "%s %s a backward: mend `no_backward`, make pages",
                         op->name, op->backward != NULL ? "has" : "lacks");
        n += op->backward == NULL;
    }
    DT_ASSERT_EQ_INT(n, DT_COUNT(no_backward));
}

/* Gradients of all parameters, as a file of the names that the checkpoint has. */
static dt_status differentiate(dt_model *model, const int32_t *tokens, const int32_t *labels,
                               int64_t rows, int64_t length, const char *file)
{
    dt_runtime *rt = dt_mesh_runtime(dt_model_mesh(model));
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    dt_tensor *ids, *targets, *loss;
    dt_gradients *g = NULL;
    dt_tape *t = NULL;
    dt_status st;

    how.recompute = DT_RECOMPUTED_BLOCKS;
    DT_TRY_TO(done, st, dt_tape_create(rt, &t));
    DT_TRY_TO(done, st, dt_gradients_create(rt, &g));
    DT_TRY_TO(done, st, dt_layers_watch(dt_model_layers(model), g));
    dt_tape_record(t, g);
    ids = dt_model_ids(t, model, tokens, rows, length);
    targets = dt_model_ids(t, model, labels, rows, length);
    loss = dt_model_loss(t, model, ids, targets, &how);
    dt_backward(t, loss, NULL);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, dt_gradients_settle(g, t));
    DT_TRY_TO(done, st, dt_model_write_gradients(model, g, file, NULL, NULL));
done:
    dt_tape_release(&t);
    dt_gradients_release(&g);
    return st;
}

static dt_status write_gradients(dt_mesh *mesh, const void *file)
{
    static const int32_t tokens[] = { 5, 6, 7, 8, 9, 10 }, labels[] = { 6, 7, -100, 9, 10, -100 };
    char folder[DT_TEST_PATH_BYTES];
    dt_model *model = NULL;
    dt_status st;

    DT_TRY(dt_model_load(mesh, dt_test_source_path(folder, "examples/checkpoint"), NULL, &model));
    st = differentiate(model, tokens, labels, 2, 3, file);
    dt_model_release(&model);
    return st;
}

DT_TEST(gradients_page, a_model_has_gradients)
{
    char temporary[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 8];
    dti_st_file *file;

    (void)snprintf(path, sizeof path, "%s/g", dt_test_temp_dir(temporary));
    dt_test_on_ranks("dp=2,tp=2", write_gradients, path);
    DT_ASSERT_OK(dti_st_open(path, &file));
    DT_ASSERT_EQ_INT(dti_st_count(file), 38);
    DT_ASSERT(dti_st_find(file, "model.layers.3.mlp.down_proj.weight") != NULL);
    dti_st_close(&file);
}
