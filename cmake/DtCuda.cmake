# SPDX-License-Identifier: Apache-2.0
# The module that speaks CUDA, dtensor_cuda.so: opened at run time, so that one binary runs with and
# without a driver. C files by the C compiler, kernels (dtensor/kernels/cuda/*.cu) by nvcc, one
# command each, so that the project itself needs no C++ and no CUDA language.
#
# Sets DT_CUDA_BUILT, DT_CUDA_WHY_NOT, and the lists DT_CUDA_C_SOURCES and DT_CUDA_KERNELS, which the
# simulated device of the tests compiles too.

set(DT_CUDA_ARCHITECTURES "80-real;90-real;90-virtual" CACHE STRING
    "GPU architectures: 90-real is code for sm_90, 90-virtual PTX that newer ones translate")

file(GLOB DT_CUDA_C_SOURCES CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/dtensor/device/cuda/*.c" "${PROJECT_SOURCE_DIR}/dtensor/kernels/cuda/*.c")
file(GLOB DT_CUDA_KERNELS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/dtensor/kernels/cuda/*.cu")

# Files that need a library of CUDA's: gemm_lt*.c cuBLASLt, nccl*.c NCCL, the others cuDNN's headers.
set(dt_cudnn_files "cudnn_load|attention_cudnn|attention_graph")
set(DT_CUDA_LIBRARY_SOURCES ${DT_CUDA_C_SOURCES})
list(FILTER DT_CUDA_LIBRARY_SOURCES INCLUDE REGEX "/(gemm_lt|nccl|${dt_cudnn_files})[a-z_]*\\.c$")
list(FILTER DT_CUDA_C_SOURCES EXCLUDE REGEX "/(gemm_lt|nccl|${dt_cudnn_files})[a-z_]*\\.c$")

# "90-real" -> -gencode=arch=compute_90,code=sm_90
function(dt_cuda_gencodes result)
    set(flags)
    foreach(architecture IN LISTS DT_CUDA_ARCHITECTURES)
        if(NOT architecture MATCHES "^([0-9]+[af]?)(-real|-virtual)?$")
            message(FATAL_ERROR "DT_CUDA_ARCHITECTURES has \"${architecture}\"; write 90, 90-real or "
                "90-virtual, several separated by semicolons.")
        endif()
        set(number "${CMAKE_MATCH_1}")
        if(NOT CMAKE_MATCH_2 STREQUAL "-virtual")
            list(APPEND flags "-gencode=arch=compute_${number},code=sm_${number}")
        endif()
        if(NOT CMAKE_MATCH_2 STREQUAL "-real")
            list(APPEND flags "-gencode=arch=compute_${number},code=compute_${number}")
        endif()
    endforeach()
    set(${result} ${flags} PARENT_SCOPE)
endfunction()

# -fmad=false: as -ffp-contract=off elsewhere, kernels that want a fused product and sum say fmaf.
# The host's half of a kernel file needs nothing of a C++ library, so the C linker can join it.
# -Xptxas -v: registers and spills of each kernel, kept beside its object (tests/cuda/spills.sh).
set(DT_NVCC_FLAGS -std=c++17 -O3 -fmad=false -lineinfo -Xptxas -v
    -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics)
if(DT_WERROR)
    list(APPEND DT_NVCC_FLAGS -Werror all-warnings -Xcompiler=-Werror)
endif()

# nvcc needs a C++ compiler that it knows: tried once, on an empty kernel.
function(dt_cuda_try_nvcc)
    if(DEFINED DT_NVCC_WORKS)
        return()
    endif()
    set(file "${PROJECT_BINARY_DIR}/CMakeFiles/dt_cuda_try.cu")
    file(WRITE "${file}" "__global__ void kernel() {}\n")
    list(GET gencodes 0 gencode)
    execute_process(COMMAND "${CUDAToolkit_NVCC_EXECUTABLE}" ${DT_NVCC_FLAGS} ${gencode}
            -c "${file}" -o "${file}.o"
        RESULT_VARIABLE failed OUTPUT_VARIABLE out ERROR_VARIABLE err)
    if(failed)
        message(STATUS "nvcc cannot compile: ${out}${err}")
        set(DT_NVCC_WORKS FALSE CACHE INTERNAL "")
    else()
        set(DT_NVCC_WORKS TRUE CACHE INTERNAL "")
    endif()
endfunction()

set(DT_CUDA_OBJECTS "${PROJECT_BINARY_DIR}/CMakeFiles/dtensor_cuda.dir")

function(dt_cuda_kernel source result)
    cmake_path(GET source STEM name)
    set(object "${DT_CUDA_OBJECTS}/${name}.cu.o")
    set(log "${DT_CUDA_OBJECTS}/${name}.cu.ptxas")
    set(keep "${PROJECT_SOURCE_DIR}/cmake/ptxas_log.sh")
    add_custom_command(OUTPUT "${object}" BYPRODUCTS "${log}"
        COMMAND "${keep}" "${log}"
            ${CMAKE_C_COMPILER_LAUNCHER} "${CUDAToolkit_NVCC_EXECUTABLE}" ${DT_NVCC_FLAGS}
            ${gencodes} "-I${PROJECT_SOURCE_DIR}" "-I${PROJECT_SOURCE_DIR}/include"
            -MD -MF "${object}.d" -c "${source}" -o "${object}"
        DEPENDS "${source}" "${keep}" DEPFILE "${object}.d"
        COMMENT "Building CUDA kernels ${name}.cu" VERBATIM)
    set(${result} "${object}" PARENT_SCOPE)
endfunction()

function(dt_cuda_module)
    set(objects)
    if(CUDNN_FOUND)
        list(APPEND DT_NVCC_FLAGS -DDTI_WITH_CUDNN=1) # no kernel file sees its headers
    endif()
    foreach(source IN LISTS DT_CUDA_KERNELS)
        dt_cuda_kernel("${source}" object)
        list(APPEND objects "${object}")
    endforeach()
    set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    add_library(dtensor_cuda MODULE ${DT_CUDA_C_SOURCES} ${objects})
    set_target_properties(dtensor_cuda PROPERTIES
        PREFIX "" SUFFIX ".so" LINKER_LANGUAGE C INSTALL_RPATH_USE_LINK_PATH ON
        LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib/dtensor")
    target_link_libraries(dtensor_cuda PRIVATE dtensor_flags CUDA::cudart ${CMAKE_DL_LIBS} m)
    if(NOT DT_SANITIZE)
        target_link_options(dtensor_cuda PRIVATE -Wl,-z,defs)
    endif()
    if(TARGET CUDA::cublasLt)
        target_link_libraries(dtensor_cuda PRIVATE CUDA::cublasLt)
        target_compile_definitions(dtensor_cuda PRIVATE DTI_WITH_CUBLASLT=1)
    endif()
    if(NCCL_FOUND)
        target_link_libraries(dtensor_cuda PRIVATE NCCL::nccl)
        target_compile_definitions(dtensor_cuda PRIVATE DTI_WITH_NCCL=1)
    endif()
    if(CUDNN_FOUND)
        target_include_directories(dtensor_cuda SYSTEM PRIVATE "${CUDNN_INCLUDE_DIR}")
        target_compile_definitions(dtensor_cuda PRIVATE DTI_WITH_CUDNN=1)
    endif()
    foreach(source IN LISTS DT_CUDA_LIBRARY_SOURCES)
        if((source MATCHES "/gemm_lt" AND TARGET CUDA::cublasLt) OR
           (source MATCHES "/nccl" AND NCCL_FOUND) OR
           (source MATCHES "/(${dt_cudnn_files})" AND CUDNN_FOUND))
            target_sources(dtensor_cuda PRIVATE "${source}")
        endif()
    endforeach()
    install(TARGETS dtensor_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/dtensor" COMPONENT cuda)
endfunction()

set(DT_CUDA_BUILT FALSE)
set(DT_CUDA_WHY_NOT "")
if(DT_WITH_CUDA STREQUAL "OFF")
    set(DT_CUDA_WHY_NOT "left out (DT_WITH_CUDA=OFF)")
elseif(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
    set(DT_CUDA_WHY_NOT "no toolkit was found, left out")
elseif(CUDAToolkit_VERSION VERSION_LESS 12.0)
    set(DT_CUDA_WHY_NOT "the toolkit is ${CUDAToolkit_VERSION}, 12.0 is needed; left out")
elseif(NOT "dtensor" IN_LIST DT_ROOMS)
    set(DT_CUDA_WHY_NOT "left out: the room dtensor is not built")
else()
    dt_cuda_gencodes(gencodes)
    dt_cuda_try_nvcc()
    if(DT_NVCC_WORKS)
        dt_cuda_module()
        set(DT_CUDA_BUILT TRUE)
    else()
        set(DT_CUDA_WHY_NOT "${CUDAToolkit_NVCC_EXECUTABLE} cannot compile here, left out")
    endif()
endif()
if(DT_WITH_CUDA STREQUAL "ON" AND NOT DT_CUDA_BUILT)
    message(FATAL_ERROR "DT_WITH_CUDA=ON, but CUDA: ${DT_CUDA_WHY_NOT}.")
endif()
