/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts of a model with linear attention in an engine: slots for what its layers carry are counted,
 * bounded, used again, and hold what a text alone leaves. Many texts of every kind are in
 * test_engine.c. */
#include <dtensor/engine.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "models/run/forward.h"
#include "tests/support/dt_test.h"

enum { TEXTS = 7, LONGEST = 40, NEW = 9, VOCAB = 83, MOST_STEPS = 500 };

/* The fixture's: of two layers a matrix for each value head, and a window in bf16. */
enum { KEYS = 4, GROUP = 2, E = 6, V = 5, WINDOW = 3, LAYERS = 2 };

typedef struct texts {
    int32_t ids[TEXTS][LONGEST];
    int64_t n[TEXTS], n_made[TEXTS];
    int32_t alone[TEXTS][NEW], made[TEXTS][NEW];
} texts;

static dt_status load(dt_mesh *mesh, dt_model **m)
{
    char folder[DT_TEST_PATH_BYTES];

    return dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/qwen3_next/base"), NULL,
                         m);
}

/* Token by token from a state of its own. */
static dt_status make_alone(dt_model *m, texts *x, int i)
{
    DT_HELD(tape) *t = dt_test_tape(dt_model_mesh(m));
    DT_HELD(state) *s = NULL;
    const int32_t *ids = x->ids[i];
    int64_t n = x->n[i];

    DT_TRY(dt_state_create(m, 1, LONGEST + NEW, &s));
    for (int k = 0; k < NEW; k++) {
        dt_tensor *logits, *id, *key;
        DT_HELD(tensor) *whole = NULL;
        dt_tape_reset(t);
        logits = dt_model_forward(t, m, s, ids, n, DT_LOGITS_LAST);
        id = dti_choose_greedy(t, logits, &key);
        DT_TRY(dt_tape_status(t));
        DT_TRY(dt_full_tensor(id, &whole));
        x->alone[i][k] = ((const int32_t *)dt_tensor_local(whole)->data)[0];
        ids = &x->alone[i][k];
        n = 1;
    }
    return DT_OK;
}

static dt_status submit(dt_engine *e, texts *x, int i)
{
    dt_engine_request q = DT_ENGINE_REQUEST_INIT;
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    const dt_ids prompt = { x->ids[i], x->n[i] };
    int64_t number;

    o.max_new_tokens = NEW;
    o.ignore_eos = true;
    q.prompts = &prompt;
    q.n_prompts = 1;
    q.options = &o;
    DT_TRY(dt_engine_submit(e, &q, &number));
    DT_EXPECT(number == i + 1, "request %lld", (long long)number);
    return DT_OK;
}

/* All at once: no more of them run than there are slots, and one is cancelled. */
static dt_status make_together(dt_engine *e, texts *x, int64_t slots)
{
    const dt_engine_event *events;
    dt_engine_counts c;
    int64_t n, most = 0;

    for (int i = 0; i < TEXTS; i++) DT_TRY(submit(e, x, i));
    for (int k = 0; dt_engine_is_busy(e) && k < MOST_STEPS; k++) {
        if (k == 4) DT_TRY(dt_engine_cancel(e, 1));
        DT_TRY(dt_engine_step(e, &events, &n));
        for (int64_t i = 0; i < n; i++)
            if (events[i].kind == DT_ENGINE_TOKEN)
                x->made[events[i].request - 1][x->n_made[events[i].request - 1]++] = events[i].id;
        DT_TRY(dt_engine_count(e, &c));
        most = c.running > most ? c.running : most;
    }
    DT_EXPECT(!dt_engine_is_busy(e), "texts never end");
    DT_EXPECT(most == slots && c.running == 0 && c.used_blocks == 0, "%lld texts ran in %lld slots",
              (long long)most, (long long)slots);
    DT_EXPECT_EQ_INT(c.found_tokens, 0); /* though beginnings are the same */
    for (int i = 0; i < TEXTS; i++) {
        DT_EXPECT(i == 0 || x->n_made[i] == NEW, "%lld tokens", (long long)x->n_made[i]);
        for (int64_t k = 0; k < x->n_made[i]; k++)
            DT_EXPECT(x->made[i][k] == x->alone[i][k], "token %lld of text %d is %d, alone %d",
                      (long long)k, i, x->made[i][k], x->alone[i][k]);
    }
    return DT_OK;
}

/* Of bytes half become slots, and fewer texts run than asked for; with tokens for the pool as many
 * as asked for. */
static dt_status few_slots(dt_mesh *mesh, const void *arg)
{
    const int64_t ranks = dt_mesh_dim_size(mesh, 0), f32 = (int64_t)sizeof(float);
    const int64_t window = WINDOW * (2 * E + GROUP * V) * (int64_t)sizeof(uint16_t);
    const int64_t slot = LAYERS * KEYS / ranks * (GROUP * E * V * f32 + window);
    const bool bytes = *(const bool *)arg;
    dt_engine_options o = DT_ENGINE_OPTIONS_INIT;
    DT_HELD(model) *m = NULL;
    DT_FREED texts *x = NULL;
    dt_engine *e = NULL;
    dt_engine_counts c;
    dt_status st;

    DT_TRY(dti_new(sizeof *x, &x));
    for (int i = 0; i < TEXTS; i++) {
        x->n[i] = 3 + i * 23 % (LONGEST - 3);
        for (int j = 0; j < LONGEST; j++) x->ids[i][j] = (5 + j * j * 3 + (j > 9 ? i : 0)) % VOCAB;
    }
    DT_TRY(load(mesh, &m));
    for (int i = 0; i < TEXTS; i++) DT_TRY(make_alone(m, x, i));
    o.max_rows = 13;
    o.max_texts = bytes ? 13 : 2;
    o.pool_bytes = bytes ? 18 * slot + 100 : 0;
    o.pool_tokens = bytes ? 0 : 512;
    DT_TRY(dt_engine_create(m, &o, &e));
    st = dt_engine_count(e, &c);
    if (st == DT_OK) st = make_together(e, x, dti_min(c.slots, c.blocks));
    dt_engine_release(&e);
    DT_TRY(st);
    DT_EXPECT(c.slots == (bytes ? 9 : 2) && c.slot_bytes == slot, "%lld slots of %lld bytes",
              (long long)c.slots, (long long)c.slot_bytes);
    DT_EXPECT(!bytes || (c.blocks == 1 && 9 * slot + c.block_bytes <= o.pool_bytes),
              "%lld blocks of %lld bytes", (long long)c.blocks, (long long)c.block_bytes);
    return DT_OK;
}

DT_TEST(engine_slots, texts_wait_for_slots_and_are_those_of_a_state)
{
    static const bool bytes = true, tokens = false;

    dt_test_on_ranks("tp=1", few_slots, &tokens);
    dt_test_on_ranks("tp=2", few_slots, &tokens);
    dt_test_on_ranks("tp=1", few_slots, &bytes);
    dt_test_on_ranks("tp=2", few_slots, &bytes);
}

static dt_status no_room(dt_mesh *mesh, const void *arg)
{
    dt_engine_options o = DT_ENGINE_OPTIONS_INIT;
    DT_HELD(model) *m = NULL;
    dt_engine *e = NULL;

    (void)arg;
    DT_TRY(load(mesh, &m));
    o.pool_bytes = 5000;
    DT_EXPECT_STATUS(dt_engine_create(m, &o, &e), DT_ERR_MEMORY,
                     "half of the pool has no room for the 2976 bytes that layers carry of a text; "
                     "raise pool_bytes or pool_share: 32768 bytes on each rank are enough");
    o.pool_bytes = 32768;
    DT_TRY(dt_engine_create(m, &o, &e));
    dt_engine_release(&e);
    o.pool_bytes = 17000; /* a block, but nothing beside it */
    DT_EXPECT_STATUS(dt_engine_create(m, &o, &e), DT_ERR_MEMORY,
                     "no room for a block of 128 tokens, 16384 bytes");
    DT_EXPECT(e == NULL, "an engine");
    return DT_OK;
}

DT_TEST(engine_slots, a_pool_without_room_for_both_is_refused)
{
    dt_test_on_ranks("tp=1", no_room, NULL);
}

/* Before there is an engine: a token of the fixture is 128 bytes in bf16. */
DT_TEST(engine_slots, tokens_of_a_pool_are_what_slots_leave)
{
    dt_model_info info;
    char folder[DT_TEST_PATH_BYTES];

    DT_ASSERT_OK(dt_model_inspect(dt_test_source_path(folder, "tests/golden/qwen3_next/base"),
                                  &info, NULL, NULL));
    DT_ASSERT_EQ_INT(info.carried_bytes, 4032);
    DT_ASSERT_EQ_INT(dt_engine_pool_tokens(&info, DT_BF16, 100000, 4), (100000 - 4 * 4032) / 128);
    DT_ASSERT_EQ_INT(dt_engine_pool_tokens(&info, DT_BF16, 40000, 10), (40000 - 4 * 4032) / 128);
    DT_ASSERT_EQ_INT(dt_engine_pool_tokens(&info, DT_BF16, 5000, 10), 0); /* none has a slot */
    DT_ASSERT_EQ_INT(dt_engine_pool_tokens(&info, DT_BF16, -1, 4), 0);
    DT_ASSERT_EQ_INT(dt_engine_pool_tokens(NULL, DT_BF16, 100000, 4), 0);
}
