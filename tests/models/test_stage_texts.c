/* SPDX-License-Identifier: Apache-2.0
 *
 * Inference over stages: passes have the bits of a model in one piece, also where prompts go
 * through the stages in chunks and sequences in groups; a rank holds and reads its stages alone.
 * That texts are those of Transformers is said by test_golden.c and test_generation.c. */
#include <dtensor/generation.h>
#include <dtensor/parallelize.h>
#include <string.h>
#include <unistd.h>

#include "files/checkpoint_internal.h"
#include "files/safetensors_internal.h"
#include "mesh/share.h"
#include "models/load/load.h"
#include "models/run/forward.h"
#include "tests/support/dt_test.h"

enum { VOCAB = 53, MOST = 1 << 16, LONGEST = 420 };

/* A model of several small blocks that reads long prompts. */
static void write_config(const char *folder)
{
    static const char config[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 24, \"intermediate_size\": 36, "
        "\"num_hidden_layers\": 5, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"vocab_size\": 53, \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 512, "
        "\"tie_word_embeddings\": false}";

    dt_test_write_file(folder, "config.json", config, sizeof config - 1);
}

static int32_t token(int64_t i)
{
    return (int32_t)((i * 7919 + i / 5 + 3) % VOCAB);
}

static void fill(int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) ids[i] = token(i);
}

/* What a reference has computed; others are held against it, bit by bit. */
typedef struct bits {
    const char *folder, *fixture, *weights;
    dt_dtype dtype;
    int64_t batch, n_tokens;
    bool first; /* this run is the reference */
    int64_t n;
    float values[MOST];
} bits;

static dt_status hold_against(bits *x, int64_t *at, dt_tensor *logits)
{
    DT_HELD(tensor) *full = NULL;
    DT_FREED float *values = NULL;
    int64_t n;

    DT_EXPECT(logits != NULL, "no logits");
    DT_TRY(dt_full_tensor(logits, &full));
    n = dt_tensor_extent(full, 0) * dt_tensor_extent(full, 1) * dt_tensor_extent(full, 2);
    DT_EXPECT(*at + n <= MOST, "too many values");
    DT_TRY(dti_alloc_array((size_t)n, sizeof *values, (void **)&values));
    DT_TRY(dt_tensor_read(full, values, (size_t)n * sizeof *values));
    if (x->first) memcpy(x->values + *at, values, (size_t)n * sizeof *values);
    DT_EXPECT(memcmp(x->values + *at, values, (size_t)n * sizeof *values) == 0,
              "other bits from value %lld on", (long long)*at);
    *at += n;
    return DT_OK;
}

static dt_status load(dt_mesh *mesh, const bits *x, dt_model **model)
{
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];

    o.keep_dtype = false;
    o.dtype = DT_F32;
    o.weights = x->weights;
    if (x->folder != NULL) return dt_model_create_random(mesh, x->folder, &o, 3, model);
    return dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/%s", x->fixture), &o,
                         model);
}

/* A prompt, three tokens with all their logits, one more. */
static dt_status read_and_go_on(dt_mesh *mesh, const void *arg)
{
    bits *x = (bits *)(uintptr_t)arg;
    DT_HELD(model) *model = NULL;
    DT_HELD(state) *s = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    int32_t ids[3 * LONGEST];
    int64_t at = 0;

    fill(ids, 3 * LONGEST);
    DT_TRY(load(mesh, x, &model));
    DT_TRY(dt_state_create(model, x->batch, x->n_tokens + 4, &s));
    DT_TRY(hold_against(x, &at, dt_model_forward(t, model, s, ids, x->n_tokens, DT_LOGITS_LAST)));
    DT_TRY(hold_against(x, &at, dt_model_forward(t, model, s, ids + 5, 3, DT_LOGITS_ALL)));
    DT_TRY(hold_against(x, &at, dt_model_forward(t, model, s, ids + 9, 1, DT_LOGITS_LAST)));
    DT_EXPECT(dt_state_length(s) == x->n_tokens + 4, "length");
    return DT_OK;
}

/* On the first mesh, then on the others. */
static void same_on(const char *const *meshes, size_t n, bits *x, dt_test_body body)
{
    for (size_t i = 0; i < n; i++) {
        x->first = i == 0;
        dt_test_on_ranks(meshes[i], body, x);
    }
}

DT_TEST(stage_texts, prompts_in_chunks_have_the_bits_of_those_in_one_piece)
{
    static const char *const alone[] = { "tp=1", "pp=2", "pp=3", "pp=4" };
    static const char *const cut[] = { "tp=2", "pp=2,tp=2", "tp=2,pp=2" };
    static const int64_t sizes[][2] = { { 1, 7 }, { 1, 191 }, { 1, 192 }, { 1, 420 }, { 3, 130 } };
    char folder[DT_TEST_PATH_BYTES];
    static bits x;

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    write_config(dt_test_temp_dir(folder));
    for (size_t i = 0; i < DT_COUNT(sizes); i++) {
        x = (bits){ .folder = folder, .batch = sizes[i][0], .n_tokens = sizes[i][1] };
        same_on(alone, DT_COUNT(alone), &x, read_and_go_on);
        if (i >= 3) same_on(cut, DT_COUNT(cut), &x, read_and_go_on);
    }
}

DT_TEST(stage_texts, packed_weights_lie_on_their_stages)
{
    static const char *const alone[] = { "tp=1", "pp=2", "pp=3" };
    static const char *const cut[] = { "tp=2", "pp=2,tp=2" };
    static const char *const weights[] = { "int8", "int4 head" };
    static bits x;

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    for (size_t i = 0; i < DT_COUNT(weights); i++) {
        x = (bits){ .fixture = "llama/uneven", .weights = weights[i], .batch = 1, .n_tokens = 9 };
        same_on(alone, DT_COUNT(alone), &x, read_and_go_on);
        same_on(cut, DT_COUNT(cut), &x, read_and_go_on);
    }
}

/* --- halves ----------------------------------------------------------------------------------- */

/* Passes of three states go on at a time, and are waited for in any order. */
static dt_status in_turn(dt_mesh *mesh, const void *arg)
{
    static const int order[] = { 1, 0, 2 };
    bits *x = (bits *)(uintptr_t)arg;
    DT_HELD(model) *model = NULL;
    DT_HELD(state) *s0 = NULL, *s1 = NULL, *s2 = NULL;
    DT_HELD(tape) *t0 = dt_test_tape(mesh), *t1 = dt_test_tape(mesh), *t2 = dt_test_tape(mesh);
    dt_state **states[] = { &s0, &s1, &s2 };
    dt_tape *tapes[] = { t0, t1, t2 };
    int32_t ids[LONGEST];

    fill(ids, LONGEST);
    DT_TRY(load(mesh, x, &model));
    for (int i = 0; i < 3; i++) DT_TRY(dt_state_create(model, i + 1, 12, states[i]));
    for (int step = 0; step < 4; step++) {
        const int64_t n = step == 0 ? 6 : 1;
        dt_tensor *logits[3];
        for (int i = 0; i < 3; i++) {
            dt_tape_reset(tapes[i]);
            dt_model_forward_begin(tapes[i], model, *states[i], ids + 20 * i + step, n,
                                   DT_LOGITS_LAST);
        }
        for (int i = 0; i < 3; i++)
            logits[order[i]] = dt_model_forward_end(tapes[order[i]], model, *states[order[i]]);
        for (int i = 0; i < 3; i++) {
            int64_t at = (step * 6 + i * (i + 1) / 2) * VOCAB;
            DT_TRY(dt_tape_status(tapes[i]));
            DT_TRY(hold_against(x, &at, logits[i]));
        }
    }
    return dti_settle_stages(model);
}

DT_TEST(stage_texts, several_states_are_under_way)
{
    static const char *const meshes[] = { "tp=1", "pp=2", "pp=4" };
    char folder[DT_TEST_PATH_BYTES];
    static bits x;

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    write_config(dt_test_temp_dir(folder));
    x = (bits){ .folder = folder };
    same_on(meshes, DT_COUNT(meshes), &x, in_turn);
}

static dt_status wrong_halves(dt_mesh *mesh, const void *arg)
{
    static const int32_t ids[] = { 1, 2, 3 };
    DT_HELD(model) *model = NULL;
    DT_HELD(state) *s = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh), *other = dt_test_tape(mesh);

    DT_TRY(load(mesh, arg, &model));
    DT_TRY(dt_state_create(model, 1, 9, &s));
    DT_EXPECT(dt_model_forward_end(t, model, s) == NULL, "nothing was begun");
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "no pass of this state is under way");
    dt_tape_reset(t);
    dt_model_forward_begin(t, model, s, ids, 3, DT_LOGITS_LAST);
    dt_model_forward_begin(other, model, s, ids, 3, DT_LOGITS_LAST);
    DT_EXPECT_STATUS(dt_tape_status(other), DT_ERR_ARG, "dt_model_forward_end() comes first");
    dt_tape_reset(other);
    DT_EXPECT(dt_model_forward_end(other, model, s) == NULL, "another tape");
    DT_EXPECT_STATUS(dt_tape_status(other), DT_ERR_ARG, "begun on another tape");
    DT_EXPECT(dt_model_forward_end(t, model, s) != NULL && dt_state_length(s) == 3, "its own");
    dt_model_forward_begin(t, model, s, ids, 1, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    dt_state_release(&s); /* nobody waits for it */
    DT_TRY(dt_state_create(model, 1, 9, &s));
    DT_EXPECT(dt_model_forward(other, model, s, ids, 2, DT_LOGITS_ALL) == NULL, "a failed tape");
    dt_tape_reset(other);
    DT_EXPECT(dt_model_forward(other, model, s, ids, 2, DT_LOGITS_ALL) != NULL, "a pass");
    return DT_OK;
}

DT_TEST(stage_texts, halves_belong_together)
{
    const bits x = { .fixture = "llama/uneven" };

    dt_test_on_ranks("tp=1", wrong_halves, &x);
    dt_test_on_ranks("pp=2", wrong_halves, &x);
}

/* --- who waits -------------------------------------------------------------------------------- */

static bool never(void *arg)
{
    ++*(int *)arg;
    return false;
}

/* Every rank is asked once, before all blocks: a rank that goes on would wait for ever. */
static dt_status break_off(dt_mesh *mesh, const void *arg)
{
    bits *x = (bits *)(uintptr_t)arg;
    DT_HELD(model) *model = NULL;
    DT_HELD(state) *s = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    int32_t ids[LONGEST];
    int64_t at = 0;
    int asked = 0;

    fill(ids, LONGEST);
    DT_TRY(load(mesh, x, &model));
    DT_TRY(dt_state_create(model, 1, LONGEST, &s));
    DT_EXPECT(dt_model_forward(t, model, s, ids, 5, DT_LOGITS_LAST) != NULL, "a pass");
    dt_state_set_go_on(s, never, &asked);
    DT_EXPECT(dt_model_forward(t, model, s, ids, 300, DT_LOGITS_LAST) == NULL, "none");
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "was broken off before layer 0");
    DT_EXPECT(asked == 1 && dt_state_length(s) == 5, "asked %d times", asked);
    dt_state_set_go_on(s, NULL, NULL);
    dt_tape_reset(t);
    return hold_against(x, &at, dt_model_forward(t, model, s, ids + 5, 300, DT_LOGITS_LAST));
}

DT_TEST(stage_texts, a_prompt_is_broken_off_by_all_ranks)
{
    static const char *const meshes[] = { "tp=1", "pp=2", "pp=3" };
    char folder[DT_TEST_PATH_BYTES];
    static bits x;

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    write_config(dt_test_temp_dir(folder));
    x = (bits){ .folder = folder };
    same_on(meshes, DT_COUNT(meshes), &x, break_off);
}

/* --- memory and files ------------------------------------------------------------------------- */

enum { TO_COMPARE = 512 }; /* bytes by which ranks see that they have the same files */

/* What a rank, which is a thread, asks of its files. */
static _Thread_local int64_t n_read;

static ssize_t counting_pread(int fd, void *to, size_t n, off_t at)
{
    n_read += (int64_t)n;
    return pread(fd, to, n, at);
}

static dt_status open_counted(void *arg, void **out)
{
    dti_ckpt *ckpt;

    DT_TRY(dti_ckpt_open(arg, &ckpt));
    ckpt->files[0]->in.pread = counting_pread;
    *out = ckpt;
    return DT_OK;
}

static void close_counted(void *object)
{
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = object;
}

/* Of the parameters that lie on this rank's stage. */
static int64_t own_bytes(dt_model *model)
{
    dt_layers *layers = dt_model_layers(model);
    int64_t bytes = 0;

    for (int i = 0; i < dt_layers_count(layers); i++)
        for (int p = 0; p < dt_layer_n_params(dt_layers_at(layers, i)); p++) {
            const dt_tensor *w = dt_layer_param(dt_layers_at(layers, i), p);
            int64_t n = (int64_t)sizeof(float);
            if (w == NULL || !dt_mesh_is_member(dt_tensor_mesh(w))) continue;
            for (int a = 0; a < dt_tensor_n_axes(w); a++) n *= dt_tensor_extent(w, a);
            bytes += n;
        }
    return bytes;
}

/* Blocks of this rank's stages. */
static int own_blocks(const dt_model *model, const dt_mesh *mesh)
{
    const dti_stages *s = &model->stages;
    int64_t n = 0;

    for (int i = 0; i < s->n; i++)
        if (s->n == 1 || s->stage[i].place == dt_mesh_coord(mesh, s->dim)) n += s->stage[i].n;
    return (int)n;
}

static dt_status holds_its_own(dt_mesh *mesh, const void *arg)
{
    static const int32_t ids[] = { 1, 2, 3 };
    const dt_load_options defaults = DT_LOAD_OPTIONS_INIT;
    DT_HELD(model) *model = NULL;
    DT_HELD(state) *s = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_ENDS(dti_share_put) dti_share *share = NULL;
    DT_FREED char *key = NULL;
    char folder[DT_TEST_PATH_BYTES];
    int64_t weights;
    int caches = 0;

    (void)dt_test_source_path(folder, "tests/golden/%s", (const char *)arg);
    DT_TRY(dti_checkpoint_key(folder, &defaults, &key));
    DT_TRY(dti_share_get(dt_mesh_runtime(mesh), key, open_counted, folder, close_counted, &share));
    n_read = 0;
    DT_TRY(dt_model_load(mesh, folder, NULL, &model));
    weights = dt_model_local_bytes(model);
    DT_EXPECT(weights > 0 && weights == own_bytes(model), "%lld bytes of weights, not %lld",
              (long long)weights, (long long)own_bytes(model));
    DT_EXPECT(n_read >= weights && n_read <= weights + TO_COMPARE, "%lld bytes are read for %lld",
              (long long)n_read, (long long)weights);
    DT_TRY(dt_state_create(model, 1, 8, &s));
    DT_EXPECT(dt_model_forward(t, model, s, ids, 3, DT_LOGITS_LAST) != NULL, "a pass");
    for (int i = 0; i < dt_model_info_of(model)->n_layers; i++) caches += s->kv[i].k != NULL;
    DT_EXPECT(caches == own_blocks(model, mesh), "caches of %d blocks, not of %d", caches,
              own_blocks(model, mesh));
    return DT_OK;
}

DT_TEST(stage_texts, a_rank_reads_and_holds_its_stages_alone)
{
    static const char *const meshes[] = { "tp=1", "pp=2", "pp=3", "pp=4" };

    for (size_t i = 0; i < DT_COUNT(meshes); i++)
        dt_test_on_ranks(meshes[i], holds_its_own, "llama/uneven");
}

/* --- one call, and refusals ------------------------------------------------------------------- */

enum { N_NEW = 8 };

static dt_status tokens_of(dt_model *model, int32_t out[N_NEW])
{
    static const int32_t prompt[] = { 5, 2, 9 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_HELD(state) *s = NULL;
    int64_t n;

    o.max_new_tokens = N_NEW;
    o.ignore_eos = true;
    DT_TRY(dt_state_create(model, 1, 3 + N_NEW, &s));
    return dt_generate(model, s, prompt, 3, &o, out, &n);
}

static dt_status by_one_call(dt_runtime *rt, void *arg)
{
    dt_parallelize_options o = DT_PARALLELIZE_OPTIONS_INIT;
    int32_t mine[N_NEW] = { 0 };
    DT_HELD(model) *model = NULL;
    char folder[DT_TEST_PATH_BYTES];
    int32_t *first = arg;

    o.mesh = dt_runtime_size(rt) == 1 ? NULL : "pp=2,tp=2";
    DT_TRY(
        dt_parallelize(rt, dt_test_source_path(folder, "tests/golden/qwen3/uneven"), &o, &model));
    DT_EXPECT(dt_model_n_stages(model) == (o.mesh != NULL ? 2 : 1), "stages");
    DT_TRY(tokens_of(model, mine));
    if (o.mesh == NULL) memcpy(first, mine, sizeof mine);
    DT_EXPECT(memcmp(first, mine, sizeof mine) == 0, "other tokens");
    return DT_OK;
}

DT_TEST(stage_texts, one_call_takes_a_mesh_with_stages)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    int32_t first[N_NEW];

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    o.n_ranks = 1;
    DT_ASSERT_OK(dt_run(&o, by_one_call, first));
    o.n_ranks = 4;
    DT_ASSERT_OK(dt_run(&o, by_one_call, first));
}

DT_TEST(stage_texts, splits_that_make_no_sense_are_refused)
{
    static const struct {
        const char *mesh, *stages;
        int n_stages;
        dt_status code;
        const char *says;
    } wrong[] = {
        { "pp=2", "1,1,1", 0, DT_ERR_ARG, "numbers of blocks of 2 stages are wanted" },
        { "pp=2", "1,2", 0, DT_ERR_ARG, "the model has 2 blocks" },
        { "pp=3", "0,0,2", 0, DT_ERR_ARG, "stage 1 has nothing" },
        { "pp=2", "1,-1", 0, DT_ERR_ARG, "numbers of blocks" },
        { "pp=5", NULL, 0, DT_ERR_ARG, "5 stages of a model that has 2 blocks" },
        { "pp=2", NULL, 3, DT_ERR_ARG, "3" },
        { "tp=2", "1,1", 0, DT_ERR_ARG, "which this mesh does not have" },
    };
    char folder[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(folder, "tests/golden/llama/uneven");
    for (size_t i = 0; i < DT_COUNT(wrong); i++) {
        dt_run_options run = DT_RUN_OPTIONS_INIT;
        dt_load_options o = DT_LOAD_OPTIONS_INIT;
        DT_HELD(mesh) *mesh = NULL;
        DT_HELD(model) *model = NULL;
        dt_runtime *rt = NULL;
        dt_status st;
        run.n_ranks = wrong[i].mesh[3] - '0';
        o.stages = wrong[i].stages;
        o.n_stages = wrong[i].n_stages;
        DT_ASSERT_OK(dt_runtime_create_dry(&run, 0, NULL, &rt));
        DT_ASSERT_OK(dt_mesh_create(rt, wrong[i].mesh, &mesh));
        st = dt_model_load(mesh, folder, &o, &model);
        dt_mesh_release(&mesh);
        dt_runtime_release_dry(&rt);
        DT_ASSERT_STATUS(st, wrong[i].code, wrong[i].says);
    }
}
