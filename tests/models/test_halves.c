/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward passes of models in two halves, of several microbatches at a time: gradients have the
 * bits of whole passes one after the other, and the same travels. */
#include <dtensor/model_training.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/gather.h"
#include "tests/support/dt_test.h"
#include "tests/support/golden.h"
#include "tests/support/tensors.h"

enum { ROWS = 4, TOKENS = 9 };

typedef struct case_of {
    char folder[DT_TEST_PATH_BYTES];
    const char *fully_shard;
    dt_dtype dtype;
    bool sequence_parallel;
    bool experts; /* their gathered parameters are read in both halves */
} case_of;

/* What two passes have made: references of all gradients, and what was counted. */
typedef struct made {
    int64_t n;
    dt_tensor **dx;
    dt_comm_counter comm[DT_N_COMM_KINDS];
} made;

static void drop(made *m)
{
    for (int64_t i = 0; i < m->n; i++) dt_tensor_release(&m->dx[i]);
    dti_free(m->dx);
}

static dt_tensor *loss_of(dt_model *m, dt_tape *t, int batch, const dt_loss_options *how)
{
    int32_t ids[ROWS * TOKENS], next[ROWS * TOKENS];

    for (int i = 0; i < ROWS * TOKENS; i++) {
        ids[i] = 3 + 5 * (i + batch) % 17;
        next[i] = i % TOKENS == 2 ? -100 : 3 + 5 * (i + batch + 1) % 17;
    }
    return dt_model_loss(t, m, dt_model_ids(t, m, ids, ROWS, TOKENS),
                         dt_model_ids(t, m, next, ROWS, TOKENS), how);
}

/* Two microbatches, one after the other. */
static dt_status run_whole(dt_model *m, dt_gradients *g, dt_tape *const *t,
                           const dt_loss_options *how)
{
    for (int i = 0; i < 2; i++) {
        dt_tape_record(t[i], g);
        dt_backward(t[i], loss_of(m, t[i], i, how), NULL);
        DT_TRY(dt_tape_status(t[i]));
    }
    return DT_OK;
}

static dt_status nothing_is_gathered(const dt_model *m)
{
    int64_t now, most;

    dti_gathered_bytes(dt_mesh_runtime(dt_model_mesh(m)), &now, &most);
    DT_EXPECT(now == 0, "%lld bytes are gathered", (long long)now);
    return DT_OK;
}

/* In halves, of which the second ones wait for both first ones. */
static dt_status run_halves(dt_model *m, dt_gradients *g, dt_tape *const *t,
                            const dt_loss_options *how)
{
    dt_tensor *loss[2];

    for (int i = 0; i < 2; i++) {
        dt_tape_record(t[i], g);
        loss[i] = loss_of(m, t[i], i, how);
    }
    for (int i = 0; i < 2; i++)
        dt_backward(t[i], loss[i], &(dt_backward_options){ .half = DT_BACKWARD_INPUTS });
    DT_TRY(nothing_is_gathered(m));
    for (int i = 0; dt_gradients_at(g, i) != NULL; i++)
        DT_EXPECT(dt_gradient(g, dt_gradients_at(g, i)) == NULL, "leaf %d has a gradient", i);
    for (int i = 0; i < 2; i++) {
        DT_TRY(dt_tape_status(t[i]));
        DT_EXPECT(dt_tape_kept_bytes(t[i]) > 0, "nothing is kept between");
        dt_backward(t[i], NULL, &(dt_backward_options){ .half = DT_BACKWARD_WEIGHTS });
        DT_TRY(dt_tape_status(t[i]));
        DT_EXPECT(dt_tape_kept_bytes(t[i]) == 0, "something stays");
    }
    return DT_OK;
}

static dt_status run(dt_model *m, dt_gradients *g, const dt_loss_options *how, bool halves,
                     made *out)
{
    dt_mesh *mesh = dt_model_mesh(m);
    DT_HELD(tape) *one = dt_test_tape(mesh), *two = dt_test_tape(mesh);
    dt_tape *const t[] = { one, two };
    int64_t n = 0;

    DT_TRY((halves ? run_halves : run_whole)(m, g, t, how));
    DT_TRY(dt_gradients_settle(g, one));
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        for (int i = 0; i < 2; i++) {
            const dt_comm_counter c = dt_tape_comm(t[i], (dt_comm_kind)k);
            out->comm[k].calls += c.calls;
            out->comm[k].bytes += c.bytes;
        }
    while (dt_gradients_at(g, n) != NULL) n++;
    DT_TRY(dti_alloc_array((size_t)n, sizeof *out->dx, (void **)&out->dx));
    for (; out->n < n; out->n++)
        out->dx[out->n] = dt_tensor_retain(dt_gradient(g, dt_gradients_at(g, out->n)));
    dt_gradients_clear(g);
    dt_tape_reset(one);
    dt_tape_reset(two);
    return nothing_is_gathered(m);
}

static dt_status compare(dt_model *m, dt_gradients *g, const dt_loss_options *how, const case_of *c)
{
    made whole = { 0 }, halves = { 0 };
    dt_status st = DT_OK;

    DT_TRY_TO(done, st, run(m, g, how, false, &whole));
    DT_TRY_TO(done, st, run(m, g, how, true, &halves));
    for (int64_t i = 0; i < whole.n; i++)
        DT_TRY_TO(done, st, dt_test_expect_same(halves.dx[i], whole.dx[i], "a whole pass"));
    for (int k = 0; k < DT_N_COMM_KINDS && !c->experts; k++)
        DT_EXPECT_TO(done, st, memcmp(&whole.comm[k], &halves.comm[k], sizeof *whole.comm) == 0,
                     "%s: %lld bytes, in halves %lld", dt_comm_kind_name((dt_comm_kind)k),
                     (long long)whole.comm[k].bytes, (long long)halves.comm[k].bytes);
done:
    drop(&whole);
    drop(&halves);
    return st;
}

static dt_status every_way(dt_mesh *mesh, const void *arg)
{
    const case_of *c = arg;
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    DT_HELD(model) *m = NULL;
    DT_HELD(gradients) *g = NULL;

    o.keep_dtype = false;
    o.dtype = c->dtype;
    o.fully_shard = c->fully_shard;
    o.sequence_parallel = c->sequence_parallel;
    o.dim = dt_mesh_find_dim(mesh, "tp") >= 0 ? "tp" : "tp?";
    DT_TRY(dt_model_load(mesh, c->folder, &o, &m));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_layers_watch(dt_model_layers(m), g));
    for (int k = 0; k < 4; k++) {
        dt_loss_options how = DT_LOSS_OPTIONS_INIT;
        how.recompute = k == 1   ? DT_RECOMPUTED_CHEAP
                        : k == 2 ? DT_RECOMPUTED_BLOCKS
                                 : DT_RECOMPUTED_NOTHING;
        how.chunk = k == 3 ? 4 : 0;
        how.n_valid = ROWS * (TOKENS - 1);
        DT_TRY(compare(m, g, &how, c));
    }
    return DT_OK;
}

DT_TEST(halves, of_models_have_the_bits_of_a_whole_pass)
{
    static const struct {
        const char *folder, *mesh, *fully_shard;
        dt_dtype dtype;
        bool sequence_parallel;
    } cases[] = {
        { "llama/tied", "tp=1", NULL, DT_F32, false },
        { "llama/biases", "dp=2,tp=2", NULL, DT_BF16, false },
        { "llama/uneven", "tp=3", NULL, DT_BF16, true },
        { "gpt_neo/base", "tp=2", NULL, DT_F32, true },
        { "gemma3/base", "tp=2", NULL, DT_BF16, false },
        { "phi3/uneven", "dp=2,tp=2", "dp", DT_F32, false },
        { "llama/tied", "dp=2,tp=2", "dp", DT_BF16, true },
        { "qwen3_moe/uneven", "tp=2", NULL, DT_F32, false },
        { "qwen3_moe/uneven", "dp=2", "dp", DT_F32, false },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        case_of c = { .fully_shard = cases[i].fully_shard,
                      .dtype = cases[i].dtype,
                      .sequence_parallel = cases[i].sequence_parallel,
                      .experts = strncmp(cases[i].folder, "qwen3_moe", 9) == 0 };
        (void)dt_test_source_path(c.folder, "tests/golden/%s", cases[i].folder);
        dt_test_on_ranks(cases[i].mesh, every_way, &c);
    }
}
