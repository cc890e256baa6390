/* SPDX-License-Identifier: Apache-2.0
 *
 * Channels as their messages see them, and messages as their channel does. Everything here belongs
 * to the rank's thread; it is done inside calls about channels, and beside other waits of the rank
 * (dti_beside).
 *
 * A message is a few of the back end's: to each receiver a head from one sender, which says what
 * comes, and bytes from those who have them. Between two ranks these have one order, that of heads
 * and bodies of messages 1, 2, ...; a receiver asks for the head of a message when it has asked for
 * the body of the one before. Back ends let 16 of a pair be under way: a channel starts WINDOW
 * messages at once, and others as these end. */
#ifndef DTI_CHANNELS_INTERNAL_H
#define DTI_CHANNELS_INTERNAL_H

#include <dtensor/channels.h>

#include "dtensor/channel_route.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

enum { DTI_HEAD_TEXT_BYTES = 416 };

/* What comes. A layout whose text is longer follows in a message of its own. */
typedef struct dti_parcel_head {
    uint64_t number;
    int64_t sent_ns;
    int32_t dtype, n_axes;
    int64_t shape[DT_MAX_AXES];
    int64_t text_bytes; /* with its end */
    char text[DTI_HEAD_TEXT_BYTES];
} dti_parcel_head;

/* A message of the back end. */
typedef struct dti_leg {
    dti_comm_request request; /* seq 0: over, once it was started */
    int64_t count;
    int place; /* on the other mesh */
    bool is_body;
    dti_storage *packed; /* several boxes one after the other; NULL: as in the tensor */
    void *host;          /* what a device sends or gets; NULL: its memory is the host's */
    size_t bytes;
    char *at; /* in memory of the device */
} dti_leg;

typedef enum dti_parcel_state {
    DTI_PARCEL_QUEUED,
    DTI_PARCEL_HEAD, /* of a receive: asked for; likewise the text that follows it */
    DTI_PARCEL_TEXT,
    DTI_PARCEL_BODY,
    DTI_PARCEL_OVER
} dti_parcel_state;

struct dt_parcel {
    dt_channel *channel;
    dt_parcel *next; /* of the channel's, in order */
    uint64_t number;
    char name[32]; /* "message 3" */
    bool sends;
    bool held;     /* by the caller; else it is freed when it is over */
    bool taken;    /* of a send: this rank's own receive has had what is in it for it */
    bool finished; /* of a receive: x has all its bytes */
    dti_parcel_state state;
    dt_tensor *x;               /* what is sent; what has come */
    const dt_layout *from, *to; /* how it lies there */
    dti_parcel_head head;
    char *text; /* that does not fit into the head, or NULL */
    dti_leg *pieces;
    size_t n, capacity;
    int64_t due_ns;   /* over a simulated link: when it is here */
    int64_t received; /* bytes from other ranks */
    const dt_placement *want;
};

/* In the order in which they were begun; what is over and not held has gone. */
typedef struct dti_parcels {
    dt_parcel *first, **end;
    uint64_t n; /* begun so far */
} dti_parcels;

struct dt_channel {
    struct dti_channels *all;
    dt_channel *next;
    dti_route route;
    dti_device *device;
    dti_comm *comm; /* NULL: of neither mesh, or the run has ended */
    const dt_link *link;
    int refs;                       /* its handle and its messages */
    int from_place, to_place;       /* of this rank, or -1 */
    int *from_members, *to_members; /* by place: of the communicator */
    dti_parcels sends, recvs;
    const dt_layout *expected; /* on `from`; NULL: anything */
    dt_dtype expected_dtype;
    int64_t expected_shape[DT_MAX_AXES];
    dt_status status; /* of the first message that failed: there are no others then */
    dt_error error;
};

/* The channels of a rank. */
typedef struct dti_channels {
    dt_runtime *rt;
    dti_device *device;
    dt_channel *first;
    const dti_comm_request *awaited; /* which the rank waits for: nobody else does */
    int n_under_way;                 /* messages that are not over */
    int64_t polled_ns;               /* when bytes were last moved in the middle of a kernel */
    bool ended;                      /* the run has */
} dti_channels;

extern const dti_live dti_live_parcels;

/* channels.c: one handle or message less that is the channel's. */
void dti_channel_drop(dt_channel *c);

/* Moves what can be moved, if something is under way: between operators, so that ranks that compute
 * for long do not keep others waiting. */
void dti_channels_look(dti_channels *all);

/* Waits until no message reads the bytes. */
void dti_channels_let_go(dti_channels *all, const dti_storage *storage);

/* channel_parcels.c: brings the messages of a channel forward as far as that needs no wait. What
 * fails is the channel's from then on, and its name and message are told. */
dt_status dti_channel_step(dt_channel *c) DT_MUST_USE;

/* What a message consists of: of a send, whose head is there; of a receive, as its head says. */
dt_status dti_parcel_lay_out(dt_parcel *p) DT_MUST_USE;
dt_status dti_parcel_open(dt_parcel *p) DT_MUST_USE;

/* A request that p cannot be over without; NULL: what this rank itself has to do. */
dti_comm_request *dti_parcel_blocked_by(dt_parcel *p);

/* Makes the tensor of what has come. */
dt_status dti_parcel_finish(dt_parcel *p) DT_MUST_USE;

void dti_parcel_end(dt_parcel *p); /* it is over */

/* What becomes of a message in a dry runtime, where all of it is there at once. */
dt_status dti_parcel_play_dry(dt_parcel *p) DT_MUST_USE;

/* It failed as the thread's record says: the channel's word from then on. Hands `st` back. */
dt_status dti_parcel_fail(dt_parcel *p, dt_status st);
void dti_parcel_free(dt_parcel *p);

#endif
