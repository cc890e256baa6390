/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/comm/flight.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sync.h"
#include "mesh/comm/call.h"

/* Twice per collective: a third of what reading the clock costs. */
static uint64_t ticks(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_ia32_rdtsc();
#else
    return (uint64_t)dti_now_ns();
#endif
}

void dti_flight_open(dti_flight *f, const char *path, int rank, int size)
{
    *f = (dti_flight){ .path = path, .rank = rank, .size = size };
    f->open_ns = dti_now_ns();
    f->open_ticks = ticks();
}

void dti_flight_begin(dti_flight *f, const dti_comm *c, dti_comm_request *r)
{
    dti_flight_entry *e = &f->entries[f->n % DTI_FLIGHT_ENTRIES];

    r->flight = ++f->n;
    e->state = DTI_FLIGHT_UNDER_WAY;
    e->op = r->call.op;
    e->dtype = r->call.dtype;
    e->root = r->call.root;
    e->seq = r->seq;
    e->count = dti_call_count(c, &r->call);
    e->begin = ticks();
    memcpy(e->comm, c->name, sizeof e->comm);
    e->about[0] = '\0';
    if (r->note != NULL)
        (void)snprintf(e->about, sizeof e->about, "%.*s", DTI_FLIGHT_ABOUT_BYTES - 1,
                       r->note->text);
}

void dti_flight_end(dti_flight *f, const dti_comm_request *r, bool failed)
{
    dti_flight_entry *e;

    if (r->flight == 0 || f->n - r->flight >= DTI_FLIGHT_ENTRIES) return; /* overwritten */
    e = &f->entries[(r->flight - 1) % DTI_FLIGHT_ENTRIES];
    e->seq = r->seq; /* of a message it is known now */
    e->end = ticks();
    e->state = failed ? DTI_FLIGHT_FAILED : DTI_FLIGHT_DONE;
}

static void print_entry(FILE *file, const dti_flight_entry *e, uint64_t now, double ns_per_tick)
{
    static const char *const states[] = { "under way", "done", "failed" };
    const bool to_peer =
        e->op == DTI_COMM_BROADCAST || e->op == DTI_COMM_SEND || e->op == DTI_COMM_RECV;
    const bool counts = e->op != DTI_COMM_EXCHANGE && e->op != DTI_COMM_BARRIER;
    char peer[16] = "", took[24] = "-", count[24] = "-";

    if (to_peer) (void)snprintf(peer, sizeof peer, "%d", e->root);
    if (counts) (void)snprintf(count, sizeof count, "%" PRId64, e->count);
    if (e->state != DTI_FLIGHT_UNDER_WAY)
        (void)snprintf(took, sizeof took, "%.1f", (double)(e->end - e->begin) * ns_per_tick * 1e-3);
    (void)fprintf(file, "%-12s %8" PRIu64 "  %-14s %4s %12s %-4s %12.3f %12s  %-9s %s\n", e->comm,
                  e->seq, dti_comm_op_name(e->op), peer, count, dt_dtype_name(e->dtype),
                  (double)(now - e->begin) * ns_per_tick * 1e-6, took, states[e->state], e->about);
}

static void print_all(const dti_flight *f, FILE *file)
{
    const dt_error *error = dt_last_error();
    const uint64_t now = ticks();
    const double ns_per_tick =
        (double)(dti_now_ns() - f->open_ns) / (double)(now - f->open_ticks + 1);
    const uint64_t kept = f->n < DTI_FLIGHT_ENTRIES ? f->n : DTI_FLIGHT_ENTRIES;

    (void)fprintf(file, "rank %d of %d%s%s: the last %" PRIu64 " of %" PRIu64 " collectives\n",
                  f->rank, f->size, error->where[0] ? ", " : "", error->where, kept, f->n);
    if (error->code != DT_OK)
        (void)fprintf(file, "%s: %s\n", dt_status_name(error->code), error->message);
    (void)fprintf(file, "%-12s %8s  %-14s %4s %12s %-4s %12s %12s  %-9s %s\n", "mesh dims",
                  "number", "operation", "peer", "count", "type", "ms ago", "took us", "state",
                  "about");
    for (uint64_t i = f->n - kept; i < f->n; i++)
        print_entry(file, &f->entries[i % DTI_FLIGHT_ENTRIES], now, ns_per_tick);
}

/* The name may stand in a folder where others write: only a regular file of no other name is
 * overwritten, and nobody is waited for. */
static FILE *open_plain(const char *path)
{
    const int file = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    struct stat info;
    FILE *f = NULL;

    if (file < 0) return NULL;
    if (fstat(file, &info) == 0 && (!S_ISREG(info.st_mode) || info.st_nlink != 1))
        errno = EEXIST;
    else if (ftruncate(file, 0) == 0)
        f = fdopen(file, "w");
    if (f == NULL) (void)close(file);
    return f;
}

static int dump(dti_flight *f)
{
    char path[4096];
    FILE *file;
    int n, failed;

    n = snprintf(path, sizeof path, "%s.%d", f->path, f->rank);
    if (n < 0 || (size_t)n >= sizeof path) return ENAMETOOLONG;
    file = open_plain(path);
    if (file == NULL) return errno;
    print_all(f, file);
    failed = ferror(file);
    return fclose(file) == 0 && !failed ? 0 : errno != 0 ? errno : EIO;
}

void dti_flight_dump(dti_flight *f)
{
    if (f->path == NULL || f->dumped) return;
    f->dumped = true;
    errno = 0;
    f->error = dump(f);
}
