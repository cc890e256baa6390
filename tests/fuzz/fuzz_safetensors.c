/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing the reader of safetensors files: any bytes open with an error or as a file whose every
 * tensor can be read. */
#include "tests/fuzz/fuzz.h"

#include "files/safetensors.h"

enum { MOST_BYTES = 1 << 16 };

/* Reads a tensor whole and one random box of it. */
static void read_entry(const dti_st_file *file, const dti_st_entry *e, uint64_t *state)
{
    dti_st_stage stage;
    int64_t begin[DT_MAX_AXES] = { 0 }, end[DT_MAX_AXES] = { 0 };
    const dt_dtype want = e->supported && !dt_dtype_is_float(e->dtype) ? e->dtype : DT_F32;
    const size_t bytes = (size_t)(e->end - e->begin) * 4 + 8; /* enough for any conversion */
    char *to = malloc(bytes);

    if (to == NULL || dti_st_stage_create(1, NULL, &stage) != DT_OK) fuzz_stop("no memory");
    if (e->begin < 8 || e->begin > e->end) fuzz_stop("an entry lies outside its file");
    for (int a = 0; a < e->n_axes; a++) {
        const int64_t extent = e->shape[a];
        begin[a] = extent > 0 ? fuzz_next(state) % (extent > 1000 ? 1000 : extent) : 0;
        end[a] = begin[a] + (extent > 0 ? 1 : 0);
    }
    if (dti_st_read_slice(file, e, NULL, NULL, want, &stage, to) != DT_OK && e->supported)
        fuzz_stop("a tensor cannot be read");
    if (dti_st_read_slice(file, e, begin, end, want, &stage, to) != DT_OK && e->supported)
        fuzz_stop("a box cannot be read");
    dti_st_stage_destroy(&stage);
    free(to);
}

static void count_fault(void *arg, const char *tensor, const char *text)
{
    (void)tensor;
    if (text[0] == '\0') fuzz_stop("a fault without words");
    ++*(int *)arg;
}

/* What is refused has faults, and what is left of it lies inside the file. */
static void look_for_faults(const char *path, bool sound)
{
    int n = 0;
    const dti_faults faults = { count_fault, &n };
    dti_st_file *file;

    if (dti_st_open_faulty(path, &faults, &file) != DT_OK) {
        if (sound) fuzz_stop("a sound file is refused");
        return;
    }
    if ((n == 0) != sound) fuzz_stop("faults of a sound file, or none of a bad one");
    for (size_t i = 0; i < dti_st_count(file); i++) {
        const dti_st_entry *e = dti_st_at(file, i);
        if (dti_st_find(file, e->name) != e || e->begin < 8 || e->begin > e->end)
            fuzz_stop("an entry that was kept lies outside its file");
    }
    dti_st_close(&file);
}

static void try_file(const char *path, uint64_t state)
{
    dti_st_file *file;

    if (fuzz_failed(dti_st_open(path, &file))) {
        if (file != NULL) fuzz_stop("a file in spite of an error");
        look_for_faults(path, false);
        return;
    }
    look_for_faults(path, true);
    for (size_t i = 0; i < dti_st_count(file); i++) {
        const dti_st_entry *e = dti_st_at(file, i);
        if (dti_st_find(file, e->name) != e) fuzz_stop("a tensor is not found");
        read_entry(file, e, &state);
    }
    dti_st_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64] = "/tmp/dtensor_fuzz_XXXXXX";
    const int fd = mkstemp(path);
    uint64_t state = size;

    if (fd < 0 || write(fd, data, size) != (ssize_t)size) fuzz_stop("no temporary file");
    for (size_t i = 0; i < size && i < 64; i++) state = state * 31 + data[i];
    try_file(path, state);
    (void)close(fd);
    (void)unlink(path);
    return 0;
}

#ifndef DT_LIBFUZZER

/* clang-format off */
#define LENGTH "\0\0\0\0\0\0\0\0" /* mended */
#define EIGHT  "\0\0\0\0\0\0\0\0"
#define SEED(text) { LENGTH text, sizeof LENGTH text - 1 }
static const fuzz_seed seeds[] = {
    SEED("{}"),
    SEED("{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}" EIGHT EIGHT EIGHT),
    SEED("{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[8,16]}}" EIGHT EIGHT),
    SEED("{\"h\":{\"dtype\":\"F16\",\"shape\":[3,2,2],\"data_offsets\":[0,24]},"
         "\"z\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[24,24]}}" EIGHT EIGHT EIGHT),
    SEED("{\"q\":{\"dtype\":\"F8_E4M3\",\"shape\":[8],\"data_offsets\":[0,8]},"
         "\"n\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[8,9]}}" EIGHT "\0"),
};
static const char *const words[] = {
    "[", "]", "{", "}", ",", ":", "\"", "0", "-1", "1e3", "1.0", "9223372036854775807",
    "18446744073709551615", "4294967296", "null", "true", "[0,0]", "\\u0000", "\\ud800", "\xff",
    "\"dtype\"", "\"shape\"", "\"data_offsets\"", "\"F64\"", "\"f32\"", "\"BOOL\"", "\"w\":", " ",
};
/* clang-format on */

/* The header's length, as if it ended at the last brace. */
static void mend_length(uint8_t *file, size_t size)
{
    size_t end = size;

    while (end > 8 && file[end - 1] != '}') end--;
    for (int i = 0; i < 8 && size >= 8; i++) file[i] = (uint8_t)((uint64_t)(end - 8) >> (8 * i));
}

static const fuzz_table table = { "fuzz_safetensors", 20000, MOST_BYTES,      seeds,
                                  DT_COUNT(seeds),    words, DT_COUNT(words), mend_length };

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
