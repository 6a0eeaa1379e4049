#pragma once

#include <cstdint>

#include "cuda/atomics.cuh"
#include "table/executor.hpp"

/// Reading the keys and values of a batch, each once.
namespace gpuhash::cuda {

/// Item i of `bytes` each. whole: items have the width and the alignment of a Word.
template <class Word>
__device__ __forceinline__ Word load_item(const void* data, std::int64_t i, std::uint32_t bytes, bool whole) {
  return whole ? load_streaming(static_cast<const Word*>(data) + i) : load_bytes<Word>(data, i, bytes);
}

template <class Key>
__device__ __forceinline__ Key load_key(const KeyBatch& keys, std::int64_t i, bool whole) {
  return load_item<Key>(keys.data, i, keys.bytes, whole);
}

/// whole: as above, and one value per key.
template <class Value>
__device__ __forceinline__ Value load_value(const ValueBatch& values, std::int64_t i, bool whole) {
  if (whole) return load_streaming(static_cast<const Value*>(values.data) + i);
  return load_bytes<Value>(values.data, values.broadcast ? 0 : i, static_cast<std::uint32_t>(values.bytes));
}

template <class T>
bool is_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % alignof(T) == 0;
}

template <class Item>
bool has_whole_words(const KeyBatch& keys, const ValueBatch& values) {
  using Key = decltype(Item::key);
  if (keys.bytes != sizeof(Key) || !is_aligned<Key>(keys.data)) return false;
  if constexpr (sizeof(Item) > sizeof(Key)) {  // not a set's
    using Value = decltype(Item::value);
    if (values.data != nullptr)
      return !values.broadcast && values.bytes == sizeof(Value) && is_aligned<Value>(values.data);
  }
  return true;
}

}  // namespace gpuhash::cuda
