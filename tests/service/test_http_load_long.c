/* SPDX-License-Identifier: Apache-2.0
 *
 * Many clients of all kinds at once: who reads to the end, slowly, who leaves in the middle, who
 * closes a side. Whoever stays is answered whole and told of the end once, nothing runs on, memory
 * stays as it was. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/sync.h"
#include "tests/support/http.h"
#include "tests/support/served.h"

/* After a first round, from which on memory stays, 10,000 requests by 500 connections at a time. */
enum { N_CLIENTS = 500, N_ROUNDS = 3, PER_ROUND = 10, ANSWER_BYTES = 1 << 15 };

typedef struct client {
    const http_server *h;
    int number, round;
    char wrong[256], answer[ANSWER_BYTES];
} client;

static void rest(int ms)
{
    const struct timespec pause = { ms / 1000, ms % 1000 * 1000000L };

    (void)nanosleep(&pause, NULL);
}

static int ask(const client *c, bool stream, uint32_t seed)
{
    char body[256], text[512];
    const int fd = http_connect(c->h->port);
    const int n =
        snprintf(body, sizeof body,
                 "{\"prompt\":[%u,5,9],\"max_tokens\":%u,\"ignore_eos\":true,\"stream\":%s}",
                 seed % 1000, 1 + seed % 24, stream ? "true" : "false");

    http_send(fd, text,
              (size_t)snprintf(text, sizeof text,
                               "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: "
                               "close\r\nContent-Length: %d\r\n\r\n%s",
                               n, body));
    return fd;
}

static int count(const char *text, const char *word)
{
    int n = 0;

    for (; (text = strstr(text, word)) != NULL; text++) n++;
    return n;
}

/* Reads to the end, some bytes at a time; whether it was whole, and ended once. */
static bool read_slowly(client *c, int fd, int ms, bool stream)
{
    size_t n = 0;
    ssize_t got;

    while (n < sizeof c->answer - 1 &&
           (got = recv(fd, c->answer + n, ms > 0 ? 64 : sizeof c->answer - 1 - n, 0)) > 0) {
        n += (size_t)got;
        if (ms > 0) rest(ms);
    }
    c->answer[n] = '\0';
    return count(c->answer, "\"finish_reason\":\"") == 1 &&
           count(c->answer, "data: [DONE]\n\n") == (stream ? 1 : 0);
}

static void *behave(void *arg)
{
    client *c = arg;
    uint32_t x = (uint32_t)(c->number * 7919 + c->round * 104729 + 1);

    for (int i = 0; i < PER_ROUND && c->wrong[0] == '\0'; i++) {
        const bool stream = (x >> 9) % 2 == 0;
        const int kind = (int)((x >> 12) % 6), fd = ask(c, stream, x >> 8);
        bool whole = true;
        x = x * 1664525u + 1013904223u;
        if (kind < 3)
            whole = read_slowly(c, fd, kind == 0 ? 1 : 0, stream);
        else if (kind == 3)
            rest((int)(x >> 20) % 20);
        else if (kind == 4)
            (void)shutdown(fd, SHUT_WR);
        if (!whole)
            (void)snprintf(c->wrong, sizeof c->wrong, "client %d, request %d was not whole: %.100s",
                           c->number, i, c->answer);
        (void)close(fd);
    }
    return NULL;
}

static void round_of(http_server *h, int round)
{
    static client clients[N_CLIENTS];
    pthread_t threads[N_CLIENTS];
    const int64_t until = dti_now_ns() + (int64_t)60000000000;
    dt_service_counts counts;

    for (int i = 0; i < N_CLIENTS; i++) {
        clients[i].h = h;
        clients[i].number = i;
        clients[i].round = round;
        DT_ASSERT(pthread_create(&threads[i], NULL, behave, &clients[i]) == 0);
    }
    for (int i = 0; i < N_CLIENTS; i++) {
        (void)pthread_join(threads[i], NULL);
        if (clients[i].wrong[0] != '\0') dt_test_fail(__FILE__, __LINE__, "%s", clients[i].wrong);
    }
    do {
        DT_ASSERT_OK(dt_service_count(h->model, &counts));
        rest(10);
    } while ((counts.running > 0 || counts.queued > 0) && dti_now_ns() < until);
    DT_ASSERT_EQ_INT(counts.running, 0);
    DT_ASSERT_EQ_INT(counts.queued, 0);
    DT_ASSERT_EQ_INT(counts.failures, 0);
}

/* Both ends of all connections are this process's. */
static void allow_descriptors(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) != 0) return;
    r.rlim_cur = r.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &r);
}

DT_TEST(http_load, clients_of_all_kinds_leave_nothing_behind)
{
    static http_server h;
    dt_server_options o = http_options(&h);
    int64_t before;

    if (!dt_server_is_built()) dt_test_skip("this build has no HTTP server");
    allow_descriptors();
    o.max_connections = 2 * N_CLIENTS;
    o.max_requests = 2 * N_CLIENTS;
    http_start(&h, &o, 8);
    round_of(&h, 0);
    rest(500);
    before = served_heap_bytes();
    for (int round = 1; round < N_ROUNDS; round++) round_of(&h, round);
    rest(500);
    if (served_heap_bytes() - before > 1 << 20)
        dt_test_fail(__FILE__, __LINE__, "%lld bytes more",
                     (long long)(served_heap_bytes() - before));
    http_stop(&h);
}
