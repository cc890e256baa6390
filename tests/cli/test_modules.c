/* SPDX-License-Identifier: Apache-2.0
 *
 * --load: an architecture that the command was built without, and files that are no modules. */
#include "tests/cli/command.h"

static void link_file(const char *folder, const char *name)
{
    char from[DT_TEST_PATH_BYTES], to[DT_TEST_PATH_BYTES + 64];

    (void)snprintf(to, sizeof to, "%s/%s", folder, name);
    DT_ASSERT(symlink(dt_test_source_path(from, "examples/checkpoint/%s", name), to) == 0);
}

/* The demo checkpoint, as the model of examples/10_own_architecture.c. */
static void make_folder(char folder[DT_TEST_PATH_BYTES])
{
    static const char was[] = "\"model_type\": \"llama\"";
    char path[DT_TEST_PATH_BYTES], *config, *mine, *at;
    size_t n;

    (void)dt_test_temp_dir(folder);
    link_file(folder, "model.safetensors");
    link_file(folder, "tokenizer.json");
    config = command_read(dt_test_source_path(path, "examples/checkpoint/config.json"));
    at = strstr(config, was);
    DT_ASSERT(at != NULL);
    n = strlen(config) + 64;
    mine = malloc(n);
    DT_ASSERT(mine != NULL);
    (void)snprintf(mine, n, "%.*s\"model_type\": \"my_llama\"%s", (int)(at - config), config,
                   at + sizeof was - 1);
    dt_test_write_file(folder, "config.json", mine, strlen(mine));
    free(mine);
}

static command_result generate(const char *module, const char *folder, const char *mesh)
{
    const char *words[COMMAND_MAX_WORDS] = { "generate", "--model",  folder,     "--mesh",
                                             mesh,       "--prompt", "ROMEO:",   "-n",
                                             "12",       "-q",       "--greedy", NULL };

    if (module != NULL) {
        words[11] = "--load";
        words[12] = module;
    }
    return command_run(NULL, words);
}

DT_TEST(modules, an_architecture_of_a_module_generates)
{
    static const char *const meshes[] = { "tp=1", "tp=2" };
    char folder[DT_TEST_PATH_BYTES], module[DT_TEST_PATH_BYTES], demo[DT_TEST_PATH_BYTES];

    make_folder(folder);
    (void)dt_test_binary_path(module, "examples/10_own_architecture.so");
    if (access(module, F_OK) != 0) dt_test_skip("the examples are not built");
    (void)dt_test_source_path(demo, "examples/checkpoint");
    for (size_t i = 0; i < DT_COUNT(meshes); i++) {
        command_result built_in = generate(NULL, demo, meshes[i]);
        command_result mine = generate(module, folder, meshes[i]);
        DT_ASSERT_EQ_INT(built_in.code, 0);
        DT_ASSERT_EQ_STR(mine.err, "");
        DT_ASSERT_EQ_STR(mine.out, built_in.out);
    }
    for (int c = 0; c < 3; c++) {
        static const char *const commands[] = { "inspect", "verify", "plan" };
        const char *of_plan[] = { "plan", "--model", folder, "--load", module, NULL };
        const char *others[] = { commands[c], folder, "--load", module, NULL };
        command_result r = command_run(NULL, c == 2 ? of_plan : others);
        DT_ASSERT_EQ_STR(r.err, "");
        DT_ASSERT_EQ_INT(r.code, 0);
    }
}

/* The first bytes of the command, as of a copy that was broken off. */
static void make_cut_file(const char *folder, char path[DT_TEST_PATH_BYTES + 8])
{
    char from[DT_TEST_PATH_BYTES], bytes[4096];
    FILE *f = fopen(dt_test_binary_path(from, "bin/dtensor"), "rb");

    DT_ASSERT(f != NULL && fread(bytes, 1, sizeof bytes, f) == sizeof bytes);
    (void)fclose(f);
    dt_test_write_file(folder, "cut.so", bytes, sizeof bytes);
    (void)snprintf(path, DT_TEST_PATH_BYTES + 8, "%s/cut.so", folder);
}

DT_TEST(modules, what_is_no_module_is_refused_before_anything_runs)
{
    static const struct {
        const char *path, *says;
    } cases[] = {
        { NULL, "it is cut off" },
        { "mine.so", "\"./mine.so\"" },
        { "./no/such.so", "No such file" },
        { "/tmp/", "is no regular file" },
        { "/proc/self/exe", "cannot be opened" },
    };
    char folder[DT_TEST_PATH_BYTES], cut[DT_TEST_PATH_BYTES + 8];

    make_folder(folder);
    make_cut_file(folder, cut);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const char *path = cases[i].path != NULL ? cases[i].path : cut;
        command_result r = generate(path, folder, "tp=1");
        DT_ASSERT_EQ_INT(r.code, 2);
        DT_ASSERT(strstr(r.err, "--load") != NULL);
        if (strstr(r.err, cases[i].says) == NULL)
            dt_test_fail(__FILE__, __LINE__, "%s: %s", path, r.err);
    }
}

DT_TEST(modules, list_names_what_there_is_and_what_modules_add_first)
{
    char module[DT_TEST_PATH_BYTES];
    const char *all[] = { "list", NULL }, *bad[] = { "list", "colours", NULL };
    const char *mine[] = { "list", "architectures", "--load", module, "--json", NULL };
    command_result r = command_run(NULL, all);

    DT_ASSERT_EQ_INT(r.code, 0);
    DT_ASSERT(strstr(r.out, "\n  rowwise_reduce_scatter ") != NULL);
    DT_ASSERT(strstr(r.out, "\n  rms_norm ") != NULL);
    DT_ASSERT(strstr(r.out, "...i, oi -> ...o; FF>a; backward\n") != NULL);
    DT_ASSERT(strstr(r.out, "...v -> ...; F>k\n") != NULL);
    r = command_run(NULL, bad);
    DT_ASSERT_EQ_INT(r.code, 2);
    DT_ASSERT(strstr(r.err, "\"colours\"") != NULL && strstr(r.err, "kinds") != NULL);
    (void)dt_test_binary_path(module, "examples/10_own_architecture.so");
    if (access(module, F_OK) != 0) dt_test_skip("the examples are not built");
    r = command_run(NULL, mine);
    DT_ASSERT_EQ_INT(r.code, 0);
    DT_ASSERT(strstr(r.out, "{\"architectures\":[{\"name\":\"my_llama\"") == r.out);
}
