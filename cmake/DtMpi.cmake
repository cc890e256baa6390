# SPDX-License-Identifier: Apache-2.0
# One module per MPI implementation that is found, Open MPI and MPICH side by side if both are there.
# The library itself links none of them and runs without.
#
# And one without any MPI, for what torchrun starts on one machine.
#
# Sets DT_MPIS, and DT_MPICC_<mpi> and DT_MPIRUN_<mpi> (empty without a launcher) for each. Others
# than those in PATH: -DDT_MPICC=/folder/mpicc.

set(DT_MPIS)
set(DT_MPICC "" CACHE FILEPATH "Compiler wrapper of the MPI to use beside those in PATH")
mark_as_advanced(DT_MPICC)

# Which implementation a wrapper belongs to: by the macros of its header, not by its name.
function(dt_mpi_of_wrapper wrapper result)
    set(${result} "" PARENT_SCOPE)
    file(WRITE "${PROJECT_BINARY_DIR}/CMakeFiles/dt_mpi.c" "#include <mpi.h>\n")
    execute_process(COMMAND "${wrapper}" -E -dM "${PROJECT_BINARY_DIR}/CMakeFiles/dt_mpi.c"
        OUTPUT_VARIABLE macros ERROR_QUIET RESULT_VARIABLE failed)
    if(failed)
        return()
    elseif(macros MATCHES "#define OPEN_MPI ")
        set(${result} openmpi PARENT_SCOPE)
    elseif(macros MATCHES "#define MPICH_VERSION ")
        set(${result} mpich PARENT_SCOPE)
    endif()
endfunction()

# The launcher beside a wrapper; it has to be of the same implementation, or every process would be
# alone.
function(dt_mpi_launcher mpi wrapper result)
    get_filename_component(folder "${wrapper}" DIRECTORY)
    set(${result} "" PARENT_SCOPE)
    foreach(name mpirun.${mpi} mpirun mpiexec)
        if(NOT EXISTS "${folder}/${name}")
            continue()
        endif()
        execute_process(COMMAND "${folder}/${name}" --version OUTPUT_VARIABLE version ERROR_QUIET)
        if((mpi STREQUAL "openmpi" AND version MATCHES "Open MPI|OpenRTE|PRRTE") OR
           (mpi STREQUAL "mpich" AND version MATCHES "HYDRA|MPICH"))
            set(${result} "${folder}/${name}" PARENT_SCOPE)
            return()
        endif()
    endforeach()
endfunction()

# The wrapper compiles, with this build's compiler underneath.
function(dt_mpi_module mpi wrapper)
    set(module "${PROJECT_BINARY_DIR}/lib/dtensor/dtensor_${mpi}.so")
    set(source "${PROJECT_SOURCE_DIR}/mesh/comm/mpi_module.c")
    set(werror)
    if(DT_WERROR)
        set(werror -Werror)
    endif()
    add_custom_command(OUTPUT "${module}"
        COMMAND "${CMAKE_COMMAND}" -E make_directory "${PROJECT_BINARY_DIR}/lib/dtensor"
        COMMAND "${CMAKE_COMMAND}" -E env "OMPI_CC=${CMAKE_C_COMPILER}" "MPICH_CC=${CMAKE_C_COMPILER}"
            "${wrapper}" -std=c11 -D_DEFAULT_SOURCE -O2 -g1 -fPIC -shared -fvisibility=hidden
            -Wall -Wextra -Wpedantic -Wconversion -Wshadow ${werror}
            "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=" "-I${PROJECT_SOURCE_DIR}"
            "${source}" -o "${module}"
        DEPENDS "${source}" "${PROJECT_SOURCE_DIR}/mesh/comm/mpi_api.h"
        COMMENT "Building the module for ${mpi}" VERBATIM)
    add_custom_target(dtensor_${mpi} ALL DEPENDS "${module}")
    install(FILES "${module}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/dtensor" COMPONENT ${mpi}
        PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
            WORLD_READ WORLD_EXECUTE)
endfunction()

if(NOT DT_WITH_MPI STREQUAL "OFF")
    foreach(name IN ITEMS "${DT_MPICC}" mpicc.openmpi mpicc.mpich mpicc)
        unset(wrapper)
        if(EXISTS "${name}")
            set(wrapper "${name}")
        elseif(name)
            find_program(wrapper NAMES ${name} NO_CACHE)
        endif()
        if(NOT wrapper)
            continue()
        endif()
        dt_mpi_of_wrapper("${wrapper}" mpi)
        if(NOT mpi OR mpi IN_LIST DT_MPIS)
            continue()
        endif()
        list(APPEND DT_MPIS ${mpi})
        set(DT_MPICC_${mpi} "${wrapper}")
        dt_mpi_launcher(${mpi} "${wrapper}" DT_MPIRUN_${mpi})
        dt_mpi_module(${mpi} "${wrapper}")
    endforeach()
    if(DT_WITH_MPI STREQUAL "ON" AND NOT DT_MPIS)
        message(FATAL_ERROR "DT_WITH_MPI=ON, but neither Open MPI nor MPICH was found: apt-get "
            "install libopenmpi-dev (or libmpich-dev), set DT_MPICC to a wrapper, or use "
            "DT_WITH_MPI=OFF.")
    endif()
endif()

# The module for processes that no MPI joins.
add_library(dtensor_sockets MODULE
    "${PROJECT_SOURCE_DIR}/mesh/comm/sockets_module.c" "${PROJECT_SOURCE_DIR}/mesh/comm/sockets_arrive.c"
    "${PROJECT_SOURCE_DIR}/mesh/comm/sockets_join.c" "${PROJECT_SOURCE_DIR}/mesh/comm/sockets_wire.c"
    "${PROJECT_SOURCE_DIR}/mesh/comm/sockets_name.c")
set_target_properties(dtensor_sockets PROPERTIES PREFIX "" SUFFIX ".so"
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib/dtensor")
target_link_libraries(dtensor_sockets PRIVATE dtensor_flags ${DT_LIBRARIES})
install(TARGETS dtensor_sockets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/dtensor"
    COMPONENT library)

set_source_files_properties(base/module_file.c PROPERTIES
    COMPILE_DEFINITIONS "DT_MODULE_DIR=\"${CMAKE_INSTALL_FULL_LIBDIR}/dtensor\"")
