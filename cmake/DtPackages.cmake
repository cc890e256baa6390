# SPDX-License-Identifier: Apache-2.0
# Debian packages, by CPack: `make deb`, or `cpack` in a build folder. One package for each component
# of DtInstall, named as Debian names such:
#
#   libdtensor0.1     the shared library, and the module for processes without MPI
#   libdtensor-dev    headers, static library, pkg-config and CMake files, dtensor(3)
#   dtensor           the command, dtensor(1), completion
#   dtensor-doc       pages and examples
#   dtensor-openmpi   the module for Open MPI, where it was built; dtensor-mpich likewise
#
# The module for GPUs is in none: what it needs does not come from Debian. It is built from source.

find_program(DPKG_DEB dpkg-deb)
mark_as_advanced(DPKG_DEB)
if(NOT PROJECT_IS_TOP_LEVEL OR NOT DT_SHARED OR NOT TARGET dtensor_cli OR NOT DPKG_DEB)
    return()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The dtensor developers <dtensor@localhost>" CACHE STRING
    "Maintainer of the packages, as Debian writes it")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(dt_runtime "libdtensor${dt_soversion}")
set(dt_same "${dt_runtime} (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
set(CPACK_COMPONENTS_ALL)

# What a package is; more dependencies than those on shared libraries, which dpkg-shlibdeps finds.
function(dt_package component name section description depends)
    list(APPEND CPACK_COMPONENTS_ALL ${component})
    string(TOUPPER ${component} id)
    set(CPACK_COMPONENTS_ALL "${CPACK_COMPONENTS_ALL}" PARENT_SCOPE)
    set(CPACK_DEBIAN_${id}_PACKAGE_NAME "${name}" PARENT_SCOPE)
    set(CPACK_DEBIAN_${id}_PACKAGE_SECTION "${section}" PARENT_SCOPE)
    set(CPACK_DEBIAN_${id}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
    set(CPACK_DEBIAN_${id}_PACKAGE_SHLIBDEPS ON PARENT_SCOPE)
    set(CPACK_COMPONENT_${id}_DESCRIPTION "${description}" PARENT_SCOPE)
    install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${name}" RENAME copyright
        COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()

dt_package(library "${dt_runtime}" libs "The shared library." "")
set(dt_http "")
if(DT_HAVE_HTTP)
    set(dt_http ", libmicrohttpd-dev")
endif()
dt_package(development libdtensor-dev libdevel
    "Headers, the static library, and what CMake and pkg-config find them by."
    "${dt_same}, pkg-config, libhwloc-dev, libjansson-dev, libpcre2-dev, libutf8proc-dev, libdnnl-dev${dt_http}")
dt_package(command dtensor science "The command: runs, saves, checks and plans models." "${dt_same}")
dt_package(documentation dtensor-doc doc "Pages, and examples with a small model." "")
set(CPACK_DEBIAN_DOCUMENTATION_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DOCUMENTATION_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA "${PROJECT_SOURCE_DIR}/cmake/triggers")
foreach(mpi IN LISTS DT_MPIS)
    dt_package(${mpi} dtensor-${mpi} science "Ranks as processes that ${mpi} starts." "${dt_same}")
endforeach()

include(CPack)
