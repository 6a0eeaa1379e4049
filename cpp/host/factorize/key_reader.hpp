#pragma once

#include <algorithm>
#include <cstdint>

#include <gpuhash/factorization.hpp>
#include "core/interruption.hpp"
#include "core/thread_pool.hpp"
#include "host/short_bytes.hpp"
#include "shared/key_numbers.hpp"

/// How this room reads keys: to *factorize* is to find the distinct keys of a batch and to number them, for `unique`,
/// `factorize` and `isin`, without a table of the user's.
namespace gpuhash::host {

/// A multiple of 32, so that no two chunks share a word of first bits.
inline constexpr std::int64_t kChunk = std::int64_t{1} << 14;

/// Calls body(begin, end) for chunks of [0, count), roughly in order, on several threads.
template <class Body>
void for_each_chunk(std::int64_t count, Body body) {
  parallel_for(static_cast<int>((count + kChunk - 1) / kChunk), [&](int chunk) {
    interruption_point();
    const std::int64_t begin = chunk * kChunk;
    body(begin, std::min(count, begin + kChunk));
  });
}

/// Reads keys in their canonical form.
template <class Key>
class KeyReader {
 public:
  explicit KeyReader(const NumberKeys& keys)
      : data_(keys.data), bytes_(keys.bytes()), format_(number_format(keys.dtype, keys.elements)) {}

  Key operator[](std::int64_t i) const { return canonical(raw(i), format_); }
  Key raw(std::int64_t i) const { return load_word<Key>(data_, i, bytes_); }
  std::int64_t bytes() const { return bytes_; }
  const NumberFormat& format() const { return format_; }

  /// Calls run(reader), with a faster reader of the same keys where they are words without a canonical form.
  template <class Run>
  auto specialized(Run run) const {
    if (bytes_ == static_cast<std::int64_t>(sizeof(Key)) && format_.compares_bits()) return run(WordReader{data_});
    return run(*this);
  }

 private:
  struct WordReader {
    const void* data;
    Key operator[](std::int64_t i) const { return load_word<Key>(data, i, sizeof(Key)); }
  };

  const void* data_;
  std::int64_t bytes_;
  NumberFormat format_;
};

}  // namespace gpuhash::host
