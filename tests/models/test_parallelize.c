/* SPDX-License-Identifier: Apache-2.0
 *
 * dt_parallelize(): the same model as by hand, what it says of memory, and misuse by all ranks, by
 * one rank, and by ranks that do not come. */
#include <dtensor/parallel_styles.h>
#include <dtensor/parallelize.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/support/dt_test.h"

enum { N_NEW = 8, MAX_RANKS = 4 };

static const char *folder_of(const char *fixture, char path[DT_TEST_PATH_BYTES])
{
    return dt_test_source_path(path, "tests/golden/%s", fixture);
}

/* Runs `body` on n ranks without a mesh of the test's own. */
typedef dt_status (*scene_body)(dt_runtime *rt, const void *arg);
typedef struct scene {
    scene_body body;
    const void *arg;
} scene;

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const scene *s = arg;

    DT_TRY(s->body(rt, s->arg));
    DT_EXPECT(dt_runtime_live(rt) == 0, "%lld objects are left", (long long)dt_runtime_live(rt));
    return DT_OK;
}

static dt_status run(int n_ranks, dt_log_fn log, void *log_arg, scene_body body, const void *arg)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    scene s = { body, arg };

    if (n_ranks < dt_test_processes()) return DT_OK;
    options.n_ranks = n_ranks;
    options.log = log;
    options.log_arg = log_arg;
    return dt_run(&options, rank_main, &s);
}

static dt_status tokens_of(dt_model *model, int32_t out[N_NEW])
{
    static const int32_t prompt[] = { 5, 2, 9 };
    dt_generate_options options = DT_GENERATE_OPTIONS_INIT;
    dt_state *state = NULL;
    dt_status st;
    int64_t n;

    options.max_new_tokens = N_NEW;
    options.ignore_eos = true;
    DT_TRY(dt_state_create(model, 1, 3 + N_NEW, &state));
    st = dt_generate(model, state, prompt, 3, &options, out, &n);
    dt_state_release(&state);
    return st;
}

/* --- the model -------------------------------------------------------------------------------- */

static dt_status as_by_hand(dt_runtime *rt, const void *arg)
{
    const char *fixture = arg;
    dt_parallelize_options options = DT_PARALLELIZE_OPTIONS_INIT;
    int32_t mine[N_NEW] = { 0 }, theirs[N_NEW] = { 1 };
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(model) *model = NULL, *other = NULL;
    const dt_policy *policy = NULL;
    char path[DT_TEST_PATH_BYTES];

    options.n_ranks = dt_runtime_size(rt);
    options.device = "cpu";
    options.policies = &policy;
    options.n_policies = 1;
    DT_TRY(dt_policy_find(strncmp(fixture, "gpt_neo", 7) == 0 ? "gpt_neo" : "llama", &policy));
    DT_TRY(dt_parallelize(rt, folder_of(fixture, path), &options, &model));
    mesh = dt_mesh_retain(dt_model_mesh(model));
    DT_EXPECT(dt_mesh_n_ranks(mesh) == options.n_ranks, "the mesh has all ranks");
    DT_TRY(dt_model_load(mesh, path, NULL, &other));
    DT_TRY(tokens_of(model, mine));
    DT_TRY(tokens_of(other, theirs));
    DT_EXPECT(memcmp(mine, theirs, sizeof mine) == 0, "other tokens");
    return DT_OK;
}

DT_TEST(parallelize, gives_the_model_that_loading_gives)
{
    for (int n = 1; n <= MAX_RANKS; n++) {
        DT_ASSERT_OK(run(n, NULL, NULL, as_by_hand, "llama/uneven"));
        DT_ASSERT_OK(run(n, NULL, NULL, as_by_hand, "gpt_neo/uneven"));
    }
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Weights of a rank are what its layers hold; cut ones add up to whole ones over the ranks. */
static dt_status memory_adds_up(dt_runtime *rt, const void *arg)
{
    dt_rank_memory ranks[MAX_RANKS];
    char path[DT_TEST_PATH_BYTES];
    DT_HELD(model) *model = NULL;
    int64_t cut = 0, all = 0;
    const int me = dt_runtime_rank(rt), n = dt_runtime_size(rt);

    DT_TRY(dt_parallelize(rt, folder_of(arg, path), NULL, &model));
    DT_TRY(dt_model_memory(model, ranks));
    for (int i = 0; i < dt_layers_count(dt_model_layers(model)); i++) {
        const dt_layer *layer = dt_layers_at(dt_model_layers(model), i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            const dt_tensor *x = dt_layer_param(layer, p);
            int64_t bytes = (int64_t)dt_dtype_size(dt_tensor_dtype(x));
            if (!dt_layer_owns_param(layer, p)) continue;
            for (int a = 0; a < dt_tensor_n_axes(x); a++) bytes *= dt_tensor_extent(x, a);
            all += bytes;
        }
    }
    for (int r = 0; r < n; r++) {
        cut += ranks[r].cut_bytes;
        DT_EXPECT(ranks[r].rank == r, "rank %d", ranks[r].rank);
        DT_EXPECT(ranks[r].whole_bytes == ranks[0].whole_bytes, "copies");
        DT_EXPECT(ranks[r].allocated_bytes >= ranks[r].cut_bytes + ranks[r].whole_bytes &&
                      ranks[r].peak_bytes >= ranks[r].allocated_bytes &&
                      ranks[r].reserved_bytes >= ranks[r].allocated_bytes,
                  "rank %d: %lld allocated", r, (long long)ranks[r].allocated_bytes);
    }
    DT_EXPECT(cut + ranks[0].whole_bytes == all, "%lld bytes of %lld",
              (long long)(cut + ranks[0].whole_bytes), (long long)all);
    DT_EXPECT(n == 1 || (cut > 0 && ranks[0].whole_bytes > 0), "both kinds");
    DT_EXPECT(ranks[me].cut_bytes + ranks[me].whole_bytes == dt_model_local_bytes(model),
              "own bytes");
    return DT_OK;
}

/* Without shared kv heads every cut weight is in as many parts as there are ranks. */
DT_TEST(parallelize, memory_of_all_ranks_adds_up)
{
    for (int n = 1; n <= 3; n++) DT_ASSERT_OK(run(n, NULL, NULL, memory_adds_up, "gpt_neo/uneven"));
    for (int n = 1; n <= 2; n++) DT_ASSERT_OK(run(n, NULL, NULL, memory_adds_up, "llama/tied"));
}

typedef struct lines {
    atomic_int n;
    atomic_int allocated, cut; /* lines that say so */
} lines;

static void count_line(void *arg, dt_log_level level, int rank, const char *line)
{
    lines *l = arg;

    (void)level, (void)rank;
    (void)atomic_fetch_add(&l->n, 1);
    if (strstr(line, "MiB allocated") != NULL) (void)atomic_fetch_add(&l->allocated, 1);
    if (strstr(line, "MiB cut") != NULL) (void)atomic_fetch_add(&l->cut, 1);
}

static dt_status speaks(dt_runtime *rt, const void *arg)
{
    dt_parallelize_options options = DT_PARALLELIZE_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    dt_model *model = NULL;

    options.verbose = *(const dt_verbose *)arg;
    DT_TRY(dt_parallelize(rt, folder_of("llama/uneven", path), &options, &model));
    dt_model_release(&model);
    return DT_OK;
}

DT_TEST(parallelize, verbose_is_a_line_per_rank_in_the_log)
{
    static const dt_verbose how[] = { DT_VERBOSE_NONE, DT_VERBOSE_SIMPLE, DT_VERBOSE_DETAIL };

    if (dt_test_processes() > 1) dt_test_skip("rank 0's log is another process'");
    for (int i = 0; i < 3; i++) {
        lines l = { 0 };
        DT_ASSERT_OK(run(3, count_line, &l, speaks, &how[i]));
        DT_ASSERT_EQ_INT(atomic_load(&l.allocated), i == 0 ? 0 : 3);
        DT_ASSERT_EQ_INT(atomic_load(&l.cut), i == 2 ? 3 : 0);
        DT_ASSERT_EQ_INT(atomic_load(&l.n), i == 0 ? 0 : i == 1 ? 3 : 4);
    }
}

/* "How much rank 0 says": asking rank 0 alone is the natural way to write it. */
static dt_status rank_0_speaks(dt_runtime *rt, const void *arg)
{
    dt_parallelize_options options = DT_PARALLELIZE_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    int32_t tokens[N_NEW];
    dt_model *model = NULL;
    dt_status st;

    (void)arg;
    options.verbose = dt_runtime_rank(rt) == 0 ? DT_VERBOSE_SIMPLE : DT_VERBOSE_NONE;
    DT_TRY(dt_parallelize(rt, folder_of("llama/uneven", path), &options, &model));
    st = tokens_of(model, tokens);
    dt_model_release(&model);
    return st;
}

DT_TEST(parallelize, verbose_may_differ_between_ranks)
{
    if (dt_test_processes() > 1) dt_test_skip("rank 0's log is another process'");
    for (int n = 1; n <= MAX_RANKS; n++) {
        lines l = { 0 };
        DT_ASSERT_OK(run(n, count_line, &l, rank_0_speaks, NULL));
        DT_ASSERT_EQ_INT(atomic_load(&l.allocated), n);
    }
}

/* --- misuse ----------------------------------------------------------------------------------- */

typedef struct misuse {
    dt_parallelize_options options;
    dt_status code;
    const char *message;
} misuse;

static dt_status refuses(dt_runtime *rt, const void *arg)
{
    const misuse *m = arg;
    char path[DT_TEST_PATH_BYTES];
    dt_model *model = NULL;

    DT_EXPECT_STATUS(dt_parallelize(rt, folder_of("llama/uneven", path), &m->options, &model),
                     m->code, m->message);
    DT_EXPECT(model == NULL, "no model");
    DT_TRY(dt_parallelize(rt, path, NULL, &model)); /* the run goes on */
    dt_model_release(&model);
    return DT_OK;
}

#define WITH(...)                                                                            \
    {                                                                                        \
        .size = sizeof(dt_parallelize_options), .keep_dtype = true, .dim = "tp", __VA_ARGS__ \
    }

DT_TEST(parallelize, wrong_arguments_are_refused_and_the_run_goes_on)
{
    static const misuse rows[] = {
        { WITH(.n_ranks = 4), DT_ERR_ARG,
          "n_ranks is 4, but the run has 2 ranks: set "
          "dt_run_options.n_ranks to 4 (under mpirun -n 4)" },
        { WITH(.n_ranks = -1), DT_ERR_ARG, "n_ranks is -1" },
        { WITH(.mesh = "dp=2,tp=2"), DT_ERR_ARG,
          "mesh \"dp=2,tp=2\" has 4 ranks, but the run has 2" },
        { WITH(.mesh = "tp=1"), DT_ERR_ARG, "mesh \"tp=1\" has 1 rank, but the run has 2" },
        { WITH(.mesh = "tp"), DT_ERR_ARG, "tp" },
        { WITH(.device = "tpu"), DT_ERR_ARG, "device \"tpu\": choose \"cpu\", \"cuda\"" },
        { WITH(.device = "cuda:x"), DT_ERR_ARG, "device \"cuda:x\": choose" },
        { WITH(.device = "cuda:0"), DT_ERR_UNSUPPORTED, "" }, /* why depends on the machine */
        { WITH(.backend = "nccl"), DT_ERR_UNSUPPORTED, "" },
        { WITH(.backend = "gloo"), DT_ERR_ARG, "unknown backend \"gloo\"; there are" },
        { WITH(.backend = "smoke"), DT_ERR_ARG, "unknown backend \"smoke\"; there are \"local\"" },
        { WITH(.verbose = (dt_verbose)7), DT_ERR_ARG, "verbose is 7" },
        { WITH(.n_policies = 1), DT_ERR_ARG, "options.policies is a list of 1" },
        { .options = { .size = 3 }, DT_ERR_ARG, "dt_parallelize_options.size is 3" },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) DT_ASSERT_OK(run(2, NULL, NULL, refuses, &rows[i]));
    if (dt_test_processes() > 1) return;
    DT_ASSERT_OK(run(2, NULL, NULL, refuses,
                     &(misuse){ WITH(.backend = "sockets"), DT_ERR_UNSUPPORTED,
                                "joined by \"local\": start the program with torchrun's" }));
    DT_ASSERT_OK(run(2, NULL, NULL, refuses,
                     &(misuse){ WITH(.backend = "mpi"), DT_ERR_UNSUPPORTED,
                                "the ranks of this run are joined by \"local\": start the program "
                                "under mpirun" }));
}

static dt_status twice(dt_runtime *rt, const void *arg)
{
    char path[DT_TEST_PATH_BYTES];
    dt_model *model = NULL, *second = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY(dt_parallelize(rt, folder_of("llama/uneven", path), NULL, &model));
    st =
        dt_test_expect_status(__func__, __FILE__, __LINE__, dt_parallelize(rt, path, NULL, &second),
                              DT_ERR_ARG, "is parallelized already");
    if (st == DT_OK) /* another model may stand beside it */
        st = dt_parallelize(rt, folder_of("qwen3/base", path), NULL, &second);
    dt_model_release(&second);
    dt_model_release(&model);
    DT_TRY(st);
    DT_TRY(dt_parallelize(rt, folder_of("llama/uneven", path), NULL, &model));
    dt_model_release(&model);
    return DT_OK;
}

DT_TEST(parallelize, a_second_time_is_refused_until_the_model_is_released)
{
    for (int n = 1; n <= 2; n++) DT_ASSERT_OK(run(n, NULL, NULL, twice, NULL));
}

static dt_status held_by_a_state(dt_runtime *rt, const void *arg)
{
    char path[DT_TEST_PATH_BYTES];
    dt_model *model = NULL;
    dt_state *state = NULL;
    dt_status st;

    (void)arg;
    DT_TRY(dt_parallelize(rt, folder_of("llama/uneven", path), NULL, &model));
    st = dt_state_create(model, 1, 4, &state);
    dt_model_release(&model);
    DT_TRY(st);
    st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_parallelize(rt, path, NULL, &model),
                               DT_ERR_ARG,
                               "release that model and the states that still hold it first");
    dt_state_release(&state);
    DT_TRY(st);
    DT_TRY(dt_parallelize(rt, path, NULL, &model));
    dt_model_release(&model);
    return DT_OK;
}

DT_TEST(parallelize, a_state_holds_its_model_and_the_refusal_says_so)
{
    DT_ASSERT_OK(run(2, NULL, NULL, held_by_a_state, NULL));
}

/* What rank 1 is asked differs from what the others are. */
static dt_status one_differs(dt_runtime *rt, const void *arg)
{
    const misuse *m = arg;
    char path[DT_TEST_PATH_BYTES];
    dt_model *model = NULL;
    const bool odd = dt_runtime_rank(rt) == 1;

    DT_EXPECT_STATUS(
        dt_parallelize(rt, folder_of("llama/uneven", path), odd ? &m->options : NULL, &model),
        m->code, m->message);
    return DT_OK;
}

static dt_status one_has_another_folder(dt_runtime *rt, const void *arg)
{
    const char *const *folders = arg;
    char path[DT_TEST_PATH_BYTES];
    dt_model *model = NULL;
    const bool odd = dt_runtime_rank(rt) == 1;

    DT_EXPECT_STATUS(dt_parallelize(rt, folder_of(folders[odd], path), NULL, &model),
                     folders[2] == NULL ? DT_ERR_ARG : DT_ERR_IO,
                     folders[2] == NULL ? "ranks 0 and 1 were called with different arguments"
                                        : folders[2]);
    return DT_OK;
}

DT_TEST(parallelize, ranks_that_are_asked_differently_all_hear_of_it)
{
    static const misuse rows[] = {
        { WITH(.mesh = "tp=3", .n_ranks = 3, .sequence_parallel = true), DT_ERR_ARG,
          "ranks 0 and 1 were called with different arguments: mesh tp=3, dtype of the "
          "checkpoint" },
        { WITH(.mesh = "dp=3"), DT_ERR_ARG, "against mesh dp=3" },
        { WITH(.n_ranks = 7), DT_ERR_ARG, "n_ranks is 7, but the run has 3 ranks" },
    };
    static const char *const other[] = { "llama/uneven", "llama/biases", NULL };
    static const char *const missing[] = { "llama/uneven", "llama/none", "llama/none" };

    for (size_t i = 0; i < DT_COUNT(rows); i++)
        DT_ASSERT_OK(run(3, NULL, NULL, one_differs, &rows[i]));
    DT_ASSERT_OK(run(3, NULL, NULL, one_has_another_folder, other));
    DT_ASSERT_OK(run(3, NULL, NULL, one_has_another_folder, missing));
}

/* Options of rank 0 and of the others, of which neither is wrong. */
typedef struct difference {
    dt_parallelize_options of[2];
} difference;

static dt_status options_differ(dt_runtime *rt, const void *arg)
{
    const difference *d = arg;
    char path[DT_TEST_PATH_BYTES];
    dt_model *model = NULL;

    DT_EXPECT_STATUS(dt_parallelize(rt, folder_of("llama/uneven", path),
                                    &d->of[dt_runtime_rank(rt) == 0], &model),
                     DT_ERR_ARG, "ranks 0 and 1 were called with different arguments");
    DT_EXPECT(model == NULL, "no model");
    return DT_OK;
}

static const dt_policy_layer only_up[] = { { .weight = "mlp.up_proj.weight" } };
static const dt_policy_layer fused_up[] = { { .weight = "mlp.up_proj.weight", .n_fused = 2 } };
static const dt_policy_layer only_gate[] = { { .weight = "mlp.gate_proj.weight" } };

DT_TEST(parallelize, plans_and_policies_are_compared_whole)
{
    static const dt_plan_rule rules[] = { { "lm_head", "colwise" } };
    static const dt_plan plans[] = { { .rules = rules, .n_rules = 1 },
                                     { .rules = rules, .n_rules = 1, .manual = true },
                                     { .rules = rules, .n_rules = 1, .strict = true },
                                     { .rules = rules, .n_rules = 1, .version = "v4.56" } };
    static const dt_policy up = { .size = sizeof up,
                                  .name = "mine",
                                  .original_layer_class = "LlamaDecoderLayer",
                                  .mlp_in = { DT_POLICY_LIST(only_up) } };
    static const dt_policy gate = { .size = sizeof gate,
                                    .name = "mine",
                                    .original_layer_class = "LlamaDecoderLayer",
                                    .mlp_in = { DT_POLICY_LIST(only_gate) } };
    static const dt_policy fused = { .size = sizeof fused,
                                     .name = "mine",
                                     .original_layer_class = "LlamaDecoderLayer",
                                     .mlp_in = { DT_POLICY_LIST(fused_up) } };
    static const dt_policy *const policies[] = { &up, &gate, &fused };

    for (size_t i = 1; i < DT_COUNT(plans); i++)
        DT_ASSERT_OK(run(3, NULL, NULL, options_differ,
                         &(difference){ { WITH(.plan = &plans[0]), WITH(.plan = &plans[i]) } }));
    for (size_t i = 1; i < DT_COUNT(policies); i++)
        DT_ASSERT_OK(run(2, NULL, NULL, options_differ,
                         &(difference){ { WITH(.policies = &policies[0], .n_policies = 1),
                                          WITH(.policies = &policies[i], .n_policies = 1) } }));
}

/* What a policy sets is known when the model is made. */
static dt_status fewer_layers(const dt_policy *policy, dt_arguments *a, int world_size)
{
    (void)world_size;
    return policy->user == NULL ? DT_OK : dt_arguments_set(a, "num_hidden_layers", 1);
}

static dt_status layers_differ(dt_runtime *rt, const void *arg)
{
    const dt_policy mine = { .size = sizeof mine,
                             .name = "mine",
                             .original_layer_class = "LlamaDecoderLayer",
                             .replace_arguments = fewer_layers,
                             .user = dt_runtime_rank(rt) == 1 ? rt : NULL };
    const dt_policy *const list = &mine;
    const dt_parallelize_options options = WITH(.policies = &list, .n_policies = 1);
    char path[DT_TEST_PATH_BYTES];
    dt_model *model = NULL;

    (void)arg;
    DT_EXPECT_STATUS(dt_parallelize(rt, folder_of("llama/uneven", path), &options, &model),
                     DT_ERR_ARG, "layers, rank 1 one of ");
    DT_EXPECT(model == NULL, "no model");
    return DT_OK;
}

DT_TEST(parallelize, models_of_other_sizes_are_told_apart)
{
    DT_ASSERT_OK(run(2, NULL, NULL, layers_differ, NULL));
    DT_ASSERT_OK(run(3, NULL, NULL, layers_differ, NULL));
}

static dt_status one_wants_nothing(dt_runtime *rt, const void *arg)
{
    char path[DT_TEST_PATH_BYTES];
    dt_model *model = NULL;

    (void)arg;
    DT_EXPECT_STATUS(dt_parallelize(rt, folder_of("llama/uneven", path), NULL,
                                    dt_runtime_rank(rt) == 1 ? NULL : &model),
                     DT_ERR_ARG, "out is NULL");
    return DT_OK;
}

DT_TEST(parallelize, a_rank_without_a_place_for_the_model_is_heard)
{
    DT_ASSERT_OK(run(3, NULL, NULL, one_wants_nothing, NULL));
}

static dt_status one_leaves(dt_runtime *rt, const void *arg)
{
    atomic_int *told = *(atomic_int *const *)arg;
    char path[DT_TEST_PATH_BYTES];
    dt_model *model = NULL;
    dt_status st;

    if (dt_runtime_rank(rt) == 1) return DT_OK;
    st = dt_parallelize(rt, folder_of("llama/uneven", path), NULL, &model);
    if (strstr(dt_last_error()->message, "dt_parallelize() waits for all ranks") != NULL)
        (void)atomic_fetch_add(told, 1);
    return st;
}

DT_TEST(parallelize, a_rank_that_does_not_call_is_named)
{
    atomic_int n = 0, *told = &n;

    if (dt_test_processes() > 1) dt_test_skip("counts ranks of one process");
    DT_ASSERT_STATUS(run(3, NULL, NULL, one_leaves, &told), DT_ERR_COMM, "rank 1 has left");
    DT_ASSERT_EQ_INT(atomic_load(&n), 2);
}

/* Rank 0, which judges for all, cannot read its configuration, and does not leave before the others
 * know. */
static dt_status one_cannot_read(dt_runtime *rt, const void *arg)
{
    enum { PATIENCE = 10000, GAVE_UP = 100 }; /* steps of a millisecond */
    atomic_int *told = *(atomic_int *const *)arg;
    const bool odd = dt_runtime_rank(rt) == 0;
    char path[DT_TEST_PATH_BYTES];
    dt_mesh *mesh = NULL;
    dt_model *model = NULL;
    dt_status st;

    (void)folder_of(odd ? "llama/none" : "llama/uneven", path);
    st = dt_mesh_create(rt, "tp=3", &mesh); /* may hear of it here already */
    if (st == DT_OK) st = dt_model_load(mesh, path, NULL, &model);
    dt_model_release(&model);
    dt_mesh_release(&mesh);
    if (!odd && st == DT_ERR_COMM) (void)atomic_fetch_add(told, 1);
    for (int i = 0; odd && i < PATIENCE && atomic_load(told) < 2; i++)
        (void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    if (odd && atomic_load(told) < 2) (void)atomic_fetch_add(told, GAVE_UP);
    return st;
}

DT_TEST(parallelize, a_rank_that_cannot_read_frees_those_that_load)
{
    atomic_int n = 0, *told = &n;

    if (dt_test_processes() > 1) dt_test_skip("counts ranks of one process");
    DT_ASSERT_STATUS(run(3, NULL, NULL, one_cannot_read, &told), DT_ERR_IO, "llama/none");
    DT_ASSERT_EQ_INT(atomic_load(&n), 2);
}

static dt_status is_dry(dt_runtime *rt, const void *arg)
{
    char path[DT_TEST_PATH_BYTES];
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    dt_runtime *dry = NULL;
    dt_model *model = NULL;
    dt_status st;

    (void)rt, (void)arg;
    DT_TRY(dt_runtime_create_dry(&options, 0, NULL, &dry));
    st = dt_test_expect_status(__func__, __FILE__, __LINE__,
                               dt_parallelize(dry, folder_of("llama/uneven", path), NULL, &model),
                               DT_ERR_UNSUPPORTED, "needs the ranks of a run");
    dt_runtime_release_dry(&dry);
    return st;
}

DT_TEST(parallelize, a_dry_runtime_is_refused)
{
    DT_ASSERT_OK(run(1, NULL, NULL, is_dry, NULL));
}
