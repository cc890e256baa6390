/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices: where the tensors of a rank lie and its kernels run, chosen by dt_run_options.device.
 *
 * The same program runs on all of them. What differs is dt_tensor_local(): on a GPU its data is
 * memory of the device, which the host must not touch; dt_tensor_read() and dt_tensor_write() (in
 * tensor.h) work everywhere. */
#ifndef DT_DEVICES_H
#define DT_DEVICES_H

#include <dtensor/mesh.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Whether dt_run_options.device may be `device`: "cpu", "auto", "cuda", "cuda:1".
 *
 * Not collective.
 * Errors      DT_ERR_ARG          NULL, or no device has such a name
 *             DT_ERR_UNSUPPORTED  no such GPU, no driver, or CUDA is not built in; says which
 */
DT_API DT_MUST_USE dt_status dt_device_check(const char *device);

/** The kind of device this rank uses, "cpu" or "cuda"; NULL if it could not be opened, as its first
 * tensor will say. Not collective. Errors: none. */
DT_API const char *dt_device_of(dt_runtime *rt);

/**
 * Returns when everything that was started on this rank's device is done: on a GPU operators return
 * when they are queued, so who measures them waits here.
 *
 * Collective  no.
 * Errors      DT_ERR_ARG     NULL
 *             DT_ERR_DEVICE  something that was queued failed
 */
DT_API DT_MUST_USE dt_status dt_device_finish(dt_runtime *rt);

#ifdef __cplusplus
}
#endif
#endif
