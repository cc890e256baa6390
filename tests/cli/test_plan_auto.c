/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor plan --auto: its plans run, what it calls exact is what a run's own dry run says, and
 * what cannot be is refused. */
#include "tests/cli/train.h"
#include "tests/support/golden.h"

static const char machine[] =
    "{\"name\": \"four cores\", \"gpus\": false, \"devices_per_node\": 4, \"device_bytes\": 4e9,"
    " \"memory_bandwidth\": 1e10, \"flops_f32\": 1e11, \"efficiency\": 0.6,"
    " \"inside_latency\": 1e-5, \"inside_bandwidth\": 5e9}";

/* Folder of a model and of a machine's file. */
static void open_place(train_place *p, char file[DT_TEST_PATH_BYTES + 16])
{
    train_open(p);
    dt_test_write_file(p->folder, "machine.json", machine, sizeof machine - 1);
    (void)snprintf(file, DT_TEST_PATH_BYTES + 16, "%s/machine.json", p->folder);
}

/* What is taken for a mesh, its options in a file. */
static json_t *planned(const train_place *p, const char *file, const char *mesh)
{
    const command_result r = COMMAND_ENDS(
        0, COMMAND("plan", "-m", p->model, "--auto", "--train", "--machine", file, "--batch", "8",
                   "--sequence", "16", "--dtype", "f32", "--json", "--explain", mesh));
    json_t *v = json_loads(r.out, 0, NULL);
    char *text;

    DT_ASSERT(json_is_object(json_object_get(v, "options")));
    text = json_dumps(json_object_get(v, "options"), 0);
    dt_test_write_file(p->folder, "options.json", text, strlen(text));
    free(text);
    return v;
}

static int64_t peak_of_run(const train_place *p)
{
    char options[DT_TEST_PATH_BYTES + 16];
    int64_t most = 0;
    command_result r;
    json_t *v, *rank;
    size_t i;

    (void)snprintf(options, sizeof options, "%s/options.json", p->folder);
    r = COMMAND_ENDS(0, COMMAND("train", "-m", p->model, "--dry-run", "--options", options, "-o",
                                p->run, "--json"));
    v = json_loads(r.out, 0, NULL);
    json_array_foreach(json_object_get(v, "ranks"), i, rank)
    {
        const int64_t peak = json_integer_value(json_object_get(rank, "peak_bytes"));
        most = peak > most ? peak : most;
    }
    json_decref(v);
    return most;
}

DT_TEST(cli_plan_auto, train_takes_its_options_and_holds_what_it_said)
{
    static const char *const meshes[] = { "dp=4", "tp=4", "pp=2,dp=2", "dp=2,tp=2", "pp=2,tp=2" };
    char file[DT_TEST_PATH_BYTES + 16];
    train_place p;

    open_place(&p, file);
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        json_t *v = planned(&p, file, meshes[i]);
        const json_t *first = json_array_get(json_object_get(v, "verdicts"), 0);
        const json_t *exact = json_object_get(first, "exact");
        DT_ASSERT_EQ_STR(json_string_value(json_object_get(first, "verdict")), "ranked");
        DT_ASSERT_EQ_INT(json_integer_value(json_object_get(exact, "peak_bytes")), peak_of_run(&p));
        json_decref(v);
    }
}

/* The loss after a step, under the options of the last plan or on one rank. */
static double second_loss(const train_place *p, const char *name, bool alone)
{
    char run[TRAIN_PATH_BYTES], options[TRAIN_PATH_BYTES];

    (void)snprintf(run, sizeof run, "%s/%s", p->folder, name);
    (void)snprintf(options, sizeof options, "%s/options.json", p->folder);
    if (alone)
        COMMAND_ENDS(0, COMMAND("train", "-m", p->model, "--data", p->data, "--steps", "2", "-o",
                                run, "--mesh", "dp=1", "--batch", "8", "--sequence", "16",
                                "--dtype", "f32", "--log-every", "1"));
    else
        COMMAND_ENDS(0, COMMAND("train", "-m", p->model, "--data", p->data, "--steps", "2", "-o",
                                run, "--options", options, "--log-every", "1"));
    return train_number(run, 2, "loss");
}

DT_TEST(cli_plan_auto, its_plans_run_and_train_alike)
{
    static const char *const meshes[] = { "dp=4", "pp=2,dp=2", "dp=2,tp=2" };
    char file[DT_TEST_PATH_BYTES + 16];
    train_place p;
    double want;

    open_place(&p, file);
    want = second_loss(&p, "alone", true);
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        char name[16];
        json_decref(planned(&p, file, meshes[i]));
        (void)snprintf(name, sizeof name, "run%zu", i);
        DT_ASSERT_CLOSE(second_loss(&p, name, false), want, 1e-5 * want);
    }
}

/* --- every checkpoint ------------------------------------------------------------------------- */

/* A run of two steps; with a plan, or on one rank. */
static double loss_of(const train_place *p, const char *name, const char *plan)
{
    char run[TRAIN_PATH_BYTES];

    (void)snprintf(run, sizeof run, "%s/%s", p->folder, name);
    if (plan != NULL)
        COMMAND_ENDS(0, COMMAND("train", "-m", p->model, "--data", p->data, "--steps", "2", "-o",
                                run, "--plan", plan, "--log-every", "1"));
    else
        COMMAND_ENDS(0, COMMAND("train", "-m", p->model, "--data", p->data, "--steps", "2", "-o",
                                run, "--batch", "8", "--sequence", "16", "--dtype", "f32",
                                "--log-every", "1"));
    return train_number(run, 2, "loss");
}

/* The plan of a machine whose devices have so many bytes, as a file; its peak, 0: nothing fits. */
static int64_t find(const train_place *p, int64_t bytes, char plan[TRAIN_PATH_BYTES])
{
    char file[TRAIN_PATH_BYTES], text[512];
    command_result r;
    int64_t peak = 0;
    json_t *v;
    const int n =
        snprintf(text, sizeof text, "%.*s%" PRId64 "%s", (int)(strstr(machine, "4e9") - machine),
                 machine, bytes, strstr(machine, "4e9") + 3);

    dt_test_write_file(p->folder, "machine.json", text, (size_t)n);
    (void)snprintf(file, sizeof file, "%s/machine.json", p->folder);
    (void)snprintf(plan, TRAIN_PATH_BYTES, "%s/plan.json", p->folder);
    r = COMMAND("plan", "-m", p->model, "--auto", "--train", "--machine", file, "--batch", "8",
                "--sequence", "16", "--dtype", "f32", "--json");
    if (r.code != 0) { /* there is a plan, which says so */
        DT_ASSERT_EQ_INT(r.code, 2);
        DT_ASSERT(strstr(r.err, "fits in no way") != NULL);
    }
    dt_test_write_file(p->folder, "plan.json", r.out, strlen(r.out));
    v = json_loads(r.out, 0, NULL);
    if (r.code == 0)
        peak = json_integer_value(json_object_get(
            json_object_get(json_array_get(json_object_get(v, "verdicts"), 0), "exact"),
            "peak_bytes"));
    json_decref(v);
    return peak;
}

/* Where there is much memory and where there is little, down to where nothing fits, trains as one
 * rank does. */
static void train_fixture(const char *fixture)
{
    char plan[TRAIN_PATH_BYTES], folder[64], name[16];
    int64_t bytes = 4000000000;
    train_place p;
    double want;
    int n = 0;

    train_open(&p);
    (void)snprintf(folder, sizeof folder, "tests/golden/%s", fixture);
    (void)dt_test_source_path(p.model, folder);
    train_write_tokens(&p, "data.bin", 20);
    want = loss_of(&p, "alone", NULL);
    while ((bytes = find(&p, bytes, plan)) > 0) {
        (void)snprintf(name, sizeof name, "run%d", n++);
        DT_ASSERT_CLOSE(loss_of(&p, name, plan), want, 1e-5 * want);
        bytes = bytes * 3 / 4;
    }
    DT_ASSERT(n >= 1);
    COMMAND_ENDS(2,
                 COMMAND("train", "-m", p.model, "--data", p.data, "--steps", "1", "-o", p.run,
                         "--plan", plan),
                 "it found no way that fits");
}

DT_TEST(cli_plan_auto, train_takes_the_file_by_plan)
{
    train_fixture("llama/gelu");
}

/* Whole experts on a mesh dim of their own: the plan's file brings their styles, and the run keeps
 * them when the file is gone. */
DT_TEST(cli_plan_auto, experts_have_styles_of_the_plan)
{
    char file[DT_TEST_PATH_BYTES + 16], plan[TRAIN_PATH_BYTES], run[TRAIN_PATH_BYTES];
    command_result r;
    train_place p;
    double want;

    open_place(&p, file);
    (void)dt_test_source_path(p.model, "tests/golden/qwen3_moe/base");
    (void)snprintf(plan, sizeof plan, "%s/plan.json", p.folder);
    (void)snprintf(run, sizeof run, "%s/experts", p.folder);
    want = loss_of(&p, "alone", NULL);
    r = COMMAND_ENDS(0, COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file,
                                "--batch", "8", "--sequence", "16", "--dtype", "f32", "--json",
                                "--explain", "dp=2,ep=2"));
    dt_test_write_file(p.folder, "plan.json", r.out, strlen(r.out));
    DT_ASSERT(strstr(r.out, "{ \"ep\": \"grouped_gemm\" }") != NULL);
    DT_ASSERT_CLOSE(loss_of(&p, "experts", plan), want, 1e-5 * want);
    DT_ASSERT(unlink(plan) == 0);
    COMMAND_ENDS(0, COMMAND("train", "--resume", "-o", run, "--steps", "3"));
    (void)train_number(run, 3, "loss");
    dt_test_write_file(p.folder, "plan.json",
                       "{\"options\": {\"mesh\": \"ep=2\"}, \"styles\": 5, \"verdicts\": []}", 58);
    COMMAND_ENDS(2,
                 COMMAND("train", "-m", p.model, "--data", p.data, "--steps", "1", "-o", p.run,
                         "--plan", plan),
                 "\"styles\" must be an object, or null");
    COMMAND_ENDS(
        2,
        COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file, "--explain", "ep=4"),
        "it does not divide those of the model");
}

/* Tokens under a plan of generation, NULL: on one rank. */
static char *tokens_of(const train_place *p, const char *plan)
{
    return (plan != NULL ? COMMAND_ENDS(0, COMMAND("generate", "-m", p->model, "--tokens",
                                                   "5,9,7,3", "--max-new-tokens", "12", "--greedy",
                                                   "--json", "--plan", plan))
                         : COMMAND_ENDS(0, COMMAND("generate", "-m", p->model, "--tokens",
                                                   "5,9,7,3", "--max-new-tokens", "12", "--greedy",
                                                   "--json", "--dtype", "f32")))
        .out;
}

static char *ids_of(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    char *ids = json_dumps(json_object_get(v, "tokens"), JSON_COMPACT);

    DT_ASSERT(json_is_array(json_object_get(v, "tokens")));
    json_decref(v);
    return ids;
}

/* Of so many cores, whose links are slow and answer at once. */
static void write_slow(const train_place *p, int cores, char file[DT_TEST_PATH_BYTES + 16])
{
    char text[256];
    const int n = snprintf(
        text, sizeof text,
        "{\"name\": \"slow\", \"gpus\": false, \"devices_per_node\": %d, \"device_bytes\": 4e9,"
        " \"memory_bandwidth\": 1e10, \"flops_f32\": 1e11, \"efficiency\": 0.6,"
        " \"inside_latency\": 1e-9, \"inside_bandwidth\": 1e6}",
        cores);

    dt_test_write_file(p->folder, "slow.json", text, (size_t)n);
    (void)snprintf(file, DT_TEST_PATH_BYTES + 16, "%s/slow.json", p->folder);
}

/* Tokens go to their experts where a prompt is read sooner so, and the plan's file says it. */
DT_TEST(cli_plan_auto, tokens_that_are_sent_to_experts_give_those_of_one_rank)
{
    char file[DT_TEST_PATH_BYTES + 16], plan[TRAIN_PATH_BYTES], *want, *ids;
    command_result r;
    train_place p;

    open_place(&p, file);
    (void)dt_test_source_path(p.model, "tests/golden/qwen3_moe/base");
    (void)snprintf(plan, sizeof plan, "%s/plan.json", p.folder);
    write_slow(&p, 3, file);
    want = ids_of(tokens_of(&p, NULL));
    r = COMMAND_ENDS(0, COMMAND("plan", "-m", p.model, "--auto", "--machine", file, "--sequence",
                                "32", "--dtype", "f32", "--goal", "prompt", "--json", "--explain",
                                "dp=1,ep=3"));
    dt_test_write_file(p.folder, "plan.json", r.out, strlen(r.out));
    DT_ASSERT(strstr(r.out, "\"mesh\": \"dp=1,ep=3\"") != NULL);
    DT_ASSERT(strstr(r.out, "{ \"ep\": \"ep_dispatch_experts\" }") != NULL);
    DT_ASSERT(strstr(r.out, "\"style\": \"moe_tp_experts\"") != NULL);
    ids = ids_of(tokens_of(&p, plan));
    DT_ASSERT_EQ_STR(ids, want);
    COMMAND_ENDS(
        0, COMMAND("plan", "-m", p.model, "--mesh", "ep=3", "--sequence", "32", "--plan", plan),
        "experts over ep", "fewer bytes", "sent");
    COMMAND_ENDS(0,
                 COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file, "--batch",
                         "8", "--sequence", "15", "--dtype", "f32", "--explain",
                         "tp=1,ep=3,dispatch"),
                 "asked: dp=1,ep=3, tokens sent to experts", "on the average of tokens");
    COMMAND_ENDS(
        2,
        COMMAND("plan", "-m", p.model, "--auto", "--machine", file, "--explain", "dp=3,dispatch"),
        "dispatch: tokens are sent to experts that lie whole on ranks");
    free(want);
    free(ids);
}

/* Tokens that are cut over tp go to whole experts there; routers and blocks leave them as they are.
 */
DT_TEST(cli_plan_auto, tokens_that_are_cut_train_with_experts_as_on_one_rank)
{
    char file[DT_TEST_PATH_BYTES + 16], plan[TRAIN_PATH_BYTES];
    command_result r;
    train_place p;
    double want;

    open_place(&p, file);
    (void)dt_test_source_path(p.model, "tests/golden/qwen3_moe/base");
    (void)snprintf(plan, sizeof plan, "%s/plan.json", p.folder);
    write_slow(&p, 2, file);
    want = loss_of(&p, "alone", NULL);
    r = COMMAND_ENDS(0, COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file,
                                "--batch", "8", "--sequence", "16", "--dtype", "f32", "--json",
                                "--explain", "tp=2"));
    dt_test_write_file(p.folder, "plan.json", r.out, strlen(r.out));
    DT_ASSERT(strstr(r.out, "\"sequence-parallel\": true") != NULL);
    DT_ASSERT(strstr(r.out, "mlp.experts\": { \"tp\": \"ep_dispatch_experts\" }") != NULL);
    DT_ASSERT(strstr(r.out, "mlp.gate\": { \"tp\": \"local\" }") != NULL);
    DT_ASSERT_CLOSE(loss_of(&p, "sent", plan), want, 1e-5 * want);
}

DT_TEST(cli_plan_auto, every_checkpoint_trains_by_its_plans_as_alone)
{
    dt_test_long();
    for (int f = 0; f < DT_GOLDEN_ALL; f++) {
        /* train refuses a part alone; experts that are clamped have no gradient */
        if (strstr(dt_golden_fixtures[f], "/multimodal") == NULL &&
            strstr(dt_golden_fixtures[f], "gpt_oss/") == NULL)
            train_fixture(dt_golden_fixtures[f]);
    }
}

static void generate_fixture(const char *fixture)
{
    static const char *const goals[] = { "token", "prompt" };
    char file[DT_TEST_PATH_BYTES + 16], plan[TRAIN_PATH_BYTES], folder[64], *want;
    train_place p;

    open_place(&p, file);
    (void)snprintf(folder, sizeof folder, "tests/golden/%s", fixture);
    (void)dt_test_source_path(p.model, folder);
    (void)snprintf(plan, sizeof plan, "%s/plan.json", p.folder);
    want = ids_of(tokens_of(&p, NULL));
    for (int g = 0; g < 2; g++) {
        const command_result r = COMMAND_ENDS(
            0, COMMAND("plan", "-m", p.model, "--auto", "--machine", file, "--batch", "1",
                       "--sequence", "32", "--dtype", "f32", "--goal", goals[g], "--json"));
        char *ids;
        dt_test_write_file(p.folder, "plan.json", r.out, strlen(r.out));
        ids = ids_of(tokens_of(&p, plan));
        DT_ASSERT_EQ_STR(ids, want);
        free(ids);
    }
    free(want);
}

DT_TEST(cli_plan_auto, generate_takes_the_file_by_plan)
{
    generate_fixture("llama/tied");
}

DT_TEST(cli_plan_auto, every_checkpoint_generates_by_its_plans_as_alone)
{
    dt_test_long();
    for (int f = 0; f < DT_GOLDEN_ALL; f++) generate_fixture(dt_golden_fixtures[f]);
}

DT_TEST(cli_plan_auto, one_way_is_judged_beside_the_others)
{
    char file[DT_TEST_PATH_BYTES + 16];
    train_place p;

    open_place(&p, file);
    COMMAND_ENDS(0,
                 COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file, "--batch",
                         "8", "--sequence", "16", "--dtype", "f32", "--explain",
                         "pp=2,dp=2,zero=2"),
                 "rule K2: with stages ZeRO 2");
    COMMAND_ENDS(0,
                 COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file, "--batch",
                         "8", "--sequence", "16", "--dtype", "f32", "--explain",
                         "pp=2,dp=2,microbatches=4,schedule=gpipe,recompute=full"),
                 "asked: pp=2,dp=2, recompute full, gpipe, 4 x 1 sequences");
}

static int count_of(const char *text, const char *part)
{
    int n = 0;

    for (text = strstr(text, part); text != NULL; text = strstr(text + 1, part)) n++;
    return n;
}

/* Memory of each rank of a pipeline, its time, and the schedule's time line within. */
DT_TEST(cli_plan_auto, pictures_show_memory_and_time)
{
    char file[DT_TEST_PATH_BYTES + 16], path[TRAIN_PATH_BYTES];
    const char *text;
    train_place p;

    open_place(&p, file);
    (void)snprintf(path, sizeof path, "%s/way.svg", p.folder);
    COMMAND_ENDS(0, COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file,
                            "--batch", "8", "--sequence", "16", "--dtype", "f32", "--explain",
                            "pp=2,dp=2,microbatches=4", "--picture", path));
    text = command_read(path);
    DT_ASSERT_EQ_INT(count_of(text, "<title>weights: "), 2);
    DT_ASSERT_EQ_INT(count_of(text, "<title>computing: "), 1);
    DT_ASSERT_EQ_INT(count_of(text, "<title>0F0: "), 1);
    DT_ASSERT_EQ_INT(count_of(text, "<svg"), 3);
    DT_ASSERT_EQ_INT(count_of(text, "</svg>"), 3);
    COMMAND_ENDS(0, COMMAND("plan", "-m", p.model, "--auto", "--machine", file, "--sequence", "16",
                            "--dtype", "f32", "--explain", "tp=2", "--picture", path));
    text = command_read(path);
    DT_ASSERT_EQ_INT(count_of(text, "<title>keys and values: "), 1);
    DT_ASSERT_EQ_INT(count_of(text, "<title>prompts: "), 1);
    DT_ASSERT_EQ_INT(count_of(text, "<svg"), 1);
    COMMAND_ENDS(2,
                 COMMAND("plan", "-m", p.model, "--auto", "--machine", file, "--sequence", "16",
                         "--dtype", "f32", "--picture", "/none/way.svg"),
                 "--picture");
}

DT_TEST(cli_plan_auto, what_cannot_be_is_refused)
{
    char file[DT_TEST_PATH_BYTES + 16];
    train_place p;

    open_place(&p, file);
    COMMAND_ENDS(2, COMMAND("plan", "-m", p.model, "--machine", file), "--machine is of --auto");
    COMMAND_ENDS(2, COMMAND("plan", "-m", p.model, "--top", "2"), "--top is of --auto");
    COMMAND_ENDS(2,
                 COMMAND("plan", "-m", p.model, "--auto", "--machine", file, "--optimizer", "sgd"),
                 "--optimizer is of --train");
    COMMAND_ENDS(2, COMMAND("plan", "-m", p.model, "--auto", "--machine", file, "--goal", "speed"),
                 "--goal speed: token or prompt");
    COMMAND_ENDS(
        2,
        COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file, "--goal", "token"),
        "--goal is of generation");
    COMMAND_ENDS(
        2, COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file, "--mesh", "dp=4"),
        "--mesh is what --auto finds");
    COMMAND_ENDS(2, COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", "h200"),
                 "--machine: \"h200\" is no machine");
    COMMAND_ENDS(
        2,
        COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file, "--explain", "cp=4"),
        "there is no context parallelism here");
    COMMAND_ENDS(2,
                 COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file, "--explain",
                         "dp=4,zero=x"),
                 "zero=x: must be a whole number from 0");
    COMMAND_ENDS(2,
                 COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file, "--explain",
                         "dp=4,recompute=some"),
                 "recompute=some: none, selective or full");
    COMMAND_ENDS(2,
                 COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file,
                         "--sequence", "16", "--dtype", "f32", "--explain", "dp=2,zero=1"),
                 "the machine has 4 devices");
    COMMAND_ENDS(2,
                 COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file,
                         "--sequence", "16", "--dtype", "f32", "--explain", "pp=3"),
                 "pp=3,dp=1,tp=1: the machine has 4 devices");
    COMMAND_ENDS(
        2,
        COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file, "--explain", "cp=2"),
        "there is no context parallelism here");
    COMMAND_ENDS(2, COMMAND("plan", "-m", p.model, "--seconds", "2"), "--seconds is of --auto");
    dt_test_write_file(p.folder, "machine.json", "{}", 2);
    COMMAND_ENDS(2, COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file),
                 "devices_per_node is missing");
}

/* A plan's file that somebody has changed. */
DT_TEST(cli_plan_auto, options_that_are_none_are_refused)
{
    static const char *const cases[][2] = {
        { "{\"options\": 5, \"verdicts\": []}", "\"options\" must be an object, or null" },
        { "{\"options\": [], \"verdicts\": []}", "\"options\" must be an object, or null" },
        { "{\"options\": null, \"verdicts\": []}", "it found no way that fits" },
        { "{\"options\": {\"mesh\": []}, \"verdicts\": []}", "--mesh" },
        { "{\"options\": {\"mesh\": {}}, \"verdicts\": []}", "\"mesh\": is neither a text nor" },
        { "{\"options\": {\"batch\": \"x\"}, \"verdicts\": []}", "is not a number from 1" },
        { "{\"options\": {\"zero\": 4}, \"verdicts\": []}", "from 0 to 3" },
        { "{\"options\": {\"sequence-parallel\": 1}, \"verdicts\": []}", "neither true nor false" },
        { "{\"options\": {\"steepness\": 1}, \"verdicts\": []}", "steepness" },
    };
    char plan[TRAIN_PATH_BYTES];
    train_place p;

    train_open(&p);
    (void)snprintf(plan, sizeof plan, "%s/plan.json", p.folder);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_test_write_file(p.folder, "plan.json", cases[i][0], strlen(cases[i][0]));
        COMMAND_ENDS(2,
                     COMMAND("train", "-m", p.model, "--data", p.data, "--steps", "1", "-o", p.run,
                             "--plan", plan),
                     cases[i][1]);
    }
}

DT_TEST(cli_plan_auto, a_model_that_fits_nowhere_ends_with_2_and_says_where_it_would)
{
    static const char tiny[] =
        "{\"devices_per_node\": 1, \"device_bytes\": 2e5, \"memory_bandwidth\": 1e10,"
        " \"flops_f32\": 1e11, \"efficiency\": 0.6, \"gpus\": false, \"inside_latency\": 0,"
        " \"inside_bandwidth\": 1e9, \"between_latency\": 0, \"between_bandwidth\": 1e9}";
    char file[DT_TEST_PATH_BYTES + 16];
    train_place p;

    open_place(&p, file);
    dt_test_write_file(p.folder, "machine.json", tiny, sizeof tiny - 1);
    COMMAND_ENDS(2,
                 COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file,
                         "--sequence", "16", "--dtype", "f32"),
                 "fits in no way");
}

/* Of a calibration's file: what was measured is named, and so is what was predicted. */
DT_TEST(cli_plan_auto, this_machine_is_measured_and_planned_for)
{
    char file[TRAIN_PATH_BYTES];
    train_place p;

    train_open(&p);
    (void)snprintf(file, sizeof file, "%s/here.json", p.folder);
    COMMAND_ENDS(
        0, COMMAND("calibrate", "--ranks", "2", "--seconds", "1", "--link", "100,1", "-o", file),
        "2 ranks of ", "measured: ", "all_reduce", "calls of kernels");
    COMMAND_ENDS(0,
                 COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", file, "--batch",
                         "4", "--sequence", "16", "--dtype", "f32", "--measure", "2"),
                 "machine here: 1 node of 2 devices", "measured on ",
                 "measured: ", "exact: ", "predicted: ", " s a step, here");
    COMMAND_ENDS(2,
                 COMMAND("plan", "-m", p.model, "--auto", "--train", "--machine", "h100:1x1",
                         "--batch", "4", "--sequence", "16", "--measure", "1"),
                 "--measure: machine h100:1x1, whose devices are GPUs");
    COMMAND_ENDS(2, COMMAND("plan", "-m", p.model, "--measure", "2"), "--measure is of --auto");
    COMMAND_ENDS(2, COMMAND("calibrate", "-o", "/no/such/folder/x.json"), "--output");
    COMMAND_ENDS(2, COMMAND("calibrate", "--ranks", "2", "--seconds", "1", "--link", "x"),
                 "--link ");
}
