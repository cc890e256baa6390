/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's state of an optimizer that does not lie with the parameters: in memory of the host, or
 * in a file. It is read and written in windows, pieces of a few tensors at a time; of a file the
 * next one comes and the last one goes while a window is computed on.
 *
 * The file has no name: it goes with the process, however that ends. It is what memory is, not a
 * checkpoint. Each window's checksum is known here, so that a disk that gives back other bytes than
 * it was given is found out. */
#ifndef DTI_OFFLOAD_H
#define DTI_OFFLOAD_H

#include <dtensor/mesh.h>

#include "base/error.h"

typedef struct dti_offload dti_offload;

enum { DTI_OFFLOAD_MAX_SLOTS = 4 };

/* Some elements of an item, of all its slots: in memory of the rank's device. */
typedef struct dti_window {
    int64_t item;
    int64_t first, n; /* n 0: none */
    float *slot[DTI_OFFLOAD_MAX_SLOTS];
} dti_window;

/* Collects what there is to keep: `where` is "host" or a folder; window_bytes is what windows take
 * of memory together, at least DTI_OFFLOAD_LEAST_BYTES. */
enum { DTI_OFFLOAD_LEAST_BYTES = 3 * 4 * 4096 };
dt_status dti_offload_create(dt_runtime *rt, const char *where, int64_t window_bytes,
                             dti_offload **out) DT_MUST_USE;
void dti_offload_free(dti_offload **offload); /* accepts NULL */

/* An item of n elements in each of `n_slots` slots; its number is *item, from 0 on. */
dt_status dti_offload_add(dti_offload *o, int64_t n, int n_slots, int64_t *item) DT_MUST_USE;

/* After the last item: takes memory, or space on the disk. All are zeros. Errors: DT_ERR_MEMORY;
 * DT_ERR_IO the disk has no room, or the folder cannot be written. */
dt_status dti_offload_open(dti_offload *o) DT_MUST_USE;

/* The window after w, which begins as { item, 0, 0 }: what w holds is put back, unless `reads`, and
 * gone from then on. n 0 after the last. Errors: DT_ERR_IO names the file; what was not put back is
 * lost, and every later call fails likewise until all windows have been written anew. */
dt_status dti_offload_next(dti_offload *o, dti_window *w, bool reads) DT_MUST_USE;

/* Waits until what was put back is there. */
dt_status dti_offload_settle(dti_offload *o) DT_MUST_USE;

/* From now on all windows are taken for good: somebody writes all of them anew. */
void dti_offload_renew(dti_offload *o);

#endif
