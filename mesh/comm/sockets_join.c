/* SPDX-License-Identifier: Apache-2.0
 *
 * The meeting: each process dials its partners with lower numbers and admits the others, hears who
 * shows itself and who fails, and waits for nobody once one is lost. Nothing here but look()
 * blocks.
 */
#define _GNU_SOURCE /* accept4, POLLRDHUP */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mesh/comm/sockets.h"

enum {
    HELLO_MS = 10 * 1000, /* from who has connected */
    LOOK_MS = 100,        /* between looks at those who are there */
    NAP_MS = 2            /* between trials to dial */
};

/* What a connection is to somebody whose first words are awaited, or who has said all. */
typedef enum talk_role {
    GUEST, /* has connected; who it is, is not known */
    HOST,  /* was dialed */
    SHOWN, /* was there before, and will end it when it ends */
    SEEN   /* has come later, likewise */
} talk_role;

typedef struct talk {
    int socket;
    talk_role role;
    int process; /* -1: not known */
    int64_t since_ms;
    dti_hello said;
    size_t n_said;
} talk;

typedef struct meeting {
    dti_sockets_arrival *at;
    int process, n_processes;
    int *sockets; /* [n_processes] -1: not joined */
    talk *talks;
    struct pollfd *polls; /* [1 + most] */
    int n_talks, most;
    int64_t within_ms, end_ms;
    int lost; /* a process, or -1: said when nobody gives a reason */
    char *why;
} meeting;

static int fail(const meeting *m, const char *what)
{
    const bool full = errno == EMFILE || errno == ENFILE;

    (void)snprintf(m->why, DTI_MPI_TEXT_BYTES, "%s: %s%s", what, strerror(errno),
                   full ? " (ulimit -n); a process needs about three for each of the others" : "");
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

/* Whether a process that has joined has gone, and why: a farewell may lie behind what it said of
 * the job, which began for it before. */
static bool has_gone(const meeting *m, int process)
{
    struct pollfd p = { .fd = m->sockets[process], .events = POLLRDHUP };
    char said[4096];
    dti_frame head;
    ssize_t n;

    if (p.fd < 0 || poll(&p, 1, 0) <= 0) return false;
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

/* Whether a process that has not joined is there: then it only takes its time. */
static bool is_there(const meeting *m, int process)
{
    for (int i = 0; i < m->n_talks; i++)
        if (m->talks[i].process == process) return true;
    return false;
}

/* A partner that has not joined. */
static bool awaits(const meeting *m, int process)
{
    return m->sockets[process] < 0 && dti_sockets_are_partners(m->process, process, m->n_processes);
}

/* "1, 3 and 4" of the missing ones that are there or not, as far as there is room. */
static int list_missing(const meeting *m, bool there, char *text, size_t bytes)
{
    int n = 0, last = -1;
    size_t used = 0;

    text[0] = '\0';
    for (int p = 0; p < m->n_processes; p++) {
        if (!awaits(m, p) || is_there(m, p) != there) continue;
        if (last >= 0 && used + 24 < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", n > 1 ? ", " : "", last);
        last = p;
        n++;
    }
    if (n > 0) (void)snprintf(text + used, bytes - used, "%s%d", n > 1 ? " and " : "", last);
    return n;
}

static int say_missing(const meeting *m)
{
    char absent[128], idle[128];
    const int n = list_missing(m, false, absent, sizeof absent);
    const int n_idle = list_missing(m, true, idle, sizeof idle);
    size_t used =
        (size_t)snprintf(m->why, DTI_MPI_TEXT_BYTES, "after %lld ms ", (long long)m->within_ms);

    if (n > 0)
        used += (size_t)snprintf(
            m->why + used, DTI_MPI_TEXT_BYTES - used,
            "process%s %s of %d (RANK, WORLD_SIZE) %s not come: start %s on this machine with the "
            "same MASTER_ADDR and MASTER_PORT, or look what %s said last; processes of several "
            "machines are joined by mpirun only%s",
            n > 1 ? "es" : "", absent, m->n_processes, n > 1 ? "have" : "has",
            n > 1 ? "them" : "it", n > 1 ? "they" : "it", n_idle > 0 ? "; " : "");
    if (n_idle > 0)
        (void)snprintf(m->why + used, DTI_MPI_TEXT_BYTES - used,
                       "process%s %s of %d %s there but %s not called dt_run() yet",
                       n_idle > 1 ? "es" : "", idle, m->n_processes, n_idle > 1 ? "are" : "is",
                       n_idle > 1 ? "have" : "has");
    return -1;
}

/* --- connections --------------------------------------------------------------------------------
 */

static int make_room(meeting *m)
{
    const int most = 2 * m->most + 16;
    talk *talks = realloc(m->talks, (size_t)most * sizeof *talks);
    struct pollfd *polls;

    if (talks != NULL) m->talks = talks;
    polls = realloc(m->polls, ((size_t)most + 1) * sizeof *polls);
    if (polls != NULL) m->polls = polls;
    if (talks != NULL && polls != NULL) {
        m->most = most;
        return 0;
    }
    (void)snprintf(m->why, DTI_MPI_TEXT_BYTES, "no memory for %d connections", most);
    return -1;
}

static int add_talk(meeting *m, int socket, talk_role role, int process)
{
    if (m->n_talks == m->most && make_room(m) != 0) {
        (void)close(socket);
        return -1;
    }
    m->talks[m->n_talks++] = (talk){
        .socket = socket, .role = role, .process = process, .since_ms = dti_sockets_now_ms()
    };
    return 0;
}

/* Its socket is somebody else's now, or closed. */
static void end_talk(meeting *m, talk *t, bool closes)
{
    if (closes) (void)close(t->socket);
    *t = m->talks[--m->n_talks];
}

static bool has_role(const meeting *m, int process, talk_role role)
{
    for (int i = 0; i < m->n_talks; i++)
        if (m->talks[i].process == process && m->talks[i].role == role) return true;
    return false;
}

/* Calls a process with a lower number, if it has taken its name. */
static int dial(meeting *m, int process)
{
    const dti_hello mine = dti_sockets_hello(m->at, DTI_HELLO_JOINS);
    const int s = dti_sockets_dial(process);
    char holder[DTI_HOLDER_BYTES];

    if (s < 0 && (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR)) return 0;
    if (s < 0) return fail(m, "connect");
    if (!dti_sockets_is_mine(s)) {
        dti_sockets_holder(s, holder);
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES, "the place of process %d of %d is held by %s",
                       process, m->n_processes, holder);
        (void)close(s);
        return -1;
    }
    (void)dti_sockets_say(s, &mine); /* if nobody is there any more, the answer will not come */
    return add_talk(m, s, HOST, process);
}

/* Everybody who has connected; strangers are sent away. */
static int admit_all(meeting *m)
{
    for (;;) {
        const int s = accept4(m->at->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (s < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) return 0;
        if (s < 0) return fail(m, "accept");
        if (!dti_sockets_is_mine(s))
            (void)close(s);
        else if (add_talk(m, s, GUEST, -1) != 0)
            return -1;
    }
}

/* --- what is said -------------------------------------------------------------------------------
 */

static int check_hello(const meeting *m, const dti_hello *theirs)
{
    if (theirs->n_processes != m->n_processes)
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

/* Both have said that they join. */
static int join(meeting *m, talk *t)
{
    const dti_hello mine = dti_sockets_hello(m->at, DTI_HELLO_JOINS);
    const int process = t->said.process;

    if (t->role == GUEST && t->said.kind == DTI_HELLO_JOINS)
        (void)dti_sockets_say(t->socket, &mine);
    if (check_hello(m, &t->said) != 0) return -1;
    m->sockets[process] = t->socket;
    end_talk(m, t, false);
    return 0;
}

static int refuse_stranger(meeting *m, talk *t)
{
    char holder[DTI_HOLDER_BYTES];

    dti_sockets_holder(t->socket, holder);
    (void)snprintf(m->why, DTI_MPI_TEXT_BYTES,
                   "%s is in the place of process %d of %d, and not of this job", holder,
                   t->process, m->n_processes);
    return -1;
}

/* Somebody's first words, whole. */
static int understand(meeting *m, talk *t)
{
    const dti_hello *h = &t->said;

    if (h->magic != DTI_HELLO_MAGIC && t->role == HOST) return refuse_stranger(m, t);
    if (h->magic != DTI_HELLO_MAGIC) {
        end_talk(m, t, true);
        return 0;
    }
    if (h->version != DTI_MPI_API_VERSION) {
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES,
                       "processes %d and %d run different versions of dtensor", m->process,
                       h->process);
        return -1;
    }
    if (h->kind == DTI_HELLO_FAILS) {
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES, "%.*s", DTI_MPI_TEXT_BYTES - 1, h->why);
        return -1;
    }
    if (h->kind == DTI_HELLO_JOINS || h->kind == DTI_HELLO_TALKS) return join(m, t);
    t->role = SEEN; /* of a job of another size it will be found out when they join */
    if (h->n_processes == m->n_processes) t->process = h->process;
    t->n_said = 0;
    return 0;
}

/* The other end is closed: of a guest that has said nothing nobody knows who it was. One that is
 * being joined has closed what it does not need any more. */
static void ended(meeting *m, talk *t)
{
    const int p = t->process;
    const bool joins = p >= 0 && p < m->n_processes &&
                       (m->sockets[p] >= 0 || (t->role != HOST && has_role(m, p, HOST)));

    if (t->role != GUEST && !joins && m->lost < 0) m->lost = p;
    end_talk(m, t, true);
}

/* One step of a connection. 1: it is over, and another has its place. */
static int listen_to(meeting *m, talk *t)
{
    const int before = m->n_talks;
    const ssize_t n = recv(t->socket, (char *)&t->said + t->n_said, sizeof t->said - t->n_said, 0);
    int failed = 0;

    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        ended(m, t);
        return 1;
    }
    if (n > 0) t->n_said += (size_t)n;
    if (t->n_said == sizeof t->said) failed = understand(m, t);
    if (failed != 0) return -1;
    if (m->n_talks < before) return 1;
    if (t->role == GUEST && dti_sockets_now_ms() - t->since_ms > HELLO_MS) {
        end_talk(m, t, true);
        return 1;
    }
    return 0;
}

/* --- the meeting --------------------------------------------------------------------------------
 */

/* Until something can be done, or for a moment. */
static int look(meeting *m, int ms)
{
    m->polls[0] = (struct pollfd){ .fd = m->at->listener, .events = POLLIN };
    for (int i = 0; i < m->n_talks; i++)
        m->polls[1 + i] = (struct pollfd){ .fd = m->talks[i].socket, .events = POLLIN };
    if (poll(m->polls, (nfds_t)m->n_talks + 1, ms) < 0 && errno != EINTR) return fail(m, "poll");
    return 0;
}

/* Who has gone without a word is named only when all was heard: another may know the reason. */
static int step(meeting *m)
{
    for (int p = 0; p < m->process; p++)
        if (awaits(m, p) && !has_role(m, p, HOST) && dial(m, p) != 0) return -1;
    if (admit_all(m) != 0) return -1;
    for (int i = 0; i < m->n_talks;) {
        const int over = listen_to(m, &m->talks[i]);
        if (over < 0) return -1;
        i += over == 0;
    }
    if (m->lost >= 0) {
        dti_sockets_say_lost(m->lost, m->n_processes, m->why);
        return -1;
    }
    for (int p = 0; p < m->n_processes; p++)
        if (has_gone(m, p)) return -1;
    return 0;
}

static bool has_all(const meeting *m)
{
    for (int p = 0; p < m->n_processes; p++)
        if (awaits(m, p)) return false;
    return true;
}

static bool awaits_a_name(const meeting *m)
{
    for (int p = 0; p < m->process; p++)
        if (awaits(m, p) && !has_role(m, p, HOST)) return true;
    return false;
}

static int meet(meeting *m)
{
    for (;;) {
        if (step(m) != 0) return -1;
        if (has_all(m)) return 0;
        if (dti_sockets_now_ms() > m->end_ms) return say_missing(m);
        if (look(m, awaits_a_name(m) ? NAP_MS : LOOK_MS) != 0) return -1;
    }
}

/* All who are there hear why this process does not wait for them. */
static void part(meeting *m)
{
    dti_hello h = dti_sockets_hello(m->at, DTI_HELLO_FAILS);
    char *const why = m->why, ignored[DTI_MPI_TEXT_BYTES];

    (void)snprintf(h.why, sizeof h.why, "%s", why);
    m->why = ignored;
    (void)admit_all(m); /* who has dialed and was not heard yet */
    m->why = why;
    for (int p = 0; p < m->n_processes; p++) {
        if (m->sockets[p] < 0) continue;
        dti_sockets_say_farewell(m->sockets[p], why);
        (void)close(m->sockets[p]);
    }
    for (int i = 0; i < m->n_talks; i++)
        if (m->talks[i].role == GUEST) (void)dti_sockets_say(m->talks[i].socket, &h);
    free(m->sockets);
}

/* Those whom this process has shown itself to are listened to like all others. */
static int begin(meeting *m)
{
    dti_sockets_arrival *a = m->at;

    m->sockets = malloc((size_t)a->n_processes * sizeof *m->sockets);
    if (m->sockets == NULL) {
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES, "no memory for %d processes", a->n_processes);
        return -1;
    }
    m->process = a->process;
    m->n_processes = a->n_processes;
    for (int p = 0; p < m->n_processes; p++) m->sockets[p] = -1;
    if (make_room(m) != 0) return -1;
    for (int p = 0; p < m->n_processes; p++) {
        const int s = a->shown[p];
        a->shown[p] = -1;
        if (s >= 0 && add_talk(m, s, SHOWN, p) != 0) return -1;
    }
    return 0;
}

/* Guests that have not said who they are may already have more to say. */
static int hand_over(meeting *m, dti_sockets_job *out)
{
    *out = (dti_sockets_job){ m->process, m->n_processes, m->at->listener, m->sockets, NULL, 0 };
    out->guests = malloc(((size_t)m->n_talks + 1) * sizeof *out->guests);
    if (out->guests == NULL) {
        (void)snprintf(m->why, DTI_MPI_TEXT_BYTES, "no memory for %d guests", m->n_talks);
        return -1;
    }
    for (int i = 0; i < m->n_talks;)
        if (m->talks[i].role == GUEST && m->talks[i].n_said == 0) {
            out->guests[out->n_guests++] = m->talks[i].socket;
            end_talk(m, &m->talks[i], false);
        } else {
            i++;
        }
    return 0;
}

int dti_sockets_meet(int64_t within_ms, dti_sockets_job *out, char why[DTI_MPI_TEXT_BYTES])
{
    meeting m = {
        .within_ms = within_ms, .end_ms = dti_sockets_now_ms() + within_ms, .lost = -1, .why = why
    };
    int failed;

    dti_sockets_arrive();
    m.at = dti_sockets_take_name(why);
    failed = m.at != NULL ? begin(&m) : -1;
    if (!failed) failed = meet(&m);
    if (failed && m.at != NULL)
        part(&m);
    else if (!failed)
        failed = hand_over(&m, out);
    while (m.n_talks > 0) end_talk(&m, &m.talks[m.n_talks - 1], true);
    free(m.talks);
    free(m.polls);
    dti_sockets_depart(!failed);
    return failed;
}
