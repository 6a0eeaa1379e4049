#pragma once

#include <cstdint>

#include "shared/layout.hpp"

/// Loads and compare-and-swaps of whole slots. Memory order is relaxed throughout: a slot is one word that is read and
/// swapped whole, and kernels follow each other in stream order.
namespace gpuhash::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasCas128 = true;
#else
inline constexpr bool kHasCas128 = false;
#endif

struct Words {
  std::uint64_t low, high;
};

/// 16 bytes that no one writes while the kernel runs. Out of L2 these loads are up to twice as fast as load_once(), of
/// which fewer are under way at a time.
__device__ __forceinline__ Words load_unchanging(const void* from) {
  Words words;
  asm volatile("ld.global.nc.v2.u64 {%0, %1}, [%2];" : "=l"(words.low), "=l"(words.high) : "l"(from));
  return words;
}

/// Likewise, from memory beyond L2: the first to go from the caches, where filters and batches find more room then.
__device__ __forceinline__ Words load_once(const void* from) {
  Words words;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u64 {%0, %1}, [%2];" : "=l"(words.low), "=l"(words.high) : "l"(from));
  return words;
}

/// 16 bytes in which other threads may put keys meanwhile, as they were at some time since the kernel began: L1 may
/// have them. Each word is whole.
__device__ __forceinline__ Words load_aged(const void* from) {
  Words words;
  asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(words.low), "=l"(words.high) : "l"(from) : "memory");
  return words;
}

/// An item of a batch, read or written once: not worth a place in the caches.
template <class T>
__device__ __forceinline__ T load_streaming(const T* from) {
  if constexpr (sizeof(T) == 16) {
    const ulonglong2 words = __ldcs(reinterpret_cast<const ulonglong2*>(from));
    return {words.x, words.y};
  } else {
    return __ldcs(from);
  }
}

/// 16 bytes that other threads may be swapping: each half is read whole, and on sm_90 both together.
__device__ __forceinline__ Words load_contended(const void* from) {
  Words words;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("{\n .reg .b128 word;\n ld.relaxed.gpu.global.b128 word, [%2];\n mov.b128 {%0, %1}, word;\n}"
               : "=l"(words.low), "=l"(words.high)
               : "l"(from)
               : "memory");
#else
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(words.low), "=l"(words.high)
               : "l"(from)
               : "memory");
#endif
  return words;
}

/// Before sm_90 there is no 128-bit compare-and-swap: one of these locks, chosen by the address, stands in for it.
/// Slots are then written by 16-byte stores only while their lock is held, and read by 16-byte loads, each one
/// transaction.
inline constexpr unsigned kLockBits = 16;
static __device__ unsigned locks[1u << kLockBits];

/// What was there; the swap happened iff that equals `expected`.
__device__ __forceinline__ Words cas128(void* at, Words expected, Words desired) {
  Words was{};
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n .reg .b128 e, d, o;\n mov.b128 e, {%3, %4};\n mov.b128 d, {%5, %6};\n"
      " atom.relaxed.gpu.global.cas.b128 o, [%2], e, d;\n mov.b128 {%0, %1}, o;\n}"
      : "=l"(was.low), "=l"(was.high)
      : "l"(at), "l"(expected.low), "l"(expected.high), "l"(desired.low), "l"(desired.high)
      : "memory");
#else
  const std::uint64_t word = reinterpret_cast<std::uintptr_t>(at) / sizeof(Words);
  unsigned* const lock = locks + ((word * detail::kHashWhiten) >> (64 - kLockBits));
  for (bool done = false; !done;) {  // a lane that waits must not keep the holder in its warp from going on
    if (atomicCAS(lock, 0u, 1u) == 0u) {
      __threadfence();
      was = load_contended(at);
      if (was.low == expected.low && was.high == expected.high)
        asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};"
                     :
                     : "l"(at), "l"(desired.low), "l"(desired.high)
                     : "memory");
      __threadfence();
      atomicExch(lock, 0u);
      done = true;
    }
  }
#endif
  return was;
}

__device__ __forceinline__ std::uint64_t cas64(void* at, std::uint64_t expected, std::uint64_t desired) {
  return atomicCAS(static_cast<unsigned long long*>(at), expected, desired);
}

__device__ __forceinline__ std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return static_cast<std::uint64_t>(high) << 32 | low;
}

/// Swaps the key of a slot that still holds `mark` for `key`; returns the key that was there. Writes the value, too:
/// together with the key where one compare-and-swap is wide enough, else right after it.
template <class Key, class Value>
__device__ __forceinline__ Key claim(Slot<Key, Value>* slot, const Key& mark, const Key& key, const Value& value) {
  if constexpr (sizeof(Key) == 16) {
    const Words was = cas128(slot, {mark.low, mark.high}, {key.low, key.high});
    if constexpr (sizeof(*slot) > sizeof(Key))
      if (was.low == mark.low && was.high == mark.high) slot->value = value;
    return {was.low, was.high};
  } else if constexpr (sizeof(*slot) == sizeof(Key)) {
    if constexpr (sizeof(Key) == 4)
      return atomicCAS(&slot->key, mark, key);
    else
      return cas64(slot, mark, key);
  } else if constexpr (sizeof(Key) == 4) {
    return static_cast<Key>(cas64(slot, join(mark, empty_value<Value>()), join(key, value)));
  } else if constexpr (kHasCas128) {
    return cas128(slot, {mark, empty_value<Value>()}, {key, value}).low;
  } else {
    const Key was = cas64(slot, mark, key);
    if (was == mark) slot->value = value;
    return was;
  }
}

/// What was there.
__device__ __forceinline__ Words exchange128(void* at, Words desired) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  Words was;
  asm volatile(
      "{\n .reg .b128 d, o;\n mov.b128 d, {%3, %4};\n atom.relaxed.gpu.global.exch.b128 o, [%2], d;\n"
      " mov.b128 {%0, %1}, o;\n}"
      : "=l"(was.low), "=l"(was.high)
      : "l"(at), "l"(desired.low), "l"(desired.high)
      : "memory");
  return was;
#else
  for (Words expected = load_contended(at);;) {
    const Words was = cas128(at, expected, desired);
    if (was.low == expected.low && was.high == expected.high) return was;
    expected = was;
  }
#endif
}

/// Exchanges the slot of `key` for one with `mark` and the value of an empty slot; true in the one lane that found the
/// key there, which gets its value. While keys are erased, no slot takes a key, and all lanes with one key come with
/// one mark: so an exchange says as much as a compare-and-swap, and costs less.
template <class Key, class Value>
__device__ __forceinline__ bool release(Slot<Key, Value>* slot, const Key& key, const Key& mark,
                                        [[maybe_unused]] Value& value) {
  if constexpr (sizeof(Key) == 16) {
    const Words was = exchange128(slot, {mark.low, mark.high});
    const bool done = was.low == key.low && was.high == key.high;
    if constexpr (sizeof(*slot) > sizeof(Key)) {
      if (done) {
        value = slot->value;
        slot->value = empty_value<Value>();
      }
    }
    return done;
  } else if constexpr (sizeof(*slot) == sizeof(Key)) {
    if constexpr (sizeof(Key) == 4)
      return atomicExch(&slot->key, mark) == key;
    else
      return atomicExch(reinterpret_cast<unsigned long long*>(&slot->key), mark) == key;
  } else if constexpr (sizeof(Key) == 4) {
    const std::uint64_t was = atomicExch(reinterpret_cast<unsigned long long*>(slot), join(mark, empty_value<Value>()));
    value = static_cast<Value>(was >> 32);
    return static_cast<Key>(was) == key;
  } else if constexpr (kHasCas128) {
    const Words was = exchange128(slot, {mark, empty_value<Value>()});
    value = was.high;
    return was.low == key;
  } else {
    const bool done = atomicExch(reinterpret_cast<unsigned long long*>(&slot->key), mark) == key;
    if (done) {
      value = slot->value;
      slot->value = empty_value<Value>();
    }
    return done;
  }
}

}  // namespace gpuhash::cuda
