/* SPDX-License-Identifier: Apache-2.0
 *
 * One request and its answer, whoever carries them. */
#ifndef DTI_HTTP_EXCHANGE_H
#define DTI_HTTP_EXCHANGE_H

#include "service/http/buffer.h"
#include "service/http/server.h"

enum { DTI_HTTP_OK = 200 };

/* What a request says before its body. */
enum { DTI_HEAD_PATH_BYTES = 64, DTI_HEAD_TEXT_BYTES = 320 };
typedef struct dti_head {
    const char *method;
    char path[DTI_HEAD_PATH_BYTES]; /* a longer one is cut: nothing has it */
    int n_lengths, n_encodings, n_hosts, n_origins, n_keys;
    char length[32], encoding[32], host[DTI_HEAD_TEXT_BYTES], origin[DTI_HEAD_TEXT_BYTES];
    const char *key; /* what names a key, borrowed: "Bearer KEY" or X-Api-Key's value */
} dti_head;

/* Notes a header; others than those above are passed over. */
void dti_head_add(dti_head *h, const char *name, const char *value);

typedef struct dti_exchange {
    dt_server *server;
    dti_connection *connection; /* NULL: there is none, in a test */
    dti_head head;
    dti_buffer body;
    bool too_long; /* the body; it is not kept */
    uint64_t salt; /* of who has this key: they alone share what beginnings of texts have */

    /* the answer */
    int status;
    const char *type; /* of its content */
    dti_buffer out;
    bool closes; /* nothing more is read on this connection */
    int retry_after_s;
    bool no_retry;
    const char *allow;
    struct dti_generation *stream; /* that goes on; NULL: `out` is all */

    /* for log and metrics */
    dti_http_model *model;
    int64_t began_ns, first_ns;
    int64_t prompt_tokens, new_tokens;
    bool broken; /* a stream that ended with an error */
    bool handed; /* a stream, to its last byte: who leaves then has it all */
} dti_exchange;

/* Answers with an error in OpenAI's form; the connection closes where the request may not have been
 * read to its end. `param`: the field that is wrong, or NULL. */
void dti_refuse(dti_exchange *x, int status, const char *param, const char *fmt, ...)
    DT_PRINTF(4, 5);

/* The same for the thread's error record. */
void dti_refuse_status(dti_exchange *x, dt_status st);

/* `{"error":...}` of a refusal into b, without an end of line. */
void dti_error_json(dti_buffer *b, int status, const char *param, const char *message);

/* The HTTP status that a status comes to, and what a client may read of the thread's record: no
 * names of files. */
int dti_http_status_of(dt_status st);
const char *dti_client_message(const dti_exchange *x, dt_status st, char *text, size_t n_bytes);

/* Before a body is read: false: it was refused. */
bool dti_guard(dti_exchange *x);

/* With its body: fills in the answer. */
void dti_answer(dti_exchange *x);

/* Ends what goes on, and frees all. */
void dti_exchange_free(dti_exchange *x);

/* A line of the access log. */
void dti_exchange_log(dti_exchange *x, bool whole);

#endif
