# Finds the CUDA compiler and enables the language. Sets GPUHASH_WITH_CUDA and GPUHASH_BUILT_ARCHITECTURES.
#
# A macro, because enable_language() has to be called from the top level.

set(GPUHASH_CUDA AUTO CACHE STRING "Build for CUDA: AUTO (where a compiler is found), ON or OFF")
set_property(CACHE GPUHASH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(GPUHASH_CUDA_ARCHITECTURES "" CACHE STRING "GPU architectures, as in CMAKE_CUDA_ARCHITECTURES; empty: the usual ones")

macro(gpuhash_enable_cuda)
  set(GPUHASH_WITH_CUDA OFF)
  set(GPUHASH_BUILT_ARCHITECTURES "")
  string(TOUPPER "${GPUHASH_CUDA}" _mode)
  if(NOT _mode MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "GPUHASH_CUDA is '${GPUHASH_CUDA}'; it has to be AUTO, ON or OFF")
  endif()

  if(NOT _mode STREQUAL "OFF")
    if(NOT CMAKE_CUDA_COMPILER)
      execute_process(
        COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/build_backend/cuda_compiler.py"
        OUTPUT_VARIABLE _found COMMAND_ERROR_IS_FATAL ANY)
      if(_found)
        list(GET _found 0 _origin)
        list(GET _found 1 _nvcc)
        set(CMAKE_CUDA_COMPILER "${_nvcc}" CACHE FILEPATH "CUDA compiler")
        if(_origin STREQUAL "wheels")
          gpuhash_use_cuda_wheels("${_nvcc}")
        endif()
      endif()
    endif()
    if(CMAKE_CUDA_COMPILER)
      set(GPUHASH_WITH_CUDA ON)
    elseif(_mode STREQUAL "ON")
      message(FATAL_ERROR
        "GPUHASH_CUDA is ON and no CUDA compiler (12.0 or newer) was found in CUDACXX, CUDA_HOME, CUDA_PATH, PATH, "
        "/usr/local/cuda or the wheels of ${Python_EXECUTABLE}. Install one, e.g. by "
        "pip install 'cuda-toolkit[nvcc,crt,nvvm,cccl,cudart]==13.0.2', or set GPUHASH_CUDA=OFF")
    else()
      message(STATUS "gpuhash: no CUDA compiler found, building for the host only")
    endif()
  endif()

  if(GPUHASH_WITH_CUDA)
    if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER AND NOT DEFINED ENV{CUDAHOSTCXX})
      set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}" CACHE FILEPATH "Host compiler of the CUDA compiler")
    endif()
    set(_architectures "${GPUHASH_CUDA_ARCHITECTURES}")
    if(NOT _architectures AND DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(_architectures "${CMAKE_CUDA_ARCHITECTURES}")
    elseif(NOT _architectures AND DEFINED ENV{CUDAARCHS})
      set(_architectures "$ENV{CUDAARCHS}")
    endif()
    string(REPLACE "," ";" _architectures "${_architectures}")
    set(CMAKE_CUDA_ARCHITECTURES 80-real)  # for CMake's first try of the compiler
    enable_language(CUDA)
    if(_architectures)
      set(CMAKE_CUDA_ARCHITECTURES "${_architectures}")
    elseif(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)  # 100: machine code, and PTX for what comes after
    else()
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    endif()
    string(REPLACE ";" "," GPUHASH_BUILT_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
    message(STATUS "gpuhash: CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${GPUHASH_BUILT_ARCHITECTURES}")
  else()
    set(CMAKE_CUDA_COMPILER_VERSION "")
  endif()
endmacro()

# The wheels are laid out unlike a toolkit: libraries in lib, where nvcc.profile says lib64, and no libcudart.so without
# a version in its name.
function(gpuhash_use_cuda_wheels nvcc)
  cmake_path(GET nvcc PARENT_PATH bin)
  cmake_path(GET bin PARENT_PATH root)
  set(CUDAToolkit_ROOT "${root}" CACHE PATH "CUDA wheels")
  set(CUDA_CUDART "${root}/lib/libcudart.so.13" CACHE FILEPATH "CUDA runtime of the wheels")
  set(CMAKE_CUDA_FLAGS_INIT "\"-L${root}/lib\"" PARENT_SCOPE)
endfunction()
