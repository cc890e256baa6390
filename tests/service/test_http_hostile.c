/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that mean harm, or that a broken client sends: each is refused with a bounded error or
 * closed, nothing of what lies behind it is read as a request, and the server goes on. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/sync.h"
#include "tests/support/http.h"

static void needs_server(void)
{
    if (!dt_server_is_built()) dt_test_skip("this build has no HTTP server");
}

#define HOST   "Host: localhost\r\n"
#define POST   "POST /v1/completions HTTP/1.1\r\n" HOST
#define BEHIND "GET /v1/models HTTP/1.1\r\n" HOST "\r\n"
#define BODY   "{\"prompt\":\"a\",\"max_tokens\":1}" /* 29 bytes */

/* --- heads ------------------------------------------------------------------------------------ */

/* Refused (a status of 400 and above), or closed without a word; closed behind it in any case. */
static const struct {
    const char *name, *bytes;
} heads[] = {
    { "two lengths that agree",
      POST "Content-Length: 29\r\nContent-Length: 29\r\n\r\n" BODY BEHIND },
    { "two lengths that differ",
      POST "Content-Length: 29\r\nContent-Length: 5\r\n\r\n" BODY BEHIND },
    { "a length and chunks",
      POST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" BEHIND },
    { "chunks and a length",
      POST "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" BEHIND },
    { "a signed length", POST "Content-Length: +29\r\n\r\n" BODY BEHIND },
    { "a negative length", POST "Content-Length: -1\r\n\r\n" BODY BEHIND },
    { "a length in hex", POST "Content-Length: 0x1d\r\n\r\n" BODY BEHIND },
    { "two numbers as a length", POST "Content-Length: 2 9\r\n\r\n" BODY BEHIND },
    { "a list of lengths", POST "Content-Length: 29, 29\r\n\r\n" BODY BEHIND },
    { "an empty length", POST "Content-Length:\r\n\r\n" BODY BEHIND },
    { "a length of 10^20", POST "Content-Length: 100000000000000000000\r\n\r\n" BODY },
    { "a length of 2^63", POST "Content-Length: 9223372036854775808\r\n\r\n" BODY },
    { "a length above the limit", POST "Content-Length: 9000000\r\n\r\n" BODY },
    { "an encoding nobody knows", POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" BEHIND },
    { "two encodings in one", POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" BEHIND },
    { "gzip and chunks", POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" BEHIND },
    { "two encodings",
      POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" BEHIND },
    { "an encoding of the old kind",
      POST "Transfer-Encoding: identity\r\nContent-Length: 29\r\n\r\n" BODY BEHIND },
    { "a chunk in hex with 0x",
      POST "Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n" BEHIND },
    { "a chunk too large to count",
      POST "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n" BEHIND },
    { "a negative chunk", POST "Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n" BEHIND },
    { "no length at all", POST "\r\n" BODY BEHIND },
    { "no Host", "GET /health HTTP/1.1\r\n\r\n" BEHIND },
    { "two Hosts", "GET /health HTTP/1.1\r\n" HOST HOST "\r\n" BEHIND },
    { "a foreign Host", "GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n" BEHIND },
    { "a Host that is a user",
      "GET /health HTTP/1.1\r\nHost: localhost@evil.example\r\n\r\n" BEHIND },
    { "a Host that begins well",
      "GET /health HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n" BEHIND },
    { "an empty Host", "GET /health HTTP/1.1\r\nHost:\r\n\r\n" BEHIND },
    { "a Host of two ports", "GET /health HTTP/1.1\r\nHost: localhost:1:2\r\n\r\n" BEHIND },
    { "a foreign page",
      POST "Origin: http://evil.example\r\nContent-Length: 29\r\n\r\n" BODY BEHIND },
    { "a page of no origin", POST "Origin: null\r\nContent-Length: 29\r\n\r\n" BODY BEHIND },
    { "a body where none is",
      "GET /health HTTP/1.1\r\n" HOST "Content-Length: 29\r\n\r\n" BODY BEHIND },
    { "a preflight",
      "OPTIONS /v1/completions HTTP/1.1\r\n" HOST "Origin: http://evil.example\r\n\r\n" BEHIND },
    { "TRACE", "TRACE / HTTP/1.1\r\n" HOST "\r\n" BEHIND },
    { "CONNECT", "CONNECT localhost:22 HTTP/1.1\r\n" HOST "\r\n" BEHIND },
    { "a method of its own", "FROB /health HTTP/1.1\r\n" HOST "\r\n" BEHIND },
    { "a path upwards", "GET /../../etc/passwd HTTP/1.1\r\n" HOST "\r\n" BEHIND },
    { "a path with a zero", "GET /health%00.html HTTP/1.1\r\n" HOST "\r\n" BEHIND },
    { "another path behind it", "GET //health HTTP/1.1\r\n" HOST "\r\n" BEHIND },
    { "two keys",
      "GET /v1/models HTTP/1.1\r\n" HOST "X-Api-Key: a\r\nAuthorization: Bearer a\r\n\r\n" BEHIND },
};

static void goes_on(http_server *h, const char *after)
{
    http_answer a = http_post(h->port, "/v1/completions", BODY, "");

    if (a.status != 200)
        dt_test_fail(__FILE__, __LINE__, "after %s: status %d: %.300s", after, a.status, a.body);
}

DT_TEST(http_hostile, heads_that_may_be_read_in_two_ways_are_refused)
{
    static http_server h;

    needs_server();
    DT_ASSERT_EQ_INT(sizeof BODY - 1, 29);
    http_start(&h, NULL, 2);
    for (size_t i = 0; i < DT_COUNT(heads); i++) {
        const http_answer a = http_raw(h.port, heads[i].bytes, strlen(heads[i].bytes));
        if ((a.status != 0 && a.status < 400) || !a.closed || strlen(a.body) > 1024)
            dt_test_fail(__FILE__, __LINE__, "%s: status %d, %s: %.300s", heads[i].name, a.status,
                         a.closed ? "closed" : "open", a.body);
    }
    goes_on(&h, "all heads");
    http_stop(&h);
}

/* Bytes that are no text of C. */
static void expect_refused(http_server *h, const char *name, const char *bytes, size_t n)
{
    const http_answer a = http_raw(h->port, bytes, n);

    if (a.status != 0 && a.status < 400)
        dt_test_fail(__FILE__, __LINE__, "%s: status %d: %.300s", name, a.status, a.body);
    goes_on(h, name);
}

/* "begin", then `times` times `piece`, then "end". */
static char *repeat(const char *begin, const char *piece, size_t times, const char *end)
{
    const size_t n = strlen(begin), k = strlen(piece);
    char *text = malloc(n + k * times + strlen(end) + 1), *at = text;

    if (text == NULL) dt_test_fail(__FILE__, __LINE__, "no memory");
    memcpy(at, begin, n);
    at += n;
    for (size_t i = 0; i < times; i++, at += k) memcpy(at, piece, k);
    (void)strcpy(at, end);
    return text;
}

DT_TEST(http_hostile, heads_that_are_too_large_or_no_heads_are_refused)
{
    static const char tls[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and so on\r\n\r\n";
    static const char zero[] =
        "GET /health HTTP/1.1\r\n" HOST "A: b\0c\r\nContent-Length: 3\r\n\r\n";
    static http_server h;
    char *text;

    needs_server();
    http_start(&h, NULL, 2);
    expect_refused(&h, "TLS", tls, sizeof tls - 1);
    expect_refused(&h, "a zero", zero, sizeof zero - 1);
    expect_refused(&h, "no request", "\x80\xff\x00\x01\r\n\r\n", 8);
    expect_refused(&h, "a lone line", "GET\r\n\r\n", 7);
    text = repeat("GET /", "a", 40000, " HTTP/1.1\r\n" HOST "\r\n");
    expect_refused(&h, "a path of 40 KB", text, strlen(text));
    free(text);
    text = repeat("GET /health HTTP/1.1\r\n" HOST "A: ", "a", 40000, "\r\n\r\n");
    expect_refused(&h, "a header of 40 KB", text, strlen(text));
    free(text);
    text = repeat("GET /health HTTP/1.1\r\n" HOST, "A: b\r\n", 4000, "\r\n");
    expect_refused(&h, "4000 headers", text, strlen(text));
    free(text);
    text = repeat(POST "Transfer-Encoding: chunked\r\n\r\n",
                  "400\r\n{\"a\":                          "
                  "                              \r\n",
                  200000, "0\r\n\r\n");
    expect_refused(&h, "chunks without end", text, strlen(text));
    free(text);
    http_stop(&h);
}

/* --- bodies ----------------------------------------------------------------------------------- */

#define P "{\"prompt\":\"a\","
#define M "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"

/* Of completions, where they begin with a prompt or with nothing that is JSON; of chat else. */
static const char *const bodies[] = {
    "",
    " ",
    "null",
    "5",
    "\"a\"",
    "[]",
    "{",
    "{\"prompt\":\"a\"",
    "{\"prompt\":\"a\"} {}",
    "{\"prompt\":\"a\",\"prompt\":\"b\"}",
    "{\"prompt\":\"\\u0000\"}",
    "{\"prompt\":\"\\ud800\"}",
    "{\"prompt\":\"\xff\xfe\"}",
    "{\"prompt\":\"a\",\"\xc3\":1}",
    "{'prompt':'a'}",
    P "\"n\":9223372036854775808}",
    P "\"n\":4611686018427387904}",
    P "\"n\":-1}",
    P "\"n\":1.5}",
    P "\"n\":\"2\"}",
    P "\"n\":129}",
    P "\"n\":true}",
    P "\"max_tokens\":0}",
    P "\"max_tokens\":-1}",
    P "\"max_tokens\":1e400}",
    P "\"max_tokens\":9e18}",
    P "\"min_tokens\":-3}",
    P "\"temperature\":NaN}",
    P "\"temperature\":-0.1}",
    P "\"temperature\":\"hot\"}",
    P "\"temperature\":1e-300}",
    P "\"top_p\":0}",
    P "\"top_p\":1.0001}",
    P "\"top_k\":-2}",
    P "\"top_k\":1e10}",
    P "\"min_p\":2}",
    P "\"typical_p\":0}",
    P "\"repetition_penalty\":0}",
    P "\"presence_penalty\":2.5}",
    P "\"frequency_penalty\":-1e308}",
    P "\"seed\":1e30}",
    P "\"seed\":\"x\"}",
    P "\"logprobs\":21}",
    P "\"logprobs\":-1}",
    P "\"logprobs\":true}",
    P "\"best_of\":5}",
    P "\"echo\":true,\"logprobs\":1}",
    P "\"suffix\":\"b\"}",
    P "\"logit_bias\":[]}",
    P "\"logit_bias\":{\"-1\":1}}",
    P "\"logit_bias\":{\"1.5\":1}}",
    P "\"logit_bias\":{\" 1\":1}}",
    P "\"logit_bias\":{\"1\":101}}",
    P "\"logit_bias\":{\"1\":\"x\"}}",
    P "\"logit_bias\":{\"99999999999999999999\":1}}",
    P "\"logit_bias\":{\"\":1}}",
    P "\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}",
    P "\"stop\":[1]}",
    P "\"stop\":{}}",
    P "\"stop\":[\"\"]}",
    P "\"stop_token_ids\":[-1]}",
    P "\"stop_token_ids\":5}",
    P "\"stream\":\"yes\"}",
    P "\"stream\":true,\"stream_options\":{\"a\":true}}",
    P "\"stream\":true,\"stream_options\":[]}",
    P "\"user\":1,\"model\":5}",
    P "\"__proto__\":{}}",
    P "\"priority\":5}",
    P "\"guided_json\":{}}",
    P "\"prompt_logprobs\":1}",
    P "\"response_format\":{\"type\":\"regex\"}}",
    P "\"response_format\":\"json\"}",
    "{\"prompt\":[]}",
    "{\"prompt\":[[]]}",
    "{\"prompt\":[\"a\",[-1]]}",
    "{\"prompt\":[1.5]}",
    "{\"prompt\":[[[1]]]}",
    "{\"prompt\":[1,\"a\"]}",
    "{\"prompt\":{\"a\":1}}",
    "{\"prompt\":5}",
    "{\"prompt\":[2147483648]}",
    "{\"prompt\":null}",
    "{\"messages\":\"a\"}",
    "{\"messages\":[\"a\"]}",
    "{\"messages\":[{\"role\":5,\"content\":\"a\"}]}",
    "{\"messages\":[{\"content\":\"a\"}]}",
    "{\"messages\":[{\"role\":\"user\"}]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":5}]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":[]}]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":"
    "\"file:///etc/passwd\"}}]}]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"x\":1}]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"tool_calls\":[]}]}",
    "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
    "\"arguments\":\"{\"}}]}]}",
    "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[5]}]}",
    M "\"tools\":{}}",
    M "\"tools\":[{\"type\":\"function\"}]}",
    M "\"tools\":[{\"type\":\"browser\"}]}",
    M "\"tool_choice\":\"required\"}",
    M "\"tool_choice\":{\"type\":\"function\"}}",
    M "\"chat_template_kwargs\":[]}",
    M "\"chat_template_kwargs\":{\"tools\":[]}}",
    M "\"chat_template_kwargs\":{\"bos_token\":\"x\"}}",
    M "\"chat_template\":\"{{ 1 }}\"}",
    M "\"top_logprobs\":21,\"logprobs\":true}",
    M "\"functions\":[]}",
};

DT_TEST(http_hostile, bodies_that_are_wrong_are_refused_in_few_words)
{
    static http_server h;

    needs_server();
    http_start(&h, NULL, 2);
    for (size_t i = 0; i < DT_COUNT(bodies); i++) {
        const bool chat = strncmp(bodies[i], "{\"messages", 10) == 0;
        const http_answer a =
            http_post(h.port, chat ? "/v1/chat/completions" : "/v1/completions", bodies[i], "");
        if (a.status != 400 || a.n > 1024 || strstr(a.body, "\"error\"") == NULL)
            dt_test_fail(__FILE__, __LINE__, "%.100s: status %d: %.600s", bodies[i], a.status,
                         a.body);
    }
    goes_on(&h, "all bodies");
    http_stop(&h);
}

DT_TEST(http_hostile, bombs_are_refused_before_they_take_memory)
{
    static const struct {
        const char *begin, *piece, *end;
        size_t times;
    } bombs[] = {
        { "{\"prompt\":", "[", "", 1000000 },
        { "{\"prompt\":", "{\"a\":", "", 200000 },
        { "{\"prompt\":\"a\",\"stop\":[\"x\"", ",\"x\"", "]}", 1000000 },
        { "{\"prompt\":[0", ",0", "]}", 1000000 },
        { "{\"prompt\":[\"a\"", ",\"a\"", "]}", 500000 },
        { "{\"prompt\":\"a\",\"logit_bias\":{\"1\":1", ",\"2\":1", "}}", 300000 },
        { "{\"prompt\":\"a\",\"seed\":1", "0", "}", 1000000 },
        { "{\"prompt\":\"a\",\"", "k", "\":1}", 1000000 },
        { "{\"prompt\":\"a\",\"model\":\"", "m", "\"}", 1000000 },
        { "{\"prompt\":\"", "a ", "\"}", 1000000 },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}",
          ",{\"role\":\"user\",\"content\":\"a\"}", "]}", 100000 },
        { "{\"prompt\":\"", "a", "\"}", 8 << 20 },
    };
    static http_server h;

    needs_server();
    http_start(&h, NULL, 2);
    for (size_t i = 0; i < DT_COUNT(bombs); i++) {
        char *body = repeat(bombs[i].begin, bombs[i].piece, bombs[i].times, bombs[i].end);
        const bool chat = strncmp(body, "{\"messages", 10) == 0;
        const http_answer a =
            http_post(h.port, chat ? "/v1/chat/completions" : "/v1/completions", body, "");
        if (a.status != 400 && a.status != 404 && a.status != 413 && a.status != 0)
            dt_test_fail(__FILE__, __LINE__, "%s: status %d: %.300s", bombs[i].begin, a.status,
                         a.body);
        DT_ASSERT(a.n <= 1024);
        free(body);
    }
    goes_on(&h, "all bombs");
    http_stop(&h);
}

/* --- clients that go -------------------------------------------------------------------------- */

#define LONG_BODY "{\"prompt\":\"a\",\"max_tokens\":500,\"ignore_eos\":true"

static int ask(const http_server *h, const char *body)
{
    char text[512];
    const int fd = http_connect(h->port);
    const int n =
        snprintf(text, sizeof text, POST "Content-Length: %zu\r\n\r\n%s", strlen(body), body);

    http_send(fd, text, (size_t)n);
    return fd;
}

/* Waits until requests under way and waiting are so many; a failure if they never are. */
static void expect_counts(http_server *h, int64_t running, int64_t queued)
{
    const int64_t until = dti_now_ns() + (int64_t)20000000000;
    dt_service_counts c;

    do {
        DT_ASSERT_OK(dt_service_count(h->model, &c));
        if (c.running == running && c.queued == queued) return;
        (void)usleep(1000);
    } while (dti_now_ns() < until);
    dt_test_fail(__FILE__, __LINE__, "%lld run and %lld wait, not %lld and %lld",
                 (long long)c.running, (long long)c.queued, (long long)running, (long long)queued);
}

/* A request that does not end by itself: its tokens are written to nobody who reads slowly. */
static int hold(http_server *h)
{
    int fd;

    expect_counts(h, 0, 0); /* loading is over, too */
    fd = ask(h, LONG_BODY ",\"n\":64,\"temperature\":1}");
    expect_counts(h, 1, 0);
    return fd;
}

DT_TEST(http_hostile, a_client_that_goes_frees_its_place_in_every_state)
{
    static const char *const parts[] = { "", "GE", POST, POST "Content-Length: 29\r\n\r\n{\"prom" };
    static http_server h;
    dt_service_counts c;
    char event[64];
    int held, fd;

    needs_server();
    http_start(&h, NULL, 1);
    for (size_t i = 0; i < DT_COUNT(parts); i++) {
        fd = http_connect(h.port);
        http_send(fd, parts[i], strlen(parts[i]));
        (void)close(fd);
    }
    held = hold(&h);
    fd = ask(&h, BODY); /* it waits */
    expect_counts(&h, 1, 1);
    (void)close(fd);
    expect_counts(&h, 1, 0);
    fd = ask(&h, LONG_BODY ",\"stream\":true}"); /* it waits, and closes its side alone */
    expect_counts(&h, 1, 1);
    (void)shutdown(fd, SHUT_WR);
    expect_counts(&h, 1, 0);
    (void)close(fd);
    (void)close(held); /* it runs */
    expect_counts(&h, 0, 0);
    held = hold(&h);
    (void)shutdown(held, SHUT_WR);
    expect_counts(&h, 0, 0);
    (void)close(held);
    fd = ask(&h, LONG_BODY ",\"n\":64,\"stream\":true}"); /* it streams */
    DT_ASSERT(recv(fd, event, sizeof event, MSG_WAITALL) == sizeof event);
    (void)close(fd);
    expect_counts(&h, 0, 0);
    DT_ASSERT_OK(dt_service_count(h.model, &c));
    DT_ASSERT_EQ_INT(c.cancelled, 5);
    goes_on(&h, "clients that went");
    http_stop(&h);
}

enum { N_CHURNING = 12, N_ASKED = 60 };

static void *churn(void *arg)
{
    const http_server *h = arg;

    for (int i = 0; i < N_ASKED; i++) {
        const http_answer a = http_post(h->port, "/v1/completions", BODY, "");
        if (a.status != 200) return "a request was not answered";
    }
    return NULL;
}

/* A socket and its memory are another connection's at once: that is not taken for the one that has
 * gone. */
DT_TEST(http_hostile, nobody_is_taken_for_a_client_that_has_gone)
{
    static http_server h;
    pthread_t threads[N_CHURNING];
    void *wrong;

    needs_server();
    http_start(&h, NULL, 4);
    for (int i = 0; i < N_CHURNING; i++)
        DT_ASSERT(pthread_create(&threads[i], NULL, churn, &h) == 0);
    for (int i = 0; i < N_CHURNING; i++) {
        (void)pthread_join(threads[i], &wrong);
        if (wrong != NULL) dt_test_fail(__FILE__, __LINE__, "%s", (const char *)wrong);
    }
    http_stop(&h);
}

DT_TEST(http_hostile, who_takes_too_long_is_closed_and_who_is_too_many_told_so)
{
    static http_server h;
    dt_server_options o = http_options(&h);
    char byte;
    int fd, held;

    needs_server();
    o.head_ms = 200;
    o.idle_ms = 100;
    o.max_requests = 1;
    http_start(&h, &o, 1);
    fd = http_connect(h.port);
    http_send(fd, POST "Content-Length: 29\r\n\r\n{", sizeof POST + 23);
    DT_ASSERT(recv(fd, &byte, 1, 0) <= 0); /* the rest never comes */
    (void)close(fd);
    fd = http_connect(h.port);
    http_send(fd, "GET /health HTTP/1.1\r\n" HOST "\r\n", 41);
    DT_ASSERT_EQ_INT(http_receive(fd, 20000).status, 200);
    DT_ASSERT(recv(fd, &byte, 1, 0) <= 0); /* and nothing more is asked */
    (void)close(fd);
    held = hold(&h);
    HTTP_EXPECT(http_post(h.port, "/v1/completions", BODY, ""), 503, "Retry-After: 1",
                "unavailable_error");
    (void)close(held);
    expect_counts(&h, 0, 0);
    for (int i = 0; i < 2000; i++) { /* its place is free a little after the ranks are */
        if (http_post(h.port, "/v1/completions", BODY, "").status != 503) break;
        (void)usleep(5000);
    }
    goes_on(&h, "waiting");
    http_stop(&h);
}

DT_TEST(http_hostile, an_answer_that_takes_too_long_is_given_up)
{
    static http_server h;
    dt_server_options o = http_options(&h);

    needs_server();
    o.request_ms = 20;
    http_start(&h, &o, 1);
    HTTP_EXPECT(http_post(h.port, "/v1/completions", LONG_BODY ",\"n\":64}", ""), 504,
                "timeout_error");
    expect_counts(&h, 0, 0);
    http_stop(&h);
}

DT_TEST(http_hostile, the_end_of_a_server_waits_for_answers_but_not_for_ever)
{
    static http_server h;
    int fd;

    needs_server();
    http_start(&h, NULL, 1);
    fd = hold(&h);
    dt_server_stop(&h.server, 50);
    expect_counts(&h, 0, 0);
    (void)close(fd);
    DT_ASSERT_EQ_INT(h.n_lines, 1);
    DT_ASSERT(strstr(h.lines[0], "\"end\":\"gone\"") != NULL);
    http_stop(&h);
}
