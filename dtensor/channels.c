/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/channels.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/sync.h"
#include "dtensor/channels_internal.h"
#include "dtensor/graph.h"
#include "dtensor/kernels/cpu/cpu.h"
#include "dtensor/tape.h"

/* While a simulated link takes its time, or a kernel, how often a rank looks after its messages. */
enum { LOOK_NS = 200 * 1000, POLL_NS = 200 * 1000 };

static const dti_live live_channels = { "channel", "channels" };
const dti_live dti_live_parcels = { "message under way", "messages under way" };

/* --- the channels of a rank ------------------------------------------------------------------- */

static void step_all(void *arg)
{
    const dti_channels *all = arg;

    for (dt_channel *c = all->first; c != NULL; c = c->next) {
        if (c->sends.first == NULL && c->recvs.first == NULL) continue;
        if (dti_channel_step(c) != DT_OK) continue; /* whoever waits there is told */
    }
}

/* What has come, and what others wait for, by the way. Who waits is told if it fails. */
static void look(dti_channels *all)
{
    dti_comm *world = dti_runtime_world(all->rt);
    const dti_comm_request nothing = { .call = { .op = DTI_COMM_BARRIER } };

    (void)world->ops->check(world, &nothing);
}

/* In the middle of a kernel bytes move on, of what has been started. */
static void poll_beside(void *arg)
{
    dti_channels *all = arg;
    const int64_t now = all->n_under_way > 0 ? dti_now_ns() : 0;

    if (now - all->polled_ns < POLL_NS) return;
    all->polled_ns = now;
    dti_runtime_poll(all->rt);
}

void dti_channels_look(dti_channels *all)
{
    if (all->n_under_way > 0) look(all);
}

static dt_status told(const dt_channel *c)
{
    if (c->status == DT_OK) return DT_OK;
    dti_error_restore(&c->error);
    return dti_error_frame(c->status, __func__, __FILE__, __LINE__);
}

/* Waits for the first that p depends on. */
static dt_status wait_for_one(dt_parcel *p)
{
    dt_channel *c = p->channel;
    const dti_comm_request nothing = { .call = { .op = p->sends ? DTI_COMM_SEND : DTI_COMM_RECV },
                                       .seq = p->number };
    dti_comm_request *r = dti_parcel_blocked_by(p);
    dt_status st = r == NULL ? c->comm->ops->check(c->comm, &nothing) : DT_OK;

    if (st != DT_OK) return dti_parcel_fail(p, st); /* nothing is begun any more */
    DT_CHECK(r != NULL, DT_ERR_ARG,
             "%s of channel \"%s\" is one that rank %d sends itself, and has not %s yet", p->name,
             c->comm->name, dt_runtime_rank(c->all->rt), p->sends ? "received" : "sent");
    c->all->awaited = r;
    st = dti_comm_wait(c->comm, r);
    c->all->awaited = NULL;
    if (st == DT_OK) return DT_OK;
    return dti_parcel_fail(p, st);
}

static dt_status await(dt_parcel *p)
{
    dt_channel *c = p->channel;
    int64_t left;

    for (look(c->all); p->state != DTI_PARCEL_OVER; look(c->all)) {
        DT_TRY(told(c));
        if (p->state != DTI_PARCEL_OVER) DT_TRY(wait_for_one(p));
    }
    while (p->due_ns > 0 && (left = p->due_ns - dti_now_ns()) > 0) {
        (void)nanosleep(&(struct timespec){ 0, (long)(left < LOOK_NS ? left : LOOK_NS) }, NULL);
        look(c->all);
    }
    return DT_OK;
}

/* Waits for one that nobody may hold. */
static dt_status see_out(dt_parcel *p)
{
    const bool held = p->held;
    dt_status st;

    p->held = true;
    st = await(p);
    p->held = held;
    if (!held && p->state == DTI_PARCEL_OVER) dti_parcel_free(p);
    return st;
}

static dt_parcel *any_of(const dti_channels *all)
{
    dt_parcel *p = NULL;

    for (dt_channel *c = all->first; c != NULL && p == NULL; c = c->next)
        p = c->sends.first != NULL ? c->sends.first : c->recvs.first;
    return p;
}

/* The end of the rank's function: what was sent is received, what was asked for has come. */
static dt_status finish_all(void *arg)
{
    for (dt_parcel *p; (p = any_of(arg)) != NULL;) DT_TRY(see_out(p));
    return DT_OK;
}

static void end_list(dti_parcels *list)
{
    for (dt_parcel *p = list->first, *next; p != NULL; p = next) {
        next = p->next;
        dti_parcel_end(p);
    }
    list->first = NULL;
    list->end = &list->first;
}

/* Handles that are still there become empty. */
static void end_all(void *arg)
{
    dti_channels *all = arg;

    dti_runtime_beside(all->rt)->step = NULL;
    dti_cpu_do_beside(all->device->cpu, NULL, NULL);
    all->ended = true;
    for (dt_channel *c = all->first, *next; c != NULL; c = next) {
        next = c->next;
        c->refs++;
        end_list(&c->recvs);
        end_list(&c->sends);
        if (c->comm != NULL) dti_comm_close(c->comm);
        c->comm = NULL;
        dti_channel_drop(c);
    }
}

static dt_status create_all(dt_runtime *rt, void **out)
{
    dti_beside *beside = dti_runtime_beside(rt);
    dti_channels *all;
    dti_device *d;
    dt_status st;

    DT_TRY(dti_device_of(rt, &d)); /* which ends later */
    DT_TRY(dti_new(sizeof *all, &all));
    all->rt = rt;
    all->device = d;
    st = dti_runtime_at_end(rt, end_all, all);
    if (st != DT_OK) {
        dti_free(all);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    d->channels = all;
    beside->finish = finish_all;
    beside->arg = all;
    beside->step = step_all;
    dti_cpu_do_beside(d->cpu, poll_beside, all);
    *out = all;
    return DT_OK;
}

static const dti_slot channels_slot = { create_all, dti_free, false };

static dt_parcel *reader_of(const dti_channels *all, const dti_storage *storage)
{
    for (dt_channel *c = all->first; c != NULL; c = c->next)
        for (dt_parcel *p = c->sends.first; p != NULL; p = p->next)
            if (p->x != NULL && p->x->storage == storage) return p;
    return NULL;
}

void dti_channels_let_go(dti_channels *all, const dti_storage *storage)
{
    for (dt_parcel *p; (p = reader_of(all, storage)) != NULL;)
        if (see_out(p) != DT_OK) return; /* the run has failed */
}

/* --- a channel -------------------------------------------------------------------------------- */

static int member_of(const dti_comm *comm, int world_rank)
{
    int low = 0, high = comm->size - 1;

    while (low < high) {
        const int middle = (low + high) / 2;
        if (comm->world_ranks[middle] < world_rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static dt_status members_of(const dti_comm *comm, const dt_mesh *mesh, int **out)
{
    const int n = dt_mesh_n_ranks(mesh);

    DT_TRY(dti_alloc_array((size_t)n, sizeof **out, (void **)out));
    for (int p = 0; p < n; p++) (*out)[p] = member_of(comm, dt_mesh_rank_at(mesh, p));
    return DT_OK;
}

static bool are_paired(const dt_mesh *a, const dt_mesh *b)
{
    bool same = dt_mesh_n_dims(a) == dt_mesh_n_dims(b);

    for (int m = 0; same && m < dt_mesh_n_dims(a); m++)
        same = dt_mesh_dim_size(a, m) == dt_mesh_dim_size(b, m) &&
               strcmp(dt_mesh_dim_name(a, m), dt_mesh_dim_name(b, m)) == 0;
    return same;
}

/* The simulated link of the dim that the name begins with. */
static const dt_link *link_of(const dt_runtime *rt, const char *name)
{
    const size_t n = strcspn(name, " ,");
    char dim[DT_DIM_NAME_BYTES];

    if (n >= sizeof dim) return NULL;
    memcpy(dim, name, n);
    dim[n] = '\0';
    return dti_runtime_link(rt, dim);
}

void dti_channel_drop(dt_channel *c)
{
    dt_channel **link = &c->all->first;
    dt_runtime *rt = c->all->rt;

    if (--c->refs > 0) return;
    while (*link != c) link = &(*link)->next;
    *link = c->next;
    if (c->comm != NULL) dti_comm_close(c->comm);
    dt_mesh_release(&c->route.from);
    dt_mesh_release(&c->route.to);
    dti_free(c->from_members);
    dti_free(c->to_members);
    dti_free(c);
    dti_runtime_count(rt, &live_channels, -1);
}

static dt_status open_channel(dt_channel *c, const char *name)
{
    const dti_route *r = &c->route;

    DT_TRY(dti_mesh_union_group(r->from, r->to, name, &c->comm));
    if (c->comm == NULL) return DT_OK;
    c->link = link_of(c->all->rt, name);
    c->comm->link = NULL; /* counts from the receive on */
    DT_TRY(members_of(c->comm, r->from, &c->from_members));
    DT_TRY(members_of(c->comm, r->to, &c->to_members));
    return DT_OK;
}

static dt_status create(dti_channels *all, dt_mesh *from, dt_mesh *to, const char *name,
                        dt_channel **out)
{
    dt_channel *c;
    dt_status st;

    DT_TRY(dti_new(sizeof *c, &c));
    dti_runtime_count(all->rt, &live_channels, 1);
    c->all = all;
    c->next = all->first;
    all->first = c;
    c->device = all->device;
    c->refs = 1;
    c->route = (dti_route){ dt_mesh_retain(from), dt_mesh_retain(to), are_paired(from, to) };
    c->from_place = dti_mesh_place(from);
    c->to_place = dti_mesh_place(to);
    c->sends.end = &c->sends.first;
    c->recvs.end = &c->recvs.first;
    st = open_channel(c, name);
    if (st != DT_OK) {
        dti_channel_drop(c);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    *out = c;
    return DT_OK;
}

dt_status dt_channel_create(dt_mesh *from, dt_mesh *to, const char *name, dt_channel **out)
{
    dt_runtime *rt = dt_mesh_runtime(from);
    void *all;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(from != NULL && to != NULL, DT_ERR_ARG, "from or to is NULL");
    DT_CHECK(rt == dt_mesh_runtime(to), DT_ERR_ARG, "the meshes belong to different runtimes");
    DT_CHECK(!dti_runtime_has_ended(rt), DT_ERR_ARG,
             "the run that these meshes belong to has ended");
    DT_TRY(dti_runtime_slot(rt, &channels_slot, &all));
    DT_TRY(dti_runtime_alone(rt, create(all, from, to, name != NULL ? name : "channel", out)));
    return DT_OK;
}

void dt_channel_release(dt_channel **channel)
{
    dt_channel *c = channel ? *channel : NULL;

    if (c == NULL) return;
    *channel = NULL;
    dti_channel_drop(c);
}

dt_status dt_channel_expect(dt_channel *c, dt_dtype dtype, int n_axes, const int64_t *shape,
                            const dt_placement *place)
{
    const dt_layout *layout;

    DT_CHECK(c != NULL, DT_ERR_ARG, "channel is NULL");
    c->expected = NULL;
    if (shape == NULL) return DT_OK;
    DT_TRY(dti_check_create(c->route.from, place, n_axes, shape, &layout));
    DT_TRY(dti_check_shape(NULL, dtype, n_axes, shape));
    DT_TRY(dti_layout_check_shape(layout, shape));
    c->expected = layout;
    c->expected_dtype = dtype;
    memcpy(c->expected_shape, shape, (size_t)n_axes * sizeof *shape);
    return DT_OK;
}

/* --- messages --------------------------------------------------------------------------------- */

static dt_status new_parcel(dt_channel *c, bool sends, dt_parcel **out)
{
    dti_parcels *list = sends ? &c->sends : &c->recvs;
    const int64_t a = dt_mesh_timeout(c->route.from), b = dt_mesh_timeout(c->route.to);
    dt_parcel *p;

    DT_TRY(dti_new(sizeof *p, &p));
    dti_runtime_count(c->all->rt, &dti_live_parcels, 1);
    c->comm->timeout_ms = a > b ? a : b;
    c->refs++;
    p->channel = c;
    p->sends = sends;
    p->number = ++list->n;
    (void)snprintf(p->name, sizeof p->name, "message %llu", (unsigned long long)p->number);
    *out = p;
    return DT_OK;
}

/* The head of a message of x. */
static dt_status write_head(dt_parcel *p, const dt_tensor *x)
{
    const int text_bytes = dt_layout_print(x->layout, NULL, 0) + 1;

    p->head = (dti_parcel_head){ .number = p->number,
                                 .sent_ns = dti_now_ns(),
                                 .dtype = x->local.dtype,
                                 .n_axes = x->n_axes,
                                 .text_bytes = text_bytes };
    memcpy(p->head.shape, x->shape, (size_t)x->n_axes * sizeof x->shape[0]);
    if ((size_t)text_bytes <= sizeof p->head.text) {
        (void)dt_layout_print(x->layout, p->head.text, sizeof p->head.text);
        return DT_OK;
    }
    DT_TRY(dti_alloc((size_t)text_bytes, (void **)&p->text));
    (void)dt_layout_print(x->layout, p->text, (size_t)text_bytes);
    return DT_OK;
}

static dt_status check_send(const dt_channel *c, const dt_tensor *x)
{
    char layout[4 * DTI_PLACEMENT_BYTES];

    DT_CHECK(c->from_place >= 0, DT_ERR_ARG,
             "rank %d is not on the mesh that the channel comes from", dt_runtime_rank(c->all->rt));
    DT_CHECK(dt_mesh_equal(x->mesh, c->route.from), DT_ERR_ARG,
             "x lies on another mesh than the one that channel \"%s\" comes from", c->comm->name);
    (void)dt_layout_print(x->layout, layout, sizeof layout);
    DT_CHECK(x->layout->partial_dims == 0, DT_ERR_LAYOUT,
             "x lies as %s: terms of a sum cannot be sent; reduce them first, by dt_redistribute()",
             layout);
    return DT_OK;
}

/* Whether this rank's own receive needs what it sends. */
static bool is_for_itself(const dt_parcel *p)
{
    const dt_channel *c = p->channel;
    const dti_route *r = &c->route;
    dti_overlap o;

    if (c->to_place < 0) return false;
    return c->from_members[dti_route_teller(r, c->to_place)] == c->comm->rank ||
           dti_route_between(r, p->from, c->from_place, p->to, c->to_place, p->head.shape, &o);
}

static dt_status send(dt_channel *c, dt_tensor *x, const dt_layout *to, dt_parcel **out)
{
    dt_status st;
    dt_parcel *p;

    DT_TRY(new_parcel(c, true, &p));
    p->x = dt_tensor_retain(x);
    x->storage->moving++;
    p->from = x->layout;
    p->to = to;
    st = write_head(p, x);
    p->taken = !is_for_itself(p);
    if (st == DT_OK && !c->device->ops->host_visible) st = dti_parcel_lay_out(p);
    if (st != DT_OK) {
        dti_parcel_free(p);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    *out = p;
    return DT_OK;
}

/* Hands it to the channel, and to the caller if that wants it. */
static dt_status begin(dt_parcel *p, bool waits, dt_parcel **out)
{
    dt_channel *c = p->channel;
    dti_parcels *list = p->sends ? &c->sends : &c->recvs;
    dt_status st = DT_OK;

    c->all->n_under_way++;
    p->held = true;
    *list->end = p;
    list->end = &p->next;
    if (c->comm->dry) st = dti_parcel_play_dry(p);
    if (st == DT_OK) look(c->all);
    if (st == DT_OK && waits) st = await(p);
    if (st == DT_OK) st = told(c);
    if (st == DT_OK && out != NULL)
        *out = p;
    else
        dt_parcel_release(&p);
    return st;
}

dt_status dt_channel_send(dt_channel *c, dt_tensor *x, dt_parcel **parcel)
{
    const dt_layout *to;
    dt_parcel *p = NULL;

    if (parcel != NULL) *parcel = NULL;
    DT_CHECK(c != NULL && x != NULL, DT_ERR_ARG, "channel or x is NULL");
    DT_CHECK(!c->all->ended, DT_ERR_ARG, "the run that this channel belongs to has ended");
    DT_TRY(check_send(c, x));
    DT_TRY(dti_route_layout(&c->route, x->layout, &to));
    DT_TRY(dti_layout_check_shape(to, x->shape));
    DT_TRY(told(c));
    DT_TRY(dti_runtime_alone(c->all->rt, send(c, x, to, &p)));
    return begin(p, parcel == NULL && dti_runtime_is_unbuffered(c->all->rt), parcel);
}

dt_status dt_channel_recv(dt_channel *c, const dt_placement *want, dt_parcel **parcel)
{
    dt_parcel *p = NULL;

    DT_CHECK(parcel != NULL, DT_ERR_ARG, "parcel is NULL");
    *parcel = NULL;
    DT_CHECK(c != NULL, DT_ERR_ARG, "channel is NULL");
    DT_CHECK(!c->all->ended, DT_ERR_ARG, "the run that this channel belongs to has ended");
    DT_CHECK(c->to_place >= 0, DT_ERR_ARG, "rank %d is not on the mesh that the channel goes to",
             dt_runtime_rank(c->all->rt));
    DT_CHECK(!c->comm->dry || c->expected != NULL, DT_ERR_ARG,
             "in a dry runtime nobody sends: say by dt_channel_expect() what comes");
    DT_TRY(told(c));
    DT_TRY(dti_runtime_alone(c->all->rt, new_parcel(c, false, &p)));
    p->want = want;
    return begin(p, false, parcel);
}

dt_status dt_channel_wait(dt_channel *c)
{
    DT_CHECK(c != NULL, DT_ERR_ARG, "channel is NULL");
    DT_CHECK(!c->all->ended, DT_ERR_ARG, "the run that this channel belongs to has ended");
    while (c->sends.first != NULL) DT_TRY(see_out(c->sends.first));
    while (c->recvs.first != NULL) DT_TRY(see_out(c->recvs.first));
    return DT_OK;
}

bool dt_parcel_is_done(dt_parcel *p)
{
    if (p == NULL) return true;
    if (p->state != DTI_PARCEL_OVER && p->channel->status == DT_OK) look(p->channel->all);
    if (p->state != DTI_PARCEL_OVER) return p->channel->status != DT_OK;
    return p->due_ns == 0 || p->due_ns <= dti_now_ns();
}

void dt_parcel_release(dt_parcel **parcel)
{
    dt_parcel *p = parcel ? *parcel : NULL;

    if (p == NULL) return;
    *parcel = NULL;
    p->held = false;
    if (p->state == DTI_PARCEL_OVER) dti_parcel_end(p);
}

/* To where the receiver wants it. */
static dt_status move_on(dt_parcel *p, dt_comm_counter *counters, dt_tensor **y)
{
    const dt_layout *layout = p->to;

    if (p->want != NULL) DT_TRY(dti_tensor_layout(p->x, p->want, &layout));
    DT_TRY(dti_redistribute(p->x, layout, counters, y));
    return DT_OK;
}

/* counters: NULL, or of all kinds. */
static dt_status wait(dt_parcel *p, dt_comm_counter *counters, dt_tensor **y)
{
    DT_CHECK(!p->channel->all->ended, DT_ERR_ARG, "the run that this message belongs to has ended");
    DT_CHECK(p->sends == (y == NULL), DT_ERR_ARG, "y is %s of a message that was %s",
             y != NULL ? "not NULL" : "NULL", p->sends ? "sent" : "asked for");
    DT_TRY(await(p));
    if (p->sends) return DT_OK;
    DT_TRY(dti_parcel_finish(p));
    if (counters != NULL) counters[DT_COMM_SEND] = (dt_comm_counter){ 1, p->received };
    return move_on(p, counters, y);
}

static dt_status wait_and_free(dt_parcel **parcel, dt_comm_counter *counters, dt_tensor **y)
{
    dt_runtime *rt = (*parcel)->channel->all->rt;
    const dt_status st = dti_runtime_alone(rt, wait(*parcel, counters, y));

    dt_parcel_release(parcel);
    return st;
}

dt_status dt_parcel_wait(dt_parcel **parcel, dt_tensor **y)
{
    if (y != NULL) *y = NULL;
    DT_CHECK(parcel != NULL && *parcel != NULL, DT_ERR_ARG, "the message is NULL");
    DT_TRY(wait_and_free(parcel, NULL, y));
    return DT_OK;
}

dt_tensor *dt_parcel_take(dt_tape *t, dt_parcel **parcel)
{
    dt_comm_counter counters[DT_N_COMM_KINDS] = { { 0, 0 } };
    dt_tensor *y = NULL;
    dt_status st;

    if (dti_tape_is_down(t)) dt_parcel_release(parcel);
    if (dti_tape_is_down(t)) return NULL;
    if (parcel == NULL || *parcel == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_parcel_take: the message is NULL");
    st = wait_and_free(parcel, counters, &y);
    if (st == DT_OK) st = dti_tape_count(t, t->reason != NULL ? t->reason : "stage", counters);
    if (st == DT_OK) return dti_tape_push(t, y);
    dt_tensor_release(&y);
    return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}
