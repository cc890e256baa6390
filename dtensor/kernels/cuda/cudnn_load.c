/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/kernels/cuda/cudnn_calls.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* ISO C has no cast from an object's address to a function's; POSIX has the same bytes for both. */
static int find(void *library, const char *name, void *function, char why[DTI_CUDNN_TEXT_BYTES])
{
    void *const symbol = dlsym(library, name);

    if (symbol == NULL) {
        (void)snprintf(why, DTI_CUDNN_TEXT_BYTES, "libcudnn.so.9 has no %s", name);
        return -1;
    }
    memcpy(function, &symbol, sizeof symbol);
    return 0;
}

int dti_cudnn_load(dti_cudnn_calls *out, char why[DTI_CUDNN_TEXT_BYTES])
{
    void *const library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        (void)snprintf(why, DTI_CUDNN_TEXT_BYTES, "%s", dlerror());
        return -1;
    }
    if (find(library, "cudnnGetVersion", &out->version, why) != 0 ||
        find(library, "cudnnGetErrorString", &out->text, why) != 0 ||
        find(library, "cudnnCreate", &out->open, why) != 0 ||
        find(library, "cudnnDestroy", &out->close, why) != 0 ||
        find(library, "cudnnSetStream", &out->set_stream, why) != 0 ||
        find(library, "cudnnBackendCreateDescriptor", &out->create, why) != 0 ||
        find(library, "cudnnBackendDestroyDescriptor", &out->destroy, why) != 0 ||
        find(library, "cudnnBackendSetAttribute", &out->set, why) != 0 ||
        find(library, "cudnnBackendGetAttribute", &out->get, why) != 0 ||
        find(library, "cudnnBackendFinalize", &out->finalize, why) != 0 ||
        find(library, "cudnnBackendExecute", &out->execute, why) != 0)
        return -1;
    if (out->version() >= DTI_CUDNN_OLDEST) return 0;
    (void)snprintf(why, DTI_CUDNN_TEXT_BYTES, "cuDNN is %zu, %d is needed", out->version(),
                   DTI_CUDNN_OLDEST);
    return -1;
}
