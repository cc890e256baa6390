/* SPDX-License-Identifier: Apache-2.0
 *
 * Folders before they are models, and what is judged of a run before it: by the public functions
 * that the command uses. */
#include <dtensor/checkpoints.h>
#include <string.h>

#include "tests/support/dt_test.h"

enum { NEW = 6 };

static const char *fixture(char path[DT_TEST_PATH_BYTES])
{
    return dt_test_source_path(path, "tests/golden/qwen2/base");
}

DT_TEST(checkpoints, a_folder_says_what_it_is_without_a_mesh)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    dt_checkpoint *c = NULL;
    dt_model_info info;

    DT_ASSERT_OK(dt_model_inspect(fixture(path), &info, NULL, NULL));
    DT_ASSERT_OK(dt_checkpoint_open(NULL, path, &c));
    DT_ASSERT_EQ_STR(dt_checkpoint_info(c)->model_type, "qwen2");
    DT_ASSERT_EQ_INT(dt_checkpoint_info(c)->vocab_size, info.vocab_size);
    DT_ASSERT_OK(dt_checkpoint_check_generation(c));
    DT_ASSERT_OK(dt_checkpoint_check_plan(c));
    DT_ASSERT_OK(dt_checkpoint_generate_options(c, &o));
    DT_ASSERT_OK(dt_generate_check(&o, &info, 3, NULL));
    o.top_p = 2.0;
    o.do_sample = true;
    DT_ASSERT_STATUS(dt_generate_check(&o, &info, 3, NULL), DT_ERR_ARG, "top_p");
    dt_checkpoint_close(&c);
    DT_ASSERT(c == NULL);
    dt_checkpoint_close(&c);
    DT_ASSERT_STATUS(dt_checkpoint_open(NULL, "/nowhere", &c), DT_ERR_IO, "/nowhere");
    DT_ASSERT_STATUS(dt_checkpoint_open(NULL, NULL, &c), DT_ERR_ARG, "NULL");
    DT_ASSERT(c == NULL && dt_checkpoint_info(c) == NULL);
}

static void count(void *arg, bool error, const char *tensor, const char *text)
{
    (void)tensor, (void)text;
    *(int *)arg += error;
}

DT_TEST(checkpoints, everything_about_a_sound_folder_is_found_and_nothing_wrong)
{
    dt_verify_options o = DT_VERIFY_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    dt_checkpoint_report r;
    dt_verified v;
    int errors = 0;

    DT_ASSERT_OK(dt_checkpoint_inspect(NULL, fixture(path), NULL, NULL, &r));
    DT_ASSERT(r.supported && r.model_error.code == DT_OK && r.file_error.code == DT_OK);
    DT_ASSERT_EQ_STR(r.model_type, "qwen2");
    DT_ASSERT(r.n_tensors > 0 && r.n_params > 0 && r.file_bytes >= r.bytes);
    o.values = true;
    DT_ASSERT_OK(dt_checkpoint_verify(NULL, path, &o, count, &errors, &v));
    DT_ASSERT_EQ_INT(errors, 0);
    DT_ASSERT_EQ_INT(v.n_tensors, r.n_tensors);
    DT_ASSERT_EQ_INT(v.n_values, r.n_params);
    DT_ASSERT_OK(dt_checkpoint_verify(NULL, "/nowhere", NULL, count, &errors, &v));
    DT_ASSERT_EQ_INT(errors, 1);
    DT_ASSERT_STATUS(dt_checkpoint_verify(NULL, path, &o, NULL, NULL, &v), DT_ERR_ARG, "NULL");
}

DT_TEST(checkpoints, a_mesh_is_judged_before_there_is_one)
{
    char path[DT_TEST_PATH_BYTES];
    int64_t n = 0;

    DT_ASSERT_OK(dt_load_check_mesh("dp=3,tp=2", NULL, &n));
    DT_ASSERT_EQ_INT(n, 3);
    DT_ASSERT_OK(dt_load_check_mesh("tp=2", NULL, &n));
    DT_ASSERT_EQ_INT(n, 1);
    DT_ASSERT_STATUS(dt_load_check_mesh("cp=2", NULL, &n), DT_ERR_ARG, "nothing uses");
    DT_ASSERT_STATUS(dt_load_check_mesh("tp", NULL, NULL), DT_ERR_ARG, "tp");
    DT_ASSERT_OK(dt_model_check_dry(NULL, fixture(path), "tp=2", NULL));
    DT_ASSERT_STATUS(dt_model_check_dry(NULL, path, "cp=2", NULL), DT_ERR_ARG, "nothing uses");
}

/* A loop of one's own gives the tokens of dt_generate(). */
static dt_status chooses(dt_mesh *mesh, const void *arg)
{
    static const int32_t prompt[] = { 3, 14, 15 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    int32_t ids[NEW], own[NEW];
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    int64_t n = 0;

    (void)arg;
    o.max_new_tokens = NEW;
    o.ignore_eos = true;
    DT_TRY(dt_model_load(mesh, fixture(path), NULL, &m));
    DT_TRY(dt_state_create(m, 1, 3 + NEW, &s));
    DT_TRY(dt_generate(m, s, prompt, 3, &o, ids, &n));
    dt_state_rewind(s, 0);
    for (int i = 0; i < NEW; i++) {
        dt_tape_reset(t);
        DT_TRY(dt_choose_best(t,
                              dt_model_forward(t, m, s, i == 0 ? prompt : &own[i - 1],
                                               i == 0 ? 3 : 1, DT_LOGITS_LAST),
                              &own[i]));
    }
    DT_EXPECT(memcmp(ids, own, sizeof ids) == 0, "other tokens");
    DT_EXPECT(dt_choose_best(t, NULL, own) == DT_ERR_ARG, "no logits");
    return DT_OK;
}

DT_TEST(checkpoints, the_best_token_is_chosen_in_a_loop_of_ones_own)
{
    dt_test_on_ranks("tp=1", chooses, NULL);
    dt_test_on_ranks("tp=2", chooses, NULL);
}
