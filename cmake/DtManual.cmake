# SPDX-License-Identifier: Apache-2.0
# Manual pages: dtensor(1) as the command prints it, dtensor(3) from the headers; and what the command
# prints for bash. The command has to run here, so a build for another machine has only dtensor(3).

set(dt_man_dir "${PROJECT_BINARY_DIR}/man")
file(MAKE_DIRECTORY "${dt_man_dir}")
set(dt_pages "${dt_man_dir}/dtensor.3")

file(GLOB dt_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/dtensor/*.h")
add_custom_command(OUTPUT "${dt_man_dir}/dtensor.3"
    COMMAND "${PROJECT_SOURCE_DIR}/tools/manual.sh" "${PROJECT_SOURCE_DIR}/include"
        > "${dt_man_dir}/dtensor.3"
    DEPENDS "${PROJECT_SOURCE_DIR}/tools/manual.sh" "${PROJECT_SOURCE_DIR}/include/dtensor.h"
        ${dt_headers}
    VERBATIM)
if(TARGET dtensor_cli AND NOT CMAKE_CROSSCOMPILING)
    add_custom_command(OUTPUT "${dt_man_dir}/dtensor.1"
        COMMAND dtensor_cli --manual > "${dt_man_dir}/dtensor.1"
        DEPENDS dtensor_cli VERBATIM)
    list(APPEND dt_pages "${dt_man_dir}/dtensor.1")
    install(FILES "${dt_man_dir}/dtensor.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1"
        COMPONENT command)
    # A file of completions is named after its command.
    add_custom_command(OUTPUT "${PROJECT_BINARY_DIR}/completions/dtensor"
        COMMAND "${CMAKE_COMMAND}" -E make_directory "${PROJECT_BINARY_DIR}/completions"
        COMMAND dtensor_cli --completion > "${PROJECT_BINARY_DIR}/completions/dtensor"
        DEPENDS dtensor_cli VERBATIM)
    list(APPEND dt_pages "${PROJECT_BINARY_DIR}/completions/dtensor")
    install(FILES "${PROJECT_BINARY_DIR}/completions/dtensor"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT command)
endif()
install(FILES "${dt_man_dir}/dtensor.3" DESTINATION "${CMAKE_INSTALL_MANDIR}/man3"
    COMPONENT development)
add_custom_target(manual ALL DEPENDS ${dt_pages})
