#include <gpuhash/hashing.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "host/executor.hpp"
#include "host/parallel.hpp"
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

class HostHasher final : public Hasher {
 public:
  void hash(DeviceContext&, const HashedKeys& keys, int bits, std::uint64_t seed, std::uint64_t* out,
            Stream) const override {
    const xxh3::Context context(seed);
    const auto* const data = static_cast<const std::uint8_t*>(keys.data);
    if (keys.offsets != nullptr) {
      const std::int64_t* const offsets = keys.offsets;
      write_each(keys, keys.string_bytes, bits, out, [=, &context](std::int64_t i, auto wide) {
        return hash_one(MemoryReader{data + offsets[i]}, offsets[i + 1] - offsets[i], context, wide);
      });
      return;
    }
    with_byte_kind(keys.dtype, [&](auto kind) {
      const FloatBits floats(keys.dtype);
      with_row_bytes(keys.bytes, [&](auto bytes) {
        write_each(keys, keys.count * keys.bytes, bits, out, [=, &context](std::int64_t i, auto wide) {
          return hash_one(reader_of<decltype(kind)::value>(MemoryReader{data + i * bytes}, floats), bytes, context,
                          wide);
        });
      });
    });
  }

 private:
  struct Narrow {};
  struct Wide {};

  template <class Reader>
  static std::uint64_t hash_one(const Reader& key, std::int64_t length, const xxh3::Context& context, Narrow) {
    return xxh3::hash64(key, length, context);
  }
  template <class Reader>
  static Uint128 hash_one(const Reader& key, std::int64_t length, const xxh3::Context& context, Wide) {
    return xxh3::hash128(key, length, context);
  }

  /// out[i] = hash_of(i, Narrow or Wide) for all keys.
  template <class HashOf>
  static void write_each(const HashedKeys& keys, std::int64_t all_bytes, int bits, std::uint64_t* out, HashOf hash_of) {
    for_each_part(keys.count, parts_of(keys, all_bytes), [&](int, std::int64_t begin, std::int64_t end) {
      in_pieces(begin, end, piece_of(keys, all_bytes), [&](std::int64_t from, std::int64_t to) {
        if (bits == 64) {
          for (std::int64_t i = from; i < to; ++i) out[i] = hash_of(i, Narrow());
          return;
        }
        for (std::int64_t i = from; i < to; ++i) {
          const Uint128 hash = hash_of(i, Wide());
          out[2 * i] = hash.low;
          out[2 * i + 1] = hash.high;
        }
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
