/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes before they meet: a name, those who are there, and why one does not come. */
#define _GNU_SOURCE /* accept4 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mesh/comm/sockets.h"

enum {
    TELL_MS = 2000, /* for those who have not started yet */
    NAP_MS = 2,
    HEAR_MS = 20, /* from who has connected */
    MAX_PROCESSES = 1 << 16
};

static dti_sockets_arrival here;

int64_t dti_sockets_now_ms(void)
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

static int fail(const char *what, char why[DTI_MPI_TEXT_BYTES])
{
    const bool full = errno == EMFILE || errno == ENFILE;

    (void)snprintf(why, DTI_MPI_TEXT_BYTES, "%s: %s%s", what, strerror(errno),
                   full ? " (ulimit -n); a process needs about three for each of the others" : "");
    return -1;
}

/* --- connections --------------------------------------------------------------------------------
 */

int dti_sockets_new(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int dti_sockets_dial(int process)
{
    struct sockaddr_un address;
    const socklen_t bytes = dti_sockets_name(process, &address);
    const int s = dti_sockets_new();
    int error;

    if (s < 0 || connect(s, (const struct sockaddr *)&address, bytes) == 0) return s;
    error = errno;
    (void)close(s);
    errno = error;
    return -1;
}

dti_hello dti_sockets_hello(const dti_sockets_arrival *a, dti_hello_kind kind)
{
    return (dti_hello){ .magic = DTI_HELLO_MAGIC,
                        .version = DTI_MPI_API_VERSION,
                        .process = a->process,
                        .n_processes = a->n_processes,
                        .kind = kind };
}

bool dti_sockets_say(int socket, const dti_hello *h)
{
    return send(socket, h, sizeof *h, MSG_NOSIGNAL) == (ssize_t)sizeof *h;
}

/* --- the name -----------------------------------------------------------------------------------
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

/* Somebody has the name that this process needs. */
static int name_is_taken(int process, char why[DTI_MPI_TEXT_BYTES])
{
    char holder[DTI_HOLDER_BYTES] = "somebody who does not answer";
    const int s = dti_sockets_dial(process);

    if (s >= 0) dti_sockets_holder(s, holder);
    if (s >= 0) (void)close(s);
    (void)snprintf(why, DTI_MPI_TEXT_BYTES,
                   "the place of process %d of a job with MASTER_PORT=%.32s is held by %s; jobs of "
                   "one machine need ports of their own",
                   process, port(), holder);
    return -1;
}

static int listen_as(int process, int n_processes, int *out, char why[DTI_MPI_TEXT_BYTES])
{
    struct sockaddr_un address;
    const socklen_t bytes = dti_sockets_name(process, &address);
    const int s = dti_sockets_new();
    int error;

    if (s < 0) return fail("socket", why);
    if (bind(s, (struct sockaddr *)&address, bytes) == 0 && listen(s, 4 * n_processes) == 0) {
        *out = s;
        return 0;
    }
    error = errno;
    (void)close(s);
    errno = error;
    return error == EADDRINUSE ? name_is_taken(process, why) : fail("bind", why);
}

/* 0, or -1 with the reason. */
static int read_place(char why[DTI_MPI_TEXT_BYTES])
{
    int process, n;

    if (here.n_processes > 0) return 0;
    if (number("WORLD_SIZE", 1, MAX_PROCESSES, &n, why) || number("RANK", 0, n - 1, &process, why))
        return -1;
    here.shown = malloc((size_t)n * sizeof *here.shown);
    if (here.shown == NULL) {
        (void)snprintf(why, DTI_MPI_TEXT_BYTES, "no memory for %d processes", n);
        return -1;
    }
    for (int p = 0; p < n; p++) here.shown[p] = -1;
    here.process = process;
    here.n_processes = n;
    here.listener = -1;
    return 0;
}

dti_sockets_arrival *dti_sockets_take_name(char why[DTI_MPI_TEXT_BYTES])
{
    if (read_place(why) != 0) return NULL;
    if (here.listener >= 0) return &here;
    return listen_as(here.process, here.n_processes, &here.listener, why) == 0 ? &here : NULL;
}

bool dti_sockets_are_partners(int a, int b, int n_processes)
{
    const int apart = (b - a + n_processes) % n_processes;

    for (int far = 1; apart > 0 && far < n_processes; far *= DTI_MPI_RADIX) {
        if (apart % far == 0 && apart / far < DTI_MPI_RADIX) return true;
        if ((n_processes - apart) % far == 0 && (n_processes - apart) / far < DTI_MPI_RADIX)
            return true;
    }
    return false;
}

void dti_sockets_depart(bool keeps_name)
{
    for (int p = 0; p < here.n_processes; p++)
        if (here.shown[p] >= 0) (void)close(here.shown[p]);
    if (here.n_processes > 0 && here.listener >= 0 && !keeps_name) (void)close(here.listener);
    free(here.shown);
    here = (dti_sockets_arrival){ .over = true };
}

/* --- coming and not coming ----------------------------------------------------------------------
 */

/* Partners that have a name by now are shown this process; who takes one later will see its. */
void dti_sockets_arrive(void)
{
    char why[DTI_MPI_TEXT_BYTES];
    dti_sockets_arrival *a;
    dti_hello h;

    if (here.over || here.n_processes > 0) return;
    a = dti_sockets_take_name(why);
    if (a == NULL) return;
    h = dti_sockets_hello(a, DTI_HELLO_SHOWS);
    for (int p = 0; p < a->n_processes; p++) {
        const int s =
            dti_sockets_are_partners(a->process, p, a->n_processes) ? dti_sockets_dial(p) : -1;
        if (s < 0) continue;
        if (dti_sockets_is_mine(s) && dti_sockets_say(s, &h))
            a->shown[p] = s;
        else
            (void)close(s);
    }
}

static bool tell(int process, const dti_hello *h)
{
    const int s = dti_sockets_dial(process);
    const bool told = s >= 0 && dti_sockets_is_mine(s) && dti_sockets_say(s, h);

    if (s >= 0) (void)close(s);
    return told;
}

/* Answers one who has connected, and who therefore knows: its number, or -1. */
static int answer(int listener, const dti_hello *h)
{
    const int s = listener >= 0 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    struct pollfd p = { .fd = s, .events = POLLIN };
    int process = -1;
    dti_hello theirs;

    if (s < 0) return -1;
    if (dti_sockets_is_mine(s) && poll(&p, 1, HEAR_MS) > 0 &&
        recv(s, &theirs, sizeof theirs, MSG_DONTWAIT) == (ssize_t)sizeof theirs &&
        theirs.magic == DTI_HELLO_MAGIC &&
        (theirs.kind == DTI_HELLO_FAILS || dti_sockets_say(s, h)))
        process = theirs.process;
    (void)close(s);
    return process;
}

/* Those who are there keep what they are told until they look. */
void dti_sockets_stay_away(int pmi, const char *why)
{
    const int64_t end_ms = dti_sockets_now_ms() + TELL_MS;
    const dti_sockets_arrival *a = &here;
    char ignored[DTI_MPI_TEXT_BYTES];
    int missing;
    bool *knows;
    dti_hello h;

    (void)pmi;
    if (a->over) return;
    (void)dti_sockets_take_name(ignored); /* to be seen; who has no name can still tell */
    if (a->n_processes == 0) return;
    knows = calloc((size_t)a->n_processes, sizeof *knows);
    if (knows == NULL) return;
    h = dti_sockets_hello(a, DTI_HELLO_FAILS);
    (void)snprintf(h.why, sizeof h.why, "process %d of %d cannot join: %s", a->process,
                   a->n_processes, why);
    for (int p = 0; p < a->n_processes; p++)
        knows[p] = !dti_sockets_are_partners(a->process, p, a->n_processes);
    do {
        missing = 0;
        for (int p = 0; p < a->n_processes; p++) {
            knows[p] = knows[p] || tell(p, &h);
            missing += !knows[p];
        }
        if (missing > 0) {
            struct pollfd p = { .fd = a->listener, .events = POLLIN };
            const int other = poll(&p, 1, NAP_MS) > 0 ? answer(a->listener, &h) : -1;
            if (other >= 0 && other < a->n_processes) knows[other] = true;
        }
    } while (missing > 0 && dti_sockets_now_ms() < end_ms);
    free(knows);
    dti_sockets_depart(false);
}
