#pragma once

#include <cstdint>

#include <gpuhash/device_context.hpp>
#include <gpuhash/dtype.hpp>
#include <gpuhash/export.hpp>

namespace gpuhash {

/// Keys that are hashed, dense, in the context's memory: rows of one length, at multiples of a number's bytes, or
/// strings.
struct HashedKeys {
  const void* data = nullptr;
  std::int64_t count = 0;
  /// Of each row. The numbers of a row are whole ones of the dtype.
  std::int64_t bytes = 0;
  DType dtype = DType::kUInt8;
  /// [count + 1]: string i is the bytes [offsets[i], offsets[i + 1]) of the data; null: rows.
  const std::int64_t* offsets = nullptr;
  /// Of all strings together.
  std::int64_t string_bytes = 0;
};

/// Hashes keys by XXH3, with the same bits on every platform and in every version: `hash`.
class GPUHASH_API Hasher {
 public:
  virtual ~Hasher() = default;
  /// That of the context's platform.
  static const Hasher& of(const DeviceContext& context);
  /// Of the keys' bytes, little-endian, of 64 bits: out [count], or of 128: out [count, 2], the low half first. Floats
  /// that are equal have equal hashes: -0.0 that of 0.0, and every NaN that of the quiet one without a sign; so do
  /// booleans' bytes but 0, that of 1. Does not wait.
  virtual void hash(DeviceContext&, const HashedKeys&, int bits, std::uint64_t seed, std::uint64_t* out,
                    Stream) const = 0;
};

}  // namespace gpuhash
