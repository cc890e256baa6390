/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cuda_load.h"

#include <dlfcn.h>
#include <unistd.h>

#include "base/error.h"
#include "base/module_file.h"

dt_status dti_cuda_load(const char *file, const char *folder, const dti_cuda_module **out)
{
    char found[DTI_MODULE_PATH_BYTES];
    const dti_cuda_module *module;
    void *handle;

    *out = NULL;
    if (file == NULL) {
        DT_CHECK(dti_module_locate(folder, "cuda", found), DT_ERR_UNSUPPORTED,
                 "this build has no module for CUDA (dtensor_cuda.so); build with a CUDA toolkit "
                 "and -DDT_WITH_CUDA=ON, or name the folder of the module in DTENSOR_MODULES");
        file = found;
    }
    DT_CHECK(access(file, R_OK) == 0, DT_ERR_UNSUPPORTED,
             "the module for CUDA, %s, cannot be read; is DTENSOR_CUDA_MODULE right?", file);
    handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    DT_CHECK(handle != NULL, DT_ERR_UNSUPPORTED, "the module for CUDA cannot be opened: %s",
             dlerror());
    module = dlsym(handle, DTI_CUDA_MODULE_SYMBOL);
    DT_CHECK(module != NULL, DT_ERR_UNSUPPORTED, "%s is no module for CUDA", file);
    DT_CHECK(module->version == DTI_CUDA_API_VERSION, DT_ERR_UNSUPPORTED,
             "%s is a module of another version of dtensor (%d, this library needs %d); install "
             "both from one build",
             file, module->version, DTI_CUDA_API_VERSION);
    *out = module;
    return DT_OK;
}

/* What is found stays open: CUDA's runtime opens it under the same name. */
bool dti_cuda_has_driver(void)
{
    return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL;
}
