/* SPDX-License-Identifier: Apache-2.0
 *
 * Many texts in one call: the ids of each are those it has alone. */
#include "base/memory.h"
#include "tests/text/tokenizer_text.h"

enum { N_TEXTS = 60 };

static dt_tokenizer *open_shape(const char *shape)
{
    char path[DT_TEST_PATH_BYTES];
    dt_tokenizer *tok;

    DT_ASSERT_OK(
        dt_tokenizer_open(dt_test_source_path(path, "tests/golden/tokenizer/%s", shape), &tok));
    return tok;
}

static void check_batch(const dt_tokenizer *tok, const char *const *texts, const size_t *n_bytes,
                        unsigned flags)
{
    int32_t *all, *ids;
    size_t *starts, n;

    DT_ASSERT_OK(dt_tokenizer_encode_batch(tok, texts, n_bytes, N_TEXTS, flags, &all, &starts));
    DT_ASSERT_EQ_INT(starts[0], 0);
    for (size_t i = 0; i < N_TEXTS; i++) {
        DT_ASSERT_OK(dt_tokenizer_encode(tok, texts[i], n_bytes[i], flags, &ids, &n));
        DT_ASSERT_EQ_INT(starts[i + 1] - starts[i], n);
        DT_ASSERT(n == 0 || memcmp(all + starts[i], ids, n * sizeof *ids) == 0);
        dt_tokenizer_free(ids);
    }
    dt_tokenizer_free(all);
    dt_tokenizer_free(starts);
}

/* Some texts come twice, some are empty, some are broken UTF-8. */
static void check_shape(const char *shape)
{
    json_t *file = tok_read_json("tests/golden/tokenizer/sweep.json");
    DT_HELD(tokenizer) *tok = open_shape(shape);
    dti_text made[N_TEXTS] = { { 0 } };
    const char *texts[N_TEXTS];
    size_t n_bytes[N_TEXTS];

    for (size_t i = 0; i < N_TEXTS; i++) {
        DT_ASSERT_OK(text_string(&made[i], i % 40, json_object_get(file, "pieces")));
        if (i % 7 == 3) DT_ASSERT_OK(dti_text_append(&made[i], "\xe4\xb8", 2));
        texts[i] = i % 11 == 5 ? "" : made[i].data;
        n_bytes[i] = i % 11 == 5 ? 0 : made[i].bytes;
    }
    for (unsigned flags = 0; flags < 4; flags++) check_batch(tok, texts, n_bytes, flags);
    for (size_t i = 0; i < N_TEXTS; i++) dti_text_free(&made[i]);
    json_decref(file);
}

DT_TEST(tokenizer_batch, each_text_has_the_ids_it_has_alone)
{
    static const char *const shapes[] = { "llama3", "qwen", "gemma", "phi3", "gpt2" };

    for (size_t i = 0; i < DT_COUNT(shapes); i++) check_shape(shapes[i]);
}

DT_TEST(tokenizer_batch, sizes_may_be_left_out_and_a_batch_may_be_empty)
{
    static const char *const texts[] = { "the king", "", "the king" };
    DT_HELD(tokenizer) *tok = open_shape("phi3");
    int32_t *ids, *alone;
    size_t *starts, n;

    DT_ASSERT_OK(dt_tokenizer_encode(tok, "the king", 8, DT_ENCODE_ADD_SPECIAL, &alone, &n));
    DT_ASSERT_OK(
        dt_tokenizer_encode_batch(tok, texts, NULL, 3, DT_ENCODE_ADD_SPECIAL, &ids, &starts));
    DT_ASSERT(starts[0] == 0 && starts[1] == n && starts[2] == n + 1 && starts[3] == 2 * n + 1);
    DT_ASSERT_EQ_INT(ids[n], dt_tokenizer_id(tok, "<s>", 3));
    DT_ASSERT(memcmp(ids + n + 1, alone, n * sizeof *ids) == 0);
    dt_tokenizer_free(alone);
    dt_tokenizer_free(ids);
    dt_tokenizer_free(starts);

    DT_ASSERT_OK(dt_tokenizer_encode_batch(tok, NULL, NULL, 0, 0, &ids, &starts));
    DT_ASSERT(ids == NULL && starts != NULL && starts[0] == 0);
    dt_tokenizer_free(starts);
}

DT_TEST(tokenizer_batch, a_bad_text_is_named_and_nothing_returned)
{
    static const char *const texts[] = { "a", NULL, "b" };
    DT_HELD(tokenizer) *tok = open_shape("gpt2");
    int32_t *ids;
    size_t *starts;

    DT_ASSERT_EQ_INT(dt_tokenizer_encode_batch(tok, texts, NULL, 3, 0, &ids, &starts), DT_ERR_ARG);
    DT_ASSERT(ids == NULL && starts == NULL);
    DT_ASSERT(strstr(dt_last_error()->message, "text 1 of 3 is NULL") != NULL);
    DT_ASSERT_EQ_INT(dt_tokenizer_encode_batch(tok, texts, NULL, 1, 64, &ids, &starts), DT_ERR_ARG);
    DT_ASSERT_EQ_INT(dt_tokenizer_encode_batch(NULL, texts, NULL, 1, 0, &ids, &starts), DT_ERR_ARG);
    DT_ASSERT_EQ_INT(dt_tokenizer_encode_batch(tok, NULL, NULL, 1, 0, &ids, &starts), DT_ERR_ARG);
}
