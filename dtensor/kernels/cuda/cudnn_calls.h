/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of cuDNN's C backend that we call. The library is 490 MB and many machines have
 * none, so it is opened when it is first wanted and never linked. */
#ifndef DTI_CUDNN_CALLS_H
#define DTI_CUDNN_CALLS_H

#include <cudnn_graph.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    /* Properties of a device as a descriptor came with 9.8; minus infinity for what is masked with
     * 9.10, where it was the lowest float before. */
    DTI_CUDNN_OLDEST = 91000,
    DTI_CUDNN_TEXT_BYTES = 256
};

typedef struct dti_cudnn_calls {
    size_t (*version)(void);
    const char *(*text)(cudnnStatus_t status);
    cudnnStatus_t (*open)(cudnnHandle_t *handle);
    cudnnStatus_t (*close)(cudnnHandle_t handle);
    cudnnStatus_t (*set_stream)(cudnnHandle_t handle, cudaStream_t stream);
    cudnnStatus_t (*create)(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out);
    cudnnStatus_t (*destroy)(cudnnBackendDescriptor_t descriptor);
    cudnnStatus_t (*set)(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t n, const void *values);
    cudnnStatus_t (*get)(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t most, int64_t *n, void *values);
    cudnnStatus_t (*finalize)(cudnnBackendDescriptor_t descriptor);
    cudnnStatus_t (*execute)(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                             cudnnBackendDescriptor_t pack);
} dti_cudnn_calls;

/* 0, or -1 with the reason: cuDNN 9 is not there, is too old, or lacks a function. It stays open
 * until the process ends. */
int dti_cudnn_load(dti_cudnn_calls *out, char why[DTI_CUDNN_TEXT_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
