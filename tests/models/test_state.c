/* SPDX-License-Identifier: Apache-2.0
 *
 * What a state keeps of the sequence that it has read. */
#include <dtensor/generation.h>
#include <stdio.h>
#include <string.h>

#include "models/judge/prediction.h"
#include "models/run/state.h"
#include "tests/support/dt_test.h"

enum { FIRST = 10, NEW = 8, MORE = 5, SHARED = 7, ROOM = 48 };

typedef struct keeping {
    const char *fixture;
    int64_t limit;     /* 0: none; keys of longer sequences are good for no other length */
    int64_t grow_from; /* 0: caches have all their room at once */
} keeping;

static dt_status load(dt_mesh *mesh, const char *fixture, dt_model **model)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];

    options.keep_dtype = false;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/%s", fixture), &options,
                         model));
    return DT_OK;
}

typedef struct breaking {
    dt_state *s;
    int64_t layer; /* before which the pass is broken off */
} breaking;

static bool go_on_until(void *arg)
{
    breaking *b = arg;

    return b->layer-- > 0;
}

/* A pass that is broken off before any layer leaves the state as it was. */
static dt_status breaks_off(dt_state *s, const int32_t *ids, int64_t n)
{
    const int64_t layers = dt_model_info_of(s->model)->n_layers, length = dt_state_length(s);
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    int64_t got;

    o.max_new_tokens = 1;
    for (int64_t k = 0; k < layers && n > 1; k++) {
        breaking b = { s, k };
        s->go_on = go_on_until;
        s->go_on_arg = &b;
        DT_EXPECT_STATUS(dt_generate(s->model, s, ids, n, &o, NULL, &got), DT_ERR_ARG,
                         "broken off before layer");
        s->go_on = NULL;
        DT_EXPECT(got == 0 && dt_state_length(s) == length, "%lld tokens were read",
                  (long long)(dt_state_length(s) - length));
    }
    return DT_OK;
}

/* NEW tokens after ids[0..n), of which a state keeps `kept`, are those after a fresh start. */
static dt_status goes_on(dt_state *s, const dt_ids *ids, int64_t kept, int64_t limit,
                         int32_t new[NEW])
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_HELD(state) *fresh = NULL;
    int32_t other[NEW];
    int64_t got, k;

    if (limit > 0 && (ids->n > limit || dt_state_length(s) > limit)) kept = 0;
    o.max_new_tokens = NEW;
    o.ignore_eos = true;
    o.repetition_penalty = 1.2; /* which looks at everything that was read */
    DT_TRY(dt_state_create(s->model, 1, ROOM, &fresh));
    k = dt_state_keep(s, ids->ids, ids->n);
    DT_EXPECT(k == kept, "%lld of %lld tokens are kept, not %lld", (long long)k, (long long)ids->n,
              (long long)kept);
    DT_EXPECT(dt_state_length(s) == kept, "length");
    DT_TRY(breaks_off(s, ids->ids + k, ids->n - k));
    DT_TRY(dt_generate(s->model, s, ids->ids + k, ids->n - k, &o, new, &got));
    DT_TRY(dt_generate(s->model, fresh, ids->ids, ids->n, &o, other, &got));
    DT_EXPECT(got == NEW && memcmp(new, other, sizeof other) == 0,
              "other tokens after %lld that were kept", (long long)k);
    return DT_OK;
}

/* As many tokens as the limit are kept, and none of one more. `s` is empty. */
static dt_status keeps_up_to(dt_state *s, int64_t limit)
{
    const int64_t n = limit - NEW + 1; /* of the new ones the last is not read */
    int32_t ids[ROOM];

    for (int i = 0; i < ROOM; i++) ids[i] = (3 * i + 2) % 89;
    DT_TRY(goes_on(s, &(dt_ids){ ids, n }, 0, limit, ids + n));
    DT_EXPECT_EQ_INT(dt_state_keep(s, ids, limit), limit - 1);
    DT_EXPECT_EQ_INT(dt_state_keep(s, ids, limit + 1), 0);
    return DT_OK;
}

static dt_status keeps(dt_mesh *mesh, const void *arg)
{
    const keeping *c = arg;
    int32_t ids[FIRST + NEW + MORE], others[SHARED + MORE], new[NEW];
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;

    for (int i = 0; i < FIRST + NEW + MORE; i++) ids[i] = (i * i + 3) % 89;
    for (int i = 0; i < SHARED + MORE; i++) others[i] = i < SHARED ? ids[i] : 50 + i;
    DT_TRY(load(mesh, c->fixture, &m));
    DT_TRY(dt_state_create(m, 1, ROOM, &s));
    if (c->grow_from > 0) dt_state_grow_from(s, c->grow_from);
    DT_EXPECT(s->room == (c->grow_from > 0 ? c->grow_from : ROOM), "room");
    DT_TRY(goes_on(s, &(dt_ids){ ids, FIRST }, 0, c->limit, new));
    memcpy(ids + FIRST, new, sizeof new); /* the last of which was not read */
    DT_TRY(goes_on(s, &(dt_ids){ ids, FIRST + NEW + MORE }, FIRST + NEW - 1, c->limit, new));
    DT_TRY(goes_on(s, &(dt_ids){ others, SHARED + MORE }, SHARED, c->limit, new));
    DT_TRY(goes_on(s, &(dt_ids){ others, SHARED }, SHARED - 1, c->limit, new));
    DT_EXPECT(dt_state_keep(s, NULL, 3) == 0 && dt_state_length(s) == 0, "no ids");
    DT_EXPECT(dt_state_keep(NULL, ids, 3) == 0, "no state");
    if (c->limit > 0) DT_TRY(keeps_up_to(s, c->limit));
    DT_EXPECT(s->room < ROOM || c->grow_from == 0, "room for %lld", (long long)s->room);
    DT_EXPECT(dt_tensor_extent(s->kv[0].k, 1) == s->room, "caches");
    return DT_OK;
}

DT_TEST(state, what_was_read_is_kept_as_far_as_it_is_the_same)
{
    static const keeping cases[] = {
        { "llama/uneven", 0, 0 },   { "gemma3/base", 0, 0 },  { "phi3/longrope", 0, 0 },
        { "qwen2/dynamic", 24, 0 }, { "gpt_neo/base", 0, 0 }, { "deepseek_v3/base", 0, 0 },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        keeping growing = cases[i]; /* and the same with caches that are full again and again */
        dt_test_on_ranks("tp=1", keeps, &cases[i]);
        dt_test_on_ranks("tp=3", keeps, &cases[i]);
        growing.grow_from = 3;
        dt_test_on_ranks("tp=1", keeps, &growing);
        dt_test_on_ranks("tp=3", keeps, &growing);
    }
}

typedef struct remembering {
    const char *fixture;
    int64_t cached; /* numbers of a token */
    int tp;
    int64_t fixed; /* bytes of a sequence, however long it is */
} remembering;

/* What the caches of a rank that has everything hold is what dt_model_cache_bytes() says. */
static dt_status remembers(dt_mesh *mesh, const void *arg)
{
    enum { ROWS = 2 };
    static const int32_t ids[2 * ROWS] = { 1, 2, 3, 4 };
    const remembering *c = arg;
    const dt_model_info *info;
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    DT_TRY(load(mesh, c->fixture, &m));
    info = dt_model_info_of(m);
    DT_TRY(dt_state_create(m, ROWS, ROOM, &s));
    (void)dt_model_forward(t, m, s, ids, 2, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT_EQ_INT(dt_model_cache_bytes(info, info->dtype, 1),
                     c->cached * (int64_t)dt_dtype_size(info->dtype));
    DT_EXPECT_EQ_INT(info->carried_bytes, c->fixed);
    DT_EXPECT_EQ_INT(dti_state_bytes(s),
                     dt_model_cache_bytes(info, info->dtype, ROWS * ROOM) + ROWS * c->fixed);
    return DT_OK;
}

/* Of latent attention a token is remembered by its latent and what turns, however many heads there
 * are; every rank has it whole. Of linear attention, in f32, a matrix of each value head and three
 * rows of the convolution are what remains of all tokens. */
DT_TEST(state, what_is_remembered_of_a_token)
{
    static const remembering cases[] = {
        { "llama/uneven", 2 * 2 * 2 * 16, 1, 0 },
        { "gemma3/base", 7 * 2 * 2 * 8, 1, 0 },
        { "deepseek_v3/base", 3 * (16 + 4), 1, 0 },
        { "deepseek_v3/base", 3 * (16 + 4), 3, 0 },
        { "qwen3_next/base", 1 * 2 * 2 * 16, 1, 2 * 4 * (8 * 6 * 5 + 3 * 88) },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks(cases[i].tp == 1 ? "tp=1" : "tp=3", remembers, &cases[i]);
}
