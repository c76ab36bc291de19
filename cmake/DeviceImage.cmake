# SPDX-License-Identifier: Apache-2.0
# The device kernels: compiled by nvcc into one image that the core carries as bytes. Without nvcc the image is empty,
# and the core says so when it is asked for a device.
set(HYBRIDKV_CUDA "AUTO" CACHE STRING "AUTO: kernels where nvcc is found; ON: needs nvcc; PIP: nvcc from PyPI; OFF: none")
set_property(CACHE HYBRIDKV_CUDA PROPERTY STRINGS AUTO ON PIP OFF)
if(NOT HYBRIDKV_CUDA MATCHES "^(AUTO|ON|PIP|OFF)$")
  message(FATAL_ERROR "HYBRIDKV_CUDA is AUTO, ON, PIP or OFF, not ${HYBRIDKV_CUDA}")
endif()

# Sets `result` to nvcc, or to a false value.
function(hybridkv_find_nvcc result)
  unset(found)
  if(HYBRIDKV_CUDA STREQUAL "PIP")
    find_package(Python REQUIRED COMPONENTS Interpreter)
    set(folders_of "import importlib.util as u; s = u.find_spec('nvidia'); print(';'.join(s.submodule_search_locations if s else ()))")
    execute_process(COMMAND "${Python_EXECUTABLE}" -c "${folders_of}"
      OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE)
    list(TRANSFORM folders APPEND "/cu13/bin")
    find_program(found nvcc PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
  elseif(NOT HYBRIDKV_CUDA STREQUAL "OFF")
    find_program(found nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" NO_CMAKE_SYSTEM_PATH NO_CACHE)
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Compiles the image and has `source` carry it.
function(hybridkv_device_image source)
  hybridkv_find_nvcc(nvcc)
  if(NOT nvcc)
    if(HYBRIDKV_CUDA MATCHES "^(ON|PIP)$")
      message(FATAL_ERROR "HYBRIDKV_CUDA=${HYBRIDKV_CUDA} needs nvcc, and none was found")
    endif()
    message(STATUS "hybridkv: built without CUDA kernels (HYBRIDKV_CUDA=${HYBRIDKV_CUDA})")
    return()
  endif()
  message(STATUS "hybridkv: CUDA kernels by ${nvcc}")
  set(kernels "${CMAKE_CURRENT_SOURCE_DIR}/csrc/kernels")
  set(image "${CMAKE_CURRENT_BINARY_DIR}/hybridkv.fatbin")
  file(GLOB device_sources CONFIGURE_DEPENDS "${kernels}/*.cuh" "${kernels}/*.cu" "${kernels}/*.h")
  # Bytes are compared with those of the CPU, so nothing may be contracted.
  add_custom_command(OUTPUT "${image}"
    COMMAND "${nvcc}" -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr --expt-extended-lambda
      -ccbin "${CMAKE_CXX_COMPILER}" -I "${CMAKE_CURRENT_SOURCE_DIR}/csrc"
      -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a
      -gencode arch=compute_100,code=sm_100 -gencode arch=compute_100,code=compute_100
      --compress-mode=size --fatbin -o "${image}" "${kernels}/device_image.cu"
    DEPENDS ${device_sources} COMMENT "CUDA kernels" VERBATIM)
  set_source_files_properties("${source}" PROPERTIES
    OBJECT_DEPENDS "${image}" COMPILE_DEFINITIONS "HKV_DEVICE_IMAGE=\"${image}\"")
endfunction()
