# SPDX-License-Identifier: Apache-2.0
# The headers of cuDNN 9, as CUDNN_INCLUDE_DIR and CUDNN_VERSION. The library is opened at run time,
# so it need not be here. Hint: CUDNN_ROOT.

find_path(CUDNN_INCLUDE_DIR NAMES cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
mark_as_advanced(CUDNN_INCLUDE_DIR)

if(CUDNN_INCLUDE_DIR)
    file(STRINGS "${CUDNN_INCLUDE_DIR}/cudnn_version.h" lines
        REGEX "#define +CUDNN_(MAJOR|MINOR|PATCHLEVEL) +[0-9]+")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers "." CUDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN
    REQUIRED_VARS CUDNN_INCLUDE_DIR VERSION_VAR CUDNN_VERSION)
