/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing model.safetensors.index.json beside two sound shards: any bytes are refused with a
 * message, or open as a checkpoint whose every tensor is found and can be read. */
#include "tests/fuzz/fuzz.h"

#include "base/memory.h"
#include "files/checkpoint.h"

enum { MOST_BYTES = 1 << 12, SHARD_BYTES = 256 };

/* A shard with two f32 tensors of two elements, "NAME.x" and "NAME.y". */
static void write_shard(const char *path, const char *name)
{
    char file[SHARD_BYTES] = { 0 };
    const int n = snprintf(file + 8, sizeof file - 8 - 16,
                           "{\"%s.x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                           "\"%s.y\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
                           name, name);

    if (n < 0 || n > SHARD_BYTES - 24) fuzz_stop("a shard too long");
    file[0] = (char)n;
    fuzz_write(path, file, 8 + (size_t)n + 16);
}

static void read_all(const dti_ckpt *ckpt)
{
    dti_st_stage stage;
    float to[2];

    if (dti_st_stage_create(1, NULL, &stage) != DT_OK) fuzz_stop("no memory");
    for (size_t i = 0; i < dti_ckpt_count(ckpt); i++) {
        const dti_st_entry *e = dti_ckpt_at(ckpt, i);
        if (dti_ckpt_find(ckpt, e->name) != e) fuzz_stop("a tensor is not found");
        if (dti_ckpt_read(ckpt, e->name, NULL, NULL, DT_F32, &stage, to) != DT_OK)
            fuzz_stop("a tensor cannot be read");
    }
    dti_st_stage_destroy(&stage);
}

static void count_fault(void *arg, const char *tensor, const char *text)
{
    (void)tensor;
    if (text[0] == '\0') fuzz_stop("a fault without words");
    ++*(int *)arg;
}

/* What is refused has faults, and what is left of it can be read. */
static void look_for_faults(const char *folder, bool sound)
{
    int n = 0;
    const dti_faults faults = { count_fault, &n };
    dti_ckpt *ckpt = NULL;

    if (dti_ckpt_open_faulty(folder, &faults, &ckpt) != DT_OK) {
        if (sound || ckpt != NULL) fuzz_stop("a sound checkpoint is refused");
        return;
    }
    if ((n == 0) != sound) fuzz_stop("faults of a sound checkpoint, or none of a bad one");
    read_all(ckpt);
    dti_ckpt_close(&ckpt);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = { "config.json", "one.safetensors", "two.safetensors",
                                         "model.safetensors.index.json" };
    char folder[64], path[DT_COUNT(names)][128];
    dti_ckpt *ckpt = NULL;

    if (size > MOST_BYTES) return 0;
    (void)fuzz_folder(folder);
    for (size_t i = 0; i < DT_COUNT(names); i++)
        (void)snprintf(path[i], sizeof path[i], "%s/%s", folder, names[i]);
    fuzz_write(path[0], "{}", 2);
    write_shard(path[1], "one");
    write_shard(path[2], "two");
    fuzz_write(path[3], data, size);
    if (!fuzz_failed(dti_ckpt_open(folder, &ckpt)))
        read_all(ckpt);
    else if (ckpt != NULL)
        fuzz_stop("a checkpoint in spite of an error");
    look_for_faults(folder, ckpt != NULL);
    dti_ckpt_close(&ckpt);
    for (size_t i = 0; i < DT_COUNT(names); i++) (void)unlink(path[i]);
    (void)rmdir(folder);
    return 0;
}

#ifndef DT_LIBFUZZER

/* clang-format off */
static const fuzz_seed seeds[] = {
    { "{\"metadata\":{\"total_size\":32},\"weight_map\":{\"one.x\":\"one.safetensors\",\"one.y\":\"one.safetensors\","
      "\"two.x\":\"two.safetensors\",\"two.y\":\"two.safetensors\"}}", 0 },
    { "{\"weight_map\":{\"two.y\":\"two.safetensors\",\"two.x\":\"two.safetensors\"}}", 0 },
    { "{\"weight_map\":{}}", 0 },
};
static const char *const words[] = {
    "[", "]", "{", "}", ",", ":", "\"", "null", "true", "1", "\"\"", "{}", "\"one.x\"", "\"two.y\"", "\"one.safetensors\"",
    "\"two.safetensors\"", "\"../one.safetensors\"", "\"/etc/passwd\"", "\"three.safetensors\"", "\"config.json\"", "\".\"", "\"..\"",
    "\"one.x\":\"two.safetensors\",", "weight_map", "\\u0000", "/", "\xff", "\033",
};
static const fuzz_table table = { "fuzz_index", 600, MOST_BYTES, seeds, DT_COUNT(seeds), words, DT_COUNT(words), NULL };
/* clang-format on */

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
