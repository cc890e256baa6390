/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker process from its start to its end: main() carries messages, ranks have threads of their
 * own. When the pipe ends the program has ended, and nothing is left to be done. */
#include "service/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mesh/launch.h"
#include "service/served.h"
#include "service/workers.h"

enum { LEAST_FD = 3 };

struct dti_host {
    dti_crew crew;
    dti_board *board;
    dti_pipe pipe;
    pthread_t ranks; /* the first of them */
    bool has_ranks;
    _Atomic bool over; /* they have ended, and how: */
    dt_status ended;
    dti_start start;
    char *said; /* what came with the start */
    const char **modules;
    dt_status (*setup)(dt_runtime *rt, void *arg);
    void *setup_arg;
};

/* --- saying ----------------------------------------------------------------------------------- */

/* What cannot be said would leave its caller waiting: the pipe's end is heard. */
static void say(dti_host *h, dti_message_kind kind, int rank, int64_t number,
                const struct iovec *part)
{
    if (dti_pipe_say(&h->pipe, kind, rank, number, part, part != NULL ? 1 : 0) == DT_OK) return;
    (void)fprintf(stderr, "dtensor: a worker: %s\n", dt_last_error()->message);
    _exit(1);
}

static void say_record(dti_host *h, dti_message_kind kind, int rank, int64_t number,
                       const dt_error *e)
{
    dt_error record = dti_pipe_record(e);

    say(h, kind, rank, number, &(struct iovec){ &record, sizeof record });
}

void dti_host_ready(dti_host *h, int rank)
{
    say(h, DTI_SAYS_READY, rank, 0, NULL);
}

void dti_host_failed(dti_host *h, int rank, const dt_error *why)
{
    say_record(h, DTI_SAYS_FAILED, rank, 0, why);
}

void dti_host_progress(dti_host *h, const dt_ticket *t)
{
    int64_t progress[2] = { t->progress[0], t->progress[1] };

    say(h, DTI_SAYS_PROGRESS, 0, t->number, &(struct iovec){ progress, sizeof progress });
}

void dti_host_done(dti_host *h, const dt_ticket *t)
{
    dti_host_show(h);
    say_record(h, DTI_SAYS_DONE, 0, t->number, &t->error);
}

void dti_host_show(dti_host *h)
{
    const dti_crew *c = &h->crew;
    int64_t words[DT_COUNT(h->board->engine)];

    memcpy(words, &c->counts.engine, sizeof words);
    for (size_t i = 0; i < DT_COUNT(words); i++) atomic_store(&h->board->engine[i], words[i]);
    atomic_store(&h->board->steps, c->counts.steps);
    atomic_store(&h->board->new_tokens, c->counts.new_tokens);
    atomic_store(&h->board->busy_ns, (int64_t)(c->counts.busy_s * 1e9));
    for (int i = 0; i < DTI_MAX_RUNNING; i++) {
        const dt_ticket *t = c->running[i];
        atomic_store(&h->board->running[i].n_steps, t != NULL ? t->n_steps : 0);
        atomic_store(&h->board->running[i].number, t != NULL ? t->number : 0);
    }
}

dt_status dti_host_loaded(dti_host *h)
{
    dti_crew *c = &h->crew;
    dt_error defaults = dti_pipe_record(&c->defaults_error);
    const struct iovec parts[] = { { &c->info, sizeof c->info },
                                   { &defaults, sizeof defaults },
                                   { c->defaults_packet.bytes, c->defaults_packet.n } };

    return dti_pipe_say(&h->pipe, DTI_SAYS_LOADED, 0, 0, parts, 3);
}

void dti_host_begun(dti_host *h, int64_t number)
{
    (void)pthread_mutex_lock(&h->crew.lock);
    say(h, DTI_SAYS_BEGUN, 0, number, NULL);
    (void)pthread_mutex_unlock(&h->crew.lock);
}

dt_status dti_host_tell(dti_host *h, const dt_ticket *t, const dti_event *head, const void *data)
{
    dti_event e = *head;
    const struct iovec parts[] = { { &e, offsetof(dti_event, data) },
                                   { (void *)(uintptr_t)data, head->n_bytes } };
    dt_status st;

    e.next = NULL;
    (void)pthread_mutex_lock(&h->crew.lock);
    st = dti_pipe_say(&h->pipe, DTI_SAYS_EVENT, 0, t->number, parts, 2);
    (void)pthread_mutex_unlock(&h->crew.lock);
    return st;
}

static void log_line(void *arg, dt_log_level level, int rank, const char *line)
{
    dti_host *h = arg;

    (void)pthread_mutex_lock(&h->crew.lock);
    say(h, DTI_SAYS_LOG, rank, level, &(struct iovec){ (void *)(uintptr_t)line, strlen(line) + 1 });
    (void)pthread_mutex_unlock(&h->crew.lock);
}

/* --- hearing ---------------------------------------------------------------------------------- */

static dt_status take_request(dti_crew *c, const dti_message *m, const char *bytes)
{
    static const dt_request_options by_default = DT_REQUEST_OPTIONS_INIT;
    dt_ticket *t = NULL;
    dti_asked a;
    dt_status st;

    DT_CHECK(m->n_bytes >= sizeof a, DT_ERR_INTERNAL, "a request of %llu bytes",
             (unsigned long long)m->n_bytes);
    memcpy(&a, bytes, sizeof a);
    DT_TRY(dti_ticket_create(c, (dti_ticket_kind)a.kind, &by_default, &t));
    t->priority = a.priority;
    t->deadline_ns = a.deadline_ns;
    t->n_prompt = a.n_prompt;
    t->tells_tokens = a.tells_tokens != 0;
    t->by_turns = a.by_turns != 0;
    st = dti_packet_put(&t->packet, bytes + sizeof a, (size_t)m->n_bytes - sizeof a);
    if (st == DT_OK && a.kind != DTI_TICKET_LOAD) {
        (void)pthread_mutex_lock(&c->lock);
        c->n_tickets = m->number - 1; /* the same on both sides */
        (void)pthread_mutex_unlock(&c->lock);
    }
    if (st == DT_OK) st = dti_ticket_queue(t);
    dti_ticket_release(&t);
    return st;
}

static void take_cancel(dti_crew *c, int64_t number)
{
    dt_ticket *t;

    (void)pthread_mutex_lock(&c->lock);
    for (t = c->queue; t != NULL && t->number != number; t = t->next) continue;
    for (int i = 0; t == NULL && i < DTI_MAX_RUNNING; i++)
        if (c->running[i] != NULL && c->running[i]->number == number) t = c->running[i];
    if (t != NULL) (void)dti_ticket_retain(t);
    (void)pthread_mutex_unlock(&c->lock);
    dt_ticket_cancel(t);
    dti_ticket_release(&t);
}

static void take(dti_host *h, const dti_message *m, const char *bytes)
{
    dti_crew *c = &h->crew;
    const dt_error *e;

    if (m->kind == DTI_SAYS_CANCEL) take_cancel(c, m->number);
    if (m->kind == DTI_SAYS_QUIT) dti_crew_quit(c);
    if (m->kind != DTI_SAYS_ASK || take_request(c, m, bytes) == DT_OK) return;
    e = dt_last_error();
    (void)pthread_mutex_lock(&c->lock);
    if (c->failing_ns == 0) say_record(h, DTI_SAYS_DONE, 0, m->number, e); /* else it hears why */
    (void)pthread_mutex_unlock(&c->lock);
}

static void carry(dti_host *h)
{
    const char *bytes;
    dti_message m;

    for (;;) {
        const bool over = atomic_load(&h->over);
        const bool more = dti_pipe_carry(&h->pipe, &h->crew.lock);
        struct pollfd p[] = { { .fd = h->pipe.wake, .events = POLLIN },
                              { .fd = h->pipe.socket,
                                .events = (short)(POLLIN | (more ? POLLOUT : 0)) } };
        if (over && !more) return;
        (void)poll(p, 2, -1);
        dti_pipe_slept(h->pipe.wake);
        if (!dti_pipe_read(&h->pipe)) _exit(1); /* the program has ended */
        while (dti_pipe_next(&h->pipe, &m, &bytes)) take(h, &m, bytes);
    }
}

/* --- start ------------------------------------------------------------------------------------ */

static bool receive(int socket, char *to, size_t n)
{
    size_t got = 0;

    while (got < n) {
        const ssize_t k = recv(socket, to + got, n - got, 0);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        got += (size_t)k;
    }
    return true;
}

/* The first message, with the descriptor of the shared memory, or -1: there is no program. */
static int receive_start(int socket, dti_message *m)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec part = { m, sizeof *m };
    struct msghdr h = { .msg_iov = &part,
                        .msg_iovlen = 1,
                        .msg_control = control.bytes,
                        .msg_controllen = sizeof control.bytes };
    const struct cmsghdr *c;
    ssize_t n;
    int file;

    do n = recvmsg(socket, &h, MSG_WAITALL | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    c = CMSG_FIRSTHDR(&h);
    if (n != (ssize_t)sizeof *m || m->kind != DTI_SAYS_START || c == NULL ||
        c->cmsg_type != SCM_RIGHTS)
        return -1;
    memcpy(&file, CMSG_DATA(c), sizeof file);
    return file;
}

static dt_status read_start(dti_host *h, const dti_message *m)
{
    dti_unpacking u = { h->said, h->said + m->n_bytes, DTI_ARENA_INIT };
    char version[64];

    dti_workers_version(version);
    DT_TRY(dti_unpack_copy(&u, &h->start, sizeof h->start));
    DT_CHECK(
        strncmp(h->start.version, version, sizeof version) == 0, DT_ERR_UNSUPPORTED,
        "the program of workers is of another version of dtensor (%s) than the program (%.60s)",
        version, h->start.version);
    DT_TRY(dti_unpack_run(&u, &h->crew.run));
    DT_TRY(dti_alloc_array((size_t)h->start.n_modules, sizeof *h->modules, (void **)&h->modules));
    for (int i = 0; i < h->start.n_modules; i++) DT_TRY(dti_unpack_text(&u, &h->modules[i]));
    return DT_OK;
}

static dt_status map_views(dti_host *h, int file)
{
    const int n_ranks = h->crew.run.n_ranks;
    void *at = mmap(NULL, dti_views_bytes(n_ranks), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

    (void)close(file);
    DT_CHECK(at != MAP_FAILED, DT_ERR_MEMORY, "memory that workers share: %s", strerror(errno));
    h->crew.views = at;
    h->board = dti_views_board(at, n_ranks);
    return DT_OK;
}

static dt_status set_up(dt_runtime *rt, void *arg)
{
    const dti_host *h = arg;

    DT_TRY(dti_modules_add(rt, h->modules, h->start.n_modules));
    return h->setup != NULL ? h->setup(rt, h->setup_arg) : DT_OK;
}

static dt_status begin(dti_host *h, const dti_message *m, int file)
{
    dti_crew *c = &h->crew;
    char name[16];

    DT_TRY(read_start(h, m));
    DT_TRY(map_views(h, file));
    c->max_queued = INT64_MAX; /* the program counts */
    c->max_running = h->start.max_running;
    c->engine = h->start.engine;
    c->run.setup = set_up;
    c->run.setup_arg = h;
    c->run.log = h->start.logs ? log_line : NULL;
    c->run.log_arg = h;
    (void)snprintf(name, sizeof name, "dtensor %d/%d", h->start.process, h->start.n_processes);
    (void)prctl(PR_SET_NAME, name);
    return dti_launch_as_worker(h->start.process, h->start.n_processes, h->start.name);
}

/* --- life ------------------------------------------------------------------------------------- */

/* Errors of ranks were told by them; others are of the whole run. */
static void end(dti_host *h, dt_status st)
{
    dti_crew *c = &h->crew;

    (void)pthread_mutex_lock(&c->lock);
    if (st != DT_OK && c->failing_ns == 0) dti_host_failed(h, h->start.process, dt_last_error());
    for (int i = 0; i < DTI_MAX_RUNNING; i++) dti_ticket_release(&c->running[i]);
    while (c->queue != NULL) {
        dt_ticket *t = c->queue;
        c->queue = t->next;
        dti_ticket_release(&t);
    }
    h->ended = st;
    atomic_store(&h->over, true);
    dti_pipe_wake(h->pipe.wake);
    (void)pthread_mutex_unlock(&c->lock);
}

static void *run_ranks(void *arg)
{
    dti_host *h = arg;

    end(h, dt_run(&h->crew.run, dti_crew_rank_main, &h->crew));
    return NULL;
}

static dt_status start_ranks(dti_host *h)
{
    const int error = pthread_create(&h->ranks, NULL, run_ranks, h);

    h->has_ranks = error == 0;
    DT_CHECK(error == 0, DT_ERR_MEMORY, "a worker's thread could not be started (%s)",
             strerror(error));
    return DT_OK;
}

static void free_host(dti_host *h)
{
    dti_crew *c = &h->crew;

    if (c->views != NULL) (void)munmap(c->views, dti_views_bytes(c->run.n_ranks));
    dti_free(c->defaults_packet.bytes);
    dti_arena_free(&c->defaults_lists.arena);
    (void)close(h->pipe.wake);
    dti_pipe_close(&h->pipe);
    dti_crew_forget_folder(c);
    dti_free(h->modules);
    dti_free(h->said);
    dti_free(h);
}

/* Its standard input is the pipe, and empty from then on. */
static int take_pipe(void)
{
    const int socket = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, LEAST_FD);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (nothing >= 0) {
        (void)dup2(nothing, STDIN_FILENO);
        (void)close(nothing);
    }
    return socket;
}

static int work(dti_host *h)
{
    dti_message m = { 0 };
    int file;
    dt_status st;

    h->crew.refs = 1;
    h->crew.host = h;
    h->crew.far = true;
    (void)pthread_mutex_init(&h->crew.far_lock, NULL);
    (void)pthread_mutex_init(&h->crew.lock, NULL);
    dti_cond_init(&h->crew.changed);
    h->pipe.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->pipe.socket = take_pipe();
    file = receive_start(h->pipe.socket, &m);
    if (file < 0 || dti_alloc((size_t)m.n_bytes, (void **)&h->said) != DT_OK ||
        !receive(h->pipe.socket, h->said, (size_t)m.n_bytes))
        return 1;
    st = begin(h, &m, file);
    if (st == DT_OK) st = start_ranks(h);
    if (st != DT_OK) end(h, st);
    carry(h);
    if (h->has_ranks) (void)pthread_join(h->ranks, NULL);
    return h->ended == DT_OK ? 0 : 1;
}

int dt_service_work(dt_status (*setup)(dt_runtime *rt, void *arg), void *arg)
{
    dti_host *h;
    int ended;

    if (!dti_launch_is_worker()) return -1;
    (void)signal(SIGTTOU, SIG_IGN); /* its terminal is another process group's: it may say things */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* also where it is stopped, and cannot hear the pipe */
    if (dti_new(sizeof *h, &h) != DT_OK) return 1;
    h->setup = setup;
    h->setup_arg = arg;
    ended = work(h);
    free_host(h);
    return ended;
}
