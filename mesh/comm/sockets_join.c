/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* accept4, POLLRDHUP */
#include "mesh/comm/sockets.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    JOIN_S = 60,
    HELLO_MS = 10 * 1000, /* from who has connected; others wait meanwhile */
    LOOK_MS = 100,        /* between looks at those who are there */
    NAP_MS = 2,
    MAX_PROCESSES = 1 << 16,
    MAGIC = 0x64747332
};

/* The first words on a connection, of both sides. */
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

/* What became of a connection; GONE is an end of this one only, FAILED one of the meeting. */
typedef enum outcome { WELL, GONE, FAILED } outcome;

static int64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static const char *port(void)
{
    const char *text = getenv("MASTER_PORT");

    return text != NULL ? text : "";
}

static int fail(const meeting *m, const char *what)
{
    const bool full = errno == EMFILE || errno == ENFILE;

    (void)snprintf(m->why, DTI_MPI_TEXT_BYTES, "%s: %s%s", what, strerror(errno),
                   full ? " (ulimit -n); a process needs about two for each of the others" : "");
    return -1;
}

/* --- who is missing -----------------------------------------------------------------------------
 */

void dti_sockets_say_lost(int process, int n_processes, char why[DTI_MPI_TEXT_BYTES])
{
    (void)snprintf(why, DTI_MPI_TEXT_BYTES,
                   "process %d of %d has ended while processes were joining", process, n_processes);
}

void dti_sockets_say_farewell(int socket, const char *why)
{
    struct {
        dti_frame head;
        char text[DTI_MPI_TEXT_BYTES];
    } last = { .head = { .kind = DTI_FRAME_FAREWELL } };

    (void)snprintf(last.text, sizeof last.text, "%s", why);
    last.head.bytes = (uint32_t)strlen(last.text);
    (void)send(socket, &last, sizeof last.head + last.head.bytes, MSG_NOSIGNAL);
}

/* Whether a process that was here has gone, and why: a farewell may lie behind what it said of the
 * job, which began for it before. */
static bool has_gone(const meeting *m, int process)
{
    struct pollfd p = { .fd = m->sockets[process], .events = POLLRDHUP };
    char said[4096];
    dti_frame head;
    ssize_t n;

    if (poll(&p, 1, 0) <= 0) return false;
    n = recv(p.fd, said, sizeof said, MSG_PEEK);
    dti_sockets_say_lost(process, m->n_processes, m->why);
    for (ssize_t at = 0; at + (ssize_t)sizeof head <= n;
         at += (ssize_t)(sizeof head + head.bytes)) {
        memcpy(&head, said + at, sizeof head);
        if (head.kind == DTI_FRAME_FAREWELL)
            (void)snprintf(m->why, DTI_MPI_TEXT_BYTES, "%.*s", (int)(n - at - (ssize_t)sizeof head),
                           said + at + sizeof head);
    }
    return true;
}

/* Every wait of the meeting is this one, for `process`: for a moment, or until something can be
 * done with the socket. -1 with the reason when it is in vain. */
static int wait_a_little(const meeting *m, int s, short events, int ms, int process)
{
    struct pollfd p = { .fd = s, .events = events }; /* no socket: poll only waits */

    if (poll(&p, 1, ms) < 0 && errno != EINTR) return fail(m, "poll");
    for (int other = 0; other < m->n_processes; other++)
        if (m->sockets[other] >= 0 && has_gone(m, other)) return -1;
    if (now_ms() <= m->end_ms) return 0;
    (void)snprintf(m->why, DTI_MPI_TEXT_BYTES,
                   "process %d of %d (RANK, WORLD_SIZE) has not come within %d s; processes of "
                   "several machines are joined by mpirun only",
                   process, m->n_processes, JOIN_S);
    return -1;
}

/* --- what is said first -------------------------------------------------------------------------
 */

static outcome transfer(const meeting *m, int s, hello *h, bool sends, int process)
{
    const int64_t end_ms = now_ms() + HELLO_MS;
    size_t n = 0;

    while (n < sizeof *h) {
        const ssize_t now = sends ? send(s, (char *)h + n, sizeof *h - n, MSG_NOSIGNAL)
                                  : recv(s, (char *)h + n, sizeof *h - n, 0);
        if (now == 0 || (now < 0 && errno != EAGAIN && errno != EINTR)) return GONE;
        if (now > 0) {
            n += (size_t)now;
            continue;
        }
        if (process < 0 && now_ms() > end_ms) return GONE; /* nobody knows whether it will */
        if (wait_a_little(m, s, sends ? POLLOUT : POLLIN, LOOK_MS, process) != 0) return FAILED;
    }
    return WELL;
}

static hello own_hello(const meeting *m)
{
    return (hello){ MAGIC, DTI_MPI_API_VERSION, m->process, m->n_processes };
}

static int check_hello(const meeting *m, const hello *theirs)
{
    if (theirs->version != DTI_MPI_API_VERSION)
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES,
                       "processes %d and %d run different versions of dtensor", m->process,
                       theirs->process);
    else if (theirs->n_processes != m->n_processes)
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES,
                       "process %d was told that there are %d processes, process %d that there are "
                       "%d: RANK and WORLD_SIZE do not fit together",
                       m->process, m->n_processes, theirs->process, theirs->n_processes);
    else if (theirs->process < 0 || theirs->process >= m->n_processes ||
             m->sockets[theirs->process] >= 0)
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES,
                       "two processes say that they are number %d of %d: RANK and WORLD_SIZE do "
                       "not fit together",
                       theirs->process, theirs->n_processes);
    else
        return 0;
    return -1;
}

/* --- connections --------------------------------------------------------------------------------
 */

static int new_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Somebody has the name that this process needs. */
static void name_is_taken(const meeting *m, const struct sockaddr_un *address, socklen_t bytes)
{
    char holder[DTI_HOLDER_BYTES] = "somebody who does not answer";
    const int s = new_socket();

    if (s >= 0 && connect(s, (const struct sockaddr *)address, bytes) == 0)
        dti_sockets_holder(s, holder);
    if (s >= 0) (void)close(s);
    (void)snprintf(m->why, DTI_MPI_TEXT_BYTES,
                   "the place of process %d of a job with MASTER_PORT=%.32s is held by %s; jobs of "
                   "one machine need ports of their own",
                   m->process, port(), holder);
}

static int listen_here(const meeting *m)
{
    struct sockaddr_un address;
    const socklen_t bytes = dti_sockets_name(m->process, &address);
    const int s = new_socket();

    if (s < 0) return fail(m, "socket");
    if (bind(s, (struct sockaddr *)&address, bytes) == 0 && listen(s, m->n_processes) == 0)
        return s;
    if (errno == EADDRINUSE)
        name_is_taken(m, &address, bytes);
    else
        (void)fail(m, "bind");
    (void)close(s);
    return -1;
}

/* Says who this is to a process with a lower number, and hears whether it is the one. */
static int greet(const meeting *m, int s, int process)
{
    char holder[DTI_HOLDER_BYTES];
    hello mine = own_hello(m), theirs = { 0 };
    outcome o = WELL;

    dti_sockets_holder(s, holder);
    if (!dti_sockets_is_mine(s)) {
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES, "the place of process %d of %d is held by %s",
                       process, m->n_processes, holder);
        return -1;
    }
    o = transfer(m, s, &mine, true, process);
    if (o == WELL) o = transfer(m, s, &theirs, false, process);
    if (o == WELL && theirs.magic == MAGIC) return check_hello(m, &theirs);
    if (o == WELL)
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES,
                       "%s is in the place of process %d of %d, and not of this job", holder,
                       process, m->n_processes);
    if (o == GONE) dti_sockets_say_lost(process, m->n_processes, m->why);
    return -1;
}

/* Connects to a process with a lower number. */
static int reach(meeting *m, int process)
{
    struct sockaddr_un address;
    const socklen_t bytes = dti_sockets_name(process, &address);

    for (;;) {
        const int s = new_socket();
        int error;
        if (s < 0) return fail(m, "socket");
        if (connect(s, (struct sockaddr *)&address, bytes) == 0) {
            const int failed = greet(m, s, process);
            if (failed)
                (void)close(s);
            else
                m->sockets[process] = s;
            return failed;
        }
        error = errno;
        (void)close(s);
        errno = error;
        if (error != ECONNREFUSED && error != EAGAIN && error != EINTR) return fail(m, "connect");
        if (wait_a_little(m, -1, 0, NAP_MS, process) != 0) return -1;
    }
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
    hello theirs = { 0 }, mine = own_hello(m);
    outcome o = GONE;

    if (s < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        return fail(m, "accept");
    if (s < 0) return wait_a_little(m, listener, POLLIN, LOOK_MS, first_missing(m));
    if (dti_sockets_is_mine(s)) o = transfer(m, s, &theirs, false, -1);
    if (o == WELL && theirs.magic != MAGIC) o = GONE;
    if (o == WELL) o = transfer(m, s, &mine, true, -1);
    if (o == WELL && check_hello(m, &theirs) != 0) o = FAILED;
    if (o == WELL)
        m->sockets[theirs.process] = s;
    else
        (void)close(s);
    return o == FAILED ? -1 : 0;
}

/* --- the meeting --------------------------------------------------------------------------------
 */

static int number(const char *name, int least, int most, int *out, char why[DTI_MPI_TEXT_BYTES])
{
    char *end;
    const char *text = getenv(name);
    long n;

    if (text == NULL) text = "";
    n = strtol(text, &end, 10);
    if (*text != '\0' && *end == '\0' && n >= least && n <= most) {
        *out = (int)n;
        return 0;
    }
    (void)snprintf(why, DTI_MPI_TEXT_BYTES, "%s is \"%.40s\", not a number from %d to %d", name,
                   text, least, most);
    return -1;
}

static void part(const meeting *m)
{
    for (int p = 0; p < m->n_processes; p++) {
        if (m->sockets[p] < 0) continue;
        dti_sockets_say_farewell(m->sockets[p], m->why);
        (void)close(m->sockets[p]);
    }
    free(m->sockets);
}

int dti_sockets_meet(dti_sockets_job *out, char why[DTI_MPI_TEXT_BYTES])
{
    meeting m = { .end_ms = now_ms() + (int64_t)JOIN_S * 1000, .why = why };
    int listener, failed;

    if (number("WORLD_SIZE", 1, MAX_PROCESSES, &m.n_processes, why) ||
        number("RANK", 0, m.n_processes - 1, &m.process, why))
        return -1;
    m.sockets = calloc((size_t)m.n_processes, sizeof *m.sockets);
    if (m.sockets == NULL) {
        (void)snprintf(why, DTI_MPI_TEXT_BYTES, "no memory for %d processes", m.n_processes);
        return -1;
    }
    for (int p = 0; p < m.n_processes; p++) m.sockets[p] = -1;
    listener = listen_here(&m);
    failed = listener < 0 ? -1 : 0;
    for (int p = 0; p < m.process && !failed; p++) failed = reach(&m, p);
    while (!failed && first_missing(&m) >= 0) failed = admit(&m, listener);
    if (listener >= 0) (void)close(listener);
    if (failed)
        part(&m);
    else
        *out = (dti_sockets_job){ m.process, m.n_processes, m.sockets };
    return failed;
}
