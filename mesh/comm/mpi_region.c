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
    _Atomic uint8_t reaches[]; /* [n_processes]; 0: not said yet */
} front;

enum { SAID_NOTHING, REACHES, REACHES_NOT };

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

dt_status dti_mpi_region_open(dti_mpi_region *r, int process, int n_processes, bool share,
                              dti_mpi_region_card *card)
{
    *r = (dti_mpi_region){ .process = process, .n_processes = n_processes, .file = -1 };
    *card = (dti_mpi_region_card){ .pid = getpid(), .file = -1 };
    if (!share) {
        (void)snprintf(r->why, sizeof r->why, "DTENSOR_MPI_SHARED=off");
        return DT_OK;
    }
    DT_TRY(dti_alloc_array((size_t)n_processes, sizeof *r->peers, (void **)&r->peers));
    r->file = make_file(r->why);
    r->own = map(r->file);
    if (r->own == NULL) {
        (void)refused(r->why, "mmap");
        if (r->file >= 0) (void)close(r->file);
        r->file = -1;
        return DT_OK;
    }
    r->peers[process] = r->own;
    r->token = ((front *)(void *)r->own)->token = new_token(r->own);
    atomic_init(&r->used, round_up(sizeof(front) + (uint64_t)n_processes, PAGE_BYTES));
    atomic_init(&r->large, region_bytes / PARTS);
    card->token = r->token;
    card->file = r->file;
    return DT_OK;
}

void dti_mpi_region_reach(dti_mpi_region *r, int process, const dti_mpi_region_card *card)
{
    if (r->own == NULL || r->file < 0 || process == r->process) return;
    if (card->file < 0)
        (void)snprintf(r->why, sizeof r->why, "process %d has no region", process);
    else
        r->peers[process] = map_of(card, r->why);
}

static _Atomic uint8_t *said(const dti_mpi_region *r, int process, int of)
{
    return &((front *)(void *)r->peers[process])->reaches[of];
}

void dti_mpi_region_tell(dti_mpi_region *r)
{
    for (int p = 0; r->own != NULL && p < r->n_processes; p++)
        atomic_store(said(r, r->process, p), r->peers[p] != NULL ? REACHES : REACHES_NOT);
}

int dti_mpi_region_agree(dti_mpi_region *r)
{
    for (int p = 0; r->own != NULL && p < r->n_processes; p++) {
        const uint8_t theirs = r->peers[p] != NULL ? atomic_load(said(r, p, r->process)) : REACHES;
        if (theirs == SAID_NOTHING) return p;
        if (theirs == REACHES) continue;
        (void)snprintf(r->why, sizeof r->why, "process %d does not reach this one", p);
        (void)munmap(r->peers[p], region_bytes);
        r->peers[p] = NULL;
    }
    return -1;
}

void dti_mpi_region_close(dti_mpi_region *r)
{
    for (int p = 0; r->peers != NULL && p < r->n_processes; p++)
        if (r->peers[p] != NULL) (void)munmap(r->peers[p], region_bytes);
    if (r->own != NULL && r->file >= 0) (void)close(r->file);
    dti_free((void *)r->peers);
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
    char *base = r->peers[process];
    entry *e = entry_of((front *)(void *)base, name);
    const uint64_t place = atomic_load_explicit(&e->place, memory_order_acquire);

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
