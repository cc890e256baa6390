/* SPDX-License-Identifier: Apache-2.0
 *
 * How the processes of a run learn who they are: cards go round in rounds in which each process
 * hears from seven others what they have heard so far, so that all know all after log8 of their
 * number; then in the same way whether those of a machine can open each other's memory. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "mesh/comm/mpi_internal.h"

enum { NS_PER_MS = 1000 * 1000, NAP_NS = 200 * 1000, YIELD_NS = 2 * 1000 * 1000 };

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
    const uid_t user = geteuid();
    char space[64] = "";
    cpu_set_t cpus;

    CPU_ZERO(&cpus);
    (void)sched_getaffinity(0, sizeof cpus, &cpus);
    (void)!readlink("/proc/self/ns/pid", space, sizeof space - 1);
    card->protocol = dti_mpi_hash(DTI_MPI_API_VERSION, version, strlen(version));
    card->machine = hash_file(1, "/proc/sys/kernel/random/boot_id");
    card->pid_space = dti_mpi_hash(card->machine, space, strlen(space));
    card->space = dti_mpi_hash(card->pid_space, &user, sizeof user);
    card->cpus = dti_mpi_hash(card->machine, &cpus, sizeof cpus);
    card->n_ranks = w->n_ranks;
    card->sums_by_mpi = w->sums_by_mpi;
    card->n_hosts = w->n_hosts;
    card->agree = w->agree;
    card->threads = w->threads;
}

static dt_status check_cards(const dti_mpi_world *w, const dti_mpi_card *cards)
{
    const dti_mpi_card *mine = &cards[w->process];

    for (int p = 0; p < w->n_processes; p++) {
        const dti_mpi_card *c = &cards[p];
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

/* A moment of every wait of joining, which began at `begin`: `missing` has not done `what`. The
 * wait ends when a process that was there has gone. */
static dt_status wait_to_join(dti_mpi_world *w, int64_t begin, int missing, const char *what)
{
    const int64_t elapsed = dti_now_ns() - begin;
    char why[DTI_MPI_TEXT_BYTES];
    int dead;

    DT_CHECK(!w->api->lost(why), DT_ERR_COMM, "%s", why);
    dead = dti_mpi_find_dead(w);
    DT_CHECK(dead == DTI_MPI_NOBODY, DT_ERR_COMM,
             "process %d of %d has ended while processes were joining", dead, w->n_processes);
    DT_CHECK(elapsed / NS_PER_MS < join_ms(w), DT_ERR_COMM,
             "process %d of %d has not %s after %lld ms", missing, w->n_processes, what,
             (long long)join_ms(w));
    if (elapsed > YIELD_NS)
        (void)nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
    else
        (void)sched_yield();
    return DT_OK;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* What is told: `bytes` that begin with a word which is not 0. */
typedef struct round_of {
    dti_mpi_queue *queue;
    char *held; /* of the i-th process from this one on */
    size_t bytes;
    const char *what; /* that a process has not done which is missing */
} round_of;

/* What `far` processes have said is there. */
static dt_status exchange_round(dti_mpi_world *w, const round_of *r, int far)
{
    const int n = w->n_processes, tag = dti_mpi_control_tag(w, DTI_MPI_CARD);
    const int64_t begin = dti_now_ns();
    int missing = 0, late = 1;

    for (int j = 1; j < DTI_MPI_RADIX && j * far < n; j++) {
        dti_mpi_message m = { .data = r->held + (size_t)(j * far) * r->bytes,
                              .bytes = smaller(far, n - j * far) * (int)r->bytes,
                              .process = (w->process + j * far) % n,
                              .tag = tag };
        bool told = w->api->recv(r->queue, &m) == 0;
        m.data = r->held;
        m.process = (w->process + n - j * far) % n;
        told = told && w->api->send(r->queue, &m) == 0;
        DT_CHECK(told, DT_ERR_COMM, "MPI reports: %s", w->api->why(r->queue));
        missing += 2;
    }
    while (missing > 0) {
        const dti_mpi_done *done = NULL;
        const int n_done = w->api->poll(r->queue, &done);
        DT_CHECK(n_done >= 0, DT_ERR_COMM, "MPI reports: %s", w->api->why(r->queue));
        missing -= n_done;
        while ((late + 1) * far < n && late + 1 < DTI_MPI_RADIX &&
               *(const uint64_t *)(void *)(r->held + (size_t)(late * far) * r->bytes) != 0)
            late++;
        if (n_done == 0) DT_TRY(wait_to_join(w, begin, (w->process + late * far) % n, r->what));
    }
    return DT_OK;
}

/* all[p] is what process p has handed in as `mine`. */
static dt_status exchange(dti_mpi_world *w, const void *mine, void *all, size_t bytes,
                          const char *what)
{
    const size_t n = (size_t)w->n_processes;
    round_of r = { w->api->queue_create(2 * DTI_MPI_RADIX), NULL, bytes, what };
    dt_status st = DT_OK;

    DT_CHECK(r.queue != NULL, DT_ERR_MEMORY, "no memory for messages to %zu processes", n);
    r.held = w->api->queue_memory(r.queue, n * bytes);
    DT_CHECK_TO(done, st, r.held != NULL, DT_ERR_MEMORY, "no memory for messages to %zu processes",
                n);
    memcpy(r.held, mine, bytes);
    for (int far = 1; far < w->n_processes; far *= DTI_MPI_RADIX)
        DT_TRY_TO(done, st, exchange_round(w, &r, far));
    for (size_t i = 0; i < n; i++)
        memcpy((char *)all + ((size_t)w->process + i) % n * bytes, r.held + i * bytes, bytes);
done:
    w->api->queue_destroy(r.queue);
    return st;
}

/* --- memory -------------------------------------------------------------------------------------
 */

static bool is_near(const dti_mpi_world *w, const dti_mpi_card *cards, int process)
{
    return cards[process].space == cards[w->process].space;
}

/* Who is to be tried: the next one of those that may share memory, or this process itself. */
static int next_near(const dti_mpi_world *w, const dti_mpi_card *cards)
{
    int p = (w->process + 1) % w->n_processes;

    while (!is_near(w, cards, p)) p = (p + 1) % w->n_processes;
    return p;
}

/* Where all processes of this machine can share memory, they do. */
static dt_status share_memory(dti_mpi_world *w, const dti_mpi_card *cards, uint64_t *reaches)
{
    enum { YES = 1, NO = 2 };
    const int next = next_near(w, cards);
    const bool reached =
        next == w->process || dti_mpi_region_try(&w->region, next, &cards[next].region);
    const uint64_t mine = reached ? YES : NO;
    bool all = true;

    DT_TRY(exchange(w, &mine, reaches, sizeof mine, "opened the memory of the next one"));
    for (int p = 0; p < w->n_processes; p++)
        if (is_near(w, cards, p) && reaches[p] == NO) {
            if (reached)
                (void)snprintf(w->region.why, sizeof w->region.why,
                               "process %d does not reach the next one of this machine", p);
            all = false;
        }
    for (int p = 0; w->region.own != NULL && p < w->n_processes; p++)
        if (p == w->process || (all && is_near(w, cards, p)))
            DT_TRY(dti_mpi_region_add(&w->region, p, &cards[p].region));
    w->all_share = w->n_hosts <= 1 && w->region.n_near == (size_t)w->n_processes;
    return DT_OK;
}

/* What of the cards is needed longer than they are. */
static void learn(dti_mpi_world *w, const dti_mpi_card *cards)
{
    const dti_mpi_card *mine = &cards[w->process];

    dti_mpi_number_hosts(w, cards);
    for (int p = 0; p < w->n_processes; p++) {
        const int n = dti_mpi_first_rank_of(w, p + 1) - dti_mpi_first_rank_of(w, p);
        const bool same_cpus = cards[p].cpus == mine->cpus;
        w->agree = w->agree && cards[p].agree;
        w->threads = w->threads && cards[p].threads;
        if (same_cpus) w->n_neighbours += n;
        if (same_cpus && p < w->process) w->n_before += n;
        if (cards[p].machine == mine->machine && p < w->process) w->n_before_on_machine += n;
        if (p != w->process && cards[p].pid_space == mine->pid_space)
            dti_mpi_watch_process(w, p, cards[p].region.pid);
    }
    w->n_hands = w->threads && !w->sums_by_mpi ? 2 : 1;
}

static dt_status meet(dti_mpi_world *w, bool share, dti_mpi_card *cards)
{
    dti_mpi_card mine = { 0 };

    make_card(w, &mine);
    DT_TRY(dti_mpi_region_open(&w->region, w->process, share, &mine.region));
    DT_TRY(exchange(w, &mine, cards, sizeof mine, "called dt_run()"));
    return DT_OK;
}

/* What this process alone has run into the others cannot know. */
static dt_status joined(dti_mpi_world *w, dt_status st)
{
    if (st != DT_OK) w->api->give_up(dt_last_error()->message);
    return st;
}

dt_status dti_mpi_join(dti_mpi_world *w, bool share)
{
    dti_mpi_card *cards = NULL;
    uint64_t *reaches = NULL;
    dt_status st = DT_OK;

    w->parent = getppid();
    DT_TRY_TO(done, st, dti_alloc_array((size_t)w->n_processes, sizeof *cards, (void **)&cards));
    DT_TRY_TO(done, st,
              dti_alloc_array((size_t)w->n_processes, sizeof *reaches, (void **)&reaches));
    DT_TRY_TO(done, st, joined(w, meet(w, share, cards)));
    DT_TRY_TO(done, st, check_cards(w, cards));
    learn(w, cards);
    DT_TRY_TO(done, st, joined(w, share_memory(w, cards, reaches)));
    DT_TRY_TO(done, st, dti_mpi_control_open(w));
done:
    dti_free(reaches);
    dti_free(cards);
    return st;
}
