/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory: small objects, large pages for tensors, an arena for the memory of one call. */
#ifndef DTI_MEMORY_H
#define DTI_MEMORY_H

#include "base/error.h"

/* Zeroed memory from the C heap. `*out` is NULL on error. bytes == 0 gives a unique pointer. */
dt_status dti_alloc(size_t bytes, void **out) DT_MUST_USE;

/* dti_alloc for n elements of `bytes`; overflow of the product is DT_ERR_MEMORY. */
dt_status dti_alloc_array(size_t n, size_t bytes, void **out) DT_MUST_USE;

/* Grows an array to at least `want` elements (doubling); `*capacity` is updated. Contents stay. */
dt_status dti_grow(void **array, size_t *capacity, size_t want, size_t element_bytes) DT_MUST_USE;

dt_status dti_strdup(const char *text, char **out) DT_MUST_USE;
void dti_free(void *p); /* accepts NULL */

/* Typed form of dti_alloc: dti_new(sizeof *x, &x) with any object pointer. */
#define dti_new(bytes, out) dti_alloc((bytes), (void **)(out))

/* Large zeroed blocks for weights, caches and activations: 2 MiB aligned with MADV_HUGEPAGE from
 * 2 MiB up (worth 18 to 45 % of read bandwidth), 128-byte aligned heap memory below. Pages of large
 * blocks are not touched, so the thread that writes first decides the NUMA node. `bytes` of
 * dti_big_free() is what was asked for. */
dt_status dti_big_alloc(size_t bytes, void **out) DT_MUST_USE;
void dti_big_free(void *p, size_t bytes);

/* Calls of dti_alloc / dti_grow / dti_big_alloc made by this thread so far, and blocks that this
 * thread allocated minus blocks it freed. Tests assert that a decode step leaves the first alone.
 */
uint64_t dti_alloc_count(void);
int64_t dti_alloc_live(void);

/* Memory of this machine with what it swaps to, or less where a control group bounds it; 0 if that
 * cannot be found out. */
int64_t dti_machine_memory(void);

/* Short-lived memory of one call, given back in one go. */
typedef struct dti_arena {
    struct dti_arena_block *blocks;
    size_t used;
} dti_arena;

#define DTI_ARENA_INIT \
    {                  \
        NULL, 0        \
    }

/* Zeroed, 16-byte aligned; valid until free. */
dt_status dti_arena_alloc(dti_arena *arena, size_t bytes, void **out) DT_MUST_USE;
dt_status dti_arena_strndup(dti_arena *arena, const char *text, size_t n, char **out) DT_MUST_USE;
void dti_arena_free(dti_arena *arena); /* the arena is empty and usable afterwards */

/* True if a * b fits into int64_t; then *out is the product. Both must be >= 0. */
bool dti_mul_i64(int64_t a, int64_t b, int64_t *out);

#endif
