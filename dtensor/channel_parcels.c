/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/memory.h"
#include "base/sync.h"
#include "base/text.h"
#include "dtensor/channels_internal.h"
#include "dtensor/exchange.h"
#include "mesh/comm/call.h"

enum { WINDOW = 5 }; /* messages of three at most: head, text and body */

/* --- pieces ----------------------------------------------------------------------------------- */

/* Those that were started are over: they may move. */
static dt_status add_piece(dt_parcel *p, int place, int64_t count, dti_leg **out)
{
    DT_TRY(dti_grow((void **)&p->pieces, &p->capacity, p->n + 1, sizeof *p->pieces));
    *out = &p->pieces[p->n++];
    **out = (dti_leg){ .place = place, .count = count };
    return DT_OK;
}

static void free_piece(dti_leg *q)
{
    dti_storage_release(q->packed);
    dti_free(q->host);
    q->packed = NULL;
    q->host = NULL;
}

/* A head, or the text behind it: bytes of the parcel's own. */
static dt_status add_words(dt_parcel *p, int place, void *words, size_t bytes)
{
    dti_leg *q;

    DT_TRY(add_piece(p, place, (int64_t)bytes, &q));
    q->at = words;
    return DT_OK;
}

/* The boxes of an overlap, from the tensor to their places one after the other or back. */
static dt_status pass(const dt_parcel *p, const dti_leg *q, const dti_overlap *o)
{
    dti_device *d = p->channel->device;
    const size_t each = dt_dtype_size(p->x->local.dtype);
    int64_t at = 0;

    for (int i = 0; i < o->n_boxes; i++) {
        dti_box sent, received, side;
        dti_overlap_box(o, i, &sent, &received);
        side = dti_box_packed(&sent);
        side.offset = at;
        at += dti_box_count(&side);
        if (p->sends)
            DT_TRY(d->ops->copy_box(d, q->packed->data, &side, p->x->local.data, &sent, each));
        else
            DT_TRY(d->ops->copy_box(d, p->x->local.data, &received, q->packed->data, &side, each));
    }
    return DT_OK;
}

/* Where the bytes of a body lie. o NULL: those of the whole piece. */
static dt_status place_body(dt_parcel *p, dti_leg *q, const dti_overlap *o)
{
    dti_device *d = p->channel->device;
    const size_t each = dt_dtype_size(p->x->local.dtype);
    dti_box sent, received;

    q->bytes = (size_t)q->count * each;
    q->at = p->x->local.data;
    if (o == NULL) return DT_OK;
    dti_overlap_box(o, 0, &sent, &received);
    if (!p->sends) sent = received;
    if (o->n_boxes == 1 && dti_box_is_block(&sent)) {
        q->at += sent.offset * (int64_t)each;
        return DT_OK;
    }
    DT_TRY(dti_storage_create(d->memory, q->bytes, true, &q->packed));
    q->at = q->packed->data;
    if (p->sends) DT_TRY(pass(p, q, o));
    return DT_OK;
}

static dt_status add_body(dt_parcel *p, int place, int64_t count, const dti_overlap *o)
{
    dti_device *d = p->channel->device;
    dti_leg *q;

    DT_TRY(add_piece(p, place, count, &q));
    q->is_body = true;
    if (p->x != NULL) DT_TRY(place_body(p, q, o));
    if (d->ops->host_visible) return DT_OK;
    DT_TRY(dti_alloc((size_t)count * dt_dtype_size((dt_dtype)p->head.dtype), &q->host));
    if (p->sends) DT_TRY(d->ops->read(d, q->host, q->at, q->bytes));
    return DT_OK;
}

/* What two ranks, one of them this one, have to do with each other. */
static bool between(const dt_parcel *p, int from_place, int to_place, dti_overlap *o)
{
    return dti_route_between(&p->channel->route, p->from, from_place, p->to, to_place,
                             p->head.shape, o);
}

/* Elements of this rank's piece, before and after. */
static int64_t piece_count(const dt_parcel *p)
{
    const dt_layout *l = p->sends ? p->from : p->to;
    const dt_mesh *mesh = p->sends ? p->channel->route.from : p->channel->route.to;
    int coord[DT_MAX_DIMS];

    for (int m = 0; m < l->n_dims; m++) coord[m] = dt_mesh_coord(mesh, m);
    return dti_piece_count(l, coord, p->head.shape);
}

/* All bodies that go from or to others. */
static dt_status add_bodies(dt_parcel *p)
{
    const dt_channel *c = p->channel;
    const dti_route *r = &c->route;
    const int n = dt_mesh_n_ranks(p->sends ? r->to : r->from);
    const int *members = p->sends ? c->to_members : c->from_members;
    dti_overlap o;

    if (r->paired) {
        const int place = p->sends ? c->from_place : c->to_place;
        const int64_t count = piece_count(p);
        if (members[place] != c->comm->rank && count > 0) DT_TRY(add_body(p, place, count, NULL));
        return DT_OK;
    }
    for (int place = 0; place < n; place++)
        if (members[place] != c->comm->rank &&
            between(p, p->sends ? c->from_place : place, p->sends ? place : c->to_place, &o))
            DT_TRY(add_body(p, place, o.count, &o));
    return DT_OK;
}

static dt_status start_piece(dt_parcel *p, dti_leg *q)
{
    const dt_channel *c = p->channel;
    const int *members = p->sends ? c->to_members : c->from_members;
    void *data = q->host != NULL ? q->host : q->at;

    q->request =
        (dti_comm_request){ .call = { .op = p->sends ? DTI_COMM_SEND : DTI_COMM_RECV,
                                      .dtype = q->is_body ? (dt_dtype)p->head.dtype : DT_U8,
                                      .root = members[q->place],
                                      .send = data,
                                      .recv = data,
                                      .counts = &q->count } };
    q->request.what = p->name;
    return dti_comm_start(c->comm, &q->request);
}

static dt_status start_pieces(dt_parcel *p, size_t first)
{
    for (size_t i = first; i < p->n; i++) DT_TRY(start_piece(p, &p->pieces[i]));
    return DT_OK;
}

/* Ends those that can be ended without a wait; *over: all of them. */
static dt_status settle(dt_parcel *p, bool *over)
{
    const dt_channel *c = p->channel;

    *over = true;
    for (size_t i = 0; i < p->n; i++) {
        dti_comm_request *r = &p->pieces[i].request;
        if (r->seq == 0) continue;
        if (c->all->awaited == r || !c->comm->ops->is_over(c->comm, r)) {
            *over = false;
            continue;
        }
        DT_TRY(dti_comm_wait(c->comm, r));
        if (p->sends) free_piece(&p->pieces[i]);
    }
    return DT_OK;
}

dti_comm_request *dti_parcel_blocked_by(dt_parcel *p)
{
    dt_parcel *first = p->sends ? p->channel->sends.first : p->channel->recvs.first;

    for (dt_parcel *q = first; q != NULL; q = q == p ? NULL : q->next)
        for (size_t i = 0; i < q->n; i++)
            if (q->pieces[i].request.seq != 0) return &q->pieces[i].request;
    return NULL;
}

/* --- sending ---------------------------------------------------------------------------------- */

static void let_go(dt_parcel *p)
{
    if (p->x == NULL) return;
    p->x->storage->moving--;
    dt_tensor_release(&p->x);
}

dt_status dti_parcel_lay_out(dt_parcel *p)
{
    const dt_channel *c = p->channel;
    const dti_route *r = &c->route;

    for (int place = 0; place < dt_mesh_n_ranks(r->to); place++) {
        if (c->to_members[place] == c->comm->rank) continue;
        if (dti_route_teller(r, place) != c->from_place) continue;
        DT_TRY(add_words(p, place, &p->head, sizeof p->head));
        if (p->text != NULL) DT_TRY(add_words(p, place, p->text, (size_t)p->head.text_bytes));
    }
    DT_TRY(add_bodies(p));
    if (!c->device->ops->host_visible && p->taken) let_go(p); /* all of it is on the host */
    return DT_OK;
}

static dt_status step_send(dt_parcel *p, bool *over)
{
    *over = false;
    if (p->state == DTI_PARCEL_QUEUED) {
        if (p->channel->device->ops->host_visible) DT_TRY(dti_parcel_lay_out(p));
        DT_TRY(start_pieces(p, 0));
        p->state = DTI_PARCEL_BODY;
    }
    DT_TRY(settle(p, over));
    *over = *over && p->taken;
    return DT_OK;
}

/* --- receiving -------------------------------------------------------------------------------- */

/* Of a rank that is on both meshes: what it keeps for itself of that message; NULL: nothing. */
static dt_parcel *kept(const dt_parcel *p)
{
    dt_parcel *s = p->channel->from_place >= 0 ? p->channel->sends.first : NULL;

    while (s != NULL && s->number != p->number) s = s->next;
    return s;
}

/* Whether it has sent it. */
static bool has_sent(const dt_parcel *p)
{
    return p->channel->from_place < 0 || p->channel->sends.n >= p->number;
}

static dt_status ask_for_head(dt_parcel *p)
{
    const dt_channel *c = p->channel;
    const int teller = dti_route_teller(&c->route, c->to_place);

    if (c->from_members[teller] != c->comm->rank) {
        DT_TRY(add_words(p, teller, &p->head, sizeof p->head));
        DT_TRY(start_pieces(p, 0));
    } else {
        const dt_parcel *s = kept(p);
        if (s == NULL) return DT_OK; /* not yet sent */
        p->head = s->head;
    }
    p->state = DTI_PARCEL_HEAD;
    return DT_OK;
}

static dt_status ask_for_text(dt_parcel *p)
{
    const dt_channel *c = p->channel;
    const size_t bytes = (size_t)p->head.text_bytes;
    const int teller = dti_route_teller(&c->route, c->to_place);

    p->state = DTI_PARCEL_TEXT;
    if (bytes <= sizeof p->head.text) return DT_OK;
    DT_TRY(dti_alloc(bytes, (void **)&p->text));
    if (c->from_members[teller] == c->comm->rank) {
        memcpy(p->text, kept(p)->text, bytes);
        return DT_OK;
    }
    DT_TRY(add_words(p, teller, p->text, bytes));
    return start_pieces(p, p->n - 1);
}

/* "f32 [8, 4] S(0)R" */
static void form_text(dt_dtype dtype, const dt_layout *l, const int64_t *shape, char *text,
                      size_t bytes)
{
    dti_writer w = { text, bytes, 0 };
    char extents[DTI_SHAPE_BYTES];

    dti_put(&w, "%s %s ", dt_dtype_name(dtype),
            dti_shape_text(shape, l->n_axes, extents, sizeof extents));
    dti_put_layout(&w, l);
}

static dt_status check_form(const dt_parcel *p)
{
    const dt_channel *c = p->channel;
    const dt_dtype dtype = (dt_dtype)p->head.dtype;
    const size_t bytes = (size_t)p->from->n_axes * sizeof p->head.shape[0];
    char is[2 * DTI_SHAPE_BYTES], expected[2 * DTI_SHAPE_BYTES];

    if (c->expected == NULL || (c->expected == p->from && c->expected_dtype == dtype &&
                                memcmp(p->head.shape, c->expected_shape, bytes) == 0))
        return DT_OK;
    form_text(dtype, p->from, p->head.shape, is, sizeof is);
    form_text(c->expected_dtype, c->expected, c->expected_shape, expected, sizeof expected);
    DT_FAIL(DT_ERR_SHAPE, "it is %s, but dt_channel_expect() said %s", is, expected);
}

/* A link is no faster than it is said to be: from the send on, whatever was done meanwhile. */
static int64_t due_of(const dt_parcel *p)
{
    const dt_link *link = p->channel->link;
    const int64_t now = dti_now_ns(), sent = p->head.sent_ns < now ? p->head.sent_ns : now;

    if (link == NULL) return 0;
    return sent + (int64_t)(link->latency_ns + (double)p->received / link->bytes_per_ns);
}

static int64_t own_count(const dt_parcel *p)
{
    const dt_channel *c = p->channel;
    dti_overlap o;

    return c->from_place >= 0 && between(p, c->from_place, c->to_place, &o) ? o.count : 0;
}

/* A whole piece that stays with this rank: its bytes are shared, as where nothing has to move. */
static dt_status share_own(dt_parcel *p)
{
    const dt_channel *c = p->channel;
    dt_parcel *s = kept(p);

    if (!c->route.paired || c->from_members[c->to_place] != c->comm->rank || s == NULL)
        return DT_OK;
    DT_TRY(dti_tensor_header(c->route.to, p->to, s->x->local.dtype, p->head.shape, &p->x));
    p->x->storage = dti_storage_retain(s->x->storage);
    p->x->local.data = s->x->local.data;
    s->taken = true;
    return DT_OK;
}

dt_status dti_parcel_open(dt_parcel *p)
{
    dt_channel *c = p->channel;
    const dt_dtype dtype = (dt_dtype)p->head.dtype;
    const char *text = p->text != NULL ? p->text : p->head.text;

    DT_CHECK(p->head.number == p->number, DT_ERR_INTERNAL, "it is message %llu",
             (unsigned long long)p->head.number);
    if (p->from == NULL) DT_TRY(dt_layout_parse(c->route.from, p->head.n_axes, text, &p->from));
    DT_TRY(check_form(p));
    DT_TRY(dti_route_layout(&c->route, p->from, &p->to));
    p->received = (piece_count(p) - own_count(p)) * (int64_t)dt_dtype_size(dtype);
    p->due_ns = due_of(p);
    DT_TRY(share_own(p));
    if (p->x == NULL && c->device->ops->host_visible)
        DT_TRY(dti_tensor_create(c->route.to, p->to, dtype, p->head.shape, &p->x));
    return DT_OK;
}

static dt_status ask_for_bodies(dt_parcel *p)
{
    const size_t first = p->n;

    DT_TRY(dti_parcel_open(p));
    p->state = DTI_PARCEL_BODY;
    DT_TRY(add_bodies(p));
    return start_pieces(p, first);
}

/* What this rank holds of both pieces. */
static dt_status copy_own(dt_parcel *p)
{
    const dt_channel *c = p->channel;
    dt_parcel *s = kept(p);
    dti_overlap o;

    if (s == NULL || s->taken) return DT_OK;
    s->taken = true;
    if (!between(p, c->from_place, c->to_place, &o)) return DT_OK;
    return dti_overlap_copy(c->device, &o, s->x->local.data, p->x->local.data,
                            dt_dtype_size(p->x->local.dtype));
}

/* Of a device everything is left for this; of a host boxes that came one after the other. */
static dt_status unpack(dt_parcel *p, dti_leg *q)
{
    const dt_channel *c = p->channel;
    dti_device *d = c->device;
    dti_overlap o;

    if (!q->is_body) return DT_OK;
    if (q->host != NULL) {
        const bool some = !c->route.paired && between(p, q->place, c->to_place, &o);
        DT_TRY(place_body(p, q, some ? &o : NULL));
        DT_TRY(d->ops->write(d, q->at, q->host, q->bytes));
    }
    if (q->packed == NULL) return DT_OK;
    (void)between(p, q->place, c->to_place, &o);
    return pass(p, q, &o);
}

dt_status dti_parcel_finish(dt_parcel *p)
{
    const dt_channel *c = p->channel;

    if (p->finished) return DT_OK;
    p->finished = true;
    if (p->x == NULL)
        DT_TRY(
            dti_tensor_create(c->route.to, p->to, (dt_dtype)p->head.dtype, p->head.shape, &p->x));
    for (size_t i = 0; i < p->n; i++) {
        DT_TRY(unpack(p, &p->pieces[i]));
        free_piece(&p->pieces[i]);
    }
    return copy_own(p);
}

/* One state after the other, as far as others have come. */
static dt_status step_recv(dt_parcel *p, bool *over)
{
    *over = false;
    if (p->state == DTI_PARCEL_QUEUED) DT_TRY(ask_for_head(p));
    if (p->state == DTI_PARCEL_QUEUED) return DT_OK;
    DT_TRY(settle(p, over));
    if (*over && p->state == DTI_PARCEL_HEAD) {
        DT_TRY(ask_for_text(p));
        DT_TRY(settle(p, over));
    }
    if (*over && p->state == DTI_PARCEL_TEXT) {
        DT_TRY(ask_for_bodies(p));
        DT_TRY(settle(p, over));
    }
    *over = *over && has_sent(p);
    if (*over && p->channel->device->ops->host_visible) DT_TRY(dti_parcel_finish(p));
    return DT_OK;
}

/* --- messages --------------------------------------------------------------------------------- */

void dti_parcel_free(dt_parcel *p)
{
    dt_runtime *rt = p->channel->all->rt;

    for (size_t i = 0; i < p->n; i++) free_piece(&p->pieces[i]);
    dti_free(p->pieces);
    dti_free(p->text);
    if (p->sends) let_go(p);
    dt_tensor_release(&p->x);
    dti_channel_drop(p->channel);
    dti_free(p);
    dti_runtime_count(rt, &dti_live_parcels, -1);
}

void dti_parcel_end(dt_parcel *p)
{
    dt_parcel *s = p->sends ? NULL : kept(p);

    if (s != NULL && !p->held) s->taken = true; /* of a device: nobody finishes it */
    if (p->state != DTI_PARCEL_OVER) p->channel->all->n_under_way--;
    p->state = DTI_PARCEL_OVER;
    if (p->sends) let_go(p);
    if (!p->held) dti_parcel_free(p);
}

dt_status dti_parcel_fail(dt_parcel *p, dt_status st)
{
    dt_channel *c = p->channel;

    dti_error_prefix("%s of channel \"%s\"", p->name, c->comm->name);
    c->status = dti_error_frame(st, __func__, __FILE__, __LINE__);
    c->error = *dt_last_error();
    if (st == DT_ERR_COMM) return st; /* all know */
    dti_runtime_abort(c->all->rt);
    return st;
}

static dt_status step_list(dti_parcels *list)
{
    dt_parcel **link = &list->first, *p;
    int started = 0;

    while ((p = *link) != NULL && started < WINDOW) {
        bool over;
        const dt_status st = p->sends ? step_send(p, &over) : step_recv(p, &over);
        if (st != DT_OK) return dti_parcel_fail(p, st);
        if (!over) {
            if (p->state < DTI_PARCEL_BODY) return DT_OK; /* later ones come later */
            started++;
            link = &p->next;
            continue;
        }
        *link = p->next;
        if (list->end == &p->next) list->end = link;
        dti_parcel_end(p);
    }
    return DT_OK;
}

dt_status dti_parcel_play_dry(dt_parcel *p)
{
    dt_channel *c = p->channel;

    if (!p->sends) {
        p->head = (dti_parcel_head){ .number = p->number,
                                     .dtype = c->expected_dtype,
                                     .n_axes = c->expected->n_axes };
        memcpy(p->head.shape, c->expected_shape, sizeof p->head.shape);
        p->from = c->expected;
        DT_TRY(dti_parcel_open(p));
        p->finished = true;
    }
    (p->sends ? &c->sends : &c->recvs)->first = NULL; /* it was the only one */
    (p->sends ? &c->sends : &c->recvs)->end = p->sends ? &c->sends.first : &c->recvs.first;
    dti_parcel_end(p);
    return DT_OK;
}

dt_status dti_channel_step(dt_channel *c)
{
    if (c->status == DT_OK && c->comm != NULL) DT_TRY(step_list(&c->sends));
    if (c->status == DT_OK && c->comm != NULL) DT_TRY(step_list(&c->recvs));
    return c->status;
}
