/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

/* Small blocks are aligned for the types of base/sync.h that keep flags two cache lines apart. */
enum {
    BIG_BYTES = 2 << 20,
    PAGE_BYTES = 64 << 10,
    SMALL_ALIGN = 128,
    ARENA_BLOCK_BYTES = 64 << 10
};

static _Thread_local uint64_t alloc_count;
static _Thread_local int64_t alloc_live;

uint64_t dti_alloc_count(void)
{
    return alloc_count;
}

int64_t dti_alloc_live(void)
{
    return alloc_live;
}

dt_status dti_alloc(size_t bytes, void **out)
{
    void *p = calloc(1, bytes ? bytes : 1);

    *out = NULL;
    DT_CHECK(p != NULL, DT_ERR_MEMORY, "%zu bytes could not be allocated", bytes);
    alloc_count++;
    alloc_live++;
    *out = p;
    return DT_OK;
}

dt_status dti_alloc_array(size_t n, size_t bytes, void **out)
{
    *out = NULL;
    DT_CHECK(bytes == 0 || n <= SIZE_MAX / bytes, DT_ERR_MEMORY,
             "%zu elements of %zu bytes exceed the address space", n, bytes);
    return dti_alloc(n * bytes, out);
}

dt_status dti_grow(void **array, size_t *capacity, size_t want, size_t element_bytes)
{
    size_t next = *capacity ? *capacity : 8;
    void *p;

    if (want <= *capacity) return DT_OK;
    DT_ASSERT(element_bytes > 0);
    DT_CHECK(want <= SIZE_MAX / 2 / element_bytes, DT_ERR_MEMORY,
             "an array of %zu elements of %zu bytes is too large", want, element_bytes);
    while (next < want) next *= 2;
    p = realloc(*array, next * element_bytes);
    DT_CHECK(p != NULL, DT_ERR_MEMORY, "%zu bytes could not be allocated", next * element_bytes);
    memset((char *)p + *capacity * element_bytes, 0, (next - *capacity) * element_bytes);
    alloc_count++;
    if (*array == NULL) alloc_live++;
    *array = p;
    *capacity = next;
    return DT_OK;
}

dt_status dti_strdup(const char *text, char **out)
{
    const size_t bytes = strlen(text) + 1;
    void *p;

    *out = NULL;
    DT_TRY(dti_alloc(bytes, &p));
    memcpy(p, text, bytes);
    *out = p;
    return DT_OK;
}

void dti_free(void *p)
{
    if (p == NULL) return;
    alloc_live--;
    free(p);
}

/* A mapping of 2 MiB more than asked, trimmed so that the start is on a 2 MiB boundary. */
static void *map_huge(size_t bytes)
{
    const size_t span = bytes + BIG_BYTES;
    char *raw = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *start;
    size_t head;

    if (raw == MAP_FAILED) return NULL;
    head = (BIG_BYTES - (uintptr_t)raw % BIG_BYTES) % BIG_BYTES;
    start = raw + head;
    if (head > 0) (void)munmap(raw, head);
    if (span - head > bytes) (void)munmap(start + bytes, span - head - bytes);
    (void)madvise(start, bytes, MADV_HUGEPAGE); /* a kernel without it still gives the memory */
    return start;
}

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

dt_status dti_big_alloc(size_t bytes, void **out)
{
    void *p = NULL;

    *out = NULL;
    DT_CHECK(bytes <= SIZE_MAX / 2, DT_ERR_MEMORY, "%zu bytes exceed the address space", bytes);
    if (bytes >= BIG_BYTES) {
        p = map_huge(round_up(bytes, PAGE_BYTES)); /* no huge page ends past it */
    } else {
        const size_t small = round_up(bytes ? bytes : 1, SMALL_ALIGN);
        p = aligned_alloc(SMALL_ALIGN, small);
        if (p != NULL) memset(p, 0, small);
    }
    DT_CHECK(p != NULL, DT_ERR_MEMORY, "%zu bytes could not be allocated", bytes);
    alloc_count++;
    alloc_live++;
    *out = p;
    return DT_OK;
}

void dti_big_free(void *p, size_t bytes)
{
    if (p == NULL) return;
    alloc_live--;
    if (bytes >= BIG_BYTES)
        (void)munmap(p, round_up(bytes, PAGE_BYTES));
    else
        free(p);
}

typedef struct dti_arena_block {
    struct dti_arena_block *next;
    size_t bytes;
    _Alignas(16) unsigned char data[];
} dti_arena_block;

/* Links a new block in at *at; *out is its data. */
static dt_status add_block(dti_arena_block **at, size_t bytes, void **out)
{
    dti_arena_block *block;

    DT_TRY(dti_new(sizeof *block + bytes, &block));
    block->next = *at;
    block->bytes = bytes;
    *at = block;
    *out = block->data;
    return DT_OK;
}

/* Small requests share the first block; a large one gets its own behind it, so that what is left
 * of the first is not lost. */
dt_status dti_arena_alloc(dti_arena *arena, size_t bytes, void **out)
{
    const size_t need = round_up(bytes ? bytes : 1, 16);
    dti_arena_block *block = arena->blocks;

    *out = NULL;
    DT_CHECK(bytes <= SIZE_MAX / 2, DT_ERR_MEMORY, "%zu bytes exceed the address space", bytes);
    if (block != NULL && block->bytes - arena->used >= need) {
        *out = block->data + arena->used;
        arena->used += need;
        return DT_OK;
    }
    if (block != NULL && need >= ARENA_BLOCK_BYTES) return add_block(&block->next, need, out);
    DT_TRY(add_block(&arena->blocks, need > ARENA_BLOCK_BYTES ? need : ARENA_BLOCK_BYTES, out));
    arena->used = need;
    return DT_OK;
}

dt_status dti_arena_strndup(dti_arena *arena, const char *text, size_t n, char **out)
{
    void *p;

    *out = NULL;
    DT_CHECK(n < SIZE_MAX, DT_ERR_MEMORY, "%zu bytes exceed the address space", n);
    DT_TRY(dti_arena_alloc(arena, n + 1, &p));
    if (n > 0) memcpy(p, text, n);
    *out = p;
    return DT_OK;
}

void dti_arena_free(dti_arena *arena)
{
    for (dti_arena_block *block = arena->blocks; block != NULL;) {
        dti_arena_block *next = block->next;
        dti_free(block);
        block = next;
    }
    *arena = (dti_arena)DTI_ARENA_INIT;
}

/* "max" or a number; 0 if there is no such file. */
static int64_t read_limit(const char *path)
{
    FILE *f = fopen(path, "re");
    long long limit = 0;

    if (f == NULL) return 0;
    if (fscanf(f, "%lld", &limit) != 1 || limit < 0) limit = 0;
    (void)fclose(f);
    return limit;
}

int64_t dti_machine_memory(void)
{
    const int64_t limit = read_limit("/sys/fs/cgroup/memory.max");
    struct sysinfo info;
    int64_t all;

    if (sysinfo(&info) != 0) return limit;
    all = (int64_t)((info.totalram + info.totalswap) * info.mem_unit);
    return limit > 0 && limit < all ? limit : all;
}

bool dti_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    if (a < 0 || b < 0 || (b != 0 && a > INT64_MAX / b)) return false;
    *out = a * b;
    return true;
}
