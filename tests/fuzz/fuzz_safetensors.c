/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing the reader of safetensors files: any bytes open with an error or as a file whose every
 * tensor can be read.
 *
 *   fuzz_safetensors [N [SEED]]   N seeded mutations of valid files (default 20000)
 *
 * With libFuzzer: clang -fsanitize=fuzzer,address,undefined -DDT_LIBFUZZER. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/checkpoint/safetensors.h"

enum { MOST_BYTES = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void stop(const char *what)
{
    (void)fprintf(stderr, "fuzz_safetensors: %s: %s\n", what, dt_last_error()->message);
    abort();
}

/* Reads a tensor whole and one random box of it. */
static void read_entry(const dti_st_file *file, const dti_st_entry *e, uint64_t *state)
{
    dti_st_stage stage;
    int64_t begin[DT_MAX_AXES] = { 0 }, end[DT_MAX_AXES] = { 0 };
    const dt_dtype want = e->supported && !dt_dtype_is_float(e->dtype) ? e->dtype : DT_F32;
    const size_t bytes = (size_t)(e->end - e->begin) * 4 + 8; /* enough for any conversion */
    char *to = malloc(bytes);

    if (to == NULL || dti_st_stage_create(1, NULL, &stage) != DT_OK) stop("no memory");
    if (e->begin < 8 || e->begin > e->end) stop("an entry lies outside its file");
    for (int a = 0; a < e->n_axes; a++) {
        const int64_t extent = e->shape[a];
        begin[a] = extent > 0 ? next(state) % (extent > 1000 ? 1000 : extent) : 0;
        end[a] = begin[a] + (extent > 0 ? 1 : 0);
    }
    if (dti_st_read_slice(file, e, NULL, NULL, want, &stage, to) != DT_OK && e->supported)
        stop("a tensor cannot be read");
    if (dti_st_read_slice(file, e, begin, end, want, &stage, to) != DT_OK && e->supported)
        stop("a box cannot be read");
    dti_st_stage_destroy(&stage);
    free(to);
}

static void try_file(const char *path, uint64_t state)
{
    dti_st_file *file;

    if (dti_st_open(path, &file) != DT_OK) {
        if (file != NULL || dt_last_error()->message[0] == '\0') stop("an error without a message");
        return;
    }
    for (size_t i = 0; i < dti_st_count(file); i++) {
        const dti_st_entry *e = dti_st_at(file, i);
        if (dti_st_find(file, e->name) != e) stop("a tensor is not found");
        read_entry(file, e, &state);
    }
    dti_st_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64] = "/tmp/dtensor_fuzz_XXXXXX";
    const int fd = mkstemp(path);
    uint64_t state = size;

    if (fd < 0 || write(fd, data, size) != (ssize_t)size) stop("no temporary file");
    for (size_t i = 0; i < size && i < 64; i++) state = state * 31 + data[i];
    try_file(path, state);
    (void)close(fd);
    (void)unlink(path);
    return 0;
}

#ifndef DT_LIBFUZZER

/* clang-format off */
static const struct {
    const char *header;
    size_t n_data;
} seeds[] = {
    { "{}", 0 },
    { "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24 },
    { "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]},"
      "\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[8,16]}}", 16 },
    { "{\"h\":{\"dtype\":\"F16\",\"shape\":[3,2,2],\"data_offsets\":[0,24]},"
      "\"z\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[24,24]}}", 24 },
    { "{\"q\":{\"dtype\":\"F8_E4M3\",\"shape\":[8],\"data_offsets\":[0,8]},"
      "\"n\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[8,9]}}", 9 },
};
/* Pieces that change a meaning, not only a letter. */
static const char *const words[] = {
    "[", "]", "{", "}", ",", ":", "\"", "0", "-1", "1e3", "1.0", "9223372036854775807",
    "18446744073709551615", "4294967296", "null", "true", "[0,0]", "\\u0000", "\\ud800", "\xff",
    "\"dtype\"", "\"shape\"", "\"data_offsets\"", "\"F64\"", "\"f32\"", "\"BOOL\"", "\"w\":", " ",
};
/* clang-format on */

/* Replaces `cut` bytes at `at` by n others; the file stays below MOST_BYTES. */
static size_t splice(uint8_t *file, size_t size, size_t at, size_t cut, const void *by, size_t n)
{
    if (at > size) at = size;
    if (cut > size - at) cut = size - at;
    if (size - cut + n > MOST_BYTES) return size;
    memmove(file + at + n, file + at + cut, size - at - cut);
    memmove(file + at, by, n); /* `by` may be the file's own beginning */
    return size - cut + n;
}

static size_t mutate(uint8_t *file, size_t size, uint64_t *state)
{
    const size_t at = size > 0 ? next(state) % size : 0;
    const char *word = words[next(state) % (sizeof words / sizeof words[0])];
    uint8_t byte = (uint8_t)next(state);

    switch (next(state) % 6) {
    case 0: /* one bit */
        if (size > 0) file[at] ^= (uint8_t)(1u << (byte & 7));
        return size;
    case 1: /* the length */
        if (size >= 8) file[next(state) % 8] = byte;
        return size;
    case 2: /* cut off */
        return at;
    case 3: /* a word in, a few bytes out */
        return splice(file, size, at, next(state) % 4, word, strlen(word));
    case 4: /* bytes repeated */
        return splice(file, size, at, 0, file, size < 40 ? size : 40);
    default: /* a byte more */
        return splice(file, size, at, 0, &byte, 1);
    }
}

/* The header's length as it is: without this hardly any mutation would get past the first check. */
static void mend_length(uint8_t *file, size_t size, size_t n_data)
{
    const size_t n = size >= 8 + n_data ? size - 8 - n_data : 0;

    for (int i = 0; i < 8 && size >= 8; i++) file[i] = (uint8_t)((uint64_t)n >> (8 * i));
}

int main(int argc, char **argv)
{
    const long n = argc > 1 ? strtol(argv[1], NULL, 10) : 20000;
    uint64_t state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint8_t *file = calloc(1, MOST_BYTES);

    if (file == NULL) return 1;
    for (long i = 0; i < n; i++) {
        const uint32_t k = next(&state) % (sizeof seeds / sizeof seeds[0]);
        const size_t n_header = strlen(seeds[k].header), n_data = seeds[k].n_data;
        size_t size = 8 + n_header + n_data;

        memset(file, 0, size);
        memcpy(file + 8, seeds[k].header, n_header);
        mend_length(file, size, n_data);
        for (uint32_t m = next(&state) % 6; m > 0; m--) size = mutate(file, size, &state);
        if (next(&state) % 2 == 0) mend_length(file, size, n_data);
        (void)LLVMFuzzerTestOneInput(file, size);
    }
    free(file);
    (void)printf("fuzz_safetensors: %ld mutations, no fault\n", n);
    return 0;
}

#endif
