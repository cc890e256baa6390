/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* memfd_create */
#include "mesh/comm/mpi_region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/sync.h"

/* Address space; pages that nobody touches cost nothing. What has a name lies in the first of
 * PARTS. */
enum { PAGE_BYTES = 4096, DIRECTORY = 1 << 17, FULL = DIRECTORY / 4 * 3, PARTS = 16 };
static const size_t region_bytes = (size_t)(sizeof(void *) > 4 ? 16384 : 256) << 20;

typedef struct entry {
    _Atomic uint64_t name, place; /* 0: not yet */
} entry;

/* The front of a region. */
typedef struct front {
    uint64_t token;
    _Atomic uint32_t n_entries;
    _Alignas(PAGE_BYTES) entry directory[DIRECTORY];
} front;

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* A number that no other region has. */
static uint64_t new_token(const void *address)
{
    const uint64_t parts[] = { (uint64_t)dti_now_ns(), (uint64_t)getpid(),
                               (uint64_t)(uintptr_t)address };
    uint64_t h = 0x9e3779b97f4a7c15u;

    for (size_t i = 0; i < DT_COUNT(parts); i++) {
        h = (h ^ parts[i]) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 31;
    }
    return h | 1;
}

static int refused(char why[DTI_MPI_REGION_WHY_BYTES], const char *what)
{
    (void)snprintf(why, DTI_MPI_REGION_WHY_BYTES, "%s: %s", what, strerror(errno));
    return -1;
}

/* A file of the size of a region, or -1. Beyond the limit of file sizes ftruncate kills. */
static int make_file(char why[DTI_MPI_REGION_WHY_BYTES])
{
    struct rlimit limit;
    int file;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < region_bytes) {
        (void)snprintf(why, DTI_MPI_REGION_WHY_BYTES, "files are limited to %llu bytes (ulimit -f)",
                       (unsigned long long)limit.rlim_cur);
        return -1;
    }
    file = memfd_create("dtensor", MFD_CLOEXEC);
    if (file < 0) return refused(why, "memfd_create");
    if (ftruncate(file, (off_t)region_bytes) != 0) {
        (void)refused(why, "ftruncate");
        (void)close(file);
        return -1;
    }
    return file;
}

static void *map(int file)
{
    const int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *p = mmap(NULL, region_bytes, PROT_READ | PROT_WRITE, kind | MAP_NORESERVE, file, 0);

    if (p == MAP_FAILED) return NULL;
    (void)madvise(p, region_bytes, MADV_DONTDUMP); /* a core file would be as long */
    return p;
}

/* The region behind the descriptor of another process. */
static void *map_of(const dti_mpi_region_card *card, char why[DTI_MPI_REGION_WHY_BYTES])
{
    char path[64];
    struct stat info;
    void *p = NULL;
    int file;

    (void)snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)card->pid, (int)card->file);
    file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        (void)refused(why, path);
        return NULL;
    }
    if (fstat(file, &info) == 0 && (uint64_t)info.st_size == region_bytes) p = map(file);
    if (p == NULL) (void)refused(why, path);
    (void)close(file);
    if (p == NULL || ((const front *)p)->token == card->token) return p;
    (void)snprintf(why, DTI_MPI_REGION_WHY_BYTES, "%s is another file", path);
    (void)munmap(p, region_bytes);
    return NULL;
}

dt_status dti_mpi_region_open(dti_mpi_region *r, int process, bool share, dti_mpi_region_card *card)
{
    *r = (dti_mpi_region){ .process = process, .file = -1 };
    *card = (dti_mpi_region_card){ .pid = getpid(), .file = -1 };
    if (!share) {
        (void)snprintf(r->why, sizeof r->why, "DTENSOR_MPI_SHARED=off");
        return DT_OK;
    }
    r->file = make_file(r->why);
    r->own = map(r->file);
    if (r->own == NULL) {
        (void)refused(r->why, "mmap");
        if (r->file >= 0) (void)close(r->file);
        r->file = -1;
        return DT_OK;
    }
    r->token = ((front *)(void *)r->own)->token = new_token(r->own);
    atomic_init(&r->used, round_up(sizeof(front), PAGE_BYTES));
    atomic_init(&r->large, region_bytes / PARTS);
    card->token = r->token;
    card->file = r->file;
    return DT_OK;
}

bool dti_mpi_region_try(dti_mpi_region *r, int process, const dti_mpi_region_card *card)
{
    void *p = NULL;

    if (r->own == NULL || r->file < 0) return false;
    if (card->file < 0)
        (void)snprintf(r->why, sizeof r->why, "process %d has no region", process);
    else
        p = map_of(card, r->why);
    if (p != NULL) (void)munmap(p, region_bytes);
    return p != NULL;
}

dt_status dti_mpi_region_add(dti_mpi_region *r, int process, const dti_mpi_region_card *card)
{
    DT_TRY(dti_grow((void **)&r->near, &r->most, r->n_near + 1, sizeof *r->near));
    r->near[r->n_near].process = process;
    r->near[r->n_near].card = *card;
    atomic_init(&r->near[r->n_near].region, process == r->process ? r->own : NULL);
    r->n_near++;
    return DT_OK;
}

static dti_mpi_near *near_one(const dti_mpi_region *r, int process)
{
    size_t first = 0, end = r->n_near;

    while (first < end) {
        const size_t middle = (first + end) / 2;
        if (r->near[middle].process == process) return &r->near[middle];
        if (r->near[middle].process < process)
            first = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

bool dti_mpi_region_is_near(const dti_mpi_region *r, int process)
{
    return near_one(r, process) != NULL;
}

dt_status dti_mpi_region_reach(dti_mpi_region *r, int process)
{
    char why[DTI_MPI_REGION_WHY_BYTES] = "";
    dti_mpi_near *n = near_one(r, process);
    char *region, *none = NULL;

    if (atomic_load(&n->region) != NULL) return DT_OK;
    region = map_of(&n->card, why);
    DT_CHECK(region != NULL, DT_ERR_COMM, "the memory of process %d cannot be opened any more: %s",
             process, why);
    if (!atomic_compare_exchange_strong(&n->region, &none, region))
        (void)munmap(region, region_bytes); /* another thread was faster */
    return DT_OK;
}

void dti_mpi_region_close(dti_mpi_region *r)
{
    for (size_t i = 0; i < r->n_near; i++) {
        char *region = atomic_load(&r->near[i].region);
        if (region != NULL && region != r->own) (void)munmap(region, region_bytes);
    }
    if (r->own != NULL) (void)munmap(r->own, region_bytes);
    if (r->own != NULL && r->file >= 0) (void)close(r->file);
    dti_free(r->near);
    *r = (dti_mpi_region){ .file = -1 };
}

/* The entry of a name, or the empty one where it would stand. */
static entry *entry_of(front *f, uint64_t name)
{
    for (uint64_t i = name;; i++) {
        entry *e = &f->directory[i % DIRECTORY];
        const uint64_t there = atomic_load_explicit(&e->name, memory_order_acquire);
        if (there == 0 || there == name) return e;
    }
}

void *dti_mpi_region_lay(dti_mpi_region *r, uint64_t name, size_t bytes)
{
    const uint64_t place = atomic_fetch_add(&r->used, round_up(bytes, DTI_LINE_BYTES));
    front *f = (front *)(void *)r->own;
    uint64_t none = 0;
    entry *e;

    if (place + bytes > region_bytes / PARTS || atomic_fetch_add(&f->n_entries, 1) >= FULL)
        return NULL;
    do {
        none = 0;
        e = entry_of(f, name);
    } while (!atomic_compare_exchange_strong(&e->name, &none, name));
    atomic_store_explicit(&e->place, place, memory_order_release);
    return r->own + place;
}

void *dti_mpi_region_large(dti_mpi_region *r, size_t bytes)
{
    const uint64_t place = atomic_fetch_add(&r->large, round_up(bytes, DTI_LINE_BYTES));

    return place + bytes > region_bytes ? NULL : r->own + place;
}

void *dti_mpi_region_find(const dti_mpi_region *r, int process, uint64_t name)
{
    char *base = atomic_load_explicit(&near_one(r, process)->region, memory_order_acquire);
    uint64_t place;
    entry *e;

    if (base == NULL) return NULL;
    e = entry_of((front *)(void *)base, name);
    place = atomic_load_explicit(&e->place, memory_order_acquire);
    return atomic_load(&e->name) == name && place != 0 ? base + place : NULL;
}

bool dti_mpi_region_possible(char why[DTI_MPI_REGION_WHY_BYTES])
{
    dti_mpi_region_card card = { .pid = getpid() };
    void *mine, *again = NULL;

    card.file = make_file(why);
    if (card.file < 0) return false;
    mine = map(card.file);
    if (mine == NULL) {
        (void)refused(why, "mmap");
    } else {
        card.token = ((front *)mine)->token = new_token(mine);
        again = map_of(&card, why);
    }
    if (again != NULL) (void)munmap(again, region_bytes);
    if (mine != NULL) (void)munmap(mine, region_bytes);
    (void)close(card.file);
    return again != NULL;
}
