/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes over rows of several sequences whose keys lie in blocks: whatever is read together, in
 * whatever chunks, blocks and slots, a token's logits are the bits of its sequence alone. What
 * cannot be run so is refused, and memory is what was said. */
#include <stdio.h>
#include <string.h>

#include "dtensor/device/device.h"
#include "models/model.h"
#include "models/run/ragged.h"
#include "tests/support/dt_test.h"
#include "tests/support/ragged_scene.h"
#include "tests/support/tensors.h"

DT_TEST(ragged, a_token_has_the_bits_that_it_has_alone)
{
    static const ragged_case cases[] = {
        { "llama/uneven", "tp=1", NULL, NULL, DT_F32, 0, 0, 0 },
        { "llama/uneven", "tp=2", NULL, NULL, DT_BF16, 0, 0, 0 },
        { "phi3/base", "tp=1", NULL, NULL, DT_BF16, 0, 8, 0 },
        { "gemma3/uneven", "tp=3", NULL, NULL, DT_BF16, 0, 0, 0 },
        { "gpt_neo/uneven", "tp=2", NULL, NULL, DT_F32, 64, 0, 0 },
        { "qwen3_moe/uneven", "tp=4", NULL, NULL, DT_BF16, 0, 0, 0 },
        { "llama/tied", "tp=2", "int4", NULL, DT_BF16, 0, 0, 0 },
        { "qwen3/uneven", "pp=2", NULL, NULL, DT_BF16, 0, 0, 0 },
        { "deepseek_v3/uneven", "tp=2", NULL, NULL, DT_BF16, 0, 0, 0 },
        { "gemma2/uneven", "dp=2", NULL, NULL, DT_F32, 0, 0, 0 },
        { "mixtral/base", "dp=2,tp=2", "int8", NULL, DT_F32, 0, 0, 0 },
        { "qwen3_next/uneven", "tp=1", NULL, NULL, DT_F32, 0, 0, 0 },
        { "qwen3_next/uneven", "tp=2", NULL, NULL, DT_BF16, 0, 0, 0 },
        { "qwen3_next/base", "dp=2", NULL, NULL, DT_F32, 0, 0, 0 },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) ragged_check(&cases[i], NULL);
}

/* --- what is refused -------------------------------------------------------------------------- */

enum { ROWS = 4, SEQUENCES = 2, MAX_BLOCKS = 2 };

/* A pass that is right, and what is made wrong in it. */
typedef struct small_pass {
    int32_t ids[ROWS], positions[ROWS], sequence[ROWS], table[SEQUENCES * MAX_BLOCKS], out[2];
    dti_ragged call;
} small_pass;

static void right_pass(small_pass *p)
{
    *p = (small_pass){ .ids = { 5, 6, 7, 0 },
                       .positions = { 0, 1, 0, 0 },
                       .sequence = { 0, 0, 1, -1 },
                       .table = { 2, -1, 0, -1 },
                       .out = { 1, 2 } };
    p->call = (dti_ragged){ .n_rows = ROWS,
                            .ids = p->ids,
                            .positions = p->positions,
                            .sequence = p->sequence,
                            .n_sequences = SEQUENCES,
                            .max_blocks = MAX_BLOCKS,
                            .table = p->table,
                            .n_out = 2,
                            .out_rows = p->out };
}

typedef struct wrong_value {
    size_t at; /* in small_pass */
    int32_t value;
    const char *message;
} wrong_value;

#define AT(field, i) (offsetof(small_pass, field) + (i) * sizeof(int32_t))
static const wrong_value wrong_values[] = {
    { AT(ids, 1), 257, "token id 257 in row 1 is outside the vocabulary" },
    { AT(ids, 3), -1, "token id -1 in row 3" },
    { AT(positions, 2), 128, "row 2 has position 128; the model and the table have 0 to 127" },
    { AT(positions, 2), -1, "row 2 has position -1" },
    { AT(positions, 1), 0, "rows of a sequence come in order, each once" },
    { AT(sequence, 0), 2, "row 0 is of sequence 2; there are 0 to 1" },
    { AT(sequence, 0), -2, "row 0 is of sequence -2" },
    { AT(table, 0), -1, "row 0 writes position 0 of sequence 0, which no block is for" },
    { AT(table, 3), 3, "block 3 of sequence 1; the pool has 0 to 2" },
    { AT(table, 3), -2, "block -2 of sequence 1" },
    { AT(table, 3), 2, "block 2 is written by sequence 0, and sequence 1 has it too" },
    { AT(table, 2), 2, "and sequence 0 has it too: it needs a copy of its own" },
    { AT(out, 1), 4, "logits are wanted of row 4; there are 0 to 3" },
    { AT(out, 0), -2, "logits are wanted of row -2" },
};

static dt_status load(dt_mesh *mesh, const char *fixture, dt_model **out)
{
    char folder[DT_TEST_PATH_BYTES];

    return dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/%s", fixture), NULL, out);
}

static dt_status refuse_passes(dt_mesh *mesh, const void *arg)
{
    dt_model *m = NULL;
    dti_kv_pool *pool = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;
    small_pass p;

    (void)arg;
    DT_TRY_TO(done, st, load(mesh, "llama/uneven", &m));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dti_kv_pool_create(m, 3, &pool));
    for (size_t i = 0; i < DT_COUNT(wrong_values); i++) {
        const wrong_value *w = &wrong_values[i];
        right_pass(&p);
        memcpy((char *)&p + w->at, &w->value, sizeof w->value);
        dt_tape_reset(t);
        DT_EXPECT_TO(done, st, dti_ragged_pass(t, m, pool, &p.call) == NULL, "case %zu", i);
        DT_EXPECT_TO(done, st,
                     dt_tape_status(t) == DT_ERR_ARG &&
                         strstr(dt_last_error()->message, w->message) != NULL,
                     "case %zu: %s", i, dt_last_error()->message);
    }
    right_pass(&p);
    p.call.table = NULL;
    dt_tape_reset(t);
    DT_EXPECT_TO(done, st, dti_ragged_pass(t, m, pool, &p.call) == NULL, "no table");
    right_pass(&p); /* and what is right goes on */
    dt_tape_reset(t);
    DT_EXPECT_TO(done, st, dti_ragged_pass(t, m, pool, &p.call) != NULL, "%s",
                 dt_last_error()->message);
    st = dt_test_expect_status(__func__, __FILE__, __LINE__, dti_kv_pool_copy_block(pool, 0, 0, 3),
                               DT_ERR_ARG, "block 3 would become a copy of 0");
    if (st == DT_OK)
        st = dt_test_expect_status(__func__, __FILE__, __LINE__,
                                   dti_kv_pool_copy_block(pool, 1, 0, 1), DT_ERR_ARG,
                                   "replica 1; there are 1");
done:
    dti_kv_pool_release(&pool);
    dt_tape_release(&t);
    dt_model_release(&m);
    return st;
}

DT_TEST(ragged, what_is_wrong_with_a_pass_is_said_before_anything_is_written)
{
    dt_test_on_ranks("tp=1", refuse_passes, NULL);
    dt_test_on_ranks("tp=2", refuse_passes, NULL);
}

/* Passes one after the other over two sequences whose layers carry state: `message` NULL, or what
 * is wrong. */
static const struct slot_step {
    int32_t positions[2], slots[2];
    const char *message;
} slot_steps[] = {
    { { 0, 1 }, { 0, -1 }, "row 1 is of sequence 1 in slot -1; there are 0 to 2" },
    { { 0, 0 }, { 3, 1 }, "row 0 is of sequence 0 in slot 3" },
    { { 0, 0 }, { 2, 2 }, "sequences 0 and 1 are both in slot 2" },
    { { 0, 1 }, { 0, 1 }, "row 1 has position 1 of sequence 1, but slot 1 has read 0 tokens" },
    { { 0, 0 }, { 0, 1 }, NULL },
    { { 1, 2 }, { 0, 1 }, "row 1 has position 2 of sequence 1, but slot 1 has read 1 tokens" },
    { { 1, 1 }, { 0, 1 }, NULL },
    { { 1, 2 }, { 0, 1 }, "row 0 has position 1 of sequence 0, but slot 0 has read 2 tokens" },
    { { 2, 0 }, { 1, 0 }, NULL }, /* they have changed places, and one begins anew */
    { { 1, 3 }, { 0, 1 }, NULL },
};

static dt_status refuse_slots(dt_mesh *mesh, const void *arg)
{
    dti_kv_pool *pool = NULL;
    DT_HELD(model) *m = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_status st = DT_OK;
    small_pass p;

    (void)arg;
    DT_TRY(load(mesh, "qwen3_next/base", &m));
    DT_TRY(dti_kv_pool_create(m, 3, &pool));
    DT_TRY_TO(done, st, dti_kv_pool_set_slots(pool, 3));
    for (size_t i = 0; i < DT_COUNT(slot_steps); i++) {
        const struct slot_step *s = &slot_steps[i];
        right_pass(&p);
        p.call.n_rows = 2;
        p.sequence[1] = 1;
        p.out[0] = 0;
        p.out[1] = 1;
        memcpy(p.positions, s->positions, sizeof s->positions);
        p.call.slots = s->slots;
        dt_tape_reset(t);
        (void)dti_ragged_pass(t, m, pool, &p.call);
        DT_EXPECT_TO(done, st,
                     s->message == NULL ? dt_tape_status(t) == DT_OK
                                        : dt_tape_status(t) == DT_ERR_ARG &&
                                              strstr(dt_last_error()->message, s->message) != NULL,
                     "step %zu: %s", i, dt_last_error()->message);
    }
    p.call.slots = NULL;
    dt_tape_reset(t);
    DT_EXPECT_TO(done, st, dti_ragged_pass(t, m, pool, &p.call) == NULL, "no slots");
    st = dt_test_expect_status(__func__, __FILE__, __LINE__, dti_kv_pool_copy_slot(pool, 0, 1, 3),
                               DT_ERR_ARG, "slot 3 of replica 0 would become a copy of 1");
done:
    dti_kv_pool_release(&pool);
    return st;
}

DT_TEST(ragged, a_slot_goes_on_where_it_is_and_nowhere_else)
{
    dt_test_on_ranks("tp=1", refuse_slots, NULL);
    dt_test_on_ranks("tp=2", refuse_slots, NULL);
}

static dt_status refuse_model(dt_mesh *mesh, const void *arg)
{
    dti_kv_pool *pool = NULL;
    DT_HELD(model) *m = NULL;

    DT_TRY(load(mesh, arg, &m));
    DT_EXPECT_STATUS(dti_ragged_check(m), DT_ERR_UNSUPPORTED, "cannot lie in blocks");
    DT_EXPECT_STATUS(dti_kv_pool_create(m, 3, &pool), DT_ERR_UNSUPPORTED, "rotates positions");
    DT_EXPECT(pool == NULL, "none");
    return DT_OK;
}

DT_TEST(ragged, models_whose_keys_change_with_the_length_are_refused)
{
    dt_test_on_ranks("tp=1", refuse_model, "phi3/longrope");
    dt_test_on_ranks("tp=1", refuse_model, "qwen2/dynamic");
}

/* --- what is held ----------------------------------------------------------------------------- */

static dt_status caches_of(dt_runtime *rt, int64_t *bytes)
{
    dti_device *device;

    DT_TRY(dti_device_of(rt, &device));
    *bytes = (int64_t)dti_memory_of_kind(device->memory, DTI_KIND_CACHES);
    return DT_OK;
}

/* Bytes of a block on this rank; *of_dry: those that a dry model says. */
static dt_status predict(dt_mesh *mesh, const char *spec, int64_t *of_dry)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    dt_runtime *rt = NULL, *whole = dt_mesh_runtime(mesh);
    dti_kv_pool *pool = NULL;
    dt_mesh *dry = NULL;
    dt_model *m = NULL;
    dt_status st = DT_OK;
    int64_t held;

    run.n_ranks = dt_mesh_n_ranks(mesh);
    DT_TRY_TO(done, st, dt_runtime_create_dry(&run, dt_runtime_rank(whole), whole, &rt));
    DT_TRY_TO(done, st, dt_mesh_create(rt, spec, &dry));
    DT_TRY_TO(done, st, load(dry, "qwen3/uneven", &m));
    DT_TRY_TO(done, st, dti_kv_pool_create(m, 1, &pool));
    DT_TRY_TO(done, st, dti_kv_pool_resize(pool, 1000));
    *of_dry = dti_kv_pool_block_bytes(pool);
    DT_TRY_TO(done, st, caches_of(rt, &held));
    DT_EXPECT_TO(done, st, held >= 1000 * *of_dry, "%lld bytes of caches", (long long)held);
done:
    dti_kv_pool_release(&pool);
    dt_model_release(&m);
    dt_mesh_release(&dry);
    dt_runtime_release_dry(&rt);
    return st;
}

static dt_status hold(dt_mesh *mesh, const void *arg)
{
    dti_kv_pool *pool = NULL;
    DT_HELD(model) *m = NULL;
    int64_t of_dry = 0, before, held, after;

    DT_TRY(predict(mesh, arg, &of_dry));
    DT_TRY(load(mesh, "qwen3/uneven", &m));
    DT_TRY(caches_of(dt_mesh_runtime(mesh), &before));
    DT_TRY(dti_kv_pool_create(m, 40, &pool));
    DT_TRY(caches_of(dt_mesh_runtime(mesh), &held));
    DT_EXPECT_EQ_INT(dti_kv_pool_block_bytes(pool), of_dry);
    DT_EXPECT_EQ_INT(dti_kv_pool_n_blocks(pool), 40);
    /* pieces are rounded to lines, of keys and of values of each layer */
    DT_EXPECT(held - before >= 40 * of_dry && held - before <= 40 * of_dry + 6 * 256,
              "%lld bytes of caches, not %lld", (long long)(held - before),
              (long long)(40 * of_dry));
    dti_kv_pool_release(&pool);
    DT_TRY(caches_of(dt_mesh_runtime(mesh), &after));
    DT_EXPECT_EQ_INT(after, before);
    return DT_OK;
}

DT_TEST(ragged, a_pool_takes_what_a_dry_one_says)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "dp=2", "dp=2,tp=2" };

    for (size_t i = 0; i < DT_COUNT(meshes); i++) dt_test_on_ranks(meshes[i], hold, meshes[i]);
}

/* --- ranks and callers ------------------------------------------------------------------------ */

/* Rank 1 is handed another block. */
static dt_status hand_other_rows(dt_mesh *mesh, const void *arg)
{
    dti_kv_pool *pool = NULL;
    dt_model *m = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;
    small_pass p;

    (void)arg;
    right_pass(&p);
    p.table[2] = dt_runtime_rank(dt_mesh_runtime(mesh)) == 1 ? 1 : 0;
    DT_TRY_TO(done, st, load(mesh, "llama/uneven", &m));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dti_kv_pool_create(m, 3, &pool));
    (void)dti_ragged_pass(t, m, pool, &p.call);
    st = dt_tape_status(t);
done:
    dti_kv_pool_release(&pool);
    dt_tape_release(&t);
    dt_model_release(&m);
    return st;
}

DT_TEST(ragged, ranks_that_are_handed_other_rows_hear_of_it)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;

    options.check = "agree";
    DT_ASSERT_STATUS(dt_test_run(&options, "tp=2", hand_other_rows, NULL), DT_ERR_ARG,
                     "pass over 4 rows of 2 sequences");
}

/* Layers that were told of, until it is broken off. */
typedef struct listened {
    int64_t told, asked, most;
} listened;

static void tell(void *arg, int64_t done, int64_t n)
{
    ((listened *)arg)->told += done < n;
}

static bool go_on(void *arg)
{
    listened *l = arg;

    return ++l->asked <= l->most;
}

static dt_status break_off(dt_mesh *mesh, const void *arg)
{
    listened l = { .most = 1 };
    dti_kv_pool *pool = NULL;
    dt_model *m = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;
    small_pass p;

    (void)arg;
    right_pass(&p);
    p.call.progress = tell;
    p.call.progress_arg = p.call.go_on_arg = &l;
    p.call.go_on = go_on;
    DT_TRY_TO(done, st, load(mesh, "llama/uneven", &m));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dti_kv_pool_create(m, 3, &pool));
    DT_EXPECT_TO(done, st, dti_ragged_pass(t, m, pool, &p.call) == NULL && l.told == 2, "told %lld",
                 (long long)l.told);
    DT_EXPECT_TO(done, st, strstr(dt_last_error()->message, "broken off before layer 1") != NULL,
                 "%s", dt_last_error()->message);
    l = (listened){ .most = 100 };
    dt_tape_reset(t);
    DT_EXPECT_TO(done, st, dti_ragged_pass(t, m, pool, &p.call) != NULL && l.told == 2, "again");
done:
    dti_kv_pool_release(&pool);
    dt_tape_release(&t);
    dt_model_release(&m);
    return st;
}

/* What layers carry has moved on in some of them: sequences begin anew, with what they had. */
static dt_status break_off_in_slots(dt_mesh *mesh, const void *arg)
{
    static const int32_t slots[] = { 1, 0 };
    listened l = { .most = 1 };
    dti_kv_pool *pool = NULL;
    DT_HELD(model) *m = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *first = NULL;
    dt_status st = DT_OK;
    small_pass p;

    (void)arg;
    DT_TRY(load(mesh, "qwen3_next/base", &m));
    DT_TRY(dti_kv_pool_create(m, 3, &pool));
    DT_TRY_TO(done, st, dti_kv_pool_set_slots(pool, 2));
    for (int i = 0; i < 4; i++) {
        dt_tensor *y;
        right_pass(&p);
        p.call.slots = slots;
        p.call.go_on = i == 1 ? go_on : NULL;
        p.call.go_on_arg = &l;
        for (int r = 0; r < 3; r++) p.positions[r] += i == 1 || i == 2 ? 2 - r / 2 : 0;
        dt_tape_reset(t);
        y = dti_ragged_pass(t, m, pool, &p.call);
        if (i == 1 || i == 2) {
            const char *words = i == 1 ? "broken off before layer 1" : "has failed in slot 1";
            DT_EXPECT_TO(done, st, y == NULL && strstr(dt_last_error()->message, words) != NULL,
                         "pass %d: %s", i, dt_last_error()->message);
            continue;
        }
        DT_EXPECT_TO(done, st, y != NULL, "pass %d: %s", i, dt_last_error()->message);
        if (i == 0) first = dt_tensor_retain(y);
        if (i == 3) st = dt_test_expect_same(y, first, "the first pass");
    }
done:
    dti_kv_pool_release(&pool);
    return st;
}

DT_TEST(ragged, a_pass_is_broken_off_between_layers_and_may_be_run_again)
{
    dt_test_on_ranks("tp=2", break_off, NULL);
    dt_test_on_ranks("tp=2", break_off_in_slots, NULL);
}
