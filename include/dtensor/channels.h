/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors on their way from one mesh to another: what stages of a pipeline hand each other.
 *
 *   dt_channel_create(first, second, "pp", &channel);      on the ranks of both
 *   dt_channel_send(channel, y, NULL);                     on those of the first
 *   dt_channel_recv(channel, NULL, &parcel);               on those of the second
 *   ... kernels ...
 *   dt_parcel_wait(&parcel, &x);
 *
 * A channel has one direction and its messages one order: the n-th receive gets what the n-th send
 * was given, whatever other channels between the same ranks carry meanwhile. Any number may be
 * under way, in any number of channels, and be waited for in any order. Shape, dtype and placements
 * travel with a message.
 *
 * Where both meshes have the same names and sizes of dims each rank sends its piece to the one at
 * its coordinates. Otherwise a dim of `to` holds the tensor as the dim of that name on `from` does,
 * or whole if there is none, and ranks send each other the boxes that their pieces share. So the
 * bytes that a rank receives are those of its piece; whoever needs less sends what is cut already.
 * A piece that a rank would send itself is shared.
 *
 * No message is buffered: a send holds the tensor until its receivers have it. Bytes move while
 * ranks are inside calls of this library that wait, between operators, and, between processes, in
 * the middle of products and attention on CPUs. What ranks wait for must
 * not depend on more than that receives come in the order of sends: with links "unbuffered"
 * (dt_run_options.links) a send without a parcel returns when it was received, which shows a
 * program that does. Simulated links hold for a channel by the word that its name begins with;
 * their time counts from the send.
 *
 * On GPUs messages pass through memory of the host, and a send waits for what was computed before.
 */
#ifndef DT_CHANNELS_H
#define DT_CHANNELS_H

#include <dtensor/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_channel dt_channel;

/* A message under way, of one rank. Belongs to the rank's thread. */
typedef struct dt_parcel dt_parcel;

/**
 * A channel from one mesh to another: disjoint, overlapping, or the same ranks.
 *
 *   name  for messages, time lines and simulated links: "pp", "pp 0 to 1"; NULL: "channel"
 *
 * Collective  over the ranks of both meshes, in the same order with all that these ranks do
 *             together; what joins them stays until the run ends. On ranks of neither *out is a
 *             channel that can only be released.
 * Ownership   *out is released with dt_channel_release(). Messages under way go on.
 * Errors      DT_ERR_ARG     NULL, meshes of two runtimes
 *             DT_ERR_MEMORY, DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_channel_create(dt_mesh *from, dt_mesh *to, const char *name,
                                               dt_channel **out);
DT_API void dt_channel_release(dt_channel **channel); /* accepts NULL; sets *channel to NULL */

/**
 * Says of the messages that come, on members of `to`, what a receiver in a dry runtime needs to
 * know: there nobody sends. In a run a message of another shape, dtype or placement ends the run
 * with DT_ERR_SHAPE. Holds until it is called again; `shape` NULL: anything may come.
 *
 *   place  how it lies on `from`
 *
 * Not collective.
 * Errors      as dt_zeros(); DT_ERR_ARG for a channel that is NULL
 */
DT_API DT_MUST_USE dt_status dt_channel_expect(dt_channel *channel, dt_dtype dtype, int n_axes,
                                               const int64_t *shape, const dt_placement *place);

/**
 * Sends x and returns. A reference of x is kept until the receivers have it; what the library
 * writes to it waits for that, and the caller does not write to it past the library.
 *
 *   x       on `from`, not Partial
 *   parcel  NULL: nobody waits for it. A send need not be waited for; the end of the run does
 *
 * Collective  over the members of `from`; each goes on by itself.
 * Ownership   *parcel ends by dt_parcel_wait() or dt_parcel_release().
 * Errors      DT_ERR_ARG     NULL, x on another mesh, this rank is not a member of `from`, the run
 *                            has ended
 *             DT_ERR_LAYOUT  x is Partial: reduce it first; or it cannot lie so on `to`
 *             DT_ERR_COMM    another rank failed, left or timed out, also in an earlier message
 *             DT_ERR_MEMORY, DT_ERR_DEVICE
 */
DT_API DT_MUST_USE dt_status dt_channel_send(dt_channel *channel, dt_tensor *x, dt_parcel **parcel);

/**
 * Asks for the next message and returns.
 *
 *   want  NULL, or other placements on `to`: its wait moves the tensor there as dt_redistribute()
 *         does, and is then collective over `to` as that is. Read until the wait has returned
 *
 * Collective  over the members of `to`; each goes on by itself.
 * Ownership   *parcel ends by dt_parcel_wait() or dt_parcel_release(), after which the message is
 *             received all the same, and dropped.
 * Errors      DT_ERR_ARG     NULL, this rank is not a member of `to`, the run has ended
 *             DT_ERR_COMM, DT_ERR_MEMORY  as dt_channel_send()
 */
DT_API DT_MUST_USE dt_status dt_channel_recv(dt_channel *channel, const dt_placement *want,
                                             dt_parcel **parcel);

/**
 * Waits until all messages of this rank on the channel are over, so that it holds nothing any more:
 * at the end of a step, say. Their handles stay.
 *
 * Collective  no.
 * Errors      DT_ERR_ARG for NULL; as dt_parcel_wait()
 */
DT_API DT_MUST_USE dt_status dt_channel_wait(dt_channel *channel);

/** True if dt_parcel_wait() would not wait; NULL is done. Moves what can be moved. Not collective.
 * Errors: none. */
DT_API bool dt_parcel_is_done(dt_parcel *parcel);

/**
 * Waits for a message, frees *parcel and sets it to NULL, also on error. A send is over when its
 * receivers have the tensor, a receive when it is here.
 *
 *   y  of a receive: a new reference. NULL of a send
 *
 * Collective  no, but for a receive with `want`. Deadlines are those of the more patient mesh, from
 *             the wait on.
 * Errors      DT_ERR_ARG     NULL; a receive of what this rank itself has not sent yet
 *             DT_ERR_COMM    another rank failed, left or timed out; channel and message are named
 *             DT_ERR_SHAPE   the message is not what was expected
 *             others of dt_redistribute(). On error *y is NULL. After any but DT_ERR_ARG the run
 *             is aborted on all ranks
 */
DT_API DT_MUST_USE dt_status dt_parcel_wait(dt_parcel **parcel, dt_tensor **y);

/** Lets a message go on by itself. Accepts NULL; sets *parcel to NULL. Not collective. Errors:
 * none. */
DT_API void dt_parcel_release(dt_parcel **parcel);

/**
 * The wait for a receive on a tape: the tensor belongs to the tape's scope; the bytes that this
 * rank has received are counted as DT_COMM_SEND, by the reason of dt_tape_because(), else "stage";
 * errors latch. NULL after an error, also an earlier one, with which the message is released.
 *
 * Collective, Errors  as dt_parcel_wait(), latched. Ownership: borrowed from the tape.
 */
DT_API dt_tensor *dt_parcel_take(dt_tape *tape, dt_parcel **parcel);

#ifdef __cplusplus
}
#endif
#endif
