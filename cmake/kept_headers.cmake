# Copies the headers of pybind11 and of DLPack into the build folder, and lets the bindings include them from there.
#
# pip builds in an environment of its own, in another temporary folder each time and with new files. Included from there,
# they would make every command and every header new, and all bindings would be compiled again. A copy is written only
# where its content has changed. Sets GPUHASH_KEPT_HEADERS.
function(gpuhash_keep_headers)
  # dlpack/dlpack.h lies in the package tvm_ffi; importing it would load all of it, torch included.
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "from importlib.util import find_spec; print(find_spec('tvm_ffi').submodule_search_locations[0], end='')"
    OUTPUT_VARIABLE tvm_ffi COMMAND_ERROR_IS_FATAL ANY)
  if(NOT EXISTS "${tvm_ffi}/include/dlpack/dlpack.h")
    message(FATAL_ERROR "there is no dlpack/dlpack.h in ${tvm_ffi}/include: install the package apache-tvm-ffi anew")
  endif()
  get_filename_component(pybind11 "${pybind11_INCLUDE_DIR}" ABSOLUTE)

  set(kept "${CMAKE_CURRENT_BINARY_DIR}/headers")
  file(GLOB_RECURSE headers RELATIVE "${pybind11}" "${pybind11}/pybind11/*.h")
  foreach(header ${headers})
    gpuhash_keep_header("${pybind11}/${header}" "${kept}/${header}")
  endforeach()
  gpuhash_keep_header("${tvm_ffi}/include/dlpack/dlpack.h" "${kept}/dlpack/dlpack.h")

  set_target_properties(pybind11::pybind11_headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${kept}")
  set(GPUHASH_KEPT_HEADERS "${kept}" PARENT_SCOPE)
endfunction()

function(gpuhash_keep_header from to)
  get_filename_component(folder "${to}" DIRECTORY)
  file(MAKE_DIRECTORY "${folder}")
  file(COPY_FILE "${from}" "${to}" ONLY_IF_DIFFERENT)
endfunction()
