/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank says of a collective when agreement is checked: a hash of all that has to be equal,
 * and words for the message if it is not. */
#define _GNU_SOURCE /* dladdr */
#include <stdio.h>
#include <string.h>

#if defined(__has_include)
#if __has_include(<execinfo.h>)
#include <dlfcn.h>
#include <execinfo.h>
#define HAVE_BACKTRACE 1
#endif
#endif

#include "base/numbers.h"
#include "mesh/comm/call.h"

#ifdef HAVE_BACKTRACE

enum { FRAMES = 24, OWN_FRAMES = 2 };

static bool is_public(void *frame)
{
    Dl_info info;

    return dladdr(frame, &info) != 0 && info.dli_sname != NULL &&
           strncmp(info.dli_sname, "dt_", 3) == 0;
}

/* "dt_redistribute+0x5a", or "chat+0x12e4", a place for addr2line, where there is no name. */
static int frame_text(void *frame, char *text, size_t bytes)
{
    const char *name;
    const void *base;
    Dl_info info;

    if (dladdr(frame, &info) == 0 || info.dli_fname == NULL) return 0;
    name = strrchr(info.dli_fname, '/');
    name = name != NULL ? name + 1 : info.dli_fname;
    base = info.dli_fbase;
    if (info.dli_sname != NULL) {
        name = info.dli_sname;
        base = info.dli_saddr;
    }
    return snprintf(text, bytes, " %s+0x%zx", name,
                    (size_t)((const char *)frame - (const char *)base));
}

/* Appends the callers as far as they fit, innermost first, from the first public function on if one
 * can be told. */
static void append_callers(char *text, size_t bytes)
{
    void *frame[FRAMES];
    const int n = backtrace(frame, FRAMES);
    size_t used = strlen(text);
    int begin = OWN_FRAMES;

    while (begin < n && !is_public(frame[begin])) begin++;
    if (begin == n) begin = OWN_FRAMES;
    used += (size_t)snprintf(text + used, bytes - used, "%sfrom", used > 0 ? " " : "");
    for (int i = begin; i < n; i++) {
        char word[80];
        const int length = frame_text(frame[i], word, sizeof word);
        if (length < 0 || used + (size_t)length >= bytes) return;
        memcpy(text + used, word, (size_t)length + 1);
        used += (size_t)length;
    }
}

#else

static void append_callers(char *text, size_t bytes)
{
    (void)text, (void)bytes;
}

#endif

/* Counts that all ranks hand in alike. */
static int n_common_counts(const dti_comm *c, const dti_comm_call *call)
{
    switch (call->op) {
    case DTI_COMM_BROADCAST:
    case DTI_COMM_ALL_REDUCE:
        return 1;
    case DTI_COMM_ALL_GATHER:
    case DTI_COMM_REDUCE_SCATTER:
        return c->size;
    default:
        return 0;
    }
}

void dti_note_make(const dti_comm *c, const dti_comm_request *r, dti_comm_note *out)
{
    const dti_comm_call *call = &r->call;
    const bool reduces = call->op == DTI_COMM_ALL_REDUCE || call->op == DTI_COMM_REDUCE_SCATTER;
    const bool has_root = call->op == DTI_COMM_BROADCAST;
    const bool has_type = call->op != DTI_COMM_BARRIER;
    const uint64_t facts[] = {
        r->seq,
        (uint64_t)call->op,
        has_type ? (uint64_t)call->dtype : 0,
        reduces ? (uint64_t)call->reduce : 0,
        has_root ? (uint64_t)call->root : 0,
        call->about != NULL ? call->about->hash : 0,
    };

    out->hash = dti_hash_bytes(0, facts, sizeof facts);
    out->hash = dti_hash_bytes(out->hash, call->counts,
                               (size_t)n_common_counts(c, call) * sizeof *call->counts);
    (void)snprintf(out->text, sizeof out->text, "%s", call->about != NULL ? call->about->text : "");
    append_callers(out->text, sizeof out->text);
}
