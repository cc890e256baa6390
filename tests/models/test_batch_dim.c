/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches over the mesh dim "dp": each rank has some of the sequences, and what comes out is, to
 * the bit, what the same ranks along "tp" make of the whole batch. And dims that nothing uses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/judge/prediction.h"
#include "models/run/state.h"
#include "tests/support/dt_test.h"

enum { MAX_PROMPTS = 5, MAX_SHOWN = 1 << 16 };

/* --- two models of one folder: on the mesh, and on this rank's slice without "dp" ------------- */

typedef struct both {
    dt_mesh *slice;
    dt_model *cut, *whole;
} both;

static dt_status load(dt_mesh *mesh, const char *fixture, dt_model **out)
{
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];

    o.keep_dtype = false;
    if (dt_mesh_find_dim(mesh, "dp_shard") >= 0) o.fully_shard = "dp_shard";
    return dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/%s", fixture), &o, out);
}

static dt_status open_both(dt_mesh *mesh, const char *fixture, both *b)
{
    static const char *const tp[] = { "tp" };

    DT_TRY(dt_mesh_slice(mesh, tp, 1, &b->slice));
    DT_TRY(load(mesh, fixture, &b->cut));
    DT_TRY(load(b->slice, fixture, &b->whole));
    return DT_OK;
}

static void close_both(both *b)
{
    dt_model_release(&b->cut);
    dt_model_release(&b->whole);
    dt_mesh_release(&b->slice);
}

static const int32_t prompts[MAX_PROMPTS][9] = {
    { 3, 1, 4, 1, 5 }, { 9, 2, 6, 5, 3, 5, 8, 9, 7 }, { 7 }, { 2, 7, 1, 8 }, { 1, 6, 1, 8, 0, 3 }
};
static const int64_t lengths[MAX_PROMPTS] = { 5, 9, 1, 4, 6 };

/* --- texts ------------------------------------------------------------------------------------ */

typedef struct shown {
    int64_t n;
    float scores[MAX_SHOWN];
} shown;

static void show(void *arg, int64_t n, const float *scores, int64_t n_rows, int64_t vocab)
{
    shown *s = arg;

    (void)n;
    for (int64_t i = 0; i < n_rows * vocab && s->n < MAX_SHOWN; i++) s->scores[s->n++] = scores[i];
}

static dt_status compare(const char *what, int64_t n, const dt_generated *a, const dt_generated *b)
{
    DT_EXPECT(dt_generated_count(a) == dt_generated_count(b), "%s", what);
    for (int64_t i = 0; i < dt_generated_count(a); i++) {
        const dt_ids x = dt_generated_ids(a, i), y = dt_generated_ids(b, i);
        DT_EXPECT(x.n == y.n && x.n > 0 && memcmp(x.ids, y.ids, (size_t)x.n * sizeof *x.ids) == 0,
                  "%s, %lld prompts: text %lld is another one", what, (long long)n, (long long)i);
        DT_EXPECT(dt_generated_end(a, i) == dt_generated_end(b, i) &&
                      memcmp(&(double){ dt_generated_score(a, i) },
                             &(double){ dt_generated_score(b, i) }, sizeof(double)) == 0,
                  "%s, %lld prompts: end or score of text %lld", what, (long long)n, (long long)i);
    }
    return DT_OK;
}

static dt_status same_texts(const both *b, const char *what, int64_t n,
                            const dt_generate_options *o)
{
    dt_ids lists[MAX_PROMPTS];
    DT_HELD(generated) *x = NULL, *y = NULL;

    for (int64_t i = 0; i < n; i++) lists[i] = (dt_ids){ prompts[i], lengths[i] };
    DT_TRY(dt_generate_batch(b->cut, lists, n, o, &x));
    DT_TRY(dt_generate_batch(b->whole, lists, n, o, &y));
    DT_TRY(compare(what, n, x, y));
    return DT_OK;
}

static dt_generate_options some_tokens(int64_t n)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;

    o.max_new_tokens = n;
    return o;
}

static dt_status greedy(dt_mesh *mesh, const void *fixture)
{
    const dt_generate_options o = some_tokens(6);
    DT_ENDS(close_both) both b = { 0 };

    DT_TRY(open_both(mesh, fixture, &b));
    for (int64_t n = 1; n <= MAX_PROMPTS; n++) DT_TRY(same_texts(&b, "greedy", n, &o));
    return DT_OK;
}

static const char *const meshes[] = { "dp=2,tp=1", "dp=3,tp=1", "dp=2,tp=2",
                                      "dp_replicate=2,dp_shard=2,tp=1" };

DT_TEST(batch_dim, texts_do_not_depend_on_it)
{
    static const char *const fixtures[] = { "llama/tied",     "qwen3_moe/uneven", "gemma3/base",
                                            "gpt_neo/uneven", "phi3/base",        "qwen3/windows" };

    for (size_t f = 0; f < DT_COUNT(fixtures); f++)
        for (size_t m = f % 2; m < DT_COUNT(meshes); m += 2)
            dt_test_on_ranks(meshes[m], greedy, fixtures[f]);
}

/* Draws and beams of several prompts: rows of a prompt stay on one rank. */
static dt_status choices(dt_mesh *mesh, const void *arg)
{
    static const int32_t never[] = { 4, 7 };
    dt_generate_options o;
    DT_ENDS(close_both) both b = { 0 };

    (void)arg;
    DT_TRY(open_both(mesh, "llama/uneven", &b));
    for (int64_t n = 1; n <= 3; n++) {
        o = some_tokens(5);
        o.num_beams = 3;
        o.num_return_sequences = 2;
        o.length_penalty = 0.7;
        o.suppress_tokens = (dt_ids){ never, 2 };
        DT_TRY(same_texts(&b, "beams", n, &o));
        o = some_tokens(5);
        o.do_sample = true;
        o.seed = 11;
        o.num_return_sequences = 3;
        DT_TRY(same_texts(&b, "top_k", n, &o));
        o.top_k = 0;
        o.top_p = 0.8;
        o.typical_p = 0.9;
        o.repetition_penalty = 1.3;
        DT_TRY(same_texts(&b, "draws", n, &o));
        o.num_beams = 3;
        DT_TRY(same_texts(&b, "drawn beams", n, &o));
    }
    return DT_OK;
}

DT_TEST(batch_dim, neither_do_draws_and_beams)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], choices, NULL);
}

static dt_status shows(dt_mesh *mesh, const void *arg)
{
    dt_generate_options o = some_tokens(3);
    shown *x = calloc(2, sizeof *x);
    dt_status st = DT_OK;
    both b = { 0 };

    (void)arg;
    DT_EXPECT(x != NULL, "memory");
    o.on_scores = show;
    o.repetition_penalty = 1.1;
    DT_TRY_TO(done, st, open_both(mesh, "llama/uneven", &b));
    for (int64_t i = 0; i < 2; i++) {
        const dt_ids lists[] = { { prompts[0], 5 }, { prompts[1], 9 }, { prompts[2], 1 } };
        dt_generated *g;
        o.scores_arg = &x[i];
        DT_TRY_TO(done, st, dt_generate_batch(i == 0 ? b.cut : b.whole, lists, 3, &o, &g));
        dt_generated_release(&g);
    }
    DT_EXPECT_TO(done, st, x[0].n > 0 && x[0].n == x[1].n, "%lld scores", (long long)x[0].n);
    DT_EXPECT_TO(done, st,
                 memcmp(x[0].scores, x[1].scores, (size_t)x[0].n * sizeof *x[0].scores) == 0,
                 "other scores");
done:
    free(x);
    close_both(&b);
    return st;
}

DT_TEST(batch_dim, scores_of_all_sequences_are_shown_on_every_rank)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], shows, NULL);
}

/* --- passes ----------------------------------------------------------------------------------- */

enum { ROWS = 3, CHUNK = 4, ROOM = 12 };

typedef struct passing {
    dt_model *model;
    dt_state *state;
    dt_tape *tape;
    dt_tensor *logits[3]; /* two parts of a prompt, a step */
    dt_comm_counter sent[DT_N_COMM_KINDS];
} passing;

/* `grows`: caches begin with room for a part of the prompt. */
static dt_status pass_through(passing *p, dt_model *model, bool grows)
{
    const int64_t pads[ROWS] = { 2, 0, 1 }; /* the first is not the longest */
    int32_t ids[ROWS * CHUNK];

    p->model = model;
    DT_TRY(dt_state_create(model, ROWS, ROOM, &p->state));
    if (grows) dt_state_grow_from(p->state, CHUNK - 1);
    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(model)), &p->tape));
    DT_TRY(dt_state_pad(p->state, pads));
    for (int64_t c = 0; c < 3; c++) {
        dt_tensor *y;
        for (int64_t i = 0; i < ROWS * CHUNK; i++) ids[i] = (int32_t)((7 * i + 11 * c) % 40);
        y = dt_model_forward(p->tape, model, p->state, ids, c < 2 ? CHUNK : 1, DT_LOGITS_ALL);
        DT_TRY(dt_tape_status(p->tape));
        DT_TRY(dt_full_tensor(y, &p->logits[c]));
    }
    for (int k = 0; k < DT_N_COMM_KINDS; k++) p->sent[k] = dt_tape_comm(p->tape, (dt_comm_kind)k);
    return DT_OK;
}

static void end_passing(passing *p)
{
    for (int c = 0; c < 3; c++) dt_tensor_release(&p->logits[c]);
    dt_tape_release(&p->tape);
    dt_state_release(&p->state);
}

/* Rows of the batch that a rank has: as torch.chunk gives them. */
static int64_t rows_here(const dt_mesh *mesh, int64_t batch)
{
    const int64_t n = dt_mesh_dim_size(mesh, 0), each = (batch + n - 1) / n;
    const int64_t rest = batch - each * dt_mesh_coord(mesh, 0);

    return rest <= 0 ? 0 : rest < each ? rest : each;
}

static dt_status parts(dt_mesh *mesh, const void *fixture)
{
    const int64_t mine = rows_here(mesh, ROWS);
    passing p[2] = { { 0 } };
    dt_status st = DT_OK;
    both b = { 0 };

    DT_TRY_TO(done, st, open_both(mesh, fixture, &b));
    DT_TRY_TO(done, st, pass_through(&p[0], b.cut, true));
    DT_TRY_TO(done, st, pass_through(&p[1], b.whole, false));
    for (int c = 0; c < 3; c++) {
        const dt_local *x = dt_tensor_local(p[0].logits[c]), *y = dt_tensor_local(p[1].logits[c]);
        DT_EXPECT_TO(done, st,
                     memcmp(x->data, y->data,
                            (size_t)(x->shape[0] * x->shape[1] * x->shape[2]) * sizeof(float)) == 0,
                     "%s: other logits of part %d", (const char *)fixture, c);
    }
    /* caches are of its rows, and messages are those of "tp" alone, about its rows */
    DT_EXPECT_TO(done, st, dti_state_bytes(p[0].state) * ROWS == dti_state_bytes(p[1].state) * mine,
                 "%lld bytes of %lld for %lld rows", (long long)dti_state_bytes(p[0].state),
                 (long long)dti_state_bytes(p[1].state), (long long)mine);
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        DT_EXPECT_TO(done, st,
                     p[0].sent[k].calls == p[1].sent[k].calls &&
                         p[0].sent[k].bytes * ROWS == p[1].sent[k].bytes * mine,
                     "%s: %lld bytes", dt_comm_kind_name((dt_comm_kind)k),
                     (long long)p[0].sent[k].bytes);
done:
    end_passing(&p[0]);
    end_passing(&p[1]);
    close_both(&b);
    return st;
}

DT_TEST(batch_dim, passes_over_parts_of_padded_prompts_are_the_same)
{
    static const char *const fixtures[] = { "llama/tied", "gpt_neo/uneven", "phi3/base" };

    for (size_t f = 0; f < DT_COUNT(fixtures); f++)
        for (size_t m = 0; m < DT_COUNT(meshes) - 1; m++) /* whose parameters are not gathered */
            dt_test_on_ranks(meshes[m], parts, fixtures[f]);
    dt_test_on_ranks("dp=4,tp=1", parts, "llama/tied"); /* one has nothing */
}

/* --- what dims are for ------------------------------------------------------------------------ */

typedef struct dims_case {
    const char *mesh, *dim, *batch_dim, *rule_dim;
    const char *message; /* NULL: it works */
} dims_case;

static dt_status check_dims(const dims_case *c)
{
    static const dt_plan_rule rule = { "model.layers.*.mlp.up_proj", "replicate" };
    const dt_plan plan = { .rules = &rule, .n_rules = 1, .dim = c->rule_dim };
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES], folder[DT_TEST_PATH_BYTES];
    int sizes[DT_MAX_DIMS], n_dims;
    dt_runtime *rt = NULL;
    dt_mesh *mesh = NULL;
    dt_model *m = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_mesh_parse(c->mesh, &n_dims, names, sizes, &run.n_ranks));
    DT_TRY(dt_runtime_create_dry(&run, 0, NULL, &rt));
    o.dim = c->dim;
    o.batch_dim = c->batch_dim;
    if (c->rule_dim != NULL) o.plan = &plan;
    DT_TRY_TO(done, st, dt_mesh_create(rt, c->mesh, &mesh));
    dt_test_source_path(folder, "tests/golden/llama/tied");
    st = dt_model_check(mesh, folder, &o);
    if (st == DT_OK) st = dt_model_load(mesh, folder, &o, &m);
    dt_model_release(&m);
done:
    dt_mesh_release(&mesh);
    dt_runtime_release_dry(&rt);
    return st;
}

DT_TEST(batch_dim, a_dim_that_nothing_uses_is_refused)
{
    static const dims_case cases[] = {
        { "cp=2", "tp", "dp", NULL,
          "nothing uses mesh dim \"cp\": its 2 ranks would hold and compute "
          "the same. Layers are cut over the dim \"tp\", batches over \"dp\"" },
        { "cp=2,tp=2", "tp", "dp", NULL, "rename it, or take a slice of the mesh without it" },
        { "TP=2", "tp", "dp", NULL, "write \"tp=2\"" },
        { "pt=4", "tp", "dp", NULL, "write \"tp=4\"" },
        { "tensor_parallel=4", "tp", "dp", NULL, "write \"tp=4\"" },
        { "data=3,tp=1", "tp", "dp", NULL, "write \"dp=3\"" },
        { "dp=2,tp=2", "tp", NULL, NULL, "nothing uses mesh dim \"dp\"" },
        { "dp=2,tp=2", "tp", "data", NULL, "batches over \"data\"" },
        { "tp=2", "model", "dp", NULL, "Layers are cut over the dim \"model\"" },
        { "ep=2,tp=2", "tp", "dp", "tp", "nothing uses mesh dim \"ep\"" },
        { "ep=2,tp=2", "tp", "dp", "ep", NULL },
        { "pp=1,tp=2", "tp", "dp", NULL, NULL },
        { "dp=3,tp=2", "tp", "dp", NULL, NULL },
        { "data=3,model=2", "model", "data", NULL, NULL },
        { "dp=2", "dp", "dp", NULL, NULL }, /* layers, then */
        { "dp=2,tp=2", "tp", "dp", "dp", NULL },
        { "tp=2", "tp", NULL, NULL, NULL },
        { "dp=2,dp_shard=2", "tp?", "dp,dp_shard", NULL, NULL },
        { "dp=2,dp_shard=2", "tp?", "dp", NULL,
          "nothing uses mesh dim \"dp_shard\": its 2 ranks would hold and compute the same. Layers "
          "are cut over the dim \"tp?\", batches over \"dp\", and a plan may name others: write "
          "\"dp=2\"" },
        { "cp=2", "tp?", "dp,dp_shard", NULL, "batches over \"dp\", \"dp_shard\", and a plan" },
        { "data=2", "tp?", "dp_shard,dp", NULL, "write \"dp=2\"" },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const dims_case *c = &cases[i];
        if (c->message != NULL)
            DT_ASSERT_STATUS(check_dims(c), DT_ERR_ARG, c->message);
        else
            DT_ASSERT_OK(check_dims(c));
    }
}

/* A rank that has nothing to do is no error, and is said once. */
static void count_idle(void *arg, dt_log_level level, int rank, const char *text)
{
    (void)level, (void)rank;
    if (strstr(text, "1 sequence over mesh dim \"dp\" of 2: 1 of its ranks computes nothing") !=
        NULL)
        ++*(int *)arg;
}

static dt_status one_sequence(dt_mesh *mesh, const void *arg)
{
    dt_generate_options o = some_tokens(3);
    dt_model *m = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY(load(mesh, "llama/tied", &m));
    for (int i = 0; i < 2 && st == DT_OK; i++) {
        dt_state *s = NULL;
        int32_t ids[3];
        int64_t n = 0;
        DT_TRY_TO(done, st, dt_state_create(m, 1, 16, &s));
        st = dt_generate(m, s, prompts[0], 5, &o, ids, &n);
        if (st == DT_OK && n < 1) st = dt_fail(DT_ERR_INTERNAL, "%lld tokens", (long long)n);
        dt_state_release(&s);
    }
done:
    dt_model_release(&m);
    return st;
}

DT_TEST(batch_dim, ranks_without_a_sequence_are_said_once)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    int n = 0;

    o.log = count_idle;
    o.log_arg = &n;
    DT_ASSERT_OK(dt_test_run(&o, "dp=2,tp=1", one_sequence, NULL));
    if (dt_test_is_here(0, 2)) DT_ASSERT_EQ_INT(n, 1);
}
