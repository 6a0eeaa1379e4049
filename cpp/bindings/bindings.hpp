#pragma once

#include <pybind11/pybind11.h>

/// The parts of the extension module, one per concept; module.cpp puts them together.
namespace gpuhash::bindings {

void bind_array(pybind11::module_& module);
void bind_arrow(pybind11::module_& module);
void bind_context(pybind11::module_& module);
void bind_buffer(pybind11::module_& module);
void bind_table(pybind11::module_& module);
void bind_fast_path(pybind11::module_& module);
void bind_process(pybind11::module_& module);
void bind_factorization(pybind11::module_& module);
void bind_hashing(pybind11::module_& module);
void bind_pairing(pybind11::module_& module);
void bind_aggregation(pybind11::module_& module);
void bind_packed_keys(pybind11::module_& module);
void bind_splitter(pybind11::module_& module);
void bind_strings(pybind11::module_& module);
void bind_tensor_store(pybind11::module_& module);
void bind_torch_state(pybind11::module_& module);
void bind_numpy_memory(pybind11::module_& module);
void bind_key_columns(pybind11::module_& module);

}  // namespace gpuhash::bindings
