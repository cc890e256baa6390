/* SPDX-License-Identifier: Apache-2.0
 *
 * An MPI implementation behind the table of mpi_api.h. Compiled once per implementation, as a
 * module of its own that nothing links.
 *
 * MPI is initialised once per process and its state is global by nature; so is the little that is
 * kept of it here. */
#define _GNU_SOURCE /* ucred */
#include "mesh/comm/mpi_api.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

typedef struct region {
    struct region *next;
    void *memory;
    size_t bytes;
} region;

struct dti_mpi_queue {
    MPI_Request *requests; /* [n], the first `used` are outstanding */
    void **cookies;        /* [n] */
    int *indices;          /* [n], these three are scratch of poll */
    MPI_Status *statuses;
    dti_mpi_done *done;
    int n, used;
    region *regions;
    dti_mpi_queue *next; /* of those that were left with messages outstanding */
    char why[DTI_MPI_TEXT_BYTES];
};

static struct {
    bool open, initialised; /* `initialised`: by this module, which then finalizes */
    dti_mpi_state state;
    uint64_t session;
    MPI_Comm comm;
    MPI_Comm sums[DTI_MPI_SUM_LANES];
    int n_sums;               /* lanes of this run */
    bool away;                /* this process does not come */
    dti_mpi_queue *abandoned; /* keeps their memory in sight of leak checkers */
} mpi;

static int failed(int error, const char *call, char why[DTI_MPI_TEXT_BYTES])
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;

    if (error == MPI_SUCCESS) return 0;
    (void)MPI_Error_string(error, text, &n);
    (void)snprintf(why, DTI_MPI_TEXT_BYTES, "%s: %.300s", call, text);
    return -1;
}

static void describe(char text[DTI_MPI_TEXT_BYTES])
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0;

    (void)MPI_Get_library_version(version, &n);
    version[strcspn(version, "\n,")] = '\0';
    for (char *p = version; *p != '\0'; p++)
        if (*p == '\t') *p = ' ';
    (void)snprintf(text, DTI_MPI_TEXT_BYTES, "%.200s", version);
}

/* --- the job ------------------------------------------------------------------------------------
 */

static void finalize(void)
{
    int done = 1;

    if (!mpi.initialised || mpi.state != DTI_MPI_IDLE) return;
    if (MPI_Finalized(&done) == MPI_SUCCESS && !done) (void)MPI_Finalize();
}

static int initialise(char why[DTI_MPI_TEXT_BYTES])
{
    int before = 0, after = 0, provided;

    if (failed(MPI_Initialized(&before), "MPI_Initialized", why)) return -1;
    if (failed(MPI_Finalized(&after), "MPI_Finalized", why)) return -1;
    if (after) {
        (void)snprintf(why, DTI_MPI_TEXT_BYTES, "MPI_Finalize was called before dt_run()");
        return -1;
    }
    if (!before) {
        if (failed(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread",
                   why))
            return -1;
        mpi.initialised = true;
        /* After MPI has registered its own handlers, and so before they run. */
        (void)atexit(finalize);
    }
    if (failed(MPI_Comm_dup(MPI_COMM_WORLD, &mpi.comm), "MPI_Comm_dup", why)) return -1;
    (void)MPI_Comm_set_errhandler(mpi.comm, MPI_ERRORS_RETURN);
    mpi.open = true;
    return 0;
}

static void arrive(void) {}

static int open_job(int64_t within_ms, dti_mpi_job *out, char why[DTI_MPI_TEXT_BYTES])
{
    int *tag_max = NULL, found = 0, level = 0;

    (void)within_ms; /* MPI waits as long as its launcher lets it */
    if (!mpi.open && initialise(why)) return -1;
    (void)MPI_Comm_rank(mpi.comm, &out->process);
    (void)MPI_Comm_size(mpi.comm, &out->n_processes);
    (void)MPI_Query_thread(&level);
    (void)MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&tag_max, &found);
    out->threads = level == MPI_THREAD_MULTIPLE;
    out->tag_max = found ? *tag_max : 32767;
    return 0;
}

static int enter(uint64_t *session)
{
    if (mpi.state == DTI_MPI_RUNNING) return -1;
    mpi.state = DTI_MPI_RUNNING;
    *session = ++mpi.session;
    return 0;
}

static void leave(bool has_failed)
{
    mpi.state = has_failed ? DTI_MPI_FAILED : DTI_MPI_IDLE;
    for (int i = 0; !has_failed && i < mpi.n_sums; i++) (void)MPI_Comm_free(&mpi.sums[i]);
    mpi.n_sums = 0;
}

static bool never_lost(char why[DTI_MPI_TEXT_BYTES])
{
    why[0] = '\0';
    return false;
}

static void give_up(const char *why)
{
    (void)why;
}

/* --- not coming ---------------------------------------------------------------------------------
 *
 * MPICH's launcher (Hydra) ends a job when a process of it fails, but minds no exit code of one
 * that has never spoken to it: the others would wait for it in MPI_Init for good. So the last that
 * such a process says is what MPI_Abort would have the launcher told. */

/* One end of a pair without names that another process made, as the launcher does; no file, no
 * connection, nor what has got the number of a descriptor that somebody between has closed. */
static bool is_launchers(int pmi)
{
    struct sockaddr_un own, peer;
    socklen_t own_bytes = sizeof own, peer_bytes = sizeof peer, bytes = sizeof(struct ucred);
    struct ucred maker;

    return getsockname(pmi, (struct sockaddr *)&own, &own_bytes) == 0 &&
           getpeername(pmi, (struct sockaddr *)&peer, &peer_bytes) == 0 &&
           own.sun_family == AF_UNIX && own_bytes == sizeof own.sun_family &&
           peer_bytes == sizeof peer.sun_family &&
           getsockopt(pmi, SOL_SOCKET, SO_PEERCRED, &maker, &bytes) == 0 && maker.pid != getpid();
}

/* The job ends at once, with all that lies unread in a pipe. */
static void let_be_read(int pipe)
{
    enum { NAP_NS = 1000 * 1000, NAPS = 1000 };
    struct stat info;
    int left = 0;

    if (fstat(pipe, &info) != 0 || !S_ISFIFO(info.st_mode)) return;
    for (int i = 0; i < NAPS && ioctl(pipe, FIONREAD, &left) == 0 && left > 0; i++)
        (void)nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}

static void abort_job(int status, void *launcher)
{
    const int pmi = (int)(intptr_t)launcher, code = status & 0xff;
    int came = 0, n;
    char line[48];

    if (MPI_Initialized(&came) != MPI_SUCCESS || came || !is_launchers(pmi)) return;
    (void)fflush(NULL);
    let_be_read(STDOUT_FILENO);
    let_be_read(STDERR_FILENO);
    n = snprintf(line, sizeof line, "cmd=abort exitcode=%d\n", code != 0 ? code : EXIT_FAILURE);
    (void)!send(pmi, line, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void stay_away(int pmi, const char *why)
{
    int came = 0;

    (void)why;
    if (mpi.away || pmi < 0 || MPI_Initialized(&came) != MPI_SUCCESS || came) return;
    mpi.away = on_exit(abort_job, (void *)(intptr_t)pmi) == 0;
}

/* --- queues -------------------------------------------------------------------------------------
 */

static int grow(void **array, size_t n, size_t bytes)
{
    void *larger = realloc(*array, n * bytes);

    if (larger == NULL) return -1;
    *array = larger;
    return 0;
}

static int queue_reserve(dti_mpi_queue *q, int n_more)
{
    const size_t n = (size_t)q->n + (size_t)n_more;

    if (grow((void **)&q->requests, n, sizeof *q->requests) ||
        grow((void **)&q->cookies, n, sizeof *q->cookies) ||
        grow((void **)&q->indices, n, sizeof *q->indices) ||
        grow((void **)&q->statuses, n, sizeof *q->statuses) ||
        grow((void **)&q->done, n, sizeof *q->done)) {
        (void)snprintf(q->why, sizeof q->why, "no memory for %zu messages", n);
        return -1;
    }
    q->n = (int)n;
    return 0;
}

/* Pages that nobody touches cost nothing, and no allocator ever hands them to somebody else. */
static void *queue_memory(dti_mpi_queue *q, size_t bytes)
{
    region *r = malloc(sizeof *r);
    void *memory;

    if (r == NULL) return NULL;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        free(r);
        return NULL;
    }
    *r = (region){ q->regions, memory, bytes };
    q->regions = r;
    return memory;
}

static void queue_destroy(dti_mpi_queue *q)
{
    if (q == NULL) return;
    if (q->used > 0) {
        q->next = mpi.abandoned;
        mpi.abandoned = q;
        return;
    }
    while (q->regions != NULL) {
        region *r = q->regions;
        q->regions = r->next;
        (void)munmap(r->memory, r->bytes);
        free(r);
    }
    free(q->requests);
    free((void *)q->cookies);
    free(q->indices);
    free(q->statuses);
    free(q->done);
    free(q);
}

static dti_mpi_queue *queue_create(int n_messages)
{
    dti_mpi_queue *q = calloc(1, sizeof *q);

    if (q != NULL && queue_reserve(q, n_messages) != 0) {
        queue_destroy(q);
        q = NULL;
    }
    return q;
}

static int started(dti_mpi_queue *q, int error, const char *call, void *cookie)
{
    if (failed(error, call, q->why)) return -1;
    q->cookies[q->used++] = cookie;
    return 0;
}

static int has_room(dti_mpi_queue *q)
{
    return q->used < q->n ? 0 : queue_reserve(q, q->n);
}

static int queue_send(dti_mpi_queue *q, const dti_mpi_message *m)
{
    if (has_room(q)) return -1;
    if (m->matched)
        return started(q,
                       MPI_Issend(m->data, m->bytes, MPI_BYTE, m->process, m->tag, mpi.comm,
                                  &q->requests[q->used]),
                       "MPI_Issend", m->cookie);
    return started(
        q,
        MPI_Isend(m->data, m->bytes, MPI_BYTE, m->process, m->tag, mpi.comm, &q->requests[q->used]),
        "MPI_Isend", m->cookie);
}

static int queue_recv(dti_mpi_queue *q, const dti_mpi_message *m)
{
    const int process = m->process == DTI_MPI_ANY_PROCESS ? MPI_ANY_SOURCE : m->process;

    if (has_room(q)) return -1;
    return started(
        q, MPI_Irecv(m->data, m->bytes, MPI_BYTE, process, m->tag, mpi.comm, &q->requests[q->used]),
        "MPI_Irecv", m->cookie);
}

/* The requests that are over are MPI_REQUEST_NULL now: close the gaps, in order, so that older
 * messages are looked at first. */
static void compact(dti_mpi_queue *q)
{
    int kept = 0;

    for (int i = 0; i < q->used; i++) {
        if (q->requests[i] == MPI_REQUEST_NULL) continue;
        q->requests[kept] = q->requests[i];
        q->cookies[kept++] = q->cookies[i];
    }
    q->used = kept;
}

/* All of them are looked at: among many receives that nobody answers yet one may be done. */
static int poll_queue(dti_mpi_queue *q, const dti_mpi_done **done)
{
    int n = 0, error;

    if (q->used == 0) return 0;
    error = MPI_Testsome(q->used, q->requests, &n, q->indices, q->statuses);
    if (error == MPI_ERR_IN_STATUS)
        for (int i = 0; i < n; i++)
            if (failed(q->statuses[i].MPI_ERROR, "MPI_Testsome", q->why)) return -1;
    if (failed(error, "MPI_Testsome", q->why)) return -1;
    if (n == MPI_UNDEFINED) n = 0;
    for (int i = 0; i < n; i++) {
        q->done[i] = (dti_mpi_done){ q->cookies[q->indices[i]], 0 };
        (void)MPI_Get_count(&q->statuses[i], MPI_BYTE, &q->done[i].bytes);
    }
    if (n > 0) compact(q);
    *done = q->done;
    return n;
}

/* --- sums ---------------------------------------------------------------------------------------
 */

/* A duplicate may still be on its way when others have theirs, so making them does not block. */
static int sums_open(dti_mpi_queue *q)
{
    for (int i = 0; i < DTI_MPI_SUM_LANES; i++) {
        if (has_room(q)) return -1;
        if (started(q, MPI_Comm_idup(mpi.comm, &mpi.sums[i], &q->requests[q->used]),
                    "MPI_Comm_idup", NULL))
            return -1;
    }
    mpi.n_sums = DTI_MPI_SUM_LANES;
    return 0;
}

static MPI_Datatype type_of(dti_mpi_number number)
{
    switch (number) {
    case DTI_MPI_F32:
        return MPI_FLOAT;
    case DTI_MPI_F64:
        return MPI_DOUBLE;
    case DTI_MPI_I32:
        return MPI_INT32_T;
    default:
        return MPI_INT64_T;
    }
}

static int sum(dti_mpi_queue *q, const dti_mpi_sum *s)
{
    const MPI_Datatype type = type_of(s->number);
    const MPI_Comm comm = mpi.sums[s->lane];

    if (has_room(q)) return -1;
    (void)MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN); /* not every MPI duplicates it */
    if (s->counts == NULL)
        return started(
            q, MPI_Iallreduce(s->terms, s->sums, s->n, type, MPI_SUM, comm, &q->requests[q->used]),
            "MPI_Iallreduce", s->cookie);
    return started(q,
                   MPI_Ireduce_scatter(s->terms, s->sums, s->counts, type, MPI_SUM, comm,
                                       &q->requests[q->used]),
                   "MPI_Ireduce_scatter", s->cookie);
}

static const char *why(const dti_mpi_queue *q)
{
    return q->why;
}

extern const dti_mpi_module dti_mpi_module_table;

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const dti_mpi_module dti_mpi_module_table = {
    .version = DTI_MPI_API_VERSION,
#if defined(OPEN_MPI)
    .name = "openmpi",
#elif defined(MPICH_VERSION) || defined(MPICH)
    .name = "mpich",
#else
    .name = "mpi",
#endif
    .describe = describe,
    .arrive = arrive,
    .stay_away = stay_away,
    .open = open_job,
    .enter = enter,
    .leave = leave,
    .lost = never_lost,
    .give_up = give_up,
    .queue_create = queue_create,
    .queue_reserve = queue_reserve,
    .queue_memory = queue_memory,
    .queue_destroy = queue_destroy,
    .send = queue_send,
    .recv = queue_recv,
    .poll = poll_queue,
    .sums_open = sums_open,
    .sum = sum,
    .why = why,
};
