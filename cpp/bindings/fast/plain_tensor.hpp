#pragma once

#include <dlpack/dlpack.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include <gpuhash/device_context.hpp>
#include <gpuhash/dtype.hpp>

namespace gpuhash::bindings {

namespace py = pybind11;

using Lengths = std::span<const std::int64_t>;

/// Where a plain tensor's elements are; valid while its owner is held.
struct PlainTensor {
  static constexpr std::size_t kMaxDims = 8;

  void* data = nullptr;
  std::size_t ndim = 0;
  std::array<std::int64_t, kMaxDims> lengths;

  Lengths shape() const { return {lengths.data(), ndim}; }
};

enum class Access : std::uint8_t { kRead, kWrite };

/// The tensors of one framework, read and made with as few calls into it as it allows: some 0.1 us each, where the
/// protocols that all frameworks speak take 2 us.
///
/// A tensor is *plain* if it is of the framework's own class and not a subclass, and dense, aligned memory whose
/// elements are what they seem. Whatever is not is left to the general path, which takes more or says what is wrong; so
/// no function that reads or makes one throws, except what is no Exception, such as KeyboardInterrupt.
class PlainFramework {
 public:
  virtual ~PlainFramework() = default;
  /// Is it plain, of this dtype and on this device?
  virtual bool read(PyObject* tensor, DType dtype, const Device& device, Access access, PlainTensor& out) const = 0;
  /// A new tensor, on the device and the current stream of `like`; null where there is none to be had.
  virtual py::object make(PyObject* like, DType dtype, Lengths shape, const Device& device, PlainTensor& out) const = 0;
  /// Tells the framework that something wrote into its tensor, or into all of a tuple of them.
  virtual void note_write(PyObject*) const {}
  /// The stream that the framework works on now; false where it does not say.
  virtual bool current_stream(const Device& device, Stream& stream) const = 0;
};

/// The framework whose own class the object is of; null for all other objects.
const PlainFramework* plain_framework_of(PyObject* tensor);
/// NumPy; null until it is known.
const PlainFramework* numpy_framework();

/// Is the stream on which one of the known frameworks works now being captured into a CUDA graph?
bool is_any_stream_capturing(DeviceContext& context);

/// Makes tensors of the framework known, by its name and module. Frameworks that give no cheap access stay unknown.
void use_framework(const std::string& name, const py::object& module);

}  // namespace gpuhash::bindings
