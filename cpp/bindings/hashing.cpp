#include <gpuhash/hashing.hpp>

#include <pybind11/pybind11.h>

#include <cstdint>
#include <stdexcept>

#include "bindings/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/context.hpp"
#include "bindings/gil.hpp"

namespace gpuhash::bindings {

namespace {

void hash(const ContextPointer& context, const HashedKeys& keys, int bits, std::uint64_t seed, const Array& out,
          std::uintptr_t stream) {
  if (bits != 64 && bits != 128) throw std::invalid_argument("hashes have 64 or 128 bits");
  check_dense(*context, out, "out");
  if (out.dtype != DType::kUInt64 || out.readonly || out.elements() != keys.count * (bits / 64))
    throw std::invalid_argument("out is not a writable uint64 array of one or two words for each key");
  const GilRelease unlocked;
  Hasher::of(*context).hash(*context, keys, bits, seed, static_cast<std::uint64_t*>(out.data),
                            to_stream(*context, stream));
}

void hash_rows(const ContextPointer& context, const Array& rows, std::int64_t count, int bits, std::uint64_t seed,
               const Array& out, std::uintptr_t stream) {
  check_dense(*context, rows, "rows");
  if (count < 0 || (count == 0 ? rows.elements() != 0 : rows.elements() % count != 0))
    throw std::invalid_argument("the rows are not so many");
  HashedKeys keys;
  keys.data = rows.data;
  keys.count = count;
  keys.bytes = count == 0 ? 0 : rows.bytes() / count;
  keys.dtype = rows.dtype;
  hash(context, keys, bits, seed, out, stream);
}

void hash_strings(const ContextPointer& context, const Array& offsets, const Array& data, int bits, std::uint64_t seed,
                  const Array& out, std::uintptr_t stream) {
  check_dense(*context, offsets, "offsets");
  check_dense(*context, data, "data");
  if (offsets.dtype != DType::kInt64 || offsets.elements() < 1)
    throw std::invalid_argument("offsets are not int64 [n + 1]");
  HashedKeys keys;
  keys.data = data.data;
  keys.count = offsets.elements() - 1;
  keys.offsets = static_cast<const std::int64_t*>(offsets.data);
  keys.string_bytes = data.bytes();
  hash(context, keys, bits, seed, out, stream);
}

}  // namespace

void bind_hashing(py::module_& module) {
  module.def("hash_rows", &hash_rows, py::arg("context"), py::arg("rows"), py::arg("count"), py::arg("bits"),
             py::arg("seed"), py::arg("out"), py::arg("stream"));
  module.def("hash_strings", &hash_strings, py::arg("context"), py::arg("offsets"), py::arg("data"), py::arg("bits"),
             py::arg("seed"), py::arg("out"), py::arg("stream"));
}

}  // namespace gpuhash::bindings
