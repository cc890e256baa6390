/* SPDX-License-Identifier: Apache-2.0
 *
 * Sequence parallelism: what ranks hold between blocks, that the result is the same to the bit, and
 * what it saves. Golden values with it are in test_golden.c. */
#include <dtensor/models.h>
#include <dtensor/ops.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "models/judge/prediction.h"
#include "tests/support/dt_test.h"

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };
static const char *const fixtures[] = { "llama/uneven", "llama/biases", "qwen3/uneven",
                                        "gpt_neo/uneven" };
static const char *const norms[] = { "model.layers.*.post_attention_layernorm",
                                     "model.layers.*.post_attention_layernorm",
                                     "model.layers.*.post_attention_layernorm",
                                     "transformer.h.*.ln_2" };

/* --- what lies between blocks ----------------------------------------------------------------- */

enum { MAX_SEEN = 8 };

/* What a spy in the place of a norm's style has seen of its input. */
typedef struct seen {
    int n;
    dt_place_kind kind[MAX_SEEN];
    int axis[MAX_SEEN];
    int64_t local[MAX_SEEN][3];
} seen;

static void look(const dt_style *style, dt_tape *t, const dt_layer *layer, int dim, int n,
                 dt_tensor **x)
{
    seen *s = (seen *)(uintptr_t)style->user;
    const dt_placement place = dt_layout_placement(dt_tensor_layout(*x), dim);

    (void)layer, (void)n;
    if (dt_tensor_n_axes(*x) != 3) (void)dt_tape_fail(t, DT_ERR_INTERNAL, "not [B, T, D]");
    if (dt_tensor_n_axes(*x) != 3 || s->n == MAX_SEEN) return; /* while the plan is judged */
    s->kind[s->n] = place.kind;
    s->axis[s->n] = place.axis;
    memcpy(s->local[s->n++], dt_tensor_local(*x)->shape, 3 * sizeof(int64_t));
}

typedef struct stream_case {
    size_t fixture;
    bool sequence_parallel;
    int64_t tokens;
} stream_case;

static dt_status check_seen(dt_mesh *mesh, const stream_case *c, const seen *s, int64_t width)
{
    const int dim = dt_mesh_find_dim(mesh, "tp"), p = dt_mesh_dim_size(mesh, dim);
    const int64_t chunk = (c->tokens + p - 1) / p, first = chunk * dt_mesh_coord(mesh, dim);
    const int64_t rest = c->tokens > first ? c->tokens - first : 0;
    const bool cut = c->sequence_parallel && c->tokens > 1 && p > 1;

    DT_EXPECT(s->n > 0, "nothing was seen");
    for (int i = 0; i < s->n; i++) {
        DT_EXPECT(p == 1 || s->kind[i] == (cut ? DT_PLACE_SHARD : DT_PLACE_REPLICATE), "kind %d",
                  (int)s->kind[i]);
        DT_EXPECT(!cut || s->axis[i] == 1, "cut along axis %d", s->axis[i]);
        DT_EXPECT_EQ_INT(s->local[i][0], dt_mesh_find_dim(mesh, "dp") >= 0 ? 1 : 2);
        DT_EXPECT_EQ_INT(s->local[i][1], !cut ? c->tokens : rest < chunk ? rest : chunk);
        DT_EXPECT_EQ_INT(s->local[i][2], width);
    }
    return DT_OK;
}

/* Residuals and norms of a batch of 2, as a spy sees them. */
static dt_status stream(dt_mesh *mesh, const void *arg)
{
    const stream_case *c = arg;
    seen s = { 0 };
    const dt_style spy = { .size = sizeof spy, .prepare_input = look, .user = &s };
    const dt_plan_rule rule = { norms[c->fixture], "spy" };
    const dt_plan plan = { .rules = &rule, .n_rules = 1, .strict = true };
    char path[DT_TEST_PATH_BYTES];
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    const int32_t ids[64] = { 3, 1, 4, 1, 5, 9, 2, 6 };
    DT_HELD(model) *m = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(state) *state = NULL;

    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "spy", &spy));
    o.plan = &plan;
    o.sequence_parallel = c->sequence_parallel;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(path, "tests/golden/%s", fixtures[c->fixture]),
                         &o, &m));
    s.n = 0; /* the plan was judged */
    DT_TRY(dt_state_create(m, 2, c->tokens, &state));
    (void)dt_model_forward(t, m, state, ids, c->tokens, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    DT_TRY(check_seen(mesh, c, &s, dt_model_info_of(m)->hidden_size));
    return DT_OK;
}

DT_TEST(sequence, a_rank_holds_its_tokens_between_blocks)
{
    static const int64_t tokens[] = { 1, 2, 3, 8, 13 };

    for (size_t f = 0; f < DT_COUNT(fixtures); f++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            for (size_t n = 0; n < DT_COUNT(tokens); n++)
                for (int on = 0; on < 2; on++)
                    dt_test_on_ranks(meshes[m], stream, &(stream_case){ f, on == 1, tokens[n] });
}

/* --- the same bits ---------------------------------------------------------------------------- */

/* Sums are taken in rank order whether they are scattered or not. */
typedef struct bits_case {
    const char *fixture;
    dt_dtype dtype;
    int64_t tokens;
    dt_logits_rows rows;
} bits_case;

static dt_status logits_of(dt_mesh *mesh, const bits_case *c, bool sequence_parallel,
                           dt_tensor **out)
{
    char path[DT_TEST_PATH_BYTES];
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    const int32_t ids[16] = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3 };
    DT_HELD(model) *m = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(state) *s = NULL;
    dt_tensor *y;

    o.keep_dtype = false;
    o.dtype = c->dtype;
    o.sequence_parallel = sequence_parallel;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(path, "tests/golden/%s", c->fixture), &o, &m));
    DT_TRY(dt_state_create(m, 2, c->tokens + 1, &s));
    y = dt_model_forward(t, m, s, ids, c->tokens, c->rows);
    if (c->rows == DT_LOGITS_LAST) /* and a step that reads the caches */
        y = dt_model_forward(t, m, s, ids + 4, 1, c->rows);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(y, out));
    return DT_OK;
}

static dt_status same_bits(dt_mesh *mesh, const void *arg)
{
    const bits_case *c = arg;
    DT_HELD(tensor) *off = NULL, *on = NULL;
    int64_t bytes = (int64_t)dt_dtype_size(c->dtype);

    DT_TRY(logits_of(mesh, c, false, &off));
    DT_TRY(logits_of(mesh, c, true, &on));
    for (int a = 0; a < 3; a++) {
        DT_EXPECT(dt_tensor_extent(off, a) == dt_tensor_extent(on, a), "shape");
        bytes *= dt_tensor_extent(off, a);
    }
    DT_EXPECT(memcmp(dt_tensor_local(off)->data, dt_tensor_local(on)->data, (size_t)bytes) == 0,
              "%s in %s: cutting %d tokens changes the logits", c->fixture, dt_dtype_name(c->dtype),
              (int)c->tokens);
    return DT_OK;
}

DT_TEST(sequence, logits_are_the_same_to_the_bit)
{
    static const bits_case cases[] = {
        { "llama/biases", DT_F32, 7, DT_LOGITS_ALL },
        { "llama/uneven", DT_BF16, 5, DT_LOGITS_LAST },
        { "llama/tied", DT_F16, 3, DT_LOGITS_LAST },
        { "qwen2/windows", DT_BF16, 6, DT_LOGITS_LAST },
        { "qwen3/uneven", DT_BF16, 8, DT_LOGITS_ALL },
        { "gemma3/base", DT_BF16, 7, DT_LOGITS_LAST },
        { "phi3/base", DT_BF16, 2, DT_LOGITS_ALL },
        { "gpt_neo/base", DT_BF16, 5, DT_LOGITS_ALL },
        { "gpt_neo/uneven", DT_F32, 2, DT_LOGITS_LAST },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            dt_test_on_ranks(meshes[m], same_bits, &cases[i]);
}

/* --- what it saves ---------------------------------------------------------------------------- */

static const char llama_8b[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 4096, \"intermediate_size\": 14336,"
    " \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"num_hidden_layers\": 32,"
    " \"vocab_size\": 128256, \"max_position_embeddings\": 8192, \"torch_dtype\": \"bfloat16\"}";

enum { D = 4096, T = 8192, P = 8 };

static void predict(const char *folder, bool sequence_parallel, dti_prediction *out)
{
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    const dti_predict_options o = { .mesh = "tp=8", .batch = 1, .sequence = T, .load = &load };

    load.sequence_parallel = sequence_parallel;
    DT_ASSERT_OK(dti_predict(folder, &o, out));
}

DT_TEST(sequence, temporaries_shrink_and_bytes_do_not_grow)
{
    const int64_t stream_bytes = (int64_t)T * D * 2;
    char folder[DT_TEST_PATH_BYTES];
    DT_ENDS(dti_prediction_free) dti_prediction on, off;
    dt_rank_cost a, b;

    dt_test_write_file(dt_test_temp_dir(folder), "config.json", llama_8b, sizeof llama_8b - 1);
    predict(folder, false, &off);
    predict(folder, true, &on);
    a = dti_prediction_cost(&off), b = dti_prediction_cost(&on);
    DT_ASSERT_EQ_INT(a.weight_bytes, b.weight_bytes);
    DT_ASSERT_EQ_INT(a.cache_bytes, b.cache_bytes);
    /* at least the residual stream and the sum of a product in f32 are cut */
    if (a.activation_bytes - b.activation_bytes < 3 * stream_bytes * (P - 1) / P)
        dt_test_fail(__FILE__, __LINE__, "temporaries: %lld bytes, with tokens cut %lld",
                     (long long)a.activation_bytes, (long long)b.activation_bytes);
    /* terms travel in f32, what is gathered in bf16: 3/4 of an all-reduce of f32 */
    DT_ASSERT(b.prompt_bytes < a.prompt_bytes * 76 / 100);
    /* a step of one token is that of the other plan */
    DT_ASSERT_EQ_INT(a.step_bytes, b.step_bytes);
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        DT_ASSERT_EQ_INT(off.decode.total[k].calls, on.decode.total[k].calls);
    DT_ASSERT_EQ_INT(on.prefill.total[DT_COMM_REDUCE_SCATTER].calls, 2 * 32 + 1);
    DT_ASSERT_EQ_INT(on.prefill.total[DT_COMM_ALL_GATHER].calls, 2 * 32);
    DT_ASSERT_EQ_INT(on.prefill.total[DT_COMM_ALL_REDUCE].calls, 2); /* last row, next token */
}
