# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` leaves: headers, the library, the command, pages and examples, and the files
# by which CMake and pkg-config find them. Each belongs to a component, of which DtPackages makes
# Debian packages: library, development, command, documentation, and one for each MPI.

include(CMakePackageConfigHelpers)

set(dt_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/dtensor")
install(TARGETS dtensor EXPORT dtensorTargets ARCHIVE COMPONENT development)
if(DT_SHARED)
    install(TARGETS dtensor_shared EXPORT dtensorTargets
        LIBRARY COMPONENT library NAMELINK_COMPONENT development)
endif()
install(EXPORT dtensorTargets NAMESPACE dtensor:: DESTINATION "${dt_package_dir}"
    COMPONENT development)
install(FILES include/dtensor.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development
    OPTIONAL)
install(DIRECTORY include/dtensor DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development
    FILES_MATCHING PATTERN "*.h")
if(TARGET dtensor_cli)
    install(TARGETS dtensor_cli COMPONENT command)
endif()

install(FILES LICENSE README.md DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT documentation)
install(DIRECTORY docs examples DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT documentation)

configure_package_config_file(cmake/dtensorConfig.cmake.in
    "${PROJECT_BINARY_DIR}/package/dtensorConfig.cmake" INSTALL_DESTINATION "${dt_package_dir}")
# Until 1.0 minor versions may break.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/dtensorConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion)
install(FILES
    "${PROJECT_BINARY_DIR}/package/dtensorConfig.cmake"
    "${PROJECT_BINARY_DIR}/package/dtensorConfigVersion.cmake"
    cmake/FindOneDNN.cmake
    DESTINATION "${dt_package_dir}" COMPONENT development)

# Who links the archive needs what it needs; a shared library brings that along.
# libutf8proc is no requirement by name: its module would hand -DUTF8PROC_EXPORTS to every user.
set(dt_utf8proc "-lutf8proc")
if(NOT UTF8PROC_LIBDIR IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
    string(PREPEND dt_utf8proc "-L${UTF8PROC_LIBDIR} ")
endif()
set(DT_PC_REQUIRES "hwloc jansson libpcre2-8")
if(DT_HAVE_HTTP)
    string(APPEND DT_PC_REQUIRES " libmicrohttpd")
endif()
set(DT_PC_LIBS "${dt_utf8proc} -ldnnl -lm -pthread")
if(DT_SHARED)
    set(DT_PC_REQUIRES_PRIVATE "${DT_PC_REQUIRES}")
    set(DT_PC_LIBS_PRIVATE "${DT_PC_LIBS}")
    set(DT_PC_REQUIRES "")
    set(DT_PC_LIBS "")
endif()
file(RELATIVE_PATH DT_PC_PREFIX "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
configure_file(cmake/dtensor.pc.in "${PROJECT_BINARY_DIR}/package/dtensor.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/package/dtensor.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)
