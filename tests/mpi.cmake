# SPDX-License-Identifier: Apache-2.0
# Tests under mpirun, one launch per program and number of processes.

dt_test_support(dtensor_test_launched ON)

function(dt_launched_program target)
    add_executable(${target} ${ARGN})
    target_link_libraries(${target} PRIVATE dtensor_test_launched)
    set_target_properties(${target} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
    foreach(mpi IN LISTS launched_mpis)
        add_dependencies(${target} dtensor_${mpi})
    endforeach()
endfunction()

# `name` on n processes of each MPI; what follows is the program and its arguments. A process that
# ends after a failed run does not finalize MPI, which launchers count as an error of their own: so
# the tests' own verdict decides.
function(dt_launched_test name label n)
    foreach(mpi IN LISTS launched_mpis)
        set(test mpi/${mpi}/${name}_${n})
        add_test(NAME ${test} COMMAND "${DT_MPIRUN_${mpi}}" -n ${n} ${ARGN})
        dt_test_properties(${test} ${label} 300)
        set_tests_properties(${test} PROPERTIES PROCESSORS 2)
        set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT ${dt_launch_environment})
        set_property(TEST ${test} APPEND PROPERTY FAIL_REGULAR_EXPRESSION "FAIL ")
        set_property(TEST ${test} PROPERTY PASS_REGULAR_EXPRESSION "[1-9][0-9]* passed, 0 failed")
    endforeach()
endfunction()

# As root, and with more processes than cores; leaks of the MPI libraries are theirs.
set(dt_launch_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_orte_execute_quiet=1)

dt_launched_program(test_mesh_launched
    mesh/test_comm.c mesh/test_comm_model.c mesh/test_comm_random.c mesh/test_agree.c
    mesh/test_fault.c)
dt_launched_test(comm quick 2 $<TARGET_FILE:test_mesh_launched> --filter "comm/*")
dt_launched_test(comm long 3 $<TARGET_FILE:test_mesh_launched> --filter "comm/*")
dt_launched_test(comm quick 4 $<TARGET_FILE:test_mesh_launched> --filter "comm/*")
dt_launched_test(fault quick 2 $<TARGET_FILE:test_mesh_launched> --filter "[af]*/*")
