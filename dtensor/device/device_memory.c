/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/device/device_memory.h"

#include "base/memory.h"

/* Four classes per power of two from 256 bytes: at most 25 % of a block is unused. */
enum { MIN_SHIFT = 8, STEPS = 4, N_CLASSES = STEPS * (62 - MIN_SHIFT) };

/* Idle blocks may hold this much, or twice the peak of living pooled ones if that is more: a step
 * that repeats finds its blocks again, and prompts of many lengths do not leave a block of each. */
static const size_t IDLE_BYTES = (size_t)64 << 20;

struct dti_memory {
    dti_allocator from;
    dti_storage *free_blocks[N_CLASSES];
    dti_storage *free_headers;
    dti_memory *whole; /* that this one is part of; or NULL */
    bool dry;
    size_t used;
    size_t of_kind[DTI_N_KINDS]; /* of used */
    size_t peak;
    size_t held;
    size_t idle;   /* of held: on free_blocks */
    size_t pooled; /* of used: of size classes */
    size_t pooled_peak;
};

/* Bytes that come into use, or below zero go out of it. */
static void count_used(dti_memory *m, dti_memory_kind kind, int64_t bytes)
{
    for (; m != NULL; m = m->whole, kind = DTI_KIND_RECORDED) {
        m->used += (size_t)bytes;
        m->of_kind[kind] += (size_t)bytes;
        if (m->used > m->peak) m->peak = m->used;
    }
}

static void count_held(dti_memory *m, int64_t bytes)
{
    for (; m != NULL; m = m->whole) m->held += (size_t)bytes;
}

static int class_of(size_t bytes)
{
    int shift = MIN_SHIFT;

    if (bytes <= (size_t)1 << MIN_SHIFT) return 0;
    shift =
        63 - __builtin_clzll((unsigned long long)(bytes - 1)); /* 2^shift < bytes <= 2^(shift+1) */
    return (shift - MIN_SHIFT) * STEPS + 1 + (int)(((bytes - 1) >> (shift - 2)) & (STEPS - 1));
}

static size_t class_bytes(int size_class)
{
    const int shift = MIN_SHIFT + (size_class - 1) / STEPS;
    const size_t step = (size_t)((size_class - 1) % STEPS + 1);

    if (size_class == 0) return (size_t)1 << MIN_SHIFT;
    return ((size_t)1 << shift) + step * ((size_t)1 << (shift - 2));
}

static dt_status take_host(void *arg, size_t bytes, void **out)
{
    (void)arg;
    DT_TRY(dti_big_alloc(bytes, out));
    return DT_OK;
}

static void give_host(void *arg, void *data, size_t bytes)
{
    (void)arg;
    dti_big_free(data, bytes);
}

dt_status dti_memory_create(bool dry, const dti_allocator *from, dti_memory **out)
{
    dti_memory *m;

    *out = NULL;
    DT_TRY(dti_new(sizeof *m, &m));
    m->dry = dry;
    m->from =
        from != NULL && from->take != NULL ? *from : (dti_allocator){ take_host, give_host, NULL };
    *out = m;
    return DT_OK;
}

void dti_memory_part_of(dti_memory *m, dti_memory *whole)
{
    DT_ASSERT(m->held == 0 && m->used == 0);
    m->whole = whole;
}

/* The block goes back to the system, the header to the free ones. */
static void drop_block(dti_storage *s)
{
    dti_memory *m = s->memory;

    if (s->data != NULL) m->from.give(m->from.arg, s->data, s->bytes);
    if (s->held) count_held(m, -(int64_t)s->bytes);
    s->data = NULL;
    s->held = false;
    s->next = m->free_headers;
    m->free_headers = s;
}

/* Gives idle blocks back, large ones first, until at most `most` bytes are idle. */
static void trim(dti_memory *m, size_t most)
{
    for (int c = N_CLASSES - 1; c >= 0 && m->idle > most; c--)
        while (m->free_blocks[c] != NULL && m->idle > most) {
            dti_storage *s = m->free_blocks[c];
            m->free_blocks[c] = s->next;
            m->idle -= s->bytes;
            drop_block(s);
        }
}

void dti_memory_destroy(dti_memory **memory)
{
    dti_memory *m = *memory;

    if (m == NULL) return;
    *memory = NULL;
    trim(m, 0);
    for (dti_storage *s = m->free_headers, *next; s != NULL; s = next) {
        next = s->next;
        dti_free(s);
    }
    dti_free(m);
}

/* A block of the class or an empty header, whichever is at hand; NULL if neither. */
static dti_storage *take(dti_memory *m, int size_class)
{
    dti_storage **list = &m->free_headers;
    dti_storage *s;

    if (size_class >= 0 && m->free_blocks[size_class] != NULL) list = &m->free_blocks[size_class];
    s = *list;
    if (s == NULL) return NULL;
    *list = s->next;
    if (s->held) m->idle -= s->bytes;
    return s;
}

/* Bytes for s. Memory that is kept for reuse is not kept from who needs it now. */
static dt_status fill(dti_memory *m, dti_storage *s)
{
    if (!m->dry && m->from.take(m->from.arg, s->bytes, &s->data) != DT_OK) {
        trim(m, 0);
        DT_TRY(m->from.take(m->from.arg, s->bytes, &s->data));
    }
    s->held = true;
    count_held(m, (int64_t)s->bytes);
    return DT_OK;
}

dt_status dti_storage_create(dti_memory *m, size_t bytes, bool pool, dti_storage **out)
{
    const int size_class = pool ? class_of(bytes) : -1;
    dt_status st = DT_OK;
    dti_storage *s;

    *out = NULL;
    DT_CHECK(size_class < N_CLASSES, DT_ERR_MEMORY, "a tensor of %zu bytes is too large", bytes);
    bytes = pool ? class_bytes(size_class) : bytes;
    s = take(m, size_class);
    if (s == NULL) DT_TRY_TO(fail, st, dti_new(sizeof *s, &s));
    count_used(m, DTI_KIND_VALUES, (int64_t)bytes);
    m->pooled += pool ? bytes : 0;
    if (m->pooled > m->pooled_peak) m->pooled_peak = m->pooled;
    s->memory = m;
    s->kind = DTI_KIND_VALUES;
    s->size_class = size_class;
    s->bytes = bytes;
    s->next = NULL;
    s->refs = 1;
    if (!s->held) DT_TRY_TO(fail, st, fill(m, s));
    *out = s;
    return DT_OK;

fail:
    if (s != NULL) dti_storage_free(s);
    return st;
}

void dti_storage_free(dti_storage *s)
{
    dti_memory *m = s->memory;

    count_used(m, s->kind, -(int64_t)s->bytes);
    if (s->size_class >= 0) m->pooled -= s->bytes;
    if (s->size_class < 0 || !s->held) {
        drop_block(s);
        return;
    }
    s->next = m->free_blocks[s->size_class];
    m->free_blocks[s->size_class] = s;
    m->idle += s->bytes;
    trim(m, 2 * m->pooled_peak > IDLE_BYTES ? 2 * m->pooled_peak : IDLE_BYTES);
}

size_t dti_memory_used(const dti_memory *m)
{
    return m->used;
}

size_t dti_memory_peak(const dti_memory *m)
{
    return m->peak;
}

size_t dti_memory_of_kind(const dti_memory *m, dti_memory_kind kind)
{
    return m->of_kind[kind];
}

void dti_storage_set_kind(dti_storage *s, dti_memory_kind kind)
{
    s->memory->of_kind[s->kind] -= s->bytes;
    s->memory->of_kind[kind] += s->bytes;
    s->kind = kind;
}

size_t dti_memory_held(const dti_memory *m)
{
    return m->held;
}
