# SPDX-License-Identifier: Apache-2.0
# Compiler flags of everything in the tree, as the target dtensor_flags, and the flags of kernel
# files that are written for one instruction set.

include(CheckCCompilerFlag)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release" FORCE)
endif()

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Line tables cost no speed and make profiles and back traces readable.
set(CMAKE_C_FLAGS_RELEASE "-O3 -g1 -DNDEBUG")

add_library(dtensor_flags INTERFACE)
target_include_directories(dtensor_flags INTERFACE
    "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}")
target_compile_definitions(dtensor_flags INTERFACE _DEFAULT_SOURCE)
# -ffp-contract=off: the compiler fuses no multiply and add by itself, so that a kernel rounds alike
# on every machine; kernels that want a fused one say so. The prefix map keeps paths in error
# records short and builds reproducible.
target_compile_options(dtensor_flags INTERFACE
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
    -ffp-contract=off -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(DT_WERROR)
    target_compile_options(dtensor_flags INTERFACE -Werror)
endif()
if(DT_SANITIZE)
    add_compile_options(-fsanitize=${DT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${DT_SANITIZE})
endif()

# file name ending -> flags; the ending says what the machine must have
set(dt_isa_avx2 -mavx2 -mfma -mf16c)
set(dt_isa_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c)
set(dt_isa_avx512_bf16 ${dt_isa_avx512} -mavx512bf16 -mavx512vnni)

set(DT_HAVE_X86_KERNELS FALSE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    list(JOIN dt_isa_avx512_bf16 " " all_isa_flags)
    check_c_compiler_flag("${all_isa_flags}" DT_COMPILER_HAS_X86_FLAGS)
    if(DT_COMPILER_HAS_X86_FLAGS)
        set(DT_HAVE_X86_KERNELS TRUE)
        target_compile_definitions(dtensor_flags INTERFACE DT_HAVE_X86_KERNELS=1)
    endif()
endif()

# Gives the kernel files in the list their flags; on other machines takes them off the list.
function(dt_kernel_sources list_name)
    set(kept)
    foreach(source IN LISTS ${list_name})
        if(source MATCHES "_(avx512_bf16|avx512|avx2)\\.c$")
            if(NOT DT_HAVE_X86_KERNELS)
                continue()
            endif()
            set_source_files_properties(${source} PROPERTIES
                COMPILE_OPTIONS "${dt_isa_${CMAKE_MATCH_1}}")
        endif()
        list(APPEND kept ${source})
    endforeach()
    set(${list_name} ${kept} PARENT_SCOPE)
endfunction()
