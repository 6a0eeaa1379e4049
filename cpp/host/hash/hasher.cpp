#include <gpuhash/hashing.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "host/executor.hpp"
#include "host/parallel.hpp"
#include "host/simd/simd.hpp"
#include "shared/key_bytes.hpp"
#include "shared/xxh3.hpp"

namespace gpuhash::host {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

struct MemoryReader {
  const std::uint8_t* data;

  std::uint8_t byte(std::int64_t at) const { return data[at]; }
  std::uint32_t word32(std::int64_t at) const { return load<std::uint32_t>(at); }
  std::uint64_t word64(std::int64_t at) const { return load<std::uint64_t>(at); }

 private:
  template <class Word>
  Word load(std::int64_t at) const {
    Word word;
    std::memcpy(&word, data + at, sizeof word);
    return word;
  }
};

/// Keys between two points at which the work may be interrupted.
std::int64_t piece_of(const HashedKeys& keys, std::int64_t all_bytes) {
  constexpr std::int64_t kBytesPerPiece = std::int64_t{1} << 22;
  const std::int64_t each = keys.count == 0 ? 1 : all_bytes / keys.count + 1;
  return std::clamp<std::int64_t>(kBytesPerPiece / each, 1, kKeysPerPiece);
}

int parts_of(const HashedKeys& keys, std::int64_t all_bytes) {
  constexpr std::int64_t kBytesPerKey = 16;  // in the time of a short key
  const std::int64_t work = std::max(keys.count, all_bytes / kBytesPerKey);
  return static_cast<int>(std::clamp<std::int64_t>(keys.count, 1, reader_parts(work)));
}

/// Have all keys one length that makes a loop of 64-bit hashes worth compiling for vectors? By those of AVX-512 a key
/// of 8 bytes takes 0.4 ns instead of 1.9, by those of AVX2 0.9 (one thread of an EPYC); longer ones gain nothing.
template <class Bytes>
inline constexpr bool kByVectors = std::is_same_v<Bytes, std::integral_constant<std::int64_t, 4>> ||
                                   std::is_same_v<Bytes, std::integral_constant<std::int64_t, 8>>;

/// Gives the hashes of the keys that key_at(i) reads, of length_at(i) bytes.
template <bool by_vectors, class KeyAt, class LengthAt>
struct HashOf {
  KeyAt key_at;
  LengthAt length_at;
  xxh3::Context context;

  void write(std::int64_t begin, std::int64_t end, std::uint64_t* out) const {
    if constexpr (by_vectors)
      with_simd([&](auto) { write_narrow(begin, end, out); });
    else
      write_narrow(begin, end, out);
  }

  // flatten: of a fixed length a few instructions are left of the hash. A copy of what it needs: by a reference, each
  // hash that is written could have changed the seed.
  [[gnu::flatten]] void write_wide(std::int64_t begin, std::int64_t end, std::uint64_t* out) const {
    const HashOf own = *this;
    for (std::int64_t i = begin; i < end; ++i) {
      const Uint128 hash = xxh3::hash128(own.key_at(i), own.length_at(i), own.context);
      out[2 * i] = hash.low;
      out[2 * i + 1] = hash.high;
    }
  }

 private:
  [[gnu::flatten]] void write_narrow(std::int64_t begin, std::int64_t end, std::uint64_t* out) const {
    const HashOf own = *this;
    for (std::int64_t i = begin; i < end; ++i) out[i] = xxh3::hash64(own.key_at(i), own.length_at(i), own.context);
  }
};

class HostHasher final : public Hasher {
 public:
  void hash(DeviceContext&, const HashedKeys& keys, int bits, std::uint64_t seed, std::uint64_t* out,
            Stream) const override {
    const auto* const data = static_cast<const std::uint8_t*>(keys.data);
    const auto write_all = [&]<bool by_vectors>(std::bool_constant<by_vectors>, std::int64_t all_bytes, auto key_at,
                                                auto length_at) {
      const HashOf<by_vectors, decltype(key_at), decltype(length_at)> hash_of{key_at, length_at, xxh3::Context(seed)};
      for_each_part(keys.count, parts_of(keys, all_bytes), [&](int, std::int64_t begin, std::int64_t end) {
        in_pieces(begin, end, piece_of(keys, all_bytes), [&](std::int64_t from, std::int64_t to) {
          bits == 64 ? hash_of.write(from, to, out) : hash_of.write_wide(from, to, out);
        });
      });
    };
    if (keys.offsets != nullptr) {
      const std::int64_t* const offsets = keys.offsets;
      return write_all(
          std::false_type(), keys.string_bytes, [=](std::int64_t i) { return MemoryReader{data + offsets[i]}; },
          [=](std::int64_t i) { return offsets[i + 1] - offsets[i]; });
    }
    with_byte_kind(keys.dtype, [&](auto kind) {
      const FloatBits floats(keys.dtype);
      with_row_bytes<decltype(kind)::value>(keys.bytes, [&](auto bytes) {
        write_all(
            std::bool_constant<kByVectors<decltype(bytes)>>(), keys.count * keys.bytes,
            [=](std::int64_t i) { return reader_of<decltype(kind)::value>(MemoryReader{data + i * bytes}, floats); },
            [=](std::int64_t) -> std::int64_t { return bytes; });
      });
    });
  }
};

}  // namespace

const Hasher& HostAlgorithms::hasher() {
  static const HostHasher hasher;
  return hasher;
}

}  // namespace gpuhash::host
