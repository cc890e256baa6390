/* SPDX-License-Identifier: Apache-2.0
 *
 * Models by name: a cache as huggingface_hub makes it, made of links to a fixture. */
#include <sys/stat.h>

#include "tests/cli/command.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define OTHER  "fedcba9876543210fedcba9876543210fedcba98"

static void make_folder(const char *cache, const char *inside)
{
    char path[2 * DT_TEST_PATH_BYTES];

    (void)snprintf(path, sizeof path, "%s/%s", cache, inside);
    DT_ASSERT(mkdir(path, 0700) == 0);
}

/* CACHE/REPO/snapshots/COMMIT with links into CACHE/REPO/blobs, as the Hub's tools leave them. */
static void fill(const char *cache, const char *repo, const char *commit)
{
    static const char *const files[] = { "config.json", "model.safetensors" };

    for (size_t i = 0; i < DT_COUNT(files); i++) {
        char from[DT_TEST_PATH_BYTES], path[3 * DT_TEST_PATH_BYTES], to[128];
        struct stat about;
        (void)dt_test_source_path(from, "tests/golden/llama/tied/%s", files[i]);
        DT_ASSERT(stat(from, &about) == 0);
        (void)snprintf(path, sizeof path, "%s/blobs/%zu", repo, i);
        dt_test_write_file(cache, path, command_read(from), (size_t)about.st_size);
        (void)snprintf(path, sizeof path, "%s/%s/snapshots/%s/%s", cache, repo, commit, files[i]);
        (void)snprintf(to, sizeof to, "../../blobs/%zu", i);
        DT_ASSERT(symlink(to, path) == 0);
    }
}

/* org/tiny with main and a revision in a folder, plain without any; and what is none of it. */
static void make_cache(char cache[DT_TEST_PATH_BYTES])
{
    static const char *const folders[] = { "models--org--tiny",
                                           "models--org--tiny/blobs",
                                           "models--org--tiny/refs",
                                           "models--org--tiny/refs/refs",
                                           "models--org--tiny/refs/refs/pr",
                                           "models--org--tiny/snapshots",
                                           "models--org--tiny/snapshots/" COMMIT,
                                           "models--org--tiny/snapshots/" OTHER,
                                           "models--plain",
                                           "models--plain/refs",
                                           "models--plain/snapshots",
                                           "models--plain/snapshots/" OTHER,
                                           "datasets--org--words" };

    (void)dt_test_temp_dir(cache);
    for (size_t i = 0; i < DT_COUNT(folders); i++) make_folder(cache, folders[i]);
    fill(cache, "models--org--tiny", COMMIT);
    dt_test_write_file(cache, "models--org--tiny/refs/main", COMMIT, sizeof COMMIT - 1);
    dt_test_write_file(cache, "models--org--tiny/refs/gone", "0000", 4);
    dt_test_write_file(cache, "models--org--tiny/refs/bad", "../../x", 7);
    dt_test_write_file(cache, "models--org--tiny/refs/refs/pr/1", OTHER "\n", sizeof OTHER);
    dt_test_write_file(cache, "models--plain/snapshots/" OTHER "/config.json",
                       "{\"model_type\": \"wheels\"}", 24);
}

DT_TEST(hub_models, a_name_finds_the_folder_of_its_revision)
{
    char cache[DT_TEST_PATH_BYTES], env[DT_TEST_PATH_BYTES + 32];
    command_result r;

    make_cache(cache);
    (void)snprintf(env, sizeof env, "HF_HUB_CACHE=%s", cache);
    r = COMMAND_ENDS(0, COMMAND_ENV(env, "inspect", "org/tiny"), "llama", "supported   yes");
    r = COMMAND_ENDS(0,
                     COMMAND_ENV(env, "generate", "-m", "org/tiny@main", "-t", "1,2", "-n", "3"));
    DT_ASSERT(strncmp(r.out, "1", 1) == 0);
    COMMAND_ENDS(0, COMMAND_ENV(env, "inspect", "org/tiny@" COMMIT), "supported   yes");
    COMMAND_ENDS(2, COMMAND_ENV(env, "inspect", "org/tiny@refs/pr/1"), OTHER, "config.json");
    COMMAND_ENDS(2, COMMAND_ENV(env, "inspect", "org/tiny@v2"), "no revision \"v2\"", "main",
                 "refs/pr/1");
    COMMAND_ENDS(2, COMMAND_ENV(env, "inspect", "org/tiny@gone"), "commit 0000");
    COMMAND_ENDS(2, COMMAND_ENV(env, "inspect", "org/tiny@bad"), "refs/bad");
    COMMAND_ENDS(2, COMMAND_ENV(env, "inspect", "org/tiny@../main"), "No such file");
    COMMAND_ENDS(2, COMMAND_ENV(env, "inspect", "plain"), "no revision \"main\"");
    COMMAND_ENDS(2, COMMAND_ENV(env, "serve", "-m", "org/other"), "--model: org/other", cache);
    COMMAND_ENDS(2, COMMAND_ENV(env, "serve", "-m", "x=org/tiny"), "snapshots/" COMMIT,
                 "has no tokenizer.json");
    COMMAND_ENDS(2, COMMAND_ENV(env, "plan", "-m", "org/other"), "--model: org/other", cache,
                 "hf download org/other");
    dt_test_remove_dir(cache);
}

DT_TEST(hub_models, a_folder_comes_before_a_name)
{
    char cache[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES], env[DT_TEST_PATH_BYTES + 32];

    make_cache(cache);
    (void)snprintf(env, sizeof env, "HF_HUB_CACHE=%s", cache);
    (void)dt_test_source_path(folder, "examples/checkpoint");
    COMMAND_ENDS(0, COMMAND_ENV(env, "inspect", folder), "supported   yes");
    COMMAND_ENDS(0, COMMAND_ENV("HF_HUB_CACHE=/nowhere", "list", "models"), "in /nowhere");
    dt_test_remove_dir(cache);
}

DT_TEST(hub_models, without_a_cache_are_not_looked_for)
{
    COMMAND_ENDS(2, COMMAND_ENV("HOME=", "inspect", "org/tiny"), "none of HF_HUB_CACHE, HF_HOME");
}

DT_TEST(hub_models, list_names_what_is_there)
{
    char cache[DT_TEST_PATH_BYTES], home[DT_TEST_PATH_BYTES + 32];
    command_result r;

    make_cache(cache);
    (void)snprintf(home, sizeof home, "HF_HUB_CACHE=%s", cache);
    r = COMMAND_ENDS(0, COMMAND_ENV(home, "list", "models"), "\n  org/tiny ", "llama; ",
                     "\n  org/tiny@refs/pr/1 ", "no config.json; ", "\n  plain@" OTHER " ",
                     "wheels, which is not supported; ");
    DT_ASSERT(strstr(r.out, "words") == NULL && strstr(r.out, "gone") == NULL);
    r = COMMAND_ENDS(
        0, COMMAND_ENV(home, "list", "models", "--json"),
        "{\"models\":[{\"name\":\"org/tiny\",\"model_type\":\"llama\",\"supported\":true,");
    dt_test_remove_dir(cache);
}
