# SPDX-License-Identifier: Apache-2.0
# oneDNN 2.6 or newer (Debian: libdnnl-dev) as the target OneDNN::dnnl. Header and library are
# searched directly: packages differ in what their own CMake files ask for, and both majors have
# the same C header name. Hint: OneDNN_ROOT.

find_path(OneDNN_INCLUDE_DIR NAMES oneapi/dnnl/dnnl.h)
find_library(OneDNN_LIBRARY NAMES dnnl)
mark_as_advanced(OneDNN_INCLUDE_DIR OneDNN_LIBRARY)

if(OneDNN_INCLUDE_DIR)
    file(STRINGS "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h" lines
        REGEX "#define +DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers "." OneDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN
    REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR VERSION_VAR OneDNN_VERSION
    REASON_FAILURE_MESSAGE "On Debian: apt-get install libdnnl-dev (elsewhere: set OneDNN_ROOT).")

if(OneDNN_FOUND AND NOT TARGET OneDNN::dnnl)
    add_library(OneDNN::dnnl UNKNOWN IMPORTED)
    set_target_properties(OneDNN::dnnl PROPERTIES
        IMPORTED_LOCATION "${OneDNN_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${OneDNN_INCLUDE_DIR}")
endif()
