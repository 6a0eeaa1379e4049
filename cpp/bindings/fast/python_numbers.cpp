#include "bindings/fast/python_numbers.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "shared/arithmetic.hpp"

namespace gpuhash::bindings {

namespace {

constexpr std::array<const char*, 8> kIntegers = {"int8",  "int16",  "int32",  "int64",
                                                  "uint8", "uint16", "uint32", "uint64"};
constexpr std::array<const char*, 2> kFloats = {"float32", "float64"};

/// Borrowed from NumPy, which is never unloaded; null until it is known.
std::array<PyTypeObject*, kIntegers.size()> numpy_integers{};
std::array<PyTypeObject*, kFloats.size()> numpy_floats{};

template <class Types>
bool is_among(const Types& types, PyObject* number) {
  return std::ranges::find(types, Py_TYPE(number)) != types.end();
}

/// False where the dtype cannot hold it, or the conversion is none of a single instruction.
template <class Source>
bool convert(DType dtype, Source number, void* out) {
  const auto store = [out](auto element) {
    std::memcpy(out, &element, sizeof element);
    return true;
  };
  if (dtype == DType::kFloat32) return store(static_cast<float>(number));
  if (dtype == DType::kFloat64) return store(static_cast<double>(number));
  if constexpr (std::is_integral_v<Source>) {
    const auto narrow = [&](auto zero) {
      return std::in_range<decltype(zero)>(number) && store(static_cast<decltype(zero)>(number));
    };
    switch (dtype) {
      case DType::kInt8:
        return narrow(std::int8_t{});
      case DType::kInt16:
        return narrow(std::int16_t{});
      case DType::kInt32:
        return narrow(std::int32_t{});
      case DType::kInt64:
        return narrow(std::int64_t{});
      case DType::kUInt8:
        return narrow(std::uint8_t{});
      case DType::kUInt16:
        return narrow(std::uint16_t{});
      case DType::kUInt32:
        return narrow(std::uint32_t{});
      case DType::kUInt64:
        return narrow(std::uint64_t{});
      default:
        return false;
    }
  }
  return false;
}

bool read_integer(PyObject* given, DType dtype, void* out) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(given, &overflow);
  if (overflow == 0) return convert(dtype, number, out);
  if (overflow < 0 || dtype != DType::kUInt64) return false;
  const unsigned long long large = PyLong_AsUnsignedLongLong(given);
  if (large != static_cast<unsigned long long>(-1) || PyErr_Occurred() == nullptr) return convert(dtype, large, out);
  PyErr_Clear();
  return false;
}

/// NumPy's numbers answer in C.
bool read_numpy_integer(PyObject* given, DType dtype, void* out) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(given));
  if (!number) throw py::error_already_set();
  return read_integer(number.ptr(), dtype, out);
}

/// A NaN's bits would pass through another type on their way.
bool read_numpy_float(PyObject* given, DType dtype, void* out) {
  const double number = PyFloat_AsDouble(given);
  if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return !std::isnan(number) && convert(dtype, number, out);
}

}  // namespace

bool read_number(PyObject* given, DType dtype, void* out) {
  if (PyLong_CheckExact(given)) return read_integer(given, dtype, out);
  if (PyFloat_CheckExact(given)) return convert(dtype, PyFloat_AS_DOUBLE(given), out);
  if (PyBool_Check(given)) {
    if (dtype != DType::kBool) return false;
    *static_cast<std::uint8_t*>(out) = given == Py_True ? 1 : 0;
    return true;
  }
  if (is_among(numpy_integers, given)) return read_numpy_integer(given, dtype, out);
  return is_among(numpy_floats, given) && read_numpy_float(given, dtype, out);
}

bool read_numbers(PyObject* given, DType dtype, std::byte* out) {
  PyObject* const* const items = PySequence_Fast_ITEMS(given);
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(given);
  const std::size_t bytes = itemsize(dtype);
  for (Py_ssize_t i = 0; i < size; ++i, out += bytes) {
    const bool plain = PyLong_CheckExact(items[i]) || PyFloat_CheckExact(items[i]) || PyBool_Check(items[i]);
    if (!plain || Py_TYPE(items[i]) != Py_TYPE(items[0]) || !read_number(items[i], dtype, out)) return false;
  }
  return true;
}

py::object to_number(DType dtype, const void* element) {
  return dispatch_dtype(dtype, [&]<class T>(T number) -> py::object {
    std::memcpy(&number, element, sizeof number);
    if constexpr (std::is_same_v<T, Bool>)
      return py::bool_(*static_cast<const std::uint8_t*>(element) != 0);
    else if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
      return py::float_(number.to_float());
    else if constexpr (std::is_floating_point_v<T>)
      return py::float_(number);
    else if constexpr (std::is_integral_v<T>)
      return py::int_(number);
    else
      return py::reinterpret_steal<py::object>(
          PyComplex_FromDoubles(static_cast<double>(number.real), static_cast<double>(number.imag)));
  });
}

void use_numpy_numbers(const py::object& numpy) {
  const auto type_of = [&](const char* name) { return reinterpret_cast<PyTypeObject*>(numpy.attr(name).ptr()); };
  std::ranges::transform(kIntegers, numpy_integers.begin(), type_of);
  std::ranges::transform(kFloats, numpy_floats.begin(), type_of);
}

}  // namespace gpuhash::bindings
