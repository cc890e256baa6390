# SPDX-License-Identifier: Apache-2.0
# Libraries that the build needs (an error names the Debian package) and those that it only reports.

set(CMAKE_THREAD_PREFER_PTHREAD ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig)

# As pkg-config modules; `package` is named when one is missing.
function(dt_require module version target package)
    if(PKG_CONFIG_FOUND)
        pkg_check_modules(${target} QUIET IMPORTED_TARGET "${module}>=${version}")
    endif()
    if(NOT TARGET PkgConfig::${target})
        message(FATAL_ERROR "${module} ${version} or newer was not found. On Debian: "
            "apt-get install pkg-config ${package} (tools/setup.sh installs all that is needed).")
    endif()
    set(${target}_VERSION "${${target}_VERSION}" CACHE INTERNAL "")
endfunction()

dt_require(hwloc 2.0 HWLOC libhwloc-dev)
dt_require(jansson 2.10 JANSSON libjansson-dev)
dt_require(libpcre2-8 10.30 PCRE2 libpcre2-dev)
dt_require(libutf8proc 2.1 UTF8PROC libutf8proc-dev)
find_package(OneDNN 2.6 REQUIRED)
if(DT_TESTS AND NOT DT_TEST_PLAIN)
    dt_require(criterion 2.4 CRITERION libcriterion-dev)
endif()

set(DT_LIBRARIES Threads::Threads ${CMAKE_DL_LIBS} PkgConfig::HWLOC PkgConfig::JANSSON PkgConfig::PCRE2
    PkgConfig::UTF8PROC OneDNN::dnnl)

# CUDA and MPI come in modules that are opened at run time (DtCuda.cmake, DtMpi.cmake): the library
# links neither.
foreach(option DT_WITH_CUDA DT_WITH_MPI DT_WITH_HTTP)
    if(NOT ${option} MATCHES "^(AUTO|ON|OFF)$")
        message(FATAL_ERROR "${option} is \"${${option}}\" but must be AUTO, ON or OFF.")
    endif()
endforeach()
if(NOT DT_WITH_HTTP STREQUAL "OFF")
    if(PKG_CONFIG_FOUND)
        pkg_check_modules(MICROHTTPD QUIET IMPORTED_TARGET "libmicrohttpd>=0.9.71")
    endif()
    if(TARGET PkgConfig::MICROHTTPD)
        set(DT_HAVE_HTTP TRUE)
        list(APPEND DT_LIBRARIES ${MICROHTTPD_LINK_LIBRARIES})
        set_source_files_properties(service/http/mhd.c PROPERTIES
            INCLUDE_DIRECTORIES "${MICROHTTPD_INCLUDE_DIRS}")
    elseif(DT_WITH_HTTP STREQUAL "ON")
        message(FATAL_ERROR "DT_WITH_HTTP=ON, but libmicrohttpd 0.9.71 or newer was not found. On "
            "Debian: apt-get install libmicrohttpd-dev.")
    endif()
endif()
if(NOT DT_WITH_CUDA STREQUAL "OFF")
    find_package(CUDAToolkit QUIET)
    find_package(NCCL QUIET)
    find_package(CUDNN 9.10 QUIET)
    if(DT_WITH_CUDA STREQUAL "ON" AND NOT CUDAToolkit_FOUND)
        message(FATAL_ERROR "DT_WITH_CUDA=ON, but no CUDA toolkit was found: set CUDAToolkit_ROOT "
            "to its folder, or use DT_WITH_CUDA=OFF.")
    endif()
endif()
