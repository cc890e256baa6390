/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of tokens as tests write them, byte by byte and not by the library. */
#ifndef DT_TEST_TOKEN_FILES_H
#define DT_TEST_TOKEN_FILES_H

#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"

enum { TOKENS_PATHS = 64 };

/* A folder, and the paths of its files. */
typedef struct tokens_folder {
    char path[DT_TEST_PATH_BYTES];
    char files[TOKENS_PATHS][DT_TEST_PATH_BYTES + 64];
    int n;
} tokens_folder;

static inline void tokens_begin(tokens_folder *f)
{
    f->n = 0;
    (void)dt_test_temp_dir(f->path);
}

/* Writes a file; its path lives as long as the folder. */
static inline const char *tokens_write(tokens_folder *f, const char *name, const void *bytes,
                                       size_t n)
{
    char path[sizeof *f->files];

    (void)snprintf(path, sizeof path, "%s/%s", f->path, name);
    dt_test_write_file(f->path, name, bytes, n);
    return memcpy(f->files[f->n++ % TOKENS_PATHS], path, sizeof path);
}

/* Token i of the files below: each is another, all fit 15 bits. */
static inline int32_t tokens_at(int64_t i)
{
    return (int32_t)(i * 7 % 32749);
}

/* Which one it is. */
static inline int32_t tokens_number(int32_t token)
{
    return (int32_t)((int64_t)token * 9357 % 32749); /* 7 * 9357 is 2 * 32749 + 1 */
}

static inline size_t tokens_put(unsigned char *to, size_t at, int64_t value, size_t width)
{
    memcpy(to + at, &value, width);
    return at + width;
}

/* nanoGPT: n tokens first, first + 1, ... */
static inline const char *tokens_plain(tokens_folder *f, const char *name, int64_t first, int64_t n)
{
    unsigned char *bytes = calloc((size_t)n + 1, 2);
    const char *path;

    for (int64_t i = 0; i < n; i++) (void)tokens_put(bytes, (size_t)i * 2, first + i, 2);
    path = tokens_write(f, name, bytes, (size_t)n * 2);
    free(bytes);
    return path;
}

static inline const char *tokens_nanogpt(tokens_folder *f, const char *name, int64_t n)
{
    unsigned char *bytes = calloc((size_t)n + 1, 2);
    const char *path;

    for (int64_t i = 0; i < n; i++) (void)tokens_put(bytes, (size_t)i * 2, tokens_at(i), 2);
    path = tokens_write(f, name, bytes, (size_t)n * 2);
    free(bytes);
    return path;
}

static inline const char *tokens_llmc(tokens_folder *f, const char *name, int64_t n, bool wide)
{
    const size_t width = wide ? 4 : 2, bytes = 1024 + (size_t)n * width;
    unsigned char *to = calloc(bytes, 1);
    const char *path;

    (void)tokens_put(to, 0, wide ? 20240801 : 20240520, 4);
    (void)tokens_put(to, 4, wide ? 7 : 1, 4);
    (void)tokens_put(to, 8, n, 4);
    for (int64_t i = 0; i < n; i++)
        (void)tokens_put(to, 1024 + (size_t)i * width, tokens_at(i), width);
    path = tokens_write(f, name, to, bytes);
    free(to);
    return path;
}

/* The bytes of an index of n tokens in documents of `document` tokens each (the last has what is
 * left), each of one sequence. Freed with free(). */
static inline unsigned char *tokens_index(int64_t n, int type, int64_t document, size_t *bytes)
{
    static const int64_t widths[] = { 0, 1, 1, 2, 4, 8, 8, 4, 2 };
    const int64_t m = (n + document - 1) / document;
    unsigned char *to = calloc(1, 34 + 20 * (size_t)m + 8);
    size_t at = 9;

    memcpy(to, "MMIDIDX\0\0", 9);
    at = tokens_put(to, at, 1, 8);
    at = tokens_put(to, at, type, 1);
    at = tokens_put(to, at, m, 8);
    at = tokens_put(to, at, m + 1, 8);
    for (int64_t i = 0; i < m; i++)
        at = tokens_put(to, at, i + 1 < m ? document : n - i * document, 4);
    for (int64_t i = 0; i < m; i++) at = tokens_put(to, at, i * document * widths[type], 8);
    for (int64_t i = 0; i <= m; i++) at = tokens_put(to, at, i, 8);
    *bytes = at;
    return to;
}

/* Megatron's pair; `name` is of the .bin. */
static inline const char *tokens_megatron(tokens_folder *f, const char *name, int64_t n, int type,
                                          int64_t document)
{
    static const size_t widths[] = { 0, 1, 1, 2, 4, 8, 8, 4, 2 };
    const size_t width = widths[type];
    unsigned char *tokens = calloc((size_t)n + 1, width), *index;
    char beside[64];
    size_t bytes;
    const char *path;

    for (int64_t i = 0; i < n; i++)
        (void)tokens_put(tokens, (size_t)i * width, tokens_at(i), width);
    path = tokens_write(f, name, tokens, (size_t)n * width);
    (void)snprintf(beside, sizeof beside, "%.*s.idx", (int)strlen(name) - 4, name);
    index = tokens_index(n, type, document, &bytes);
    (void)tokens_write(f, beside, index, bytes);
    free(index);
    free(tokens);
    return path;
}

#endif
