/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that users run on all ranks: their registry, which belongs to the runtime as that of
 * styles does, and a call. */
#include <dtensor/tensor.h>
#include <string.h>

#include "base/writer.h"
#include "mesh/runtime.h"
#include "service/ranks.h"

/* --- the registry ----------------------------------------------------------------------------- */

typedef struct entry {
    char *name;
    dt_function function;
    void *arg;
    struct entry *next;
} entry;

typedef struct registry {
    entry *first;
} registry;

static void registry_destroy(void *object)
{
    registry *r = object;

    for (entry *e = r->first, *next; e != NULL; e = next) {
        next = e->next;
        dti_free(e->name);
        dti_free(e);
    }
    dti_free(r);
}

static dt_status add(registry *r, const char *name, dt_function function, void *arg)
{
    dt_status st = DT_OK;
    entry *e;

    DT_TRY(dti_new(sizeof *e, &e));
    DT_TRY_TO(fail, st, dti_strdup(name, &e->name));
    e->function = function;
    e->arg = arg;
    e->next = r->first;
    r->first = e;
    return DT_OK;

fail:
    dti_free(e);
    return st;
}

static dt_status registry_create(dt_runtime *rt, void **out)
{
    registry *r;
    dt_status st;

    (void)rt;
    DT_TRY(dti_new(sizeof *r, &r));
    st = add(r, dti_forward_name, dti_forward, NULL);
    if (st != DT_OK) registry_destroy(r);
    DT_TRY(st);
    *out = r;
    return DT_OK;
}

static const dti_slot registry_slot = { registry_create, registry_destroy, true };

static dt_status registry_of(dt_runtime *rt, registry **out)
{
    void *slot;

    DT_TRY(dti_runtime_slot(rt, &registry_slot, &slot));
    *out = slot;
    return DT_OK;
}

static const entry *find(const registry *r, const char *name)
{
    for (const entry *e = r->first; e != NULL; e = e->next)
        if (strcmp(e->name, name) == 0) return e;
    return NULL;
}

dt_status dt_function_register(dt_runtime *rt, const char *name, dt_function function, void *arg)
{
    registry *r;

    DT_CHECK(rt != NULL && name != NULL && function != NULL, DT_ERR_ARG,
             "rt, name or function is NULL");
    DT_TRY(registry_of(rt, &r));
    DT_CHECK(find(r, name) == NULL, DT_ERR_ARG, "a function \"%s\" is registered already", name);
    DT_TRY(add(r, name, function, arg));
    return DT_OK;
}

static dt_status look_up(dt_runtime *rt, const char *name, const entry **out)
{
    char known[256] = "";
    dti_writer w = { known, sizeof known, 0 };
    registry *r;

    DT_TRY(registry_of(rt, &r));
    *out = find(r, name);
    if (*out != NULL) return DT_OK;
    for (const entry *e = r->first; e != NULL; e = e->next)
        dti_put(&w, "%s%s", e == r->first ? "" : ", ", e->name);
    DT_FAIL(DT_ERR_ARG,
            "no function \"%s\" is registered on the ranks (dt_function_register() in "
            "dt_run_options.setup); there are %s",
            name, known);
}

/* --- a call ----------------------------------------------------------------------------------- */

dt_model *dt_call_model(const dt_call *call)
{
    return call->rank->model;
}

int64_t dt_call_n_inputs(const dt_call *call)
{
    return call->n_inputs;
}

const dt_piece *dt_call_input(const dt_call *call, int64_t i)
{
    return i >= 0 && i < call->n_inputs ? &call->inputs[i] : NULL;
}

bool dt_call_goes_on(dt_call *call)
{
    return dti_job_goes_on(call);
}

dt_status dt_call_reply(dt_call *call, const dt_piece *piece)
{
    dti_packet p = { 0 };
    dti_event head = { .kind = DTI_EVENT_PIECE };
    dt_status st;

    DT_CHECK(call != NULL, DT_ERR_ARG, "call is NULL");
    DT_TRY(dti_piece_check(piece));
    dti_rank_beat(call->rank);
    if (call->ticket == NULL) return DT_OK;
    head.n_bytes = sizeof *piece + piece->n_bytes;
    st = dti_packet_put(&p, piece, sizeof *piece);
    if (st == DT_OK) st = dti_packet_put(&p, piece->data, piece->n_bytes);
    if (st == DT_OK) st = dti_ticket_tell(call->ticket, &head, p.bytes);
    dti_free(p.bytes);
    DT_TRY(st);
    return DT_OK;
}

static dt_status reply_whole(dt_call *call, const dt_tensor *whole)
{
    dt_piece piece = { .dtype = dt_tensor_dtype(whole), .n_axes = dt_tensor_n_axes(whole) };
    dt_status st = DT_OK;
    void *data;

    piece.n_bytes = dt_dtype_size(piece.dtype);
    for (int a = 0; a < piece.n_axes; a++) {
        piece.shape[a] = dt_tensor_extent(whole, a);
        piece.n_bytes *= (size_t)piece.shape[a];
    }
    if (call->ticket == NULL) return dt_call_reply(call, &(dt_piece){ 0 });
    DT_TRY(dti_alloc(piece.n_bytes, &data));
    piece.data = data;
    DT_TRY_TO(done, st, dt_tensor_read(whole, data, piece.n_bytes));
    DT_TRY_TO(done, st, dt_call_reply(call, &piece));
done:
    dti_free(data);
    return st;
}

dt_status dt_call_reply_tensor(dt_call *call, dt_tensor *x)
{
    const dt_placement whole = DT_REPLICATE;
    dt_placement whole_on[DT_MAX_DIMS];
    dt_tensor *y;
    dt_status st;

    DT_CHECK(call != NULL && x != NULL, DT_ERR_ARG, "call or x is NULL");
    for (int d = 0; d < DT_MAX_DIMS; d++) whole_on[d] = whole;
    if (dt_tensor_dtype(x) == DT_BF16 || dt_tensor_dtype(x) == DT_F16)
        DT_TRY(dt_redistribute_cast(x, whole_on, DT_F32, &y));
    else
        DT_TRY(dt_redistribute(x, whole_on, &y));
    st = reply_whole(call, y);
    dt_tensor_release(&y);
    DT_TRY(st);
    return DT_OK;
}

/* A function may return a status without a record. */
static dt_status run(dt_call *j, const entry *e)
{
    dt_status st = e->function(j, e->arg);

    if (st != DT_OK && dt_last_error()->code != st)
        st = dt_fail_at(st, __func__, __FILE__, __LINE__, "\"%s\" returned %s without a message",
                        e->name, dt_status_name(st));
    return st;
}

dt_status dti_call_run(dti_job *j)
{
    const entry *e = NULL;
    const char *name;

    DT_TRY(dti_unpack_text(&j->from, &name));
    DT_TRY(dti_unpack_pieces(&j->from, &j->inputs, &j->n_inputs));
    DT_TRY(look_up(j->rank->rt, name, &e));
    return run(j, e);
}
