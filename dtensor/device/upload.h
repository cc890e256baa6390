/* SPDX-License-Identifier: Apache-2.0
 *
 * Many bytes of the host on their way to a GPU: they are written into pinned buffers in turn, and
 * the device copies from one while the next is written. It belongs to the rank's thread, whose
 * workers may write what it gave room for. */
#ifndef DTI_UPLOAD_H
#define DTI_UPLOAD_H

#include "mesh/comm/cuda_comm.h"

/* Buffers of 8 MiB take the device 0.2 ms each over PCIe 5: 40 times what starting a copy costs,
 * and enough for several threads to share the reading. One is written at a time and one copied; the
 * other two even out reads of unlike speed. A rank pins 32 MiB, and less than that if it has less
 * to send, because each buffer is pinned when it is first needed, or all by pin(). */
enum { DTI_UPLOAD_BUFFER_BYTES = 8 << 20, DTI_UPLOAD_BUFFERS = 4 };

typedef struct dti_upload dti_upload;

/* `buffer_bytes`: 0 is DTI_UPLOAD_BUFFER_BYTES. A copy that takes longer than `timeout_ms` is an
 * error. What was started on the stream before waits for no other rank (dti_cuda_world_sync()). */
dt_status dti_upload_open(const dti_cuda_place *place, size_t buffer_bytes, int64_t timeout_ms,
                          dti_upload **out) DT_MUST_USE;

/* Pins all buffers now: room() pins no more. Pinning may wait for the device, so whoever sends
 * while kernels of other ranks wait for this one pins before there are any. */
dt_status dti_upload_pin(dti_upload *u) DT_MUST_USE;

/* The largest room that there is. */
size_t dti_upload_most(const dti_upload *u);

/* Room for bytes of `name`, pinned and 64-byte aligned: the caller writes them and calls send().
 * Waits until the device has read what was there before. DT_ERR_DEVICE: a copy was given up, or
 * nothing tells when it ends, so there is no room any more. */
dt_status dti_upload_room(dti_upload *u, const char *name, size_t bytes, void **room) DT_MUST_USE;

/* Whether room() for so many bytes would not wait. */
bool dti_upload_ready(const dti_upload *u, size_t bytes);

/* Starts the copy of what was written to memory of the device, in order of the rank's stream. What
 * the room was and is not sent, the next room() takes. */
dt_status dti_upload_send(dti_upload *u, void *to) DT_MUST_USE;

/* Waits until all that was sent has arrived. Errors name what was under way: DT_ERR_DEVICE. */
dt_status dti_upload_wait(dti_upload *u) DT_MUST_USE;

/* Waits for what is under way and gives the buffers back. Hands back `st` if it is an error, else
 * that of the copies. Accepts NULL. */
dt_status dti_upload_close(dti_upload **upload, dt_status st) DT_MUST_USE;

#endif
