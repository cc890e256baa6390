/* SPDX-License-Identifier: Apache-2.0
 *
 * What processes tell each other beside the data: who has ended, who has failed, where they are;
 * and watching the processes of this machine. */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "mesh/comm/mpi_internal.h"

enum {
    NS_PER_S = 1000 * 1000 * 1000,
    NS_PER_MS = 1000 * 1000,
    TELL_NS = 1000 * 1000 * 1000, /* to get rid of a notice */
    NAP_NS = 200 * 1000,
    ANSWER_NS = 500 * 1000 * 1000,    /* to say where one is; ranks that wait look more often */
    WORD_NS = 100 * 1000 * 1000,      /* for the last word of a process that has ended */
    LAST_NS = 2 * 1000 * 1000 * 1000, /* of the one above that may have ended well */
    MAX_WATCHED = 256,
    HAS_LEFT = 1, /* of `left` */
    IS_ASKED = 2
};

static void nap(int64_t ns)
{
    (void)nanosleep(&(struct timespec){ .tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S }, NULL);
}

/* Tags of notices and cards; a process may be a run ahead of another. */
int dti_mpi_control_tag(const dti_mpi_world *w, dti_mpi_kind kind)
{
    const uint64_t run = w->session % 1024;

    return (int)(run << 3 | (kind == DTI_MPI_CARD ? 4u : 0u) | (unsigned)DTI_MPI_LANE_CONTROL);
}

/* --- notices ------------------------------------------------------------------------------------
 */

/* With the lock held. */
static void listen(dti_mpi_world *w)
{
    const dti_mpi_message m = { .data = w->inbox,
                                .bytes = (int)sizeof *w->inbox,
                                .process = DTI_MPI_ANY_PROCESS,
                                .tag = dti_mpi_control_tag(w, DTI_MPI_LEFT),
                                .cookie = w->inbox };

    (void)w->api->recv(w->control, &m); /* without it, deadlines still hold */
}

/* With the lock held. The first failure is the one that counts. */
static void raise_abort(dti_mpi_world *w, int culprit, const char *why, const dt_error *record)
{
    if (atomic_load(&w->aborted)) return;
    w->culprit = culprit;
    (void)snprintf(w->why, sizeof w->why, "%.*s", (int)sizeof w->why - 1, why);
    w->record = *record;
    atomic_store(&w->aborted, 1);
}

/* --- letters ------------------------------------------------------------------------------------
 */

static size_t bytes_of(const dti_mpi_notice *n)
{
    return n->kind == DTI_MPI_ABORT ? sizeof *n : offsetof(dti_mpi_notice, code);
}

/* With the lock held. A letter that nobody has still to take, or NULL. */
static dti_mpi_letter *blank(dti_mpi_world *w, const dti_mpi_notice *notice, size_t bytes)
{
    for (int i = 0; i < w->n_letters; i++)
        if (w->outbox[i].n_pending == 0) {
            memcpy(&w->outbox[i].notice, notice, bytes);
            return &w->outbox[i];
        }
    return NULL;
}

/* With the lock held. What cannot be told is found out by deadlines. */
static void post(dti_mpi_world *w, dti_mpi_letter *letter, size_t bytes, int process)
{
    const dti_mpi_message m = { .data = &letter->notice,
                                .bytes = (int)bytes,
                                .process = process,
                                .tag = dti_mpi_control_tag(w, (dti_mpi_kind)letter->notice.kind),
                                .cookie = letter };

    if (w->api->send(w->control, &m) != 0) return;
    letter->n_pending++;
    w->n_notices++;
}

/* With the lock held. False: later. */
static bool tell_one(dti_mpi_world *w, const dti_mpi_notice *notice, int process)
{
    dti_mpi_letter *letter = blank(w, notice, bytes_of(notice));

    if (letter != NULL) post(w, letter, bytes_of(notice), process);
    return letter != NULL;
}

/* With the lock held. To every other process. */
static void tell(dti_mpi_world *w, const dti_mpi_notice *notice)
{
    dti_mpi_letter *letter = blank(w, notice, bytes_of(notice));

    for (int p = 0; letter != NULL && p < w->n_processes; p++)
        if (p != w->process) post(w, letter, bytes_of(notice), p);
}

static dti_mpi_place place_here(const dti_mpi_world *w, int seat)
{
    dti_mpi_port *port = dti_mpi_port_of(w, seat);
    const uint64_t reached = atomic_load_explicit(&port->reached, memory_order_acquire);
    const char *where = atomic_load_explicit(&port->where, memory_order_relaxed);
    dti_mpi_place p = { .waits_for = atomic_load(&port->waits_for), .op = -1 };

    if (where == NULL) return p;
    p.op = (int32_t)(reached & 0xff);
    p.seq = reached >> 8;
    (void)snprintf(p.comm, sizeof p.comm, "%s", where);
    return p;
}

/* With the lock held. */
static void answer(dti_mpi_world *w, int process)
{
    if (process < 0 || process >= w->n_processes || process == w->process) return;
    for (int i = 0; i < w->n_hands * w->n_local; i++) {
        const int seat = i % w->n_local + w->first_rank + i / w->n_local * w->n_ranks;
        const dti_mpi_notice n = { .kind = DTI_MPI_ANSWER,
                                   .rank = seat,
                                   .place = place_here(w, seat) };
        (void)tell_one(w, &n, process);
    }
}

/* --- the end ------------------------------------------------------------------------------------
 *
 * A process hears from those below it in a binomial tree that all their ranks have ended, tells the
 * one above, and hears from it that the run is over, which it passes on. Nobody speaks after that.
 * Who waits for long asks the rank's process to be told when the rank leaves. */

static int lowest_bit(const dti_mpi_world *w)
{
    return w->process > 0 ? w->process & -w->process : 1 << 30;
}

static int above(const dti_mpi_world *w)
{
    return w->process - lowest_bit(w);
}

/* With the lock held. */
static bool pass_on_end(dti_mpi_world *w)
{
    const dti_mpi_notice over = { .kind = DTI_MPI_OVER, .process = w->process };
    dti_mpi_letter *letter = blank(w, &over, bytes_of(&over));

    for (int step = 1; letter != NULL && step < lowest_bit(w); step *= 2)
        if (w->process + step < w->n_processes) post(w, letter, bytes_of(&over), w->process + step);
    return letter != NULL;
}

/* With the lock held. What lacks a letter is told when one is free. */
static void end_by_and_by(dti_mpi_world *w)
{
    for (size_t i = 0; i < w->n_wishes;) {
        const int seat = w->wishes[i].seat;
        const dti_mpi_notice n = {
            .kind = DTI_MPI_LEFT, .rank = seat, .process = w->process, .place = place_here(w, seat)
        };
        if ((atomic_load(&w->left[seat]) & HAS_LEFT) == 0)
            i++;
        else if (tell_one(w, &n, w->wishes[i].process))
            w->wishes[i] = w->wishes[--w->n_wishes];
        else
            return;
    }
    if (w->end == DTI_MPI_GOES_ON && w->n_left == w->n_hands * w->n_local && w->n_children == 0 &&
        w->n_asked == 0 && w->n_wishes == 0) {
        const dti_mpi_notice n = { .kind = DTI_MPI_END, .process = w->process };
        if (w->process == 0)
            w->end = DTI_MPI_HEARD;
        else if (tell_one(w, &n, above(w)))
            w->end = DTI_MPI_SAID;
    }
    if (w->end == DTI_MPI_HEARD && pass_on_end(w)) w->end = DTI_MPI_ENDED;
}

/* --- notices ------------------------------------------------------------------------------------
 */

static void take_abort(dti_mpi_world *w, dti_mpi_notice *n)
{
    dt_error record = { .code = (dt_status)n->code, .rank = n->record_rank };

    n->why[sizeof n->why - 1] = n->where[sizeof n->where - 1] = '\0';
    n->message[sizeof n->message - 1] = '\0';
    (void)snprintf(record.where, sizeof record.where, "%s", n->where);
    (void)snprintf(record.message, sizeof record.message, "%s", n->message);
    record.frames[record.n_frames++] = (dt_error_frame){ "a rank of another process", "there", 0 };
    raise_abort(w, n->rank, n->why, &record);
}

/* With the lock held: they are made when somebody has to know. */
static bool has_places(dti_mpi_world *w)
{
    const size_t n = 2 * (size_t)w->n_ranks;

    if (w->places != NULL) return true;
    if (dti_alloc_array(n, sizeof *w->places, (void **)&w->places) != DT_OK) return false;
    for (size_t i = 0; i < n; i++)
        w->places[i] = (dti_mpi_place){ .waits_for = DTI_MPI_NOBODY, .op = -1 };
    return true;
}

/* With the lock held. Without memory a deadline will tell. */
static void note_wish(dti_mpi_world *w, int seat, int process)
{
    if (seat < 0 || seat >= w->n_hands * w->n_ranks ||
        dti_mpi_process_of(w, seat % w->n_ranks) != w->process ||
        dti_grow((void **)&w->wishes, &w->most_wishes, w->n_wishes + 1, sizeof *w->wishes) != DT_OK)
        return;
    w->wishes[w->n_wishes].seat = seat;
    w->wishes[w->n_wishes++].process = process;
}

/* With the lock held. */
static void take_notice(dti_mpi_world *w)
{
    dti_mpi_notice *n = w->inbox;

    if (n->process < 0 || n->process >= w->n_processes) return;
    switch (n->kind) {
    case DTI_MPI_ASK:
        answer(w, n->process);
        return;
    case DTI_MPI_WATCH:
        note_wish(w, n->rank, n->process);
        return;
    case DTI_MPI_END:
        w->n_children--;
        return;
    case DTI_MPI_OVER:
        w->end = DTI_MPI_HEARD;
        return;
    default:
        break;
    }
    if (n->rank < 0 || n->rank >= w->n_hands * w->n_ranks) return;
    if (n->kind == DTI_MPI_ABORT) {
        take_abort(w, n);
        return;
    }
    n->place.comm[sizeof n->place.comm - 1] = '\0';
    if (has_places(w)) w->places[n->rank] = n->place;
    if (n->kind == DTI_MPI_ANSWER) w->n_answers++;
    if (n->kind != DTI_MPI_LEFT) return;
    (void)atomic_fetch_or(&w->left[n->rank], HAS_LEFT);
    w->n_asked--;
}

/* With the lock held. A run that ends well leaves no message behind. True if there was a notice:
 * the next one may be there. */
static bool look_once(dti_mpi_world *w)
{
    const dti_mpi_done *done = NULL;
    const int n = w->api->poll(w->control, &done);
    bool heard = false;

    for (int i = 0; i < n; i++) {
        dti_mpi_letter *letter = done[i].cookie;
        if (done[i].cookie == w->inbox) {
            heard = true;
            continue;
        }
        letter->n_pending--;
        w->n_notices--;
    }
    if (!heard) return false;
    take_notice(w);
    end_by_and_by(w);
    if (w->end >= DTI_MPI_HEARD || atomic_load(&w->aborted)) return false;
    listen(w);
    return true;
}

/* With the lock held. */
static void look(dti_mpi_world *w)
{
    while (look_once(w)) {
    }
    end_by_and_by(w);
}

void dti_mpi_look(dti_mpi_world *w)
{
    if (pthread_mutex_trylock(&w->lock) != 0) return; /* somebody else is looking */
    look(w);
    (void)pthread_mutex_unlock(&w->lock);
}

/* Notices are small and leave at once, if the receiver lives. */
static void see_off(dti_mpi_world *w, int64_t limit_ns)
{
    const int64_t begin = dti_now_ns();

    while (w->n_notices > 0 && dti_now_ns() - begin < limit_ns) {
        look(w);
        if (w->n_notices > 0) (void)sched_yield();
    }
}

void dti_mpi_abort(dti_mpi_world *w, int rank, const char *why)
{
    const dt_error *e = dt_last_error();
    dti_mpi_notice n = { .kind = DTI_MPI_ABORT, .rank = rank, .code = DT_ERR_COMM };
    dt_error record = *e;

    if (e->code == DT_OK) {
        record = (dt_error){ .code = DT_ERR_COMM, .rank = rank };
        (void)snprintf(record.message, sizeof record.message, "rank %d: %s", rank, why);
    }
    n.code = (int32_t)record.code;
    n.record_rank = record.rank;
    (void)snprintf(n.why, sizeof n.why, "%s", why);
    (void)snprintf(n.where, sizeof n.where, "%s", record.where);
    (void)snprintf(n.message, sizeof n.message, "%s", record.message);
    (void)pthread_mutex_lock(&w->lock);
    if (!atomic_load(&w->aborted)) {
        raise_abort(w, rank, why, &record);
        tell(w, &n);
        see_off(w, TELL_NS);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

void dti_mpi_tell_left(dti_mpi_world *w, int seat)
{
    (void)pthread_mutex_lock(&w->lock);
    (void)atomic_fetch_or(&w->left[seat], HAS_LEFT);
    w->n_left++;
    end_by_and_by(w);
    (void)pthread_mutex_unlock(&w->lock);
}

bool dti_mpi_has_left(dti_mpi_world *w, int seat, bool asks)
{
    const dti_mpi_notice n = { .kind = DTI_MPI_WATCH, .rank = seat, .process = w->process };
    const int process = dti_mpi_process_of(w, seat % w->n_ranks);
    const int state = atomic_load_explicit(&w->left[seat], memory_order_acquire);

    if (!asks || state != 0 || process == w->process) return (state & HAS_LEFT) != 0;
    (void)pthread_mutex_lock(&w->lock);
    if (atomic_load(&w->left[seat]) == 0 && tell_one(w, &n, process)) {
        (void)atomic_fetch_or(&w->left[seat], IS_ASKED);
        w->n_asked++;
    }
    (void)pthread_mutex_unlock(&w->lock);
    return false;
}

bool dti_mpi_is_over(dti_mpi_world *w)
{
    bool over;

    (void)pthread_mutex_lock(&w->lock);
    look(w);
    over = w->end == DTI_MPI_ENDED && w->n_notices == 0;
    (void)pthread_mutex_unlock(&w->lock);
    return over;
}

/* --- where ranks are ----------------------------------------------------------------------------
 */

/* A process that does not answer has no rank in the library. */
void dti_mpi_ask(dti_mpi_world *w)
{
    const dti_mpi_notice n = { .kind = DTI_MPI_ASK, .process = w->process };
    const int64_t begin = dti_now_ns();
    bool all = false;

    (void)pthread_mutex_lock(&w->lock);
    w->n_answers = 0;
    for (int s = 0; has_places(w) && s < 2 * w->n_ranks; s++)
        w->places[s].waits_for = DTI_MPI_NOBODY;
    tell(w, &n);
    (void)pthread_mutex_unlock(&w->lock);
    while (!all && dti_now_ns() - begin < ANSWER_NS && !atomic_load(&w->aborted)) {
        (void)pthread_mutex_lock(&w->lock);
        look(w);
        all = w->n_answers >= w->n_hands * (w->n_ranks - w->n_local);
        (void)pthread_mutex_unlock(&w->lock);
        nap(NAP_NS);
    }
}

dti_mpi_place dti_mpi_place_of(dti_mpi_world *w, int seat)
{
    dti_mpi_place p;

    if (dti_mpi_process_of(w, seat % w->n_ranks) == w->process) return place_here(w, seat);
    (void)pthread_mutex_lock(&w->lock);
    p = w->places != NULL ? w->places[seat]
                          : (dti_mpi_place){ .waits_for = DTI_MPI_NOBODY, .op = -1 };
    (void)pthread_mutex_unlock(&w->lock);
    return p;
}

/* --- processes of this machine ------------------------------------------------------------------
 */

void dti_mpi_watch_process(dti_mpi_world *w, int process, int64_t pid)
{
    w->watched[process].pid = (int32_t)pid;
#ifdef SYS_pidfd_open
    w->watched[process].life = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
#endif
}

/* What ranks of a process that has ended were at, as far as it can be seen. */
static void say_doing(const dti_mpi_world *w, int process, char why[DTI_WHY_BYTES])
{
    for (int r = dti_mpi_first_rank_of(w, process);
         r < w->n_ranks && dti_mpi_process_of(w, r) == process; r++) {
        const dti_mpi_bell *bell = dti_mpi_bell_of(w, r);
        const size_t n = strlen(why);
        if (bell == NULL || bell->doing[0] == '\0') continue;
        (void)snprintf(why + n, DTI_WHY_BYTES - n, "; rank %d was in %.*s", r,
                       DTI_MPI_DOING_BYTES - 1, bell->doing);
    }
}

/* With the lock held. What it said before it died may still be on its way. Before this process has
 * said that all below it have ended nobody can have ended well; after that only the one above is
 * missed, which has passed on that the run is over before it ends. */
static void process_died(dti_mpi_world *w, int process)
{
    const int rank = dti_mpi_first_rank_of(w, process);
    const int64_t begin = dti_now_ns();
    const int64_t within = w->end == DTI_MPI_GOES_ON ? WORD_NS : LAST_NS;
    dt_error record = { .code = DT_ERR_COMM, .rank = w->first_rank };
    char why[DTI_WHY_BYTES];

    (void)close(w->watched[process].life);
    w->watched[process].life = -1;
    if (w->end == DTI_MPI_SAID && process != above(w)) return;
    while (w->end < DTI_MPI_HEARD && !atomic_load(&w->aborted) && dti_now_ns() - begin < within) {
        look(w);
        (void)sched_yield();
    }
    if (w->end >= DTI_MPI_HEARD) return;
    (void)snprintf(why, sizeof why, "its process %lld has ended without returning from dt_run()",
                   (long long)w->watched[process].pid);
    say_doing(w, process, why);
    (void)snprintf(record.message, sizeof record.message, "rank %d has left: %s", rank, why);
    record.frames[record.n_frames++] = (dt_error_frame){ __func__, __FILE__, __LINE__ };
    raise_abort(w, rank, why, &record);
}

/* Of the processes that are watched; returns how many. */
static int lives(const dti_mpi_world *w, struct pollfd fds[MAX_WATCHED], int process[MAX_WATCHED])
{
    int n = 0;

    for (int p = 0; p < w->n_processes && n < MAX_WATCHED; p++) {
        if (w->watched[p].life < 0) continue;
        fds[n] = (struct pollfd){ .fd = w->watched[p].life, .events = POLLIN };
        process[n++] = p;
    }
    return n;
}

int dti_mpi_find_dead(const dti_mpi_world *w)
{
    struct pollfd fds[MAX_WATCHED];
    int process[MAX_WATCHED], n = lives(w, fds, process);

    if (n == 0 || poll(fds, (nfds_t)n, 0) <= 0) return DTI_MPI_NOBODY;
    while (n > 0 && fds[n - 1].revents == 0) n--;
    return n > 0 ? process[n - 1] : DTI_MPI_NOBODY;
}

/* With the lock held. Launchers end their processes, unless they are killed themselves. */
static void launcher_died(dti_mpi_world *w)
{
    dt_error record = { .code = DT_ERR_COMM, .rank = w->first_rank };

    (void)snprintf(record.message, sizeof record.message,
                   "the launcher of this job (process %d) has ended", w->parent);
    record.frames[record.n_frames++] = (dt_error_frame){ __func__, __FILE__, __LINE__ };
    raise_abort(w, w->first_rank, record.message, &record);
}

/* Sleeps, but not longer than all processes of this machine live. */
void dti_mpi_watch(dti_mpi_world *w, int64_t timeout_ns)
{
    struct pollfd fds[MAX_WATCHED];
    int process[MAX_WATCHED], n;

    if (pthread_mutex_trylock(&w->lock) != 0) {
        nap(timeout_ns);
        return;
    }
    if (getppid() != w->parent) launcher_died(w);
    n = lives(w, fds, process);
    (void)pthread_mutex_unlock(&w->lock);
    if (n == 0) {
        nap(timeout_ns);
        return;
    }
    if (ppoll(
            fds, (nfds_t)n,
            &(struct timespec){ .tv_sec = timeout_ns / NS_PER_S, .tv_nsec = timeout_ns % NS_PER_S },
            NULL) <= 0)
        return;
    (void)pthread_mutex_lock(&w->lock);
    for (int i = 0; i < n; i++) {
        if ((fds[i].revents & POLLIN) == 0 || w->watched[process[i]].life != fds[i].fd) continue;
        process_died(w, process[i]);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

void dti_mpi_hear_out(dti_mpi_world *w)
{
    const int64_t begin = dti_now_ns();

    while (atomic_load(&w->aborted) == 0 && dti_now_ns() - begin < WORD_NS) {
        dti_mpi_look(w);
        dti_mpi_watch(w, NAP_NS);
    }
}

/* --- the beginning and the end ------------------------------------------------------------------
 */

dt_status dti_mpi_control_open(dti_mpi_world *w)
{
    const size_t n_letters = 4 * (size_t)w->n_local + 4;
    char *memory;

    w->control = w->api->queue_create(64);
    memory =
        w->control == NULL
            ? NULL
            : w->api->queue_memory(w->control, sizeof *w->inbox + n_letters * sizeof *w->outbox);
    DT_CHECK(memory != NULL, DT_ERR_MEMORY, "no memory for messages to %d processes",
             w->n_processes);
    w->inbox = (dti_mpi_notice *)(void *)memory;
    w->outbox = (dti_mpi_letter *)(void *)(w->inbox + 1);
    w->n_letters = (int)n_letters;
    for (int step = 1; step < lowest_bit(w) && w->process + step < w->n_processes; step *= 2)
        w->n_children++;
    listen(w);
    return DT_OK;
}

void dti_mpi_control_close(dti_mpi_world *w)
{
    for (int p = 0; w->watched != NULL && p < w->n_processes; p++)
        if (w->watched[p].life >= 0) (void)close(w->watched[p].life);
    dti_free(w->places);
    dti_free(w->wishes);
    w->api->queue_destroy(w->control);
    w->control = NULL;
}
