/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fuzzers share: seeded mutations of valid inputs, and the way from a command line to
 * them.
 *
 *   fuzz_NAME [N [SEED]]            N mutations (a number of each fuzzer's own without arguments)
 *   fuzz_NAME --seconds S [SEED]    as many as S seconds allow, from another seed every time
 *
 * The same seed makes the same inputs on every machine, and is said where it is not 1. A fuzzer is
 * a table of seeds and words and LLVMFuzzerTestOneInput(), which aborts at what must never be; with
 * libFuzzer the rest is left out: clang -fsanitize=fuzzer,address,undefined -DDT_LIBFUZZER. */
#ifndef DT_FUZZ_H
#define DT_FUZZ_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/sync.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct fuzz_seed {
    const char *bytes;
    size_t n; /* 0: up to the terminating zero */
} fuzz_seed;

typedef struct fuzz_table {
    const char *name;
    long n; /* inputs to try by default: about a second */
    size_t most_bytes;
    const fuzz_seed *seeds;
    size_t n_seeds;
    const char *const *words; /* pieces that change a meaning, not only a letter */
    size_t n_words;
    /* Puts right what hardly any mutation would leave right, such as a length: first, and half of
     * the time last. May be NULL. */
    void (*mend)(uint8_t *data, size_t size);
} fuzz_table;

/* Ends the program with the thread's error record. */
static inline void fuzz_stop(const char *what)
{
    (void)fprintf(stderr, "fuzz: %s: %s\n", what, dt_last_error()->message);
    abort();
}

/* True if st is an error; then it has to be one of input, with a message. */
static inline bool fuzz_failed(dt_status st)
{
    if (st == DT_OK) return false;
    if (st != DT_ERR_ARG && st != DT_ERR_FORMAT && st != DT_ERR_UNSUPPORTED && st != DT_ERR_SHAPE &&
        st != DT_ERR_LAYOUT && st != DT_ERR_IO)
        fuzz_stop(dt_status_name(st));
    if (dt_last_error()->code != st || dt_last_error()->message[0] == '\0')
        fuzz_stop("an error without a message");
    return true;
}

static inline uint32_t fuzz_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Replaces `cut` bytes at `at` by n others, unless there is no room. `by` may lie in `data`. */
static inline size_t fuzz_splice(const fuzz_table *t, uint8_t *data, size_t size, size_t at,
                                 size_t cut, const void *by, size_t n)
{
    uint8_t copy[256];

    if (n > sizeof copy) n = sizeof copy;
    if (n > 0) memcpy(copy, by, n);
    if (at > size) at = size;
    if (cut > size - at) cut = size - at;
    if (size - cut + n > t->most_bytes) return size;
    memmove(data + at + n, data + at + cut, size - at - cut);
    if (n > 0) memcpy(data + at, copy, n);
    return size - cut + n;
}

static inline size_t fuzz_mutate(const fuzz_table *t, uint8_t *data, size_t size, uint64_t *state)
{
    const size_t at = size > 0 ? fuzz_next(state) % size : 0;
    const char *word = t->words[fuzz_next(state) % t->n_words];
    const uint8_t byte = (uint8_t)fuzz_next(state);
    const size_t left = size - at;

    switch (fuzz_next(state) % 7) {
    case 0: /* one bit */
        if (size > 0) data[at] ^= (uint8_t)(1u << (byte & 7));
        return size;
    case 1: /* a word in, a few bytes out */
    case 2:
        return fuzz_splice(t, data, size, at, fuzz_next(state) % 8, word, strlen(word));
    case 3: /* a word in place of a string */
        for (size_t i = at; i + 1 < size; i++) {
            const uint8_t *end = data[i] == '"' ? memchr(data + i + 1, '"', size - i - 1) : NULL;
            if (end == NULL) continue;
            return fuzz_splice(t, data, size, i, (size_t)(end + 1 - (data + i)), word,
                               strlen(word));
        }
        return size;
    case 4: /* bytes repeated elsewhere */
        return fuzz_splice(t, data, size, fuzz_next(state) % (size + 1), 0, data + at,
                           left < 64 ? left : 64);
    case 5: /* a byte more */
        return fuzz_splice(t, data, size, at, 0, &byte, 1);
    default: /* cut off, sometimes */
        return byte < 64 ? at : size;
    }
}

static inline void fuzz_one(const fuzz_table *t, uint8_t *data, uint64_t *state)
{
    const fuzz_seed *seed = &t->seeds[fuzz_next(state) % t->n_seeds];
    size_t size = seed->n > 0 ? seed->n : strlen(seed->bytes);

    if (size > t->most_bytes) size = t->most_bytes;
    memcpy(data, seed->bytes, size);
    if (t->mend != NULL) t->mend(data, size);
    for (uint32_t m = fuzz_next(state) % 6; m > 0; m--) size = fuzz_mutate(t, data, size, state);
    if (t->mend != NULL && fuzz_next(state) % 2 == 0) t->mend(data, size);
    (void)LLVMFuzzerTestOneInput(data, size);
}

static inline int fuzz_main(const fuzz_table *t, int argc, char **argv)
{
    const bool timed = argc > 2 && strcmp(argv[1], "--seconds") == 0;
    const double seconds = timed ? strtod(argv[2], NULL) : 0.0;
    const long most = timed ? 0 : argc > 1 ? strtol(argv[1], NULL, 10) : t->n;
    const char *seed = timed ? (argc > 3 ? argv[3] : NULL) : argc > 2 ? argv[2] : NULL;
    const int64_t end = dti_now_ns() + (int64_t)(seconds * 1e9);
    uint64_t state = seed != NULL ? strtoull(seed, NULL, 10) : timed ? (uint64_t)time(NULL) : 1;
    uint8_t *data = malloc(t->most_bytes + 1);
    long n = 0;

    if (data == NULL) return 1;
    if (state != 1) (void)fprintf(stderr, "%s: seed %llu\n", t->name, (unsigned long long)state);
    while (timed ? dti_now_ns() < end : n < most) {
        fuzz_one(t, data, &state);
        n++;
    }
    free(data);
    (void)printf("%s: %ld inputs, no fault\n", t->name, n);
    return 0;
}

/* --- files ------------------------------------------------------------------------------------ */

/* A folder of this process; returns `path`. The caller removes what it puts there. */
static inline const char *fuzz_folder(char path[64])
{
    (void)snprintf(path, 64, "/tmp/dtensor_fuzz_XXXXXX");
    if (mkdtemp(path) == NULL) fuzz_stop("no temporary folder");
    return path;
}

static inline void fuzz_write(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL || fwrite(data, 1, size, f) != size || fclose(f) != 0)
        fuzz_stop("no temporary file");
}

#endif
