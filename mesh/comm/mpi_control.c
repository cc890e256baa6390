/* SPDX-License-Identifier: Apache-2.0
 *
 * What processes tell each other beside the data: who takes part, who has ended, who has failed;
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

#include "mesh/comm/mpi_internal.h"

enum {
    NS_PER_S = 1000 * 1000 * 1000,
    NS_PER_MS = 1000 * 1000,
    TELL_NS = 1000 * 1000 * 1000, /* to get rid of a notice */
    NAP_NS = 200 * 1000,
    ANSWER_NS = 500 * 1000 * 1000, /* to say where one is; ranks that wait look more often */
    MAX_WATCHED = 256,
    YIELD_NS = 2 * 1000 * 1000
};

static void nap(int64_t ns)
{
    (void)nanosleep(&(struct timespec){ .tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S }, NULL);
}

/* Tags of notices and cards; a process may be a run ahead of another. */
static int control_tag(const dti_mpi_world *w, dti_mpi_kind kind)
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
                                .tag = control_tag(w, DTI_MPI_LEFT),
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
                                .tag = control_tag(w, (dti_mpi_kind)letter->notice.kind),
                                .cookie = letter };

    if (w->api->send(w->control, &m) != 0) return;
    letter->n_pending++;
    w->n_notices++;
}

static size_t bytes_of(const dti_mpi_notice *n)
{
    return n->kind == DTI_MPI_ABORT ? sizeof *n : offsetof(dti_mpi_notice, code);
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
        dti_mpi_letter *letter = blank(w, &n, bytes_of(&n));
        if (letter != NULL) post(w, letter, bytes_of(&n), process);
    }
}

/* --- notices ------------------------------------------------------------------------------------
 */

static void mark_left(dti_mpi_world *w, int seat)
{
    if (atomic_exchange(&w->left[seat], 1) == 0) (void)atomic_fetch_add(&w->n_left, 1);
}

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

/* With the lock held. */
static void take_notice(dti_mpi_world *w)
{
    dti_mpi_notice *n = w->inbox;

    if (n->kind == DTI_MPI_ASK) {
        answer(w, n->rank);
        return;
    }
    if (n->rank < 0 || n->rank >= w->n_hands * w->n_ranks) return;
    if (n->kind == DTI_MPI_ABORT) {
        take_abort(w, n);
        return;
    }
    n->place.comm[sizeof n->place.comm - 1] = '\0';
    w->places[n->rank] = n->place;
    if (n->kind == DTI_MPI_ANSWER) w->n_answers++;
    if (n->kind != DTI_MPI_LEFT) return;
    mark_left(w, n->rank);
    w->n_expected--;
}

/* With the lock held. Nobody speaks again after it has said that its ranks have left, and a run
 * that ends well leaves no message behind. True if there was a notice: the next one may be there.
 */
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
    if (w->n_expected == 0 || atomic_load(&w->aborted)) return false;
    listen(w);
    return true;
}

/* With the lock held. */
static void look(dti_mpi_world *w)
{
    while (look_once(w)) {
    }
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
    const dti_mpi_notice n = { .kind = DTI_MPI_LEFT, .rank = seat, .place = place_here(w, seat) };

    (void)pthread_mutex_lock(&w->lock);
    mark_left(w, seat);
    tell(w, &n);
    (void)pthread_mutex_unlock(&w->lock);
}

/* --- where ranks are ----------------------------------------------------------------------------
 */

/* A process that does not answer has no rank in the library. */
void dti_mpi_ask(dti_mpi_world *w)
{
    const dti_mpi_notice n = { .kind = DTI_MPI_ASK, .rank = w->process };
    const int64_t begin = dti_now_ns();
    bool all = false;

    (void)pthread_mutex_lock(&w->lock);
    w->n_answers = 0;
    for (int s = 0; s < 2 * w->n_ranks; s++) w->places[s].waits_for = DTI_MPI_NOBODY;
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
    p = w->places[seat];
    (void)pthread_mutex_unlock(&w->lock);
    return p;
}

/* --- processes of this machine ------------------------------------------------------------------
 */

static void watch_process(dti_mpi_world *w, int process)
{
    const dti_mpi_card *mine = &w->cards[w->process], *theirs = &w->cards[process];

    w->watched[process] = -1;
#ifdef SYS_pidfd_open
    if (process != w->process && theirs->pid_space == mine->pid_space)
        w->watched[process] = (int)syscall(SYS_pidfd_open, (pid_t)theirs->region.pid, 0);
#else
    (void)mine, (void)theirs;
#endif
}

static bool has_left(const dti_mpi_world *w, int process)
{
    for (int r = dti_mpi_first_rank_of(w, process); r < dti_mpi_first_rank_of(w, process + 1); r++)
        for (int hand = 0; hand < w->n_hands; hand++)
            if (!atomic_load(&w->left[hand * w->n_ranks + r])) return false;
    return true;
}

/* With the lock held. */
static void process_died(dti_mpi_world *w, int process)
{
    const int rank = dti_mpi_first_rank_of(w, process);
    const int64_t begin = dti_now_ns();
    dt_error record = { .code = DT_ERR_COMM, .rank = w->first_rank };
    char why[DTI_WHY_BYTES];

    (void)close(w->watched[process]);
    w->watched[process] = -1;
    /* What it said before it died may still be on its way. */
    while (!has_left(w, process) && !atomic_load(&w->aborted) &&
           dti_now_ns() - begin < 100 * NS_PER_MS) {
        look(w);
        (void)sched_yield();
    }
    if (has_left(w, process)) return;
    (void)snprintf(why, sizeof why, "its process %lld has ended without returning from dt_run()",
                   (long long)w->cards[process].region.pid);
    (void)snprintf(record.message, sizeof record.message, "rank %d has left: %s", rank, why);
    record.frames[record.n_frames++] = (dt_error_frame){ __func__, __FILE__, __LINE__ };
    raise_abort(w, rank, why, &record);
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
    int process[MAX_WATCHED], n = 0;

    if (pthread_mutex_trylock(&w->lock) != 0) {
        nap(timeout_ns);
        return;
    }
    if (getppid() != w->parent) launcher_died(w);
    for (int p = 0; p < w->n_processes && n < MAX_WATCHED; p++) {
        if (w->watched[p] < 0) continue;
        fds[n] = (struct pollfd){ .fd = w->watched[p], .events = POLLIN };
        process[n++] = p;
    }
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
        if ((fds[i].revents & POLLIN) == 0 || w->watched[process[i]] != fds[i].fd) continue;
        process_died(w, process[i]);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

/* --- the beginning and the end ------------------------------------------------------------------
 */

static uint64_t hash_file(uint64_t seed, const char *path)
{
    char text[256];
    size_t n = 0;
    FILE *f = fopen(path, "r");

    if (f != NULL) {
        n = fread(text, 1, sizeof text, f);
        (void)fclose(f);
    }
    return dti_mpi_hash(seed, text, n);
}

static void make_card(const dti_mpi_world *w, dti_mpi_card *card)
{
    const char *version = dt_version();
    char space[64] = "";
    cpu_set_t cpus;

    CPU_ZERO(&cpus);
    (void)sched_getaffinity(0, sizeof cpus, &cpus);
    (void)!readlink("/proc/self/ns/pid", space, sizeof space - 1);
    card->protocol = dti_mpi_hash(DTI_MPI_API_VERSION, version, strlen(version));
    card->machine = hash_file(1, "/proc/sys/kernel/random/boot_id");
    card->pid_space = dti_mpi_hash(card->machine, space, strlen(space));
    card->cpus = dti_mpi_hash(card->machine, &cpus, sizeof cpus);
    card->n_ranks = w->n_ranks;
    card->sums_by_mpi = w->sums_by_mpi;
    card->n_hosts = w->n_hosts;
    card->agree = w->agree;
    card->threads = w->threads;
}

static dt_status check_cards(const dti_mpi_world *w)
{
    const dti_mpi_card *mine = &w->cards[w->process];

    for (int p = 0; p < w->n_processes; p++) {
        const dti_mpi_card *c = &w->cards[p];
        DT_CHECK(c->protocol == mine->protocol, DT_ERR_COMM,
                 "process %d runs another version of dtensor than process %d (%s)", p, w->process,
                 dt_version());
        DT_CHECK(c->n_ranks == mine->n_ranks, DT_ERR_ARG,
                 "process %d starts a run of %d ranks, process %d one of %d; all processes of a "
                 "job call dt_run() with the same n_ranks",
                 w->process, mine->n_ranks, p, c->n_ranks);
        DT_CHECK(c->sums_by_mpi == mine->sums_by_mpi, DT_ERR_ARG,
                 "process %d makes sums %s, process %d %s; choose the same for all processes of a "
                 "job (DTENSOR_MPI_SUMS)",
                 w->process, mine->sums_by_mpi ? "by MPI" : "in rank order", p,
                 c->sums_by_mpi ? "by MPI" : "in rank order");
        DT_CHECK(c->n_hosts == mine->n_hosts, DT_ERR_ARG,
                 "process %d divides the ranks among %d hosts, process %d among %d; choose the "
                 "same for all processes of a job (DTENSOR_HOSTS)",
                 w->process, mine->n_hosts, p, c->n_hosts);
    }
    return DT_OK;
}

static int64_t join_ms(const dti_mpi_world *w)
{
    return w->timeout_ms > DTI_MPI_JOIN_MS ? w->timeout_ms : DTI_MPI_JOIN_MS;
}

/* The first process whose card has not come; n_processes: all have. */
static int first_missing(const dti_mpi_world *w, const dti_mpi_card *all)
{
    int p = 0;

    while (p < w->n_processes && all[p].protocol != 0) p++;
    return p;
}

/* A moment of every wait of joining, which began at `begin`: `missing` has not done `what`. The
 * wait ends when a process that was there has gone. */
static dt_status wait_to_join(dti_mpi_world *w, int64_t begin, int missing, const char *what)
{
    const int64_t elapsed = dti_now_ns() - begin;
    char why[DTI_MPI_TEXT_BYTES];

    DT_CHECK(!w->api->lost(why), DT_ERR_COMM, "%s", why);
    for (int p = 0; p < w->n_processes; p++) {
        struct pollfd life = { .fd = w->watched[p], .events = POLLIN };
        DT_CHECK(life.fd < 0 || poll(&life, 1, 0) <= 0, DT_ERR_COMM,
                 "process %d of %d has ended while processes were joining", p, w->n_processes);
    }
    DT_CHECK(elapsed / NS_PER_MS < join_ms(w), DT_ERR_COMM,
             "process %d of %d has not %s after %lld ms", missing, w->n_processes, what,
             (long long)join_ms(w));
    if (elapsed > YIELD_NS)
        nap(NAP_NS);
    else
        (void)sched_yield();
    return DT_OK;
}

/* Where processes of this machine can share memory, they do. */
static dt_status share_memory(dti_mpi_world *w)
{
    const int64_t begin = dti_now_ns();
    const dti_mpi_card *mine = &w->cards[w->process];
    char what[64];
    int missing;

    (void)snprintf(what, sizeof what, "opened the memory of process %d", w->process);
    for (int p = 0; p < w->n_processes; p++)
        if (w->cards[p].pid_space == mine->pid_space)
            dti_mpi_region_reach(&w->region, p, &w->cards[p].region);
    dti_mpi_region_tell(&w->region);
    while ((missing = dti_mpi_region_agree(&w->region)) >= 0)
        DT_TRY(wait_to_join(w, begin, missing, what));
    w->all_share = true;
    for (int p = 0; p < w->n_processes; p++)
        w->all_share = w->all_share && w->n_hosts <= 1 &&
                       dti_mpi_shares(w, w->first_rank, dti_mpi_first_rank_of(w, p));
    return DT_OK;
}

static dt_status post_cards(dti_mpi_world *w, dti_mpi_card *all)
{
    const int tag = control_tag(w, DTI_MPI_CARD);

    for (int p = 0; p < w->n_processes; p++) {
        const dti_mpi_message in = { &all[p], (int)sizeof *all, p, tag, false, NULL };
        const dti_mpi_message out = { &all[w->process], (int)sizeof *all, p, tag, false, NULL };
        if (p == w->process) continue;
        DT_CHECK(w->api->recv(w->control, &in) == 0 && w->api->send(w->control, &out) == 0,
                 DT_ERR_COMM, "MPI reports: %s", w->api->why(w->control));
    }
    return DT_OK;
}

static dt_status exchange_cards(dti_mpi_world *w, dti_mpi_card *all)
{
    const int64_t begin = dti_now_ns();
    int missing = 2 * (w->n_processes - 1);

    DT_TRY(post_cards(w, all));
    while (missing > 0) {
        const dti_mpi_done *done = NULL;
        const int n = w->api->poll(w->control, &done);
        DT_CHECK(n >= 0, DT_ERR_COMM, "MPI reports: %s", w->api->why(w->control));
        missing -= n;
        if (n == 0) DT_TRY(wait_to_join(w, begin, first_missing(w, all), "called dt_run()"));
    }
    return DT_OK;
}

/* What this process alone has run into the others cannot know. */
static dt_status joined(dti_mpi_world *w, dt_status st)
{
    if (st != DT_OK) w->api->give_up(dt_last_error()->message);
    return st;
}

dt_status dti_mpi_control_open(dti_mpi_world *w, bool share)
{
    dti_mpi_card *cards;
    char *memory;
    const size_t n_cards = (size_t)w->n_processes, n_letters = 4 * (size_t)w->n_local + 4;

    w->control = w->api->queue_create(2 * w->n_processes);
    DT_CHECK(w->control != NULL, DT_ERR_MEMORY, "no memory for messages to %d processes",
             w->n_processes);
    memory = w->api->queue_memory(w->control, n_cards * sizeof *cards + sizeof *w->inbox +
                                                  n_letters * sizeof *w->outbox);
    DT_CHECK(memory != NULL, DT_ERR_MEMORY, "no memory for messages to %d processes",
             w->n_processes);
    w->inbox = (dti_mpi_notice *)(void *)memory;
    w->outbox = (dti_mpi_letter *)(void *)(w->inbox + 1);
    w->n_letters = (int)n_letters;
    cards = (dti_mpi_card *)(void *)(w->outbox + n_letters);
    w->parent = getppid();
    make_card(w, &cards[w->process]);
    DT_TRY(dti_mpi_region_open(&w->region, w->process, w->n_processes, share,
                               &cards[w->process].region));
    DT_TRY(joined(w, exchange_cards(w, cards)));
    memcpy(w->cards, cards, n_cards * sizeof *cards);
    for (int p = 0; p < w->n_processes; p++) {
        w->agree = w->agree && w->cards[p].agree;
        w->threads = w->threads && w->cards[p].threads;
    }
    w->n_hands = w->threads && !w->sums_by_mpi ? 2 : 1;
    DT_TRY(check_cards(w));
    dti_mpi_number_hosts(w);
    for (int p = 0; p < w->n_processes; p++) watch_process(w, p);
    DT_TRY(joined(w, share_memory(w)));
    w->n_expected = w->n_hands * (w->n_ranks - w->n_local);
    listen(w);
    return DT_OK;
}

void dti_mpi_control_close(dti_mpi_world *w)
{
    for (int p = 0; w->watched != NULL && p < w->n_processes; p++)
        if (w->watched[p] >= 0) (void)close(w->watched[p]);
    w->api->queue_destroy(w->control);
    w->control = NULL;
    dti_mpi_region_close(&w->region);
}
