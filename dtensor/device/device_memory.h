/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of one rank's tensors. Blocks come from size classes and return to them, so that a decode
 * step that repeats allocates nothing; weights are exact blocks of their own.
 *
 * A rank's tensors belong to the rank's thread, which alone creates and releases them: counts are
 * plain integers and nothing here locks. */
#ifndef DTI_DEVICE_MEMORY_H
#define DTI_DEVICE_MEMORY_H

#include "base/error.h"

typedef struct dti_memory dti_memory;

/* What bytes in use are for. */
typedef enum dti_memory_kind {
    DTI_KIND_VALUES, /* whatever nobody has called otherwise */
    DTI_KIND_WEIGHTS,
    DTI_KIND_CACHES,
    DTI_KIND_STATES,   /* of optimizers */
    DTI_KIND_RECORDED, /* of memories that are part of this one */
    DTI_KIND_GATHERED, /* likewise */
    DTI_N_KINDS
} dti_memory_kind;

/* Where blocks come from: zeroed bytes of a device, and back. */
typedef struct dti_allocator {
    dt_status (*take)(void *arg, size_t bytes, void **out);
    void (*give)(void *arg, void *data, size_t bytes);
    void *arg;
} dti_allocator;

/* Who gets memory back that is not ours: called once, on the rank's own thread. */
typedef struct dti_lender {
    void (*release)(void *arg, void *data); /* NULL: nobody */
    void *arg;
} dti_lender;

/* Counted bytes that one or several tensors (views) lie in. */
typedef struct dti_storage {
    int refs;
    int size_class; /* -1: exact */
    dti_memory_kind kind;
    uint32_t version; /* counts what was written over bytes that were there */
    int moving;       /* begun moves that read the bytes */
    uint32_t seen;    /* by who goes through what holds storages, each once: a stamp */
    bool held;        /* there is a block of ours behind it, in a dry memory one without bytes */
    bool lent;        /* the bytes are the lender's */
    void *data;
    size_t bytes;  /* as allocated; 0 if lent */
    size_t asked;  /* of bytes: what the tensor has; the rest is the pool's overhead */
    size_t excess; /* of bytes: more than was asked for, counted as idle */
    dti_lender lender;
    struct dti_lease *lease; /* others hold the bytes, too (lease.h); or NULL */
    dti_memory *memory;
    struct dti_storage *next; /* free list */
    struct dti_storage *also; /* all headers of the memory */
} dti_storage;

/* `dry`: storages are counted as ever, but have no bytes and data is NULL. from: NULL, or without
 * functions, for memory of the host. */
dt_status dti_memory_create(bool dry, const dti_allocator *from, dti_memory **out) DT_MUST_USE;
void dti_memory_destroy(dti_memory **memory); /* every storage has been released, or it has ended */

/* Gives all blocks back, of living storages too, and of memories that are part of m: the device
 * goes. From then on storages can be released, and nothing else. */
void dti_memory_end(dti_memory *m);

/* From now on what m counts counts in `whole` too, which outlives it: as `kind`. m is still empty.
 */
void dti_memory_part_of(dti_memory *m, dti_memory *whole, dti_memory_kind kind);

/* Where leases on storages of m come back. */
struct dti_lease_post *dti_memory_post(dti_memory *m);

/* Uninitialised bytes from the pool (pool == true: rounded up to a class, kept for reuse until
 * memory is short, as long as all pooled blocks together are no more than there ever were in use at
 * once, and 64 MiB) or fresh zeroed ones that go back to the system at once. */
dt_status dti_storage_create(dti_memory *memory, size_t bytes, bool pool,
                             dti_storage **out) DT_MUST_USE;

/* Bytes of a lender's, who has them back when the storage is freed, when the memory ends, or when
 * this fails. They are not counted. */
dt_status dti_storage_lend(dti_memory *memory, void *data, dti_lender lender,
                           dti_storage **out) DT_MUST_USE;

/* Bytes of tensors now alive, and the most there ever were, pool overhead not included. */
size_t dti_memory_used(const dti_memory *memory);
size_t dti_memory_peak(const dti_memory *memory);

/* Those now alive by what they are for; all kinds add up to dti_memory_used(). */
size_t dti_memory_of_kind(const dti_memory *memory, dti_memory_kind kind);
void dti_storage_set_kind(dti_storage *s, dti_memory_kind kind);

/* Bytes taken from the system: those in use and those kept for reuse. */
size_t dti_memory_held(const dti_memory *memory);

void dti_storage_free(dti_storage *storage);

static inline dti_storage *dti_storage_retain(dti_storage *s)
{
    s->refs++;
    return s;
}

static inline void dti_storage_release(dti_storage *s)
{
    if (s != NULL && --s->refs == 0) dti_storage_free(s);
}

#endif
