/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures whose experts lie whole on ranks, in both forms: what plans say that a layer sends is
 * what it counts on threads, all of it where terms are summed, and where tokens go to their experts
 * what these say, or at most so much; and the number of tokens from which on the other is taken. */
#include <dtensor/ops.h>
#include <math.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "dtensor/device/device.h"
#include "mesh/runtime.h"
#include "tests/planner/ways.h"
#include "tests/support/layers.h"
#include "tests/support/tensors.h"

enum { MOST_TOKENS = 2 * 12, MOST_VALUES = MOST_TOKENS * 12, N_LAYERS = 4 };

/* Two blocks of 8 experts of which a token chooses `chosen`; rows of 32 in bf16. */
static void write_mixture(int chosen, char folder[DT_TEST_PATH_BYTES])
{
    char text[640];
    const int n = snprintf(
        text, sizeof text,
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 32, \"intermediate_size\": 64,"
        " \"moe_intermediate_size\": 16, \"num_local_experts\": 8, \"num_experts_per_tok\": %d,"
        " \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"head_dim\": 8,"
        " \"num_hidden_layers\": 2, \"vocab_size\": 64, \"max_position_embeddings\": 64,"
        " \"rms_norm_eps\": 1e-06, \"hidden_act\": \"silu\", \"norm_topk_prob\": true,"
        " \"torch_dtype\": \"bfloat16\", \"tie_word_embeddings\": false}",
        chosen);

    dt_test_write_file(dt_test_temp_dir(folder), "config.json", text, (size_t)n);
}

static void open_task(int chosen, dt_plan_goal goal, dti_task *t)
{
    static char folder[DT_TEST_PATH_BYTES]; /* the task borrows it */
    const dt_machine m = test_machine(1, 4, 1e9, 1e9, 1e9);
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;

    write_mixture(chosen, folder);
    o.goal = goal;
    DT_ASSERT_OK(dti_task_open(NULL, folder, &m, &o, t));
}

/* --- one layer on threads --------------------------------------------------------------------- */

typedef enum choice { ANY, ALL_TO_FIRST, ALL_TO_LAST, N_CHOICES } choice;

typedef struct scene {
    int64_t batch, tokens, d, f, experts, chosen;
    choice how;
    bool cut; /* tokens come cut, or whole */
    dt_dtype dtype;
    const dt_plan *plan; /* of a way */
} scene;

static void make_specs(const scene *s, dt_layer_spec specs[N_LAYERS])
{
    const dt_layer_spec all[N_LAYERS] = {
        { .name = "model.layers.0.mlp", .kind = &dt_point_kind, .style = "local" },
        { .name = "model.layers.0.mlp.experts", .kind = &dt_point_kind, .style = "moe_tp_experts" },
        { .name = "model.layers.0.mlp.experts.gate_up_proj",
          .kind = &dt_experts_kind,
          .axis = { { 2 * s->f, DT_UNIT_ROW }, { s->d, DT_UNIT_ROW }, { s->experts, DT_UNIT_ROW } },
          .blocks = { { 2, { { s->f, DT_UNIT_ROW }, { s->f, DT_UNIT_ROW } } } },
          .style = "packed_colwise" },
        { .name = "model.layers.0.mlp.experts.down_proj",
          .kind = &dt_experts_kind,
          .axis = { { s->d, DT_UNIT_ROW }, { s->f, DT_UNIT_ROW }, { s->experts, DT_UNIT_ROW } },
          .style = "rowwise" },
    };

    memcpy(specs, all, sizeof all);
}

/* ids [rows, k], different ones in a row. */
static void choose(const scene *s, int32_t *ids)
{
    const int64_t rows = s->batch * s->tokens, n = s->experts;

    for (int64_t i = 0; i < rows * s->chosen; i++) {
        const int64_t row = i / s->chosen, k = i % s->chosen;
        const int64_t first = s->how == ANY ? row * 7 % n : s->how == ALL_TO_FIRST ? 0 : n - 1;
        ids[i] = (int32_t)((first + (s->how == ALL_TO_LAST ? n - k : k)) % n);
    }
}

/* The layer under the scene's plan; what ids say does not matter to a dry one. */
static dt_status run_layer(dt_mesh *mesh, const scene *s, dt_tape *t)
{
    const int64_t shape[] = { s->batch, s->tokens, s->d }, k[] = { s->batch, s->tokens, s->chosen };
    const dt_placement everywhere[DT_MAX_DIMS] = { { 0 } };
    dt_layer_spec specs[N_LAYERS];
    int32_t ids[MOST_VALUES];
    float values[MOST_VALUES];
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *x = NULL, *chosen = NULL, *weights = NULL;
    dt_tensor *in;

    make_specs(s, specs);
    choose(s, ids);
    dt_test_random(values, MOST_VALUES, 3);
    DT_TRY(dt_layers_create(mesh, "tp?", specs, N_LAYERS, s->plan, &layers));
    DT_TRY(dt_test_fill_layers(mesh, layers, s->dtype, 7));
    DT_TRY(dt_distribute(mesh, everywhere, DT_F32, 3, shape, (dt_source){ values, DT_EQUAL_COPIES },
                         &x));
    DT_TRY(dt_distribute(mesh, everywhere, DT_I32, 3, k, (dt_source){ ids, DT_EQUAL_COPIES },
                         &chosen));
    DT_TRY(dt_distribute(mesh, everywhere, DT_F32, 3, k, (dt_source){ values, DT_EQUAL_COPIES },
                         &weights));
    in = dt_cast(t, x, s->dtype);
    if (s->cut) in = dt_move_dim(t, in, 0, DT_SHARD(1));
    (void)dt_layer_experts(t, dt_layers_at(layers, 1), dt_layers_at(layers, 2),
                           dt_layers_at(layers, 3), in, chosen, dt_cast(t, weights, s->dtype));
    return dt_tape_status(t);
}

/* What a dry run says of it. */
typedef struct said {
    dt_comm_counter comm[DT_N_COMM_KINDS];
    int64_t most; /* of rows that are sent */
} said;

static void hear_move(void *arg, const dti_move_step *step, const int64_t *shape, dt_comm_kind kind,
                      const dt_comm_counter *count)
{
    (void)shape, (void)count;
    if (kind == DT_COMM_ALL_TO_ALL) ((said *)arg)->most += step->most;
}

static void hear_tensor(void *arg, const dt_layout *layout, const int64_t *shape)
{
    (void)arg, (void)layout, (void)shape;
}

static dt_status ask(dt_mesh *mesh, const scene *s, said *out)
{
    const dti_observer observer = { hear_move, hear_tensor, out };
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    dt_mesh *dry = NULL;
    dt_runtime *rt = NULL;
    dt_tape *t = NULL;
    dti_device *device;
    dt_status st;

    *out = (said){ .most = 0 };
    run.n_ranks = dt_mesh_n_ranks(mesh);
    DT_TRY(dt_runtime_create_dry(&run, dt_mesh_coord(mesh, 0), NULL, &rt));
    DT_TRY_TO(done, st, dti_mesh_copy(mesh, rt, &dry));
    DT_TRY_TO(done, st, dt_tape_create(rt, &t));
    DT_TRY_TO(done, st, dti_device_of(rt, &device));
    device->observer = &observer;
    st = run_layer(dry, s, t);
    device->observer = NULL;
    for (int k = 0; k < DT_N_COMM_KINDS; k++) out->comm[k] = dt_tape_comm(t, (dt_comm_kind)k);
done:
    dt_tape_release(&t);
    dt_mesh_release(&dry);
    dt_runtime_release_dry(&rt);
    return st;
}

/* Who of p has one of n, as torch.chunk cuts them. */
static int64_t holder(int64_t i, int64_t n, int p)
{
    return i / ((n + p - 1) / p);
}

/* Bytes of the rows that rank `me` receives, if tokens choose so. */
static int64_t rows_due(const scene *s, const int32_t *ids, int me, int p)
{
    int64_t there = 0, back = 0;

    for (int64_t row = 0; row < s->batch * s->tokens; row++) {
        const int64_t home = holder(row % s->tokens, s->tokens, p);
        bool reads[8] = { false };
        for (int64_t k = 0; k < s->chosen; k++)
            reads[holder(ids[row * s->chosen + k], s->experts, p)] = true;
        there += s->cut && home != me && reads[me];
        for (int r = 0; r < p && home == me; r++) back += r != me && reads[r];
    }
    return s->d * (there * (int64_t)dt_dtype_size(s->dtype) + back * (int64_t)sizeof(float));
}

static dt_status counts_what_was_said(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    const int me = dt_mesh_coord(mesh, 0), p = dt_mesh_dim_size(mesh, 0);
    DT_HELD(tape) *t = dt_test_tape(mesh);
    int32_t ids[MOST_VALUES];
    said want;

    DT_TRY(ask(mesh, s, &want));
    DT_TRY(run_layer(mesh, s, t));
    choose(s, ids);
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const dt_comm_counter got = dt_tape_comm(t, (dt_comm_kind)k);
        DT_EXPECT_EQ_INT(got.calls, want.comm[k].calls);
        if (k != DT_COMM_ALL_TO_ALL) {
            DT_EXPECT_EQ_INT(got.bytes, want.comm[k].bytes);
            continue;
        }
        if (got.calls > 0) DT_EXPECT_EQ_INT(got.bytes, rows_due(s, ids, me, p));
        DT_EXPECT(got.bytes <= want.most, "%lld bytes, at most %lld", (long long)got.bytes,
                  (long long)want.most);
        DT_EXPECT(want.comm[k].bytes <= want.most, "an average of %lld, at most %lld",
                  (long long)want.comm[k].bytes, (long long)want.most);
    }
    return DT_OK;
}

static const scene sizes[] = {
    { .batch = 2, .tokens = 12, .d = 8, .f = 4, .experts = 12, .chosen = 3 }, /* all divide */
    { .batch = 1, .tokens = 7, .d = 5, .f = 3, .experts = 5, .chosen = 2 },   /* and nothing */
    { .batch = 1, .tokens = 2, .d = 3, .f = 2, .experts = 3, .chosen = 1 }, /* ranks without both */
    { .batch = 1, .tokens = 1, .d = 4, .f = 2, .experts = 7, .chosen = 4 }, /* a step */
};

/* Both forms over ep, and over tp of tokens that are cut. */
DT_TEST(expert_forms, a_layer_of_a_plan_counts_what_was_said_of_it)
{
    static const struct {
        const char *dim;
        dt_way way;
        bool cut;
    } forms[] = {
        { "ep", { .pp = 1, .dp = 1, .tp = 1, .ep = 2 }, false },
        { "ep", { .pp = 1, .dp = 1, .tp = 1, .ep = 2, .dispatch = true }, false },
        { "tp", { .pp = 1, .dp = 1, .tp = 2, .sequence_parallel = true, .dispatch = true }, true },
    };
    dti_task task;

    open_task(2, DT_PLAN_STEP, &task);
    for (size_t f = 0; f < DT_COUNT(forms); f++)
        for (int p = 1; p <= 4; p++)
            for (size_t i = 0; i < DT_COUNT(sizes); i++)
                for (int how = 0; how < 2 * N_CHOICES; how++) {
                    scene s = sizes[i];
                    char mesh[16];
                    if (forms[f].cut && s.tokens == 1) continue; /* a step's are whole */
                    s.plan = dti_way_plan(&task, &forms[f].way);
                    s.cut = forms[f].cut;
                    s.how = (choice)(how / 2);
                    s.dtype = how % 2 ? DT_BF16 : DT_F32;
                    (void)snprintf(mesh, sizeof mesh, "%s=%d", forms[f].dim, p);
                    dt_test_on_ranks(mesh, counts_what_was_said, &s);
                }
    dti_task_close(&task);
}

/* What would go wrong if ids did not count: other ids, other bytes; and all tokens at one rank make
 * the others receive as much as was said at most, and it nothing. */
static dt_status differs_by_choice(dt_mesh *mesh, const void *arg)
{
    scene s = *(const scene *)arg, other = s;
    const int me = dt_mesh_coord(mesh, 0), p = dt_mesh_dim_size(mesh, 0);
    DT_HELD(tape) *t = dt_test_tape(mesh);
    int32_t ids[MOST_VALUES];
    dt_comm_counter got;
    said want;

    s.how = ALL_TO_FIRST;
    other.how = ALL_TO_LAST;
    DT_TRY(ask(mesh, &s, &want));
    DT_TRY(run_layer(mesh, &s, t));
    got = dt_tape_comm(t, DT_COMM_ALL_TO_ALL);
    DT_EXPECT_EQ_INT(got.calls, 1);
    DT_EXPECT_EQ_INT(got.bytes, me == 0 ? 0 : want.most);
    DT_EXPECT(want.comm[DT_COMM_ALL_TO_ALL].bytes != got.bytes, "no average of these");
    choose(&other, ids);
    DT_EXPECT((rows_due(&other, ids, me, p) != got.bytes) == (me == 0 || me == p - 1),
              "all to the last rank: %lld bytes", (long long)rows_due(&other, ids, me, p));
    return DT_OK;
}

DT_TEST(expert_forms, bytes_are_those_of_what_tokens_choose)
{
    const dt_way way = { .pp = 1, .dp = 1, .tp = 1, .ep = 2, .dispatch = true };
    scene s = { .batch = 1, .tokens = 12, .d = 8, .f = 4, .experts = 9, .chosen = 1 };
    dti_task task;

    open_task(2, DT_PLAN_STEP, &task);
    s.plan = dti_way_plan(&task, &way);
    dt_test_on_ranks("ep=3", differs_by_choice, &s);
    dti_task_close(&task);
}

/* --- the number of tokens that decides -------------------------------------------------------- */

/* Elements of a row, for each token, that a rank of four receives where every token reads experts
 * of all: summed, or sent in parts, of which the first rank has the most. f32 counts as two. */
static double summed(int64_t tokens)
{
    return 2.0 * 3 / 4 * (double)tokens * 2;
}

static double sent(int64_t tokens)
{
    const double part = (double)((tokens + 3) / 4);

    return part * 3 * 2 + ((double)tokens - part);
}

DT_TEST(expert_forms, fewer_bytes_decide_where_no_machine_is_known)
{
    const dt_way way = { .pp = 1, .dp = 1, .tp = 1, .ep = 4 };
    int n_sent = 0;
    dti_task task;

    open_task(8, DT_PLAN_PROMPT, &task);
    for (int64_t tokens = 1; tokens <= 16; tokens++) {
        const double row = 2 * 32 * 2; /* blocks, elements, bytes */
        const bool less = sent(tokens) < summed(tokens);
        dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
        dt_load_options load = DT_LOAD_OPTIONS_INIT;
        const dt_expert_forms *f;
        dt_prediction *p = NULL;
        load.plan = dti_way_plan(&task, &way);
        o.mesh = "ep=4";
        o.load = &load;
        o.sequence = tokens;
        DT_ASSERT_OK(dt_predict(NULL, task.dir, &o, &p));
        f = dt_prediction_experts(p);
        DT_ASSERT(f->dims == 1 && f->form == DT_EXPERTS_SUMMED);
        DT_ASSERT_CLOSE((double)f->prompt[DT_EXPERTS_SUMMED].bytes, row * summed(tokens), 0);
        DT_ASSERT_CLOSE((double)f->prompt[DT_EXPERTS_SENT].bytes,
                        row * (less ? sent(tokens) : summed(tokens)), 0);
        DT_ASSERT(f->prompt[DT_EXPERTS_SENT].bytes == f->prompt[DT_EXPERTS_SENT].most_bytes);
        DT_ASSERT_CLOSE((double)f->step[DT_EXPERTS_SENT].bytes, row * summed(1), 0);
        dt_prediction_release(&p);
        n_sent += less;
    }
    DT_ASSERT_EQ_INT(n_sent, 13); /* not 1 and 2, nor 5, a tie */
    dti_task_close(&task);
}

/* Calls take 10.25 times as long as a row of bf16, for four ranks. */
DT_TEST(expert_forms, the_faster_one_is_taken_from_the_predicted_number_of_tokens_on)
{
    static const double BANDWIDTH = 1e6, ROW = 32 * 2 / 1e6;
    const dt_machine found = test_machine(1, 4, 1e9, BANDWIDTH, BANDWIDTH);
    char folder[DT_TEST_PATH_BYTES];
    dt_machine m = found;
    int flips = 0;
    bool before = false;

    write_mixture(8, folder);
    m.figure[DT_FIGURE_FLOPS_BF16].value = m.figure[DT_FIGURE_MEMORY_BANDWIDTH].value = 1e30;
    m.figure[DT_FIGURE_INSIDE_LATENCY].value = 10.25 / 2 * ROW; /* each doubling */
    for (int64_t tokens = 1; tokens <= 24; tokens++) {
        const double more = 10.25 + sent(tokens) - summed(tokens); /* two calls, not one */
        const bool want = sent(tokens) < summed(tokens) && more < 0;
        dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
        DT_HELD(search) *s = NULL;
        const dt_verdict *first, *other;
        o.goal = DT_PLAN_PROMPT;
        o.sequence = tokens;
        o.pp = o.dp = o.tp = 1;
        o.ep = 4;
        DT_ASSERT_OK(dt_search_ways(NULL, folder, &m, &o, &s));
        first = dt_search_at(s, 0);
        other = dt_search_other_form(s);
        DT_ASSERT(first->kind == DT_VERDICT_RANKED && other != NULL);
        DT_ASSERT_EQ_INT(first->way.dispatch, want);
        DT_ASSERT_EQ_INT(other->way.dispatch, !want);
        DT_ASSERT(first->cost.seconds <= other->cost.seconds);
        if (want)
            DT_ASSERT_CLOSE(other->cost.experts[0].seconds - first->cost.experts[0].seconds,
                            -2 * more * ROW, 1e-12);
        flips += tokens > 1 && want != before;
        before = want;
    }
    DT_ASSERT(before);
    DT_ASSERT_EQ_INT(flips, 3); /* 16 and 18 on, but not 17: parts of five rows */
}

/* A layer that two rules speak of, on dims of their own, is one member of the file. */
DT_TEST(expert_forms, styles_on_several_dims_stand_in_one_member)
{
    const dt_way way = { .pp = 1,
                         .dp = 2,
                         .tp = 2,
                         .zero = 3,
                         .tiles = 4,
                         .sequence_parallel = true,
                         .dispatch = true };
    char text[4096] = "";
    dti_writer w = { text, sizeof text, 0 };
    const char *gate;
    dti_task task;

    open_task(2, DT_PLAN_STEP, &task);
    DT_ASSERT(dti_put_way_plan(&w, &task, &way));
    gate = strstr(text, "\"model.layers.*.mlp.gate\": { \"dp\": \"fully_shard(out_tiles=4)\", "
                        "\"tp\": \"local\" }");
    DT_ASSERT(gate != NULL && strstr(gate + 1, "\"model.layers.*.mlp.gate\"") == NULL);
    DT_ASSERT(strstr(text, "\"model.layers.*.mlp\": { \"tp\": \"local\" }") != NULL);
    dti_task_close(&task);
}
