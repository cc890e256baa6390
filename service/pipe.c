/* SPDX-License-Identifier: Apache-2.0 */
#include "service/pipe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { UNIT = 8, CHUNK = 1 << 16, KEPT = 1 << 20, MOST_AT_ONCE = 1 << 22 };

/* --- saying ----------------------------------------------------------------------------------- */

void dti_pipe_wake(int wake)
{
    const uint64_t one = 1;

    (void)!write(wake, &one, sizeof one);
}

void dti_pipe_slept(int wake)
{
    uint64_t n;

    (void)!read(wake, &n, sizeof n);
}

dt_status dti_pipe_say(dti_pipe *p, dti_message_kind kind, int rank, int64_t number,
                       const struct iovec *parts, int n)
{
    const size_t before = p->out.n;
    dti_message m = { (int32_t)kind, rank, number, 0 };
    size_t room = sizeof m + (size_t)n * UNIT;

    for (int i = 0; i < n; i++) m.n_bytes += parts[i].iov_len;
    room += m.n_bytes;
    DT_TRY(dti_grow((void **)&p->out.bytes, &p->out.room, before + room, 1));
    memcpy(p->out.bytes + before, &m, sizeof m);
    p->out.n += sizeof m;
    for (int i = 0; i < n; i++) {
        if (parts[i].iov_len == 0) continue;
        memcpy(p->out.bytes + p->out.n, parts[i].iov_base, parts[i].iov_len);
        p->out.n += parts[i].iov_len;
    }
    while (p->out.n % UNIT != 0) p->out.bytes[p->out.n++] = 0;
    dti_pipe_wake(p->wake);
    return DT_OK;
}

dt_error dti_pipe_record(const dt_error *e)
{
    dt_error record = *e;

    memset(record.frames, 0, sizeof record.frames);
    record.n_frames = 0;
    return record;
}

void dti_pipe_read_record(const dti_message *m, const char *bytes, dt_error *out)
{
    *out = (dt_error){ .code = DT_ERR_INTERNAL, .rank = -1 };
    if (m->n_bytes < sizeof *out) {
        (void)snprintf(out->message, sizeof out->message, "a worker's error has %llu bytes",
                       (unsigned long long)m->n_bytes);
        return;
    }
    memcpy(out, bytes, sizeof *out);
    out->n_frames = 0;
    out->where[sizeof out->where - 1] = out->message[sizeof out->message - 1] = '\0';
    if (out->code != DT_OK)
        out->frames[out->n_frames++] = (dt_error_frame){ "a worker process", "there", 0 };
}

/* --- carrying --------------------------------------------------------------------------------- */

/* What was laid down is taken as a whole; its memory changes places with what has left. */
static void take_out(dti_pipe *p, pthread_mutex_t *lock)
{
    const dti_packet gone = p->leaving;

    (void)pthread_mutex_lock(lock);
    p->leaving = p->out;
    p->out = gone;
    p->out.n = 0;
    (void)pthread_mutex_unlock(lock);
    p->n_left = 0;
}

static void shrink(dti_packet *p)
{
    p->n = 0;
    if (p->room <= KEPT) return;
    dti_free(p->bytes);
    *p = (dti_packet){ 0 };
}

bool dti_pipe_carry(dti_pipe *p, pthread_mutex_t *lock)
{
    if (p->socket < 0) return false;
    for (;;) {
        ssize_t n;
        if (p->n_left == p->leaving.n) {
            shrink(&p->leaving);
            take_out(p, lock);
            if (p->leaving.n == 0) return false;
        }
        n = send(p->socket, p->leaving.bytes + p->n_left, p->leaving.n - p->n_left,
                 MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
        if (n < 0) {
            p->n_left = p->leaving.n; /* nobody is there: who reads will see that */
            return false;
        }
        p->n_left += (size_t)n;
    }
}

bool dti_pipe_read(dti_pipe *p)
{
    const uint64_t before = p->n_read;

    while (p->socket >= 0) {
        ssize_t n;
        if (p->n_read - before > MOST_AT_ONCE) return true;
        if (dti_grow((void **)&p->in.bytes, &p->in.room, p->in.n + CHUNK, 1) != DT_OK) return false;
        n = recv(p->socket, p->in.bytes + p->in.n, p->in.room - p->in.n, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        if (n == 0) return false;
        p->in.n += (size_t)n;
        p->n_read += (uint64_t)n;
    }
    return false;
}

bool dti_pipe_next(dti_pipe *p, dti_message *m, const char **bytes)
{
    const size_t rest = p->in.n - p->n_taken;
    size_t whole;

    if (rest >= sizeof *m) {
        memcpy(m, p->in.bytes + p->n_taken, sizeof *m);
        whole = (size_t)((m->n_bytes + UNIT - 1) / UNIT * UNIT);
        if (whole >= m->n_bytes && whole <= rest - sizeof *m) {
            *bytes = p->in.bytes + p->n_taken + sizeof *m;
            p->n_taken += sizeof *m + whole;
            return true;
        }
    }
    if (rest > 0) memmove(p->in.bytes, p->in.bytes + p->n_taken, rest);
    p->in.n = rest;
    p->n_taken = 0;
    if (rest == 0) shrink(&p->in);
    return false;
}

void dti_pipe_close(dti_pipe *p)
{
    if (p->socket >= 0) (void)close(p->socket);
    p->socket = -1;
    dti_free(p->out.bytes);
    dti_free(p->leaving.bytes);
    dti_free(p->in.bytes);
    p->out = p->leaving = p->in = (dti_packet){ 0 };
    p->n_left = p->n_taken = 0;
}
