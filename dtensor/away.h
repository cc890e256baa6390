/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of a rank that do not lie in its device's memory: beside a GPU in pinned memory of the
 * host, which its kernels read and write in place, or in a file, which is mapped. Nothing else
 * tells such a tensor from others, and whoever looks into it finds its values; but it is not
 * counted in the device's memory, and a move of it makes bytes there even where nothing is moved.
 *
 * The file has no name: it goes with the process, however that ends. Its pages come when they are
 * needed; whoever uses many brings them before and lets them go, so that no more are held than are
 * in use. A checksum of what was put there is kept, so that a disk that gives back other bytes than
 * it was given is found out. */
#ifndef DTI_AWAY_H
#define DTI_AWAY_H

#include <dtensor/tensor.h>

#include "dtensor/device/device.h"

/* Memory at `where`, "host" or a folder, for dti_tensor_create_in(). *out NULL: where all tensors
 * of the rank lie. It is the device's. Errors: DT_ERR_IO no file can be made in the folder;
 * DT_ERR_UNSUPPORTED a folder, beside a GPU. */
dt_status dti_away_open(dti_device *d, const char *where, dti_memory **out) DT_MUST_USE;
void dti_away_end(dti_device *d);   /* the bytes go */
void dti_away_close(dti_device *d); /* tensors have gone as well */

bool dti_tensor_is_away(const dt_tensor *x);

/* Of a tensor in a file; of others nothing happens. It is wanted soon: the system reads it
 * meanwhile. Its values are in memory, and are what was put there. They are used no more, and,
 * where they were written, remembered as what is there. Errors: DT_ERR_IO names the file; of
 * leave() also for what was written before. */
void dti_away_soon(const dt_tensor *x);
dt_status dti_away_bring(const dt_tensor *x) DT_MUST_USE;
dt_status dti_away_leave(const dt_tensor *x, bool written) DT_MUST_USE;

/* Bytes from memory of the host into one that lies in a file, at byte `at`: through the file, which
 * takes a third of the time that a system needs to learn of pages that are written to. false: x
 * lies in none. */
bool dti_away_write(const dt_tensor *x, int64_t at, const void *from, size_t bytes, dt_status *st);

#endif
