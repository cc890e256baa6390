/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that includes the official dlpack.h first works with its types, without a cast. The
 * declarations are those of DLPack 1.1, as far as a tensor needs them. */
#include <stdint.h>

#define DLPACK_DLPACK_H_
#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 1

typedef struct {
    uint32_t major;
    uint32_t minor;
} DLPackVersion;

typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3 } DLDeviceType;

typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef enum { kDLInt = 0U, kDLUInt = 1U, kDLFloat = 2U, kDLBfloat = 4U } DLDataTypeCode;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

#include <dtensor/dlpack.h>
#include <dtensor/factories.h>

#include "tests/support/dt_test.h"

static dt_status with_its_types(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) };
    const int64_t shape[] = { 4, 3 };
    DLManagedTensorVersioned *out;
    DLManagedTensor *old;
    dt_tensor *x, *y;

    (void)arg;
    DT_TRY(dt_full(mesh, rows, DT_BF16, 2, shape, 2, &x));
    DT_TRY(dt_to_dlpack(x, &out));
    DT_EXPECT(out->dl_tensor.device.device_type == kDLCPU && out->dl_tensor.dtype.code == kDLBfloat,
              "its codes");
    DT_EXPECT(out->dl_tensor.strides[0] == 3 && out->dl_tensor.byte_offset == 0, "its fields");
    DT_TRY(dt_from_dlpack(mesh, rows, 2, shape, out, DT_DL_COPY_NEVER, &y));
    dt_tensor_release(&y);
    DT_TRY(dt_to_dlpack_old(x, &old));
    DT_EXPECT_EQ_INT(old->dl_tensor.shape[1], 3);
    old->deleter(old);
    dt_tensor_release(&x);
    return DT_OK;
}

DT_TEST(dlpack_official, its_types_are_ours)
{
    dt_test_on_ranks("tp=2", with_its_types, NULL);
}
