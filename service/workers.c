/* SPDX-License-Identifier: Apache-2.0
 *
 * Worker processes from their start to their end. A worker is a program of its own (worker.c), not
 * a fork of this one: what the caller's threads, locks, devices and descriptors are at is no part
 * of it. Nothing of the caller's process changes: no signal, no handler, no variable. */
#define _GNU_SOURCE /* memfd_create, addclosefrom_np */
#include "service/workers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/numbers.h"
#include "mesh/launch.h"

/* In nanoseconds: how long a word of the culprit may take after that of its victims; how long ranks
 * that show no sign of life have for an orderly end. In milliseconds, when all is looked at again.
 */
enum { HEARSAY_NS = 200000000, PATIENCE_NS = 2000000000, TICK_MS = 100, LEAST_FD = 3 };

/* --- what is shared --------------------------------------------------------------------------- */

void dti_workers_version(char version[64])
{
    (void)snprintf(version, 64, "%s %zu %zu %zu %zu %zu", dt_version(), sizeof(dt_run_options),
                   sizeof(dt_parallelize_options), sizeof(dt_generate_options), sizeof(dt_error),
                   sizeof(dti_view) + sizeof(dti_board) + sizeof(dti_start) + sizeof(dti_asked));
}

size_t dti_views_bytes(int n_ranks)
{
    return (size_t)n_ranks * sizeof(dti_view) + sizeof(dti_board);
}

dti_board *dti_views_board(dti_view *views, int n_ranks)
{
    return (dti_board *)(void *)(views + n_ranks);
}

static dt_status make_memory(dti_workers *w, dti_crew *c)
{
    void *at = MAP_FAILED;

    w->n_bytes = dti_views_bytes(c->run.n_ranks);
    w->memory = memfd_create("dtensor views", MFD_CLOEXEC);
    if (w->memory >= 0 && ftruncate(w->memory, (off_t)w->n_bytes) == 0)
        at = mmap(NULL, w->n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, w->memory, 0);
    DT_CHECK(at != MAP_FAILED, DT_ERR_MEMORY, "memory that workers share: %s", strerror(errno));
    c->views = at;
    w->board = dti_views_board(c->views, c->run.n_ranks);
    return DT_OK;
}

static dt_status find_program(dti_workers *w, const dt_service_options *o)
{
    dti_launch launch;

    if (o->worker != NULL) {
        const int n = snprintf(w->program, sizeof w->program, "%s", o->worker);
        DT_CHECK(n > 0 && n < (int)sizeof w->program, DT_ERR_ARG, "worker is a path of %d bytes",
                 n);
        return DT_OK;
    }
    DT_TRY(dti_launch_read(&launch));
    DT_CHECK(dti_module_locate_program(launch.folder, "worker", w->program), DT_ERR_IO,
             "the program of workers, dtensor_worker, is not there: it lies beside the modules of "
             "an installation (DTENSOR_MODULES names their folder); or let the program be its own "
             "(dt_service_options.worker, dt_service_work())");
    return DT_OK;
}

static dt_status make(dti_workers *w, dti_crew *c, const dt_service_options *o)
{
    const int each = c->run.n_ranks / w->n, more = c->run.n_ranks % w->n;

    for (int i = 0; i < w->n; i++) {
        w->each[i] = (dti_worker){ .pipe = { .socket = -1 },
                                   .first_rank = i * each + (i < more ? i : more),
                                   .n_ranks = each + (i < more ? 1 : 0),
                                   .life = -1 };
    }
    DT_TRY(find_program(w, o));
    DT_TRY(make_memory(w, c));
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    DT_CHECK(w->wake >= 0, DT_ERR_MEMORY, "eventfd: %s", strerror(errno));
    for (int i = 0; i < w->n; i++) w->each[i].pipe.wake = w->wake;
    return DT_OK;
}

dt_status dti_workers_create(dti_crew *c, const dt_service_options *o)
{
    dti_workers *w;
    dt_status st;

    DT_TRY(dti_new(sizeof *w + (size_t)o->processes * sizeof w->each[0], &w));
    w->crew = c;
    w->n = o->processes;
    w->modules = o->modules;
    w->n_modules = o->n_modules;
    w->wake = w->memory = -1;
    st = make(w, c, o);
    c->workers = w;
    return st;
}

void dti_workers_free(dti_workers *w)
{
    if (w == NULL) return;
    for (int i = 0; i < w->n; i++) {
        dti_pipe_close(&w->each[i].pipe);
        if (w->each[i].life >= 0) (void)close(w->each[i].life);
    }
    if (w->crew->views != NULL) (void)munmap(w->crew->views, w->n_bytes);
    if (w->memory >= 0) (void)close(w->memory);
    if (w->wake >= 0) (void)close(w->wake);
    w->crew->views = NULL;
    dti_free(w);
}

/* --- start ------------------------------------------------------------------------------------ */

/* Connected ends. A program that has closed its standard descriptors gets none of these numbers. */
static dt_status make_ends(int ends[2])
{
    DT_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, DT_ERR_MEMORY,
             "a pipe to a worker: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        const int high = ends[i] >= LEAST_FD ? ends[i] : fcntl(ends[i], F_DUPFD_CLOEXEC, LEAST_FD);
        if (high != ends[i]) (void)close(ends[i]);
        ends[i] = high;
    }
    if (ends[0] >= 0 && ends[1] >= 0) return DT_OK;
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0) (void)close(ends[i]);
    DT_FAIL(DT_ERR_MEMORY, "a pipe to a worker: %s", strerror(errno));
}

/* Its end of the pipe is its standard input; of the caller's descriptors it has output alone. A
 * process group of its own, so that keys typed at a terminal are the program's; signals as a new
 * program has them. */
static int spawn(const char *program, int end, char *const *environment, pid_t *pid)
{
    char *arguments[] = { (char *)(uintptr_t)program, NULL };
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t all, none;
    int error;

    (void)sigfillset(&all);
    (void)sigemptyset(&none);
    (void)posix_spawn_file_actions_init(&files);
    (void)posix_spawnattr_init(&how);
    error = posix_spawn_file_actions_adddup2(&files, end, 0);
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
    if (error == 0) error = posix_spawn_file_actions_addclosefrom_np(&files, LEAST_FD);
#endif
    (void)posix_spawnattr_setsigdefault(&how, &all);
    (void)posix_spawnattr_setsigmask(&how, &none);
    (void)posix_spawnattr_setpgroup(&how, 0);
    (void)posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK |
                                             POSIX_SPAWN_SETPGROUP);
    if (error == 0) error = posix_spawn(pid, program, &files, &how, arguments, environment);
    (void)posix_spawnattr_destroy(&how);
    (void)posix_spawn_file_actions_destroy(&files);
    return error;
}

static dt_status start_one(dti_workers *w, int i, char *const *environment)
{
    dti_worker *x = &w->each[i];
    int ends[2], error;

    DT_TRY(make_ends(ends));
    error = spawn(w->program, ends[1], environment, &x->pid);
    (void)close(ends[1]);
    x->pipe.socket = ends[0];
    if (error != 0) x->pid = 0;
    DT_CHECK(error == 0, error == ENOMEM || error == EAGAIN ? DT_ERR_MEMORY : DT_ERR_IO,
             "rank %d: its worker %s could not be started (%s)", x->first_rank, w->program,
             strerror(error));
#ifdef SYS_pidfd_open
    x->life = (int)syscall(SYS_pidfd_open, x->pid, 0);
#endif
    return DT_OK;
}

/* The memory of the views travels with the first message, and is the other's own from then on. */
static dt_status send_start(const dti_workers *w, int i, const dti_packet *p)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control = { .bytes = { 0 } };
    dti_message m = { .kind = DTI_SAYS_START, .n_bytes = p->n };
    struct iovec parts[2] = { { &m, sizeof m }, { p->bytes, p->n } };
    struct msghdr h = { .msg_iov = parts,
                        .msg_iovlen = 2,
                        .msg_control = control.bytes,
                        .msg_controllen = sizeof control.bytes };
    struct cmsghdr *c = CMSG_FIRSTHDR(&h);
    ssize_t n;

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &w->memory, sizeof(int));
    n = sendmsg(w->each[i].pipe.socket, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) return DT_OK; /* how it ended is seen */
    DT_CHECK(n == (ssize_t)(sizeof m + p->n), DT_ERR_COMM,
             "rank %d: its worker does not hear: %zd of %zu bytes", w->each[i].first_rank, n,
             sizeof m + p->n);
    return DT_OK;
}

/* A name that nobody can guess, so nobody can be there before. */
static dt_status make_name(char name[40])
{
    unsigned char random[16];

    DT_CHECK(getrandom(random, sizeof random, 0) == (ssize_t)sizeof random, DT_ERR_INTERNAL,
             "getrandom: %s", strerror(errno));
    for (size_t i = 0; i < sizeof random; i++) (void)snprintf(name + 2 * i, 3, "%02x", random[i]);
    return DT_OK;
}

static dt_status put_start(const dti_workers *w, const dti_start *s, dti_packet *p)
{
    DT_TRY(dti_packet_put(p, s, sizeof *s));
    DT_TRY(dti_packet_put_run(p, &w->crew->run));
    for (int i = 0; i < w->n_modules; i++) DT_TRY(dti_packet_put_text(p, w->modules[i]));
    return DT_OK;
}

static dt_status start_all(dti_workers *w, char *const *environment)
{
    dti_start s = { .n_processes = w->n,
                    .max_running = w->crew->max_running,
                    .n_modules = w->n_modules,
                    .logs = w->crew->run.log != NULL,
                    .engine = w->crew->engine };

    s.engine.log = NULL;
    s.engine.log_arg = NULL;
    dti_workers_version(s.version);
    DT_TRY(make_name(s.name));
    for (int i = 0; i < w->n; i++) {
        dti_packet p = { 0 };
        dt_status st;
        s.process = i;
        st = put_start(w, &s, &p);
        if (st == DT_OK) st = start_one(w, i, environment);
        if (st == DT_OK) st = send_start(w, i, &p);
        dti_free(p.bytes);
        DT_TRY(st);
    }
    return DT_OK;
}

static dt_status start(dti_workers *w)
{
    char **environment;
    dt_status st;

    DT_TRY(dti_launch_worker_environment(&environment));
    st = start_all(w, environment);
    dti_free(environment);
    if (w->memory >= 0) (void)close(w->memory);
    w->memory = -1;
    DT_TRY(st);
    return DT_OK;
}

/* --- messages --------------------------------------------------------------------------------- */

dt_status dti_workers_ask(dti_workers *w, const dt_ticket *t)
{
    dti_asked a = {
        t->kind, t->priority, t->deadline_ns, t->n_prompt, t->tells_tokens, t->by_turns
    };
    const struct iovec parts[] = { { &a, sizeof a }, { t->packet.bytes, t->packet.n } };

    return dti_pipe_say(&w->each[0].pipe, DTI_SAYS_ASK, 0, t->number, parts, 2);
}

void dti_workers_cancel(dti_workers *w, const dt_ticket *t)
{
    (void)!dti_pipe_say(&w->each[0].pipe, DTI_SAYS_CANCEL, 0, t->number, NULL, 0);
}

static void take_in(dti_workers *w, int i)
{
    dti_worker *x = &w->each[i];
    const char *bytes;
    dti_message m;

    if (!dti_pipe_read(&x->pipe)) x->lost = true;
    while (dti_pipe_next(&x->pipe, &m, &bytes)) dti_workers_hear(w, i, &m, bytes);
}

/* --- ends ------------------------------------------------------------------------------------- */

/* A number may be another process's once somebody else has waited for ours. */
static void kill_one(const dti_worker *x)
{
    if (x->pid == 0) return;
#ifdef SYS_pidfd_send_signal
    if (x->life >= 0) {
        (void)syscall(SYS_pidfd_send_signal, x->life, SIGKILL, NULL, 0);
        return;
    }
#endif
    (void)kill(x->pid, SIGKILL);
}

static void kill_all(dti_workers *w)
{
    w->killed = true;
    for (int i = 0; i < w->n; i++) kill_one(&w->each[i]);
}

/* The state of a process as the system shows it; 0: it does not. */
static char state_of(pid_t pid)
{
    char path[40], text[512], *after;
    size_t n = 0;
    FILE *f;

    (void)snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    f = fopen(path, "re");
    if (f == NULL) return 0;
    n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[n] = '\0';
    after = strrchr(text, ')');
    return after != NULL && after[1] == ' ' ? after[2] : 0;
}

int dti_workers_find_stopped(const dti_workers *w, dt_error *why)
{
    for (int i = 0; i < w->n; i++) {
        const dti_worker *x = &w->each[i];
        const char state = x->pid != 0 && !x->failed ? state_of(x->pid) : 0;
        if (state != 'T' && state != 't') continue;
        *why = (dt_error){ .code = DT_ERR_COMM, .rank = x->first_rank };
        (void)snprintf(why->message, sizeof why->message, "its process %lld is stopped (%s)",
                       (long long)x->pid, state == 'T' ? "SIGSTOP or SIGTSTP" : "by a debugger");
        return x->first_rank;
    }
    return -1;
}

/* Under the lock. Messages name the rank where no model does. */
static void fail(dti_workers *w, int rank, dt_error *why)
{
    dti_crew *c = w->crew;
    char said[DT_ERROR_MESSAGE_BYTES];

    if (c->dir == NULL && rank >= 0) {
        (void)snprintf(said, sizeof said, "%s", why->message);
        (void)snprintf(why->message, sizeof why->message, "rank %d: %.600s%s", rank, said,
                       atomic_load(&c->views[rank].ready) ? "" : " before it was ready");
    }
    dti_crew_fail(c, rank, why);
}

static const char *signal_words(int number)
{
    static const struct {
        int number;
        const char *words;
    } known[] = {
        { SIGKILL, " (SIGKILL), as the system does when memory is short" },
        { SIGSEGV, " (SIGSEGV)" },
        { SIGBUS, " (SIGBUS)" },
        { SIGABRT, " (SIGABRT)" },
        { SIGILL, " (SIGILL)" },
        { SIGFPE, " (SIGFPE)" },
        { SIGTERM, " (SIGTERM)" },
    };

    for (size_t i = 0; i < DT_COUNT(known); i++)
        if (known[i].number == number) return known[i].words;
    return "";
}

static void say_end(const dti_worker *x, int status, bool is_known, char *text, size_t n)
{
    size_t used = (size_t)snprintf(text, n, "its process %lld ", (long long)x->pid);

    if (x->n_ranks > 1)
        used += (size_t)snprintf(text + used, n - used, "(ranks %d to %d) ", x->first_rank,
                                 x->first_rank + x->n_ranks - 1);
    if (is_known && WIFSIGNALED(status))
        (void)snprintf(text + used, n - used, "was killed by signal %d%s", WTERMSIG(status),
                       signal_words(WTERMSIG(status)));
    else if (is_known && WIFEXITED(status))
        (void)snprintf(text + used, n - used, "ended with status %d", WEXITSTATUS(status));
    else
        (void)snprintf(text + used, n - used, "has ended");
}

/* Whether the process is gone; it is nobody's zombie then. */
static void reap(dti_workers *w, int i)
{
    dti_worker *x = &w->each[i];
    dt_error why = { .code = DT_ERR_COMM, .rank = x->first_rank };
    uint64_t n_read;
    bool expected;
    int status = 0;
    pid_t got;

    if (x->pid == 0) return;
    got = waitpid(x->pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) return;
    do { /* its last words */
        n_read = x->pipe.n_read;
        take_in(w, i);
    } while (x->pipe.n_read > n_read && !x->lost);
    x->lost = true;
    (void)pthread_mutex_lock(&w->crew->lock);
    expected = w->killed || x->failed || (atomic_load(&w->crew->quits) && w->told_quit);
    say_end(x, status, got > 0, why.message, sizeof why.message);
    if (!expected) fail(w, x->first_rank, &why);
    x->pid = 0;
    (void)pthread_mutex_unlock(&w->crew->lock);
}

/* --- the thread ------------------------------------------------------------------------------- */

/* Under the lock: what has to be done now. */
static void decide(dti_workers *w)
{
    dti_crew *c = w->crew;
    const int64_t now = dti_now_ns();
    int64_t beat = w->quit_ns;
    dt_error why;
    int rank;

    if (w->hearsay_ns != 0 && c->failing_ns == 0 && now - w->hearsay_ns > HEARSAY_NS) {
        rank = dti_workers_find_stopped(w, &why);
        fail(w, rank >= 0 ? rank : w->hearsay_rank, rank >= 0 ? &why : &w->hearsay);
    }
    if (atomic_load(&c->quits) && !w->told_quit) {
        w->told_quit = true;
        w->quit_ns = beat = now;
        (void)!dti_pipe_say(&w->each[0].pipe, DTI_SAYS_QUIT, 0, 0, NULL, 0); /* killed later */
    }
    for (int r = 0; r < c->run.n_ranks; r++)
        beat = dti_max(beat, atomic_load(&c->views[r].beat_ns));
    if (!w->killed && (c->failing_ns != 0 ||
                       (w->told_quit && (c->n_ready < c->run.n_ranks || now - beat > PATIENCE_NS))))
        kill_all(w);
}

static int count_alive(const dti_workers *w)
{
    int n = 0;

    for (int i = 0; i < w->n; i++) n += w->each[i].pid != 0;
    return n;
}

/* Sleeps until something has come, can be sent, or has ended. */
static void sleep_a_while(dti_workers *w, struct pollfd *polls)
{
    nfds_t n = 0;
    bool blind = false, ticks; /* an end that nothing tells; something has its time */

    polls[n++] = (struct pollfd){ .fd = w->wake, .events = POLLIN };
    for (int i = 0; i < w->n; i++) {
        dti_worker *x = &w->each[i];
        const bool more = dti_pipe_carry(&x->pipe, &w->crew->lock);
        blind = blind || (x->pid != 0 && x->lost && x->life < 0);
        if (!x->lost)
            polls[n++] = (struct pollfd){ .fd = x->pipe.socket,
                                          .events = (short)(POLLIN | (more ? POLLOUT : 0)) };
        if (x->pid != 0 && x->life >= 0)
            polls[n++] = (struct pollfd){ .fd = x->life, .events = POLLIN };
    }
    ticks = w->told_quit || w->killed || w->hearsay_ns != 0;
    (void)poll(polls, n, blind ? 1 : ticks ? TICK_MS : -1);
    dti_pipe_slept(w->wake);
}

dt_status dti_workers_run(dti_crew *c)
{
    dti_workers *w = c->workers;
    struct pollfd *polls;
    dt_error record;
    dt_status st;

    DT_TRY(dti_alloc_array(2 * (size_t)w->n + 1, sizeof *polls, (void **)&polls));
    st = start(w);
    if (st != DT_OK) {
        record = *dt_last_error();
        kill_all(w);
    }
    while (count_alive(w) > 0) {
        (void)pthread_mutex_lock(&c->lock);
        decide(w);
        (void)pthread_mutex_unlock(&c->lock);
        sleep_a_while(w, polls);
        for (int i = 0; i < w->n; i++) take_in(w, i);
        for (int i = 0; i < w->n; i++) reap(w, i);
    }
    dti_free(polls);
    (void)pthread_mutex_lock(&c->lock);
    if (w->hearsay_ns != 0 && c->failing_ns == 0) fail(w, w->hearsay_rank, &w->hearsay);
    for (int r = 0; r < c->run.n_ranks; r++) { /* nobody holds anything any more */
        for (int k = 0; k < DTI_N_MEMORY; k++) atomic_store(&c->views[r].memory[k], 0);
        c->views[r].cut_bytes = c->views[r].whole_bytes = 0;
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (st != DT_OK) dti_error_restore(&record);
    return st;
}
