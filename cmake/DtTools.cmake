# SPDX-License-Identifier: Apache-2.0
# Targets of the developer's loop: format, lint and tidy.

if(NOT PROJECT_IS_TOP_LEVEL)
    return()
endif()

add_custom_target(lint
    COMMAND "${PROJECT_SOURCE_DIR}/tools/lint.sh" $<TARGET_FILE:dtensor>
    DEPENDS dtensor WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" VERBATIM USES_TERMINAL)
add_custom_target(format
    COMMAND sh -c "tools/lint.sh --files | xargs -P 2 -n 16 clang-format -i"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" VERBATIM USES_TERMINAL)
add_custom_target(tidy
    COMMAND "${PROJECT_SOURCE_DIR}/tools/lint.sh" --tidy "${PROJECT_BINARY_DIR}"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" VERBATIM USES_TERMINAL)
