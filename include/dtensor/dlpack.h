/* SPDX-License-Identifier: Apache-2.0
 *
 * This rank's piece of a tensor, handed to NumPy, PyTorch, JAX and others without a copy, and
 * theirs to us: DLPack 1.x and the older form. What is exchanged is local: a piece of its own shape
 * and bytes; shapes and placements of the whole stay on our side.
 *
 * The structs below have the binary layout of dlpack.h. A program that includes that file before
 * this one gets its types under our names, and needs no casts; otherwise ours stand alone. */
#ifndef DT_DLPACK_H
#define DT_DLPACK_H

#include <dtensor/tensor.h>

#if defined(DLPACK_DLPACK_H_) && defined(DLPACK_MAJOR_VERSION)
typedef DLManagedTensorVersioned dt_dlpack;
typedef DLManagedTensor dt_dlpack_old;
#else

/* Codes of dlpack.h that our tensors use. */
enum { DT_DL_CPU = 1, DT_DL_CUDA_HOST = 3 };
enum { DT_DL_INT = 0, DT_DL_UINT = 1, DT_DL_FLOAT = 2, DT_DL_BFLOAT = 4 };

typedef struct dt_dl_version { /* DLPackVersion */
    uint32_t major, minor;
} dt_dl_version;

typedef struct dt_dl_device { /* DLDevice */
    int32_t device_type, device_id;
} dt_dl_device;

typedef struct dt_dl_dtype { /* DLDataType */
    uint8_t code, bits;
    uint16_t lanes;
} dt_dl_dtype;

typedef struct dt_dl_tensor { /* DLTensor */
    void *data;
    dt_dl_device device;
    int32_t ndim;
    dt_dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL (old exporters): row-major */
    uint64_t byte_offset;
} dt_dl_tensor;

typedef struct dt_dlpack { /* DLManagedTensorVersioned, in capsules "dltensor_versioned" */
    dt_dl_version version;
    void *manager_ctx;
    void (*deleter)(struct dt_dlpack *self);
    uint64_t flags; /* bit 0: read-only; bit 1: the exporter copied */
    dt_dl_tensor dl_tensor;
} dt_dlpack;

typedef struct dt_dlpack_old { /* DLManagedTensor, in capsules "dltensor" */
    dt_dl_tensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct dt_dlpack_old *self);
} dt_dlpack_old;

#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * This rank's piece of x, in place. Whoever takes it reads and writes the bytes of the tensor; they
 * stay as long as either side holds them, after the run, too. What the rank computes with x
 * meanwhile is the business of both.
 *
 *   *out  row-major with strides; released by its deleter, which any thread may call at any time
 *
 * Not collective.
 * Ownership   *out is the caller's until it is handed on; its `deleter` gives it back.
 * Errors      DT_ERR_ARG          NULL
 *             DT_ERR_LAYOUT       x is Partial: a term is no value; redistribute it first
 *             DT_ERR_UNSUPPORTED  a dry tensor; a tensor on a GPU: copy it by dt_tensor_read()
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_to_dlpack(dt_tensor *x, dt_dlpack **out);

/** dt_to_dlpack() for those who take the form before DLPack 1.0. Not collective. Errors: as there.
 */
DT_API DT_MUST_USE dt_status dt_to_dlpack_old(dt_tensor *x, dt_dlpack_old **out);

/* What to do with bytes that cannot be taken in place: strides that are not row-major, read-only
 * memory, which a tensor's never is, or memory that is not aligned to its elements. */
typedef enum dt_dl_copy {
    DT_DL_COPY_NEVER,     /* refuse, with the reason */
    DT_DL_COPY_IF_NEEDED, /* copy */
    DT_DL_COPY_ALWAYS     /* copy in any case: the tensor has memory of its own */
} dt_dl_copy;

/**
 * A tensor whose piece on this rank is somebody else's memory, taken in place or copied. Its dtype
 * is that of `from`, its extents are those of this rank's piece of `shape` (global) under `place`.
 *
 *   from  taken over in any case: its deleter is called once, by this rank's thread, when the last
 *         tensor on its memory is released, after a copy, at the end of the run, or when this
 *         fails. Of a major version that is not 1 nothing but the deleter is touched
 *
 * Collective  no communication; every rank of the mesh passes the same shape and placements.
 * Ownership   *out is a new reference.
 * Errors      as dt_from_local(); DT_ERR_ARG          bytes that cannot be taken in place, where
 *                                                     copy is DT_DL_COPY_NEVER
 *                                 DT_ERR_SHAPE        other extents than this rank's piece
 *                                 DT_ERR_UNSUPPORTED  another version, a device whose memory is not
 *                                                     the host's, a dtype without a dt_dtype, a
 *                                                     rank whose tensors lie on a GPU
 */
DT_API DT_MUST_USE dt_status dt_from_dlpack(dt_mesh *mesh, const dt_placement *place, int n_axes,
                                            const int64_t *shape, dt_dlpack *from, dt_dl_copy copy,
                                            dt_tensor **out);

/** dt_from_dlpack() from the form before DLPack 1.0, which cannot say that it is read-only.
 * Collective, Ownership and Errors as there. */
DT_API DT_MUST_USE dt_status dt_from_dlpack_old(dt_mesh *mesh, const dt_placement *place,
                                                int n_axes, const int64_t *shape,
                                                dt_dlpack_old *from, dt_dl_copy copy,
                                                dt_tensor **out);

#ifdef __cplusplus
}
#endif
#endif
