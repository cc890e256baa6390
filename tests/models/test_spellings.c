/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of tensors as files write them: with the prefix of a head model or without, and as
 * multimodal checkpoints do. What images need is passed over without a word. */
#include <dtensor/models.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/describe/describe.h"
#include "tests/support/dt_test.h"
#include "weights/param_tensors.h"

enum { MOST_BYTES = 1 << 20 };

typedef struct respelling {
    const char *fixture;
    const char *from, *to; /* beginnings of names in the file */
    bool found;
} respelling;

static const respelling respellings[] = {
    { "llama/yarn", "\"model.", "\"", true },
    { "llama/yarn", "\"model.", "\"language_model.model.", false },
    { "qwen2/windows", "\"model.", "\"", true },
    { "phi3/uneven", "\"model.", "\"", true },
    { "gpt_neo/base", "\"transformer.", "\"", true },
    { "gemma3/uneven", "\"model.", "\"", true },
    { "gemma3/uneven", "\"model.", "\"model.language_model.", true },
    { "gemma3/multimodal", "\"language_model.model.", "\"model.language_model.", true },
    { "gemma3/multimodal", "\"language_model.model.", "\"model.", true },
    { "gemma3/multimodal", "\"vision_tower.", "\"model.vision_tower.", true },
    { "gemma3/multimodal", "\"multi_modal_projector.", "\"model.multi_modal_projector.", true },
    { "gemma3/multimodal", "\"language_model.model.", "\"decoder.", false },
    { "mistral/multimodal", "\"language_model.model.", "\"model.language_model.", true },
    { "mixtral/base", "\"model.", "\"", true }, /* and block_sparse_moe for mlp */
    { "mixtral/uneven", "\"model.layers.0.mlp.", "\"model.layers.0.block_sparse_moe.", true },
    { "mixtral/uneven", "\"model.layers.0.mlp.", "\"model.layers.0.moe.", false },
};

static size_t read_file(const char *folder, const char *name, char *to)
{
    char path[DT_TEST_PATH_BYTES + 32];
    FILE *f;
    size_t n;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "rb");
    DT_ASSERT(f != NULL);
    n = fread(to, 1, MOST_BYTES, f);
    (void)fclose(f);
    DT_ASSERT(n > 0 && n < MOST_BYTES);
    return n;
}

/* The file with other names: a new header and the same data. */
static size_t respell(const respelling *r, const char *file, size_t n, char *to)
{
    uint64_t old = 0, now = 0;
    char *out = to + 8;

    memcpy(&old, file, 8);
    for (uint64_t at = 8; at < 8 + old;) {
        const size_t len = strlen(r->from);
        if (strncmp(file + at, r->from, len) == 0) {
            out += sprintf(out, "%s", r->to);
            at += len;
        } else {
            *out++ = file[at++];
        }
    }
    while ((out - to) % 8 != 0) *out++ = ' ';
    now = (uint64_t)(out - to) - 8;
    memcpy(to, &now, 8);
    memcpy(out, file + 8 + old, n - 8 - old);
    return (size_t)(out - to) + n - 8 - old;
}

static void no_remark(void *arg, const char *text)
{
    (void)arg;
    dt_test_fail(__FILE__, __LINE__, "%s", text);
}

static void check(const respelling *r, char *file, char *other)
{
    char from[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES];
    int64_t want, got;
    dt_model_info info;
    dt_status st;

    (void)dt_test_source_path(from, "tests/golden/%s", r->fixture);
    DT_ASSERT_OK(dt_model_inspect(from, &info, &want, NULL));
    (void)dt_test_temp_dir(folder);
    dt_test_write_file(folder, "config.json", file, read_file(from, "config.json", file));
    dt_test_write_file(folder, "model.safetensors", other,
                       respell(r, file, read_file(from, "model.safetensors", file), other));
    st = dt_model_inspect(folder, &info, &got, NULL);
    if (r->found) {
        DT_ASSERT_OK(st);
        DT_ASSERT_EQ_INT(got, want);
        DT_ASSERT_OK(dt_checkpoint_remarks(NULL, folder, true, false, no_remark, NULL));
    } else {
        DT_ASSERT_STATUS(st, DT_ERR_FORMAT, "is missing");
    }
}

DT_TEST(spellings, names_are_found_with_each_prefix_that_files_have)
{
    char *file = malloc(MOST_BYTES), *other = malloc(2 * MOST_BYTES);

    DT_ASSERT(file != NULL && other != NULL);
    for (size_t i = 0; i < DT_COUNT(respellings); i++) check(&respellings[i], file, other);
    free(file);
    free(other);
}
