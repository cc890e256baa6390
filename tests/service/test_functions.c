/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of users on all ranks, and passes for logits and hidden states, which are one. */
#include <dtensor/ops.h>

#include <string.h>
#include <time.h>

#include "tests/support/served.h"

static const char neo[] = "gpt_neo/base";

/* The mean of each row of an array, summed over ranks that have some of its columns. */
static dt_status mean_of_rows(dt_call *call, void *arg)
{
    const dt_placement columns = DT_SHARD(1);
    const dt_piece *x = dt_call_input(call, 0);
    dt_mesh *mesh = dt_model_mesh(dt_call_model(call));
    dt_tensor *cut = NULL, *means = NULL;
    dt_tape *tape = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &tape));
    DT_TRY_TO(done, st,
              dt_distribute(mesh, &columns, x->dtype, x->n_axes, x->shape,
                            (dt_source){ x->data, DT_EQUAL_COPIES }, &cut));
    means = dt_mean(tape, cut, 1);
    DT_TRY_TO(done, st, dt_tape_status(tape));
    DT_TRY_TO(done, st, dt_call_reply_tensor(call, means));
done:
    dt_tensor_release(&cut);
    dt_tape_release(&tape);
    return st;
}

/* How many streams of pieces there are to be. */
typedef struct counting {
    int32_t n, first;
} counting;

static dt_status count_up(dt_call *call, void *arg)
{
    counting c;

    (void)arg;
    memcpy(&c, dt_call_input(call, 0)->data, sizeof c);
    for (int32_t i = 0; i < c.n && dt_call_goes_on(call); i++) {
        const int32_t now = c.first + i;
        DT_TRY(dt_call_reply(call, &(dt_piece){ .data = &now, .n_bytes = sizeof now }));
    }
    return DT_OK;
}

static dt_status refuse(dt_call *call, void *arg)
{
    const int32_t rank = *(const int32_t *)dt_call_input(call, 0)->data;
    const int me = dt_runtime_rank(dt_mesh_runtime(dt_model_mesh(dt_call_model(call))));

    (void)arg;
    if (rank >= 0 && me != rank) return DT_OK;
    return rank < -1 ? DT_ERR_SHAPE : dt_fail(DT_ERR_ARG, "rank %d does not like it", me);
}

static dt_status add_functions(dt_runtime *rt, void *arg)
{
    DT_TRY(dt_function_register(rt, "mean_of_rows", mean_of_rows, arg));
    DT_TRY(dt_function_register(rt, "count_up", count_up, arg));
    DT_TRY(dt_function_register(rt, "refuse", refuse, arg));
    return DT_OK;
}

static bool three_are_enough(void *arg, const dt_piece *piece)
{
    int32_t *seen = arg;

    memcpy(seen, piece->data, sizeof *seen);
    return *seen < 102;
}

DT_TEST(functions, arrays_structs_and_streams_go_to_all_ranks_and_back)
{
    enum { ROWS = 2, COLUMNS = 5 };
    static const float rows[ROWS * COLUMNS] = { 1, 2, 3, 4, 5, 10, 20, 30, 40, 50 };
    const dt_piece array = { rows, sizeof rows, DT_F32, 2, { ROWS, COLUMNS } };
    counting c = { 4, 100 };
    const dt_piece structure = { .data = &c, .n_bytes = sizeof c };
    dt_request_options how = DT_REQUEST_OPTIONS_INIT;
    dt_service *s = served_start(3, 20000, add_functions);
    dt_served *m = served_load(s, neo);
    const dt_piece *piece;
    dt_reply *r;
    int32_t seen = 0;

    DT_ASSERT_OK(dt_service_call(m, "mean_of_rows", &array, 1, NULL, &r));
    DT_ASSERT_EQ_INT(dt_reply_count(r), 1);
    piece = dt_reply_piece(r, 0);
    DT_ASSERT(piece->dtype == DT_F32 && piece->shape[0] == ROWS);
    DT_ASSERT_CLOSE(((const float *)piece->data)[1], 30.0, 1e-5);
    dt_reply_release(&r);

    DT_ASSERT_OK(dt_service_call(m, "count_up", &structure, 1, NULL, &r));
    DT_ASSERT_EQ_INT(dt_reply_count(r), 4);
    DT_ASSERT_EQ_INT(*(const int32_t *)dt_reply_piece(r, 3)->data, 103);
    DT_ASSERT(dt_reply_piece(r, 4) == NULL);
    dt_reply_release(&r);

    c.n = 1000000000; /* until the caller has enough */
    how.on_piece = three_are_enough;
    how.arg = &seen;
    DT_ASSERT_OK(dt_service_call(m, "count_up", &structure, 1, &how, NULL));
    DT_ASSERT_EQ_INT(seen, 102);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

DT_TEST(functions, an_error_is_its_callers_and_ranks_go_on)
{
    dt_service *s = served_start(2, 20000, add_functions);
    dt_served *m = served_load(s, neo);
    int32_t rank = -1;
    const dt_piece which = { .data = &rank, .n_bytes = sizeof rank };
    const dt_piece wrong = { .data = &rank, .n_bytes = 4, .n_axes = 1, .shape = { 2 } };
    dt_reply *r;

    DT_ASSERT_STATUS(dt_service_call(m, "refuse", &which, 1, NULL, &r), DT_ERR_ARG,
                     "does not like it");
    rank = 1;
    DT_ASSERT_STATUS(dt_service_call(m, "refuse", &which, 1, NULL, &r), DT_ERR_ARG,
                     "rank 1 does not like it");
    rank = -2;
    DT_ASSERT_STATUS(dt_service_call(m, "refuse", &which, 1, NULL, &r), DT_ERR_SHAPE,
                     "without a message");
    DT_ASSERT_STATUS(dt_service_call(m, "mean", &which, 1, NULL, &r), DT_ERR_ARG, "mean_of_rows");
    DT_ASSERT_STATUS(dt_service_call(m, "refuse", &wrong, 1, NULL, &r), DT_ERR_ARG,
                     "4 bytes, its shape");
    DT_ASSERT(r == NULL);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

/* --- passes ----------------------------------------------------------------------------------- */

/* Logits of one sequence by dt_model_forward(). */
typedef struct alone {
    const char *folder;
    dt_ids ids;
    float *logits; /* [n, vocab] */
} alone;

static dt_status run_alone(dt_mesh *mesh, const void *arg)
{
    const alone *a = arg;
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    DT_HELD(tape) *t = NULL;
    DT_HELD(tensor) *whole = NULL;
    dt_tensor *logits;

    DT_TRY(dt_model_load(mesh, a->folder, NULL, &m));
    DT_TRY(dt_state_create(m, 1, a->ids.n, &s));
    t = dt_test_tape(mesh);
    logits = dt_model_forward(t, m, s, a->ids.ids, a->ids.n, DT_LOGITS_ALL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(logits, &whole));
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) > 0) return DT_OK;
    return dt_tensor_read(whole, a->logits,
                          (size_t)(a->ids.n * dt_model_info_of(m)->vocab_size) * sizeof *a->logits);
}

DT_TEST(functions, a_pass_gives_the_models_logits_and_hidden_states)
{
    static const int32_t ids[] = { 5, 17, 3, 88, 42, 7 };
    const dt_ids sequences[] = { { ids, 6 }, { ids + 2, 4 } };
    dt_forward_options o = DT_FORWARD_OPTIONS_INIT;
    dt_service *s = served_start(2, 20000, NULL);
    dt_served *m = served_load(s, neo);
    char folder[DT_TEST_PATH_BYTES];
    dt_model_info info;
    const dt_piece *logits;
    dt_reply *r, *last;

    (void)dt_test_source_path(folder, "tests/golden/%s", neo);
    DT_ASSERT_OK(dt_service_info(m, &info));
    o.hidden = true;
    DT_ASSERT_OK(dt_service_forward(m, sequences, 2, &o, NULL, &r));
    DT_ASSERT_EQ_INT(dt_reply_count(r), info.n_layers + 2);
    for (int64_t i = 0; i <= info.n_layers; i++) {
        const dt_piece *x = dt_reply_piece(r, i);
        DT_ASSERT(x->n_axes == 3 && x->shape[1] == 6 && x->shape[2] == info.hidden_size);
    }
    logits = dt_reply_piece(r, info.n_layers + 1);
    DT_ASSERT(logits->n_axes == 3 && logits->shape[2] == info.vocab_size);
    for (int i = 0; i < 2; i++) {
        const int64_t n = sequences[i].n * info.vocab_size;
        const alone a = { folder, sequences[i], malloc((size_t)n * sizeof(float)) };
        const float *end = (const float *)logits->data + (i + 1) * 6 * info.vocab_size;
        dt_test_on_ranks("tp=2", run_alone, &a);
        DT_ASSERT(memcmp(end - n, a.logits, (size_t)n * sizeof(float)) == 0);
        free(a.logits);
    }
    o.hidden = false;
    o.rows = DT_LOGITS_LAST;
    DT_ASSERT_OK(dt_service_forward(m, sequences, 2, &o, NULL, &last));
    DT_ASSERT_EQ_INT(dt_reply_count(last), 1);
    DT_ASSERT_EQ_INT(dt_reply_piece(last, 0)->shape[1], 1);
    for (int i = 0; i < 2; i++)
        DT_ASSERT(memcmp((const float *)dt_reply_piece(last, 0)->data + i * info.vocab_size,
                         (const float *)logits->data + (i * 6 + 5) * info.vocab_size,
                         (size_t)info.vocab_size * sizeof(float)) == 0);
    dt_reply_release(&last);
    dt_reply_release(&r);
    DT_ASSERT_STATUS(dt_service_forward(m, &(dt_ids){ ids, 0 }, 1, NULL, NULL, &r), DT_ERR_ARG,
                     "sequence 0 is empty");
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}
