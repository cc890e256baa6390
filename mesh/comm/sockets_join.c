/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* ucred, accept4 */
#include "mesh/comm/sockets.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { JOIN_S = 60, NAP_MS = 2, MAGIC = 0x64747331 };

/* The first words on a connection. */
typedef struct hello {
    uint32_t magic, version;
    int32_t process, n_processes;
} hello;

typedef struct meeting {
    int process, n_processes;
    int *sockets;
    int64_t end_ms;
    char *why;
} meeting;

static int64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static const char *variable(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? text : "";
}

static socklen_t address_of(int process, struct sockaddr_un *out)
{
    char *name = out->sun_path + 1; /* a name that begins with 0 is no file */
    int n;

    *out = (struct sockaddr_un){ .sun_family = AF_UNIX };
    n = snprintf(name, sizeof out->sun_path - 1, "dtensor/%s/%s/%.24s/%s/%d",
                 variable("MASTER_PORT"), variable("TORCHELASTIC_RESTART_COUNT"),
                 variable("TORCHELASTIC_RUN_ID"), variable("MASTER_ADDR"), process);
    if (n >= (int)sizeof out->sun_path - 1) /* the number at the end has to be there */
        n = snprintf(name, sizeof out->sun_path - 1, "dtensor/%.32s/%d", variable("MASTER_PORT"),
                     process);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int fail(const meeting *m, const char *what)
{
    (void)snprintf(m->why, DTI_MPI_TEXT_BYTES, "%s: %s", what, strerror(errno));
    return -1;
}

static int listen_here(const meeting *m)
{
    struct sockaddr_un address;
    const socklen_t bytes = address_of(m->process, &address);
    const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (s < 0) return fail(m, "socket");
    if (bind(s, (struct sockaddr *)&address, bytes) == 0 && listen(s, m->n_processes) == 0)
        return s;
    if (errno == EADDRINUSE)
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES,
                       "another process is number %d of a job with MASTER_PORT=%s; jobs of one "
                       "machine need ports of their own",
                       m->process, variable("MASTER_PORT"));
    else
        (void)fail(m, "bind");
    (void)close(s);
    return -1;
}

static bool is_mine(int s)
{
    struct ucred who;
    socklen_t bytes = sizeof who;

    return getsockopt(s, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == geteuid();
}

/* All bytes, within the time that there is; 0 or -1. Sockets do not block. */
static int transfer_all(int s, void *data, size_t bytes, bool sends, int64_t end_ms)
{
    size_t n = 0;

    while (n < bytes) {
        const ssize_t now = sends ? send(s, (char *)data + n, bytes - n, MSG_NOSIGNAL)
                                  : recv(s, (char *)data + n, bytes - n, 0);
        struct pollfd p = { .fd = s, .events = sends ? POLLOUT : POLLIN };
        if (now == 0 || (now < 0 && errno != EAGAIN && errno != EINTR)) return -1;
        if (now > 0) n += (size_t)now;
        if (now < 0 && (now_ms() > end_ms || poll(&p, 1, 100) < 0)) return -1;
    }
    return 0;
}

static hello own_hello(const meeting *m)
{
    return (hello){ MAGIC, DTI_MPI_API_VERSION, m->process, m->n_processes };
}

/* Connects to a process with a lower number. */
static int reach(meeting *m, int process)
{
    struct sockaddr_un address;
    const socklen_t bytes = address_of(process, &address);
    hello mine = own_hello(m);
    int s, error;

    for (;;) {
        s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (s < 0) return fail(m, "socket");
        if (connect(s, (struct sockaddr *)&address, bytes) == 0) break;
        error = errno;
        (void)close(s);
        errno = error;
        if (error != ECONNREFUSED && error != EAGAIN && error != EINTR) return fail(m, "connect");
        if (now_ms() > m->end_ms) {
            (void)snprintf(
                m->why, DTI_MPI_TEXT_BYTES,
                "process %d of %d (RANK, WORLD_SIZE) has not come within %d s; processes "
                "of several machines are joined by mpirun only",
                process, m->n_processes, JOIN_S);
            return -1;
        }
        (void)poll(NULL, 0, NAP_MS);
    }
    m->sockets[process] = s;
    if (!is_mine(s) || transfer_all(s, &mine, sizeof mine, true, m->end_ms) != 0) {
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES,
                       "process %d of %d belongs to somebody else or has ended", process,
                       m->n_processes);
        return -1;
    }
    return 0;
}

static int first_missing(const meeting *m)
{
    for (int p = m->process + 1; p < m->n_processes; p++)
        if (m->sockets[p] < 0) return p;
    return -1;
}

/* One connection of a process with a higher number; strangers are sent away. */
static int admit(meeting *m, int listener)
{
    const int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct pollfd p = { .fd = listener, .events = POLLIN };
    hello theirs;

    if (s < 0 && now_ms() > m->end_ms) {
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES,
                       "process %d of %d (RANK, WORLD_SIZE) has not come within %d s; processes of "
                       "several machines are joined by mpirun only",
                       first_missing(m), m->n_processes, JOIN_S);
        return -1;
    }
    if (s < 0) return poll(&p, 1, 100) < 0 && errno != EINTR ? fail(m, "poll") : 0;
    if (!is_mine(s) || transfer_all(s, &theirs, sizeof theirs, false, m->end_ms) != 0 ||
        theirs.magic != MAGIC) {
        (void)close(s);
        return 0;
    }
    if (theirs.version != DTI_MPI_API_VERSION || theirs.n_processes != m->n_processes ||
        theirs.process <= m->process || theirs.process >= m->n_processes ||
        m->sockets[theirs.process] >= 0) {
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES,
                       "a process says that it is number %d of %d, this is %d of %d: RANK and "
                       "WORLD_SIZE do not fit together",
                       theirs.process, theirs.n_processes, m->process, m->n_processes);
        (void)close(s);
        return -1;
    }
    m->sockets[theirs.process] = s;
    return 0;
}

int dti_sockets_meet(int process, int n_processes, int *sockets, char why[DTI_MPI_TEXT_BYTES])
{
    meeting m = { process, n_processes, sockets, now_ms() + (int64_t)JOIN_S * 1000, why };
    const int listener = listen_here(&m);
    int failed = listener < 0 ? -1 : 0;

    for (int p = 0; p < n_processes; p++) sockets[p] = -1;
    for (int p = 0; p < process && !failed; p++) failed = reach(&m, p);
    while (!failed && first_missing(&m) >= 0) failed = admit(&m, listener);
    if (listener >= 0) (void)close(listener);
    for (int p = 0; failed && p < n_processes; p++)
        if (sockets[p] >= 0) (void)close(sockets[p]);
    return failed;
}
