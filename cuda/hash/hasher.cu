#include <gpuhash/hashing.hpp>

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "shared/key_bytes.hpp"
#include "shared/xxh3.hpp"

namespace gpuhash::cuda {
namespace {

/// Threads of a block, one for each key.
constexpr unsigned kHashBlock = 256;

/// Reads (xxh3.hpp) keys that lie at multiples of a Word, as do all offsets in them.
template <class Word>
struct AlignedReader {
  const std::uint8_t* data;

  __device__ __forceinline__ std::uint8_t byte(std::int64_t at) const { return data[at]; }
  __device__ __forceinline__ std::uint32_t word32(std::int64_t at) const {
    return *reinterpret_cast<const std::uint32_t*>(data + at);
  }
  __device__ __forceinline__ std::uint64_t word64(std::int64_t at) const {
    if constexpr (sizeof(Word) == 8)
      return *reinterpret_cast<const std::uint64_t*>(data + at);
    else
      return static_cast<std::uint64_t>(word32(at + 4)) << 32 | word32(at);
  }
};

/// Reads keys that lie anywhere, by the aligned words that hold their bytes.
struct AnyReader {
  const std::uint8_t* data;
  const std::uint8_t* end;  // of all keys: what lies behind need not be memory

  __device__ __forceinline__ std::uint8_t byte(std::int64_t at) const { return data[at]; }
  __device__ __forceinline__ std::uint32_t word32(std::int64_t at) const { return load<std::uint32_t>(at); }
  __device__ __forceinline__ std::uint64_t word64(std::int64_t at) const { return load<std::uint64_t>(at); }

 private:
  template <class Word>
  __device__ __forceinline__ Word load(std::int64_t at) const {
    const auto address = reinterpret_cast<std::uintptr_t>(data + at);
    const auto* const words = reinterpret_cast<const Word*>(address & ~(sizeof(Word) - 1));
    const auto shift = static_cast<unsigned>(8 * (address & (sizeof(Word) - 1)));
    if (shift == 0) return *words;
    if (reinterpret_cast<const std::uint8_t*>(words + 2) > end) return gather<Word>(at);
    return words[0] >> shift | words[1] << (8 * sizeof(Word) - shift);
  }

  template <class Word>
  __device__ __noinline__ Word gather(std::int64_t at) const {
    Word word = 0;
    for (unsigned i = 0; i < sizeof(Word); ++i) word |= static_cast<Word>(data[at + i]) << (8 * i);
    return word;
  }
};

template <class Word>
__device__ __forceinline__ AlignedReader<Word> read_at(const std::uint8_t* data, const std::uint8_t*, Word) {
  return {data};
}
__device__ __forceinline__ AnyReader read_at(const std::uint8_t* data, const std::uint8_t* end, std::uint8_t) {
  return {data, end};
}

template <bool wide, class Reader>
__device__ __forceinline__ void write_hash(const Reader& key, std::int64_t length, const xxh3::Context& context,
                                           std::int64_t i, std::uint64_t* out) {
  if constexpr (wide) {
    const Uint128 hash = xxh3::hash128(key, length, context);
    out[2 * i] = hash.low;
    out[2 * i + 1] = hash.high;
  } else {
    out[i] = xxh3::hash64(key, length, context);
  }
}

/// Word: at multiples of which rows lie. fixed: their bytes, where these are known; 0: they are not.
template <ByteKind kind, class Word, int fixed, bool wide>
__global__ void __launch_bounds__(kHashBlock)
    hash_rows_kernel(HashedKeys keys, FloatBits floats, const __grid_constant__ xxh3::Context context,
                     std::uint64_t* out) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kHashBlock + threadIdx.x;
  if (i >= keys.count) return;
  const auto* const data = static_cast<const std::uint8_t*>(keys.data);
  const std::int64_t bytes = fixed == 0 ? keys.bytes : fixed;
  write_hash<wide>(reader_of<kind>(read_at(data + i * bytes, data + keys.count * bytes, Word{}), floats), bytes,
                   context, i, out);
}

template <bool wide>
__global__ void __launch_bounds__(kHashBlock)
    hash_strings_kernel(HashedKeys keys, const __grid_constant__ xxh3::Context context, std::uint64_t* out) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kHashBlock + threadIdx.x;
  if (i >= keys.count) return;
  const auto* const data = static_cast<const std::uint8_t*>(keys.data);
  const std::int64_t begin = keys.offsets[i];
  write_hash<wide>(AnyReader{data + begin, data + keys.string_bytes}, keys.offsets[i + 1] - begin, context, i, out);
}

/// One call's hashes of one width.
template <bool wide>
class Hashing {
 public:
  Hashing(const HashedKeys& keys, std::uint64_t seed, std::uint64_t* out, Stream stream)
      : keys_(keys), context_(seed), out_(out), stream_(stream) {}

  void run() const {
    if (keys_.offsets != nullptr) {
      launch("hashing strings", hash_strings_kernel<wide>, keys_.count, kHashBlock, stream_, keys_, context_, out_);
      return;
    }
    with_byte_kind(keys_.dtype, [&](auto kind) { of_rows<decltype(kind)::value>(); });
  }

 private:
  template <ByteKind kind>
  void of_rows() const {
    if constexpr (kind == ByteKind::kPlain) {
      if (are_aligned<std::uint64_t>()) {
        switch (keys_.bytes) {
          case 8:
            return rows<kind, std::uint64_t, 8>();
          case 16:
            return rows<kind, std::uint64_t, 16>();
          case 32:
            return rows<kind, std::uint64_t, 32>();
          default:
            return rows<kind, std::uint64_t>();
        }
      }
      if (are_aligned<std::uint32_t>()) {
        switch (keys_.bytes) {
          case 4:
            return rows<kind, std::uint32_t, 4>();
          case 12:
            return rows<kind, std::uint32_t, 12>();
          default:
            return rows<kind, std::uint32_t>();
        }
      }
      rows<kind, std::uint8_t>();
    } else if constexpr (kind == ByteKind::kFloat64) {
      keys_.bytes == 8 ? rows<kind, std::uint64_t, 8>() : rows<kind, std::uint64_t>();
    } else if constexpr (kind == ByteKind::kFloat32) {
      keys_.bytes == 4 ? rows<kind, std::uint32_t, 4>() : rows<kind, std::uint32_t>();
    } else {
      rows<kind, std::uint8_t>();
    }
  }

  template <ByteKind kind, class Word, int fixed = 0>
  void rows() const {
    launch("hashing rows", hash_rows_kernel<kind, Word, fixed, wide>, keys_.count, kHashBlock, stream_, keys_,
           FloatBits(keys_.dtype), context_, out_);
  }

  template <class Word>
  bool are_aligned() const {
    return (reinterpret_cast<std::uintptr_t>(keys_.data) | static_cast<std::uintptr_t>(keys_.bytes)) % sizeof(Word) ==
           0;
  }

  HashedKeys keys_;
  xxh3::Context context_;
  std::uint64_t* out_;
  Stream stream_;
};

class CudaHasher final : public Hasher {
 public:
  void hash(DeviceContext& context, const HashedKeys& keys, int bits, std::uint64_t seed, std::uint64_t* out,
            Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    if (bits == 64)
      Hashing<false>(keys, seed, out, stream).run();
    else
      Hashing<true>(keys, seed, out, stream).run();
  }
};

}  // namespace

const Hasher& CudaAlgorithms::hasher() {
  static const auto& hasher = *new CudaHasher;  // never destroyed: threads may work at exit
  return hasher;
}

}  // namespace gpuhash::cuda
