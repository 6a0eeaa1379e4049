#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <gpuhash/requests.hpp>
#include "host/short_bytes.hpp"
#include "shared/layout.hpp"

/// How the keys of a batch are read: a block at a time, widened to the table's keys.
namespace gpuhash::host {

/// Keys of a batch, and where each stands in it.
struct KeyRun {
  const std::byte* data;  // [count, bytes], of any alignment
  std::int64_t bytes;     // of a key
  std::int64_t count;
  std::int64_t base;                       // the n-th key stands at position base + n,
  const std::uint32_t* offsets = nullptr;  // or at base + offsets[n], which ascend, unless this is null
  bool distinct = false;                   // no two keys are equal
};

/// Keys [begin, end) of the batch.
inline KeyRun run_of(const KeyBatch& batch, std::int64_t begin, std::int64_t end) {
  return {static_cast<const std::byte*>(batch.data) + begin * batch.bytes, batch.bytes, end - begin, begin};
}

/// Copies `size` keys, from the `first` one on. A function of its own, so that it is compiled once.
template <class Key>
[[gnu::noinline]] void copy_keys(const KeyRun& keys, std::int64_t first, std::int64_t size, Key* to) {
  const std::byte* const from = keys.data + first * keys.bytes;
  if (keys.bytes == sizeof(Key)) {
    std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(Key));
  } else if (sizeof(Key) > 4 && keys.bytes == 4) {
    for (std::int64_t n = 0; n < size; ++n) to[n] = key_from_word<Key>(detail::load_whole<std::uint32_t>(from + n * 4));
  } else {
    for (std::int64_t n = 0; n < size; ++n) to[n] = load_low_bytes<Key>(from + n * keys.bytes, keys.bytes);
  }
}

}  // namespace gpuhash::host
