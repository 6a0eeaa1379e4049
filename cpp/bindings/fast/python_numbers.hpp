#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>

#include <gpuhash/dtype.hpp>

/// Python's and NumPy's numbers as elements of a dtype and back, where that needs no more than a conversion in C. What
/// is declined is for gpuhash/arrays/dtypes.py, which also knows how to say what is wrong. No function runs Python
/// code.
namespace gpuhash::bindings {

namespace py = pybind11;

/// Writes a number as one of the dtype: integers and floats of Python and NumPy, and for bools Python's. False for all
/// others, subclasses among them, and where the dtype cannot hold it, as with float keys.
bool read_number(PyObject* given, DType dtype, void* out);

/// Writes all numbers of a list or tuple, which are of one Python type, as `out` [size]. NumPy converts those of
/// several by way of a third one.
bool read_numbers(PyObject* given, DType dtype, std::byte* out);

/// The Python number that an element stands for, as NumPy's item() gives it.
py::object to_number(DType dtype, const void* element);

/// Makes the types of NumPy's numbers known.
void use_numpy_numbers(const py::object& numpy);

}  // namespace gpuhash::bindings
