/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/device/device_memory.h"

#include "base/memory.h"
#include "dtensor/device/lease.h"

/* Four classes per power of two from 256 bytes: at most 25 % of a block is unused. */
enum { MIN_SHIFT = 8, STEPS = 4, N_CLASSES = STEPS * (62 - MIN_SHIFT) };

/* Pooled blocks, idle and in use, hold at most this much more than the peak of those in use: a step
 * that repeats finds its blocks again, prompts of many lengths do not leave a block of each, and a
 * plan that knows the peak knows what a rank holds. */
static const size_t IDLE_BYTES = (size_t)64 << 20;

struct dti_memory {
    dti_allocator from;
    dti_storage *free_blocks[N_CLASSES];
    dti_storage *free_headers;
    dti_storage *headers; /* all there are */
    dti_memory *whole;    /* that this one is part of; or NULL */
    dti_memory *parts;    /* that are part of this one */
    dti_memory *sibling;  /* the next part of whole */
    dti_memory_kind kind; /* what it is in whole */
    dti_lease_post *post; /* NULL: it has ended */
    bool dry;
    bool ended;
    size_t used;
    size_t of_kind[DTI_N_KINDS]; /* of used */
    size_t peak;
    size_t held;
    size_t idle;   /* of held: on free_blocks, or too much in blocks that are not */
    size_t excess; /* the latter */
    size_t pooled; /* size classes of what is used */
    size_t pooled_peak;
};

/* Bytes that come into use, or below zero go out of it. */
static void count_used(dti_memory *m, dti_memory_kind kind, int64_t bytes)
{
    for (; m != NULL; kind = m->kind, m = m->whole) {
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
    dt_status st;

    *out = NULL;
    DT_TRY(dti_new(sizeof *m, &m));
    st = dti_lease_post_create(&m->post);
    if (st != DT_OK) {
        dti_free(m);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    m->dry = dry;
    m->from =
        from != NULL && from->take != NULL ? *from : (dti_allocator){ take_host, give_host, NULL };
    *out = m;
    return DT_OK;
}

void dti_memory_part_of(dti_memory *m, dti_memory *whole, dti_memory_kind kind)
{
    DT_ASSERT(m->held == 0 && m->used == 0);
    m->whole = whole;
    m->kind = kind;
    m->sibling = whole->parts;
    whole->parts = m;
}

/* Where others hold the bytes as well, they are theirs from now on. */
static void end_lease(dti_storage *s)
{
    if (s->lease == NULL) return;
    if (!dti_lease_end(s->lease)) {
        if (s->held) count_held(s->memory, -(int64_t)s->bytes);
        s->data = NULL;
        s->held = s->lent = false;
    }
    s->lease = NULL;
}

/* The bytes go back to the system or their lender. */
static void drop_bytes(dti_storage *s)
{
    dti_memory *m = s->memory;

    if (s->lent && s->lender.release != NULL) s->lender.release(s->lender.arg, s->data);
    if (!s->lent && s->data != NULL) m->from.give(m->from.arg, s->data, s->bytes);
    if (s->held) count_held(m, -(int64_t)s->bytes);
    s->data = NULL;
    s->held = s->lent = false;
}

/* The header goes to the free ones. */
static void drop_block(dti_storage *s)
{
    dti_memory *m = s->memory;

    drop_bytes(s);
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

/* What may be idle beside what is in use. */
static size_t spare(const dti_memory *m)
{
    return m->pooled_peak + IDLE_BYTES - m->pooled;
}

void dti_memory_end(dti_memory *m)
{
    trim(m, 0);
    m->ended = true;
    for (dti_storage *s = m->headers; s != NULL; s = s->also) {
        if (s->refs == 0) continue;
        end_lease(s);
        drop_bytes(s);
    }
    dti_lease_post_close(&m->post);
    for (dti_memory *part = m->parts; part != NULL; part = part->sibling) dti_memory_end(part);
}

static void leave_whole(dti_memory *m)
{
    dti_memory **at = m->whole != NULL ? &m->whole->parts : NULL;

    if (at == NULL) return;
    while (*at != m) at = &(*at)->sibling;
    *at = m->sibling;
}

void dti_memory_destroy(dti_memory **memory)
{
    dti_memory *m = *memory;

    if (m == NULL) return;
    *memory = NULL;
    trim(m, 0);
    dti_lease_post_close(&m->post);
    leave_whole(m);
    for (dti_storage *s = m->headers, *next; s != NULL; s = next) {
        next = s->also;
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

/* Where one more block is more than may be kept: a block of a class up to twice as large that idles
 * will do, rather than others are given back that the next step takes again. What it has too much
 * stays idle, in all blocks together no more than may be idle anyway. */
static int class_at_hand(const dti_memory *m, int size_class)
{
    const size_t bytes = class_bytes(size_class);

    if (m->idle + m->pooled + bytes <= m->pooled_peak + IDLE_BYTES) return size_class;
    for (int c = size_class; c <= size_class + STEPS && c < N_CLASSES; c++)
        if (m->free_blocks[c] != NULL && m->excess + class_bytes(c) - bytes <= IDLE_BYTES) return c;
    return size_class;
}

/* So much of a block in use is idle. */
static void count_excess(dti_storage *s, size_t bytes)
{
    s->memory->excess += bytes - s->excess;
    s->memory->idle += bytes - s->excess;
    s->excess = bytes;
}

static dt_status new_header(dti_memory *m, dti_storage **out)
{
    dti_storage *s;

    DT_TRY(dti_new(sizeof *s, &s));
    s->memory = m;
    s->also = m->headers;
    m->headers = s;
    *out = s;
    return DT_OK;
}

/* Bytes for s. Memory that is kept for reuse is not kept from who needs it now. */
static dt_status fill(dti_memory *m, dti_storage *s)
{
    dt_status st = m->dry ? DT_OK : m->from.take(m->from.arg, s->bytes, &s->data);

    if (st == DT_ERR_MEMORY) {
        trim(m, 0);
        st = m->from.take(m->from.arg, s->bytes, &s->data);
    }
    DT_TRY(st);
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
    DT_CHECK(!m->ended, DT_ERR_ARG, "the run that this memory belongs to has ended");
    dti_lease_collect(m->post);
    DT_CHECK(size_class < N_CLASSES, DT_ERR_MEMORY, "a tensor of %zu bytes is too large", bytes);
    s = take(m, pool ? class_at_hand(m, size_class) : -1);
    if (s == NULL) DT_TRY(new_header(m, &s));
    s->asked = bytes;
    count_used(m, DTI_KIND_VALUES, (int64_t)bytes);
    bytes = pool ? class_bytes(size_class) : bytes;
    m->pooled += pool ? bytes : 0;
    if (m->pooled > m->pooled_peak) m->pooled_peak = m->pooled;
    s->kind = DTI_KIND_VALUES;
    if (!s->held) {
        s->size_class = size_class;
        s->bytes = bytes;
    }
    count_excess(s, s->bytes - bytes);
    s->next = NULL;
    s->refs = 1;
    if (pool && !s->held) trim(m, spare(m));
    if (!s->held) DT_TRY_TO(fail, st, fill(m, s));
    *out = s;
    return DT_OK;

fail:
    dti_storage_release(s);
    return st;
}

dt_status dti_storage_lend(dti_memory *m, void *data, dti_lender lender, dti_storage **out)
{
    dti_storage *s = m->ended ? NULL : take(m, -1);
    dt_status st = DT_OK;

    *out = NULL;
    DT_CHECK_TO(fail, st, !m->ended, DT_ERR_ARG, "the run that this memory belongs to has ended");
    if (s == NULL) DT_TRY_TO(fail, st, new_header(m, &s));
    s->kind = DTI_KIND_VALUES;
    s->size_class = -1;
    s->bytes = s->asked = 0;
    s->data = data;
    s->lent = true;
    s->lender = lender;
    s->next = NULL;
    s->refs = 1;
    *out = s;
    return DT_OK;

fail:
    if (lender.release != NULL) lender.release(lender.arg, data);
    return st;
}

void dti_storage_free(dti_storage *s)
{
    dti_memory *m = s->memory;

    count_used(m, s->kind, -(int64_t)s->asked);
    if (s->size_class >= 0) m->pooled -= s->bytes - s->excess;
    count_excess(s, 0);
    end_lease(s);
    if (s->size_class < 0 || !s->held) {
        drop_block(s);
        return;
    }
    s->next = m->free_blocks[s->size_class];
    m->free_blocks[s->size_class] = s;
    m->idle += s->bytes;
    trim(m, spare(m));
}

dti_lease_post *dti_memory_post(dti_memory *m)
{
    return m->post;
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
    s->memory->of_kind[s->kind] -= s->asked;
    s->memory->of_kind[kind] += s->asked;
    s->kind = kind;
}

size_t dti_memory_held(const dti_memory *m)
{
    return m->held;
}
