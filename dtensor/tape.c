/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/tape.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/sync.h"
#include "dtensor/graph.h"
#include "dtensor/ops/cache.h"
#include "dtensor/ops/fusion.h"
#include "dtensor/pending.h"
#include "dtensor/tensor_internal.h"
#include "mesh/comm/track.h"
#include "mesh/runtime.h"

static const dti_live tapes = { "tape", "tapes" };

dt_status dt_tape_create(dt_runtime *rt, dt_tape **out)
{
    dt_status st = DT_OK;
    dt_tape *t;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(rt != NULL, DT_ERR_ARG, "rt is NULL");
    DT_TRY(dti_new(sizeof *t, &t));
    t->rt = rt;
    t->n_scopes = 1;
    t->scopes[0].node = -1;
    t->track = dti_runtime_track(rt);
    DT_TRY_TO(fail, st, dti_device_of(rt, &t->device));
    DT_TRY_TO(fail, st, dti_op_cache_of(rt, &t->ops));
    t->run = ++t->device->stamps;
    dti_runtime_count(rt, &tapes, 1);
    *out = t;
    return DT_OK;

fail:
    dti_free(t);
    return st;
}

static void release_from(dt_tape *t, size_t first)
{
    while (t->n_owned > first) dt_tensor_release(&t->owned[--t->n_owned]);
}

void dt_tape_reset(dt_tape *t)
{
    if (t == NULL) return;
    dti_fusion_settle_unheard(t->device);
    dti_pending_drop_all(&t->pending);
    t->run = ++t->device->stamps;
    dti_graph_clear(t->graph);
    release_from(t, 0);
    t->n_scopes = 1;
    t->status = DT_OK;
    t->scopes[0].node = -1;
    memset(t->comm, 0, sizeof t->comm);
    t->work = (dt_op_work){ 0, 0 };
    t->seconds = 0;
    dti_comm_log_clear(&t->log);
}

void dt_tape_release(dt_tape **tape)
{
    dt_tape *t = tape ? *tape : NULL;

    if (t == NULL) return;
    *tape = NULL;
    dti_fusion_settle_unheard(t->device);
    dti_pending_drop_all(&t->pending);
    dti_graph_free(&t->graph);
    release_from(t, 0);
    dti_runtime_count(t->rt, &tapes, -1);
    dti_comm_log_free(&t->log);
    dti_free(t->owned);
    dti_free(t);
}

dt_status dt_tape_status(dt_tape *t)
{
    DT_CHECK(t != NULL, DT_ERR_ARG, "the tape is NULL");
    if (t->status != DT_OK) dti_error_restore(&t->error);
    return t->status;
}

const char *dti_tape_scope(const dt_tape *t)
{
    return t->n_scopes > 1 ? t->scopes[t->n_scopes - 1].name : NULL;
}

int dti_tape_n_scopes(const dt_tape *t)
{
    return t->n_scopes - 1; /* the first is the tape itself */
}

dt_tensor *dti_tape_latch(dt_tape *t, dt_status status)
{
    if (t == NULL || t->status != DT_OK) return NULL;
    if (t->n_scopes > 1) dti_error_prefix("%s", t->scopes[t->n_scopes - 1].name);
    t->status = status;
    t->error = *dt_last_error();
    (void)dti_runtime_alone(t->rt, status);
    return NULL;
}

dt_tensor *dt_tape_fail(dt_tape *t, dt_status code, const char *fmt, ...)
{
    char text[DT_ERROR_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return dti_tape_latch(t, dt_fail_at(code, __func__, __FILE__, __LINE__, "%s", text));
}

dt_tensor *dti_tape_push(dt_tape *t, dt_tensor *x)
{
    if (t->n_owned == t->owned_capacity) {
        const dt_status st =
            dti_grow((void **)&t->owned, &t->owned_capacity, t->n_owned + 1, sizeof(dt_tensor *));
        if (st != DT_OK) {
            dt_tensor_release(&x);
            return dti_tape_latch(t, st);
        }
    }
    t->owned[t->n_owned++] = x;
    return x;
}

dt_tensor *dti_tape_push_beside(dt_tape *t, const dt_tensor *x, dt_tensor *y)
{
    size_t at = t->n_owned;

    while (at > 0 && t->owned[at - 1] != x) at--;
    if (dti_tape_push(t, y) == NULL) return NULL;
    memmove(&t->owned[at + 1], &t->owned[at], (t->n_owned - 1 - at) * sizeof(dt_tensor *));
    t->owned[at] = y;
    for (int s = 1; s < t->n_scopes; s++)
        if (t->scopes[s].first >= at) t->scopes[s].first++;
    return y;
}

dt_tensor *dt_tape_own(dt_tape *t, dt_tensor *x)
{
    if (dti_tape_is_down(t)) {
        dt_tensor_release(&x);
        return NULL;
    }
    if (x == NULL) return dt_tape_fail(t, DT_ERR_ARG, "dt_tape_own: x is NULL");
    return dti_tape_push(t, x);
}

void dt_scope_begin(dt_tape *t, const char *name)
{
    if (dti_tape_is_down(t)) return;
    if (t->n_scopes == DTI_MAX_SCOPES) {
        dt_tape_fail(t, DT_ERR_ARG,
                     "scope \"%s\": more than %d scopes are open; is a dt_scope_end() "
                     "missing?",
                     name, DTI_MAX_SCOPES);
        return;
    }
    t->scopes[t->n_scopes++] =
        (dti_scope){ name, t->n_owned, -1, dti_track_is_on(t->track) ? dti_now_ns() : 0 };
}

void dt_tape_observe(dt_tape *t, dt_scope_fn see, void *arg)
{
    if (t == NULL) return;
    t->see = see;
    t->see_arg = arg;
}

static dt_tensor *show(dt_tape *t, const char *scope, dt_tensor *x)
{
    const dt_status st = t->see(t->see_arg, scope, x);

    return st == DT_OK ? x : dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}

dt_tensor *dt_scope_end(dt_tape *t, dt_tensor *keep)
{
    const char *name;
    size_t first;
    bool mine = false;

    if (dti_tape_is_down(t)) return NULL;
    if (t->n_scopes == 1)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_scope_end() without a dt_scope_begin()");
    first = t->scopes[--t->n_scopes].first;
    name = t->scopes[t->n_scopes].name;
    if (t->scopes[t->n_scopes].begin_ns != 0 && dti_track_is_on(t->track))
        dti_track_add(t->track, name, t->scopes[t->n_scopes].begin_ns, -1);
    for (size_t i = t->n_owned; keep != NULL && i > first && !mine; i--)
        if (t->owned[i - 1] == keep) { /* it takes the first place, its reference stays */
            t->owned[i - 1] = t->owned[first];
            t->owned[first] = keep;
            mine = true;
        }
    release_from(t, mine ? first + 1 : first);
    return t->see == NULL || keep == NULL ? keep : show(t, name, keep);
}

/* The search begins with the newest: in a loop it is one of the last two. */
void dt_tape_drop(dt_tape *t, dt_tensor *x)
{
    const size_t first = t != NULL ? t->scopes[t->n_scopes - 1].first : 0;

    if (t == NULL) return;
    if (x != NULL && x->reduced != NULL) dt_tape_drop(t, x->reduced);
    for (size_t i = t->n_owned; x != NULL && i > first; i--) {
        if (t->owned[i - 1] != x) continue;
        dt_tensor_release(&x);
        memmove(&t->owned[i - 1], &t->owned[i], (t->n_owned - i) * sizeof(dt_tensor *));
        t->n_owned--;
        return;
    }
}

void dt_tape_set_moves(dt_tape *t, dt_moves policy)
{
    if (t != NULL) t->moves = policy;
}

dt_comm_counter dt_tape_comm(const dt_tape *t, dt_comm_kind kind)
{
    const bool known = t != NULL && (int)kind >= 0 && kind < DT_N_COMM_KINDS;

    return known ? t->comm[kind] : (dt_comm_counter){ 0, 0 };
}

dt_runtime *dt_tape_runtime(const dt_tape *t)
{
    return t != NULL ? t->rt : NULL;
}
