/* SPDX-License-Identifier: Apache-2.0
 *
 * What a request is judged by before a byte of its body is read. Framing that two readers may
 * understand differently is refused, and nothing more is read on that connection; so is a name that
 * only a foreign page could have sent (DNS rebinding), and a page of another origin. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "service/http/exchange.h"
#include "service/http/routes.h"

static void keep(char *to, size_t room, const char *value)
{
    (void)snprintf(to, room, "%s", value);
}

void dti_head_add(dti_head *h, const char *name, const char *value)
{
    if (value == NULL) value = "";
    if (strcasecmp(name, "content-length") == 0) {
        h->n_lengths++;
        keep(h->length, sizeof h->length, value);
    } else if (strcasecmp(name, "transfer-encoding") == 0) {
        h->n_encodings++;
        keep(h->encoding, sizeof h->encoding, value);
    } else if (strcasecmp(name, "host") == 0) {
        h->n_hosts++;
        keep(h->host, sizeof h->host, value);
    } else if (strcasecmp(name, "origin") == 0) {
        h->n_origins++;
        keep(h->origin, sizeof h->origin, value);
    } else if (strcasecmp(name, "authorization") == 0) {
        h->n_keys++;
        h->key = strncasecmp(value, "bearer ", 7) == 0 ? value + 7 : "";
    } else if (strcasecmp(name, "x-api-key") == 0) {
        h->n_keys++;
        h->key = value;
    }
}

/* --- framing ---------------------------------------------------------------------------------- */

static bool refuse_frame(dti_exchange *x, const char *what)
{
    dti_refuse(x, 400, NULL, "%s", what);
    return false;
}

/* Digits alone: no sign, no blanks, no list. */
static bool is_length(const char *text, int64_t *out)
{
    const size_t n = strlen(text);
    char *end;

    if (n == 0 || strspn(text, "0123456789") != n) return false;
    *out = n > 18 ? INT64_MAX : strtoll(text, &end, 10);
    return true;
}

static bool guard_frame(dti_exchange *x)
{
    const dti_head *h = &x->head;
    const bool body = strcmp(h->method, "POST") == 0;
    int64_t length = 0;

    if (h->n_lengths > 1) return refuse_frame(x, "more than one Content-Length");
    if (h->n_encodings > 1) return refuse_frame(x, "more than one Transfer-Encoding");
    if (h->n_lengths > 0 && h->n_encodings > 0)
        return refuse_frame(x, "Content-Length beside Transfer-Encoding");
    if (h->n_encodings > 0 && strcasecmp(h->encoding, "chunked") != 0)
        return refuse_frame(x, "a Transfer-Encoding other than \"chunked\"");
    if (h->n_lengths > 0 && !is_length(h->length, &length))
        return refuse_frame(x, "Content-Length is no number");
    if (h->n_hosts != 1) return refuse_frame(x, "a request has one Host");
    if (h->n_keys > 1) return refuse_frame(x, "more than one key");
    if (h->n_origins > 1) return refuse_frame(x, "more than one Origin");
    if (length > x->server->options.max_body_bytes) {
        dti_refuse(x, 413, NULL, "the body has more than %lld bytes",
                   (long long)x->server->options.max_body_bytes);
        return false;
    }
    if (body && h->n_lengths + h->n_encodings == 0) {
        dti_refuse(x, 411, NULL, "a POST needs a Content-Length, or chunks");
        return false;
    }
    if (!body && (length > 0 || h->n_encodings > 0))
        return refuse_frame(x, "only a POST has a body");
    return true;
}

/* --- names ------------------------------------------------------------------------------------ */

/* The name of "name:port", "[::1]:port" and their like, without brackets; false: no such text. */
static bool name_of(const char *host, char *name, size_t room)
{
    const char *begin = host, *end, *port;

    if (*host == '[') {
        begin = host + 1;
        end = strchr(begin, ']');
        if (end == NULL) return false;
        port = end + 1;
    } else {
        end = host + strcspn(host, ":");
        port = end;
    }
    if (*port == ':') port += 1 + strspn(port + 1, "0123456789");
    if (*port != '\0' || end == begin || (size_t)(end - begin) >= room) return false;
    memcpy(name, begin, (size_t)(end - begin));
    name[end - begin] = '\0';
    return true;
}

/* A page cannot make a browser send an address as Host that is not the server's own. */
static bool is_address(const char *name)
{
    unsigned char bytes[sizeof(struct in6_addr)];

    return inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1;
}

static bool guard_host(dti_exchange *x)
{
    const dt_server *s = x->server;
    char name[DTI_HEAD_TEXT_BYTES];
    bool well = false;

    if (name_of(x->head.host, name, sizeof name)) {
        well = strcasecmp(name, "localhost") == 0 || is_address(name) ||
               strcasecmp(name, s->host) == 0;
        for (int i = 0; i < s->options.n_hosts && !well; i++)
            well = strcasecmp(name, s->hosts[i]) == 0;
    }
    if (well) return true;
    dti_refuse(x, 403, NULL, "this server is not called by that Host (--allow-host)");
    return false;
}

/* Browsers send it with every POST of a page; other programs do not. */
static bool guard_origin(dti_exchange *x)
{
    const char *origin = x->head.origin, *host;

    if (x->head.n_origins == 0) return true;
    host = strstr(origin, "://");
    if (host != NULL && strcasecmp(host + 3, x->head.host) == 0) return true;
    dti_refuse(x, 403, NULL, "pages of another origin are not answered");
    return false;
}

/* --- keys ------------------------------------------------------------------------------------- */

/* The same time whatever the keys are. */
static bool is_same(const char *said, size_t n, const char *key)
{
    const size_t m = strlen(key);
    volatile unsigned differs = n != m;

    for (size_t i = 0; i < m; i++)
        differs |= (unsigned char)(said[n > 0 ? i % n : 0] ^ key[i]) & 0xffu;
    return differs == 0;
}

static bool guard_key(dti_exchange *x)
{
    const dt_server *s = x->server;
    const char *said = x->head.key != NULL ? x->head.key : "";
    unsigned known = s->options.n_keys == 0;

    x->salt = 0;
    for (int i = 0; i < s->options.n_keys; i++) {
        const unsigned same = is_same(said, strlen(said), s->keys[i]);
        known |= same;
        x->salt += same * (uint64_t)(i + 1);
    }
    if (known != 0) return true;
    dti_refuse(x, 401, NULL, "%s",
               x->head.n_keys > 0 ? "the key is not known"
                                  : "a key is needed: Authorization: Bearer KEY");
    return false;
}

bool dti_guard(dti_exchange *x)
{
    const dti_http_route *route;
    bool path;

    if (!guard_frame(x) || !guard_host(x) || !guard_origin(x)) return false;
    route = dti_http_route_find(x->head.method, x->head.path, &path);
    if ((route == NULL || !route->open) && !guard_key(x)) return false;
    if (route == NULL && path) {
        x->allow = strcmp(x->head.method, "POST") == 0 ? "GET, HEAD" : "POST";
        dti_refuse(x, 405, NULL, "this path is for %s", x->allow);
        return false;
    }
    if (route == NULL) {
        dti_refuse(x, 404, NULL, "there is no such path; docs/serving.md lists them");
        return false;
    }
    if (atomic_load(&x->server->draining) && !route->open) {
        x->closes = true;
        dti_refuse(x, 503, NULL, "the server is ending");
        return false;
    }
    return true;
}
