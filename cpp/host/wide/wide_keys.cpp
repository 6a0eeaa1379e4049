#include "table/wide_keys.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "host/executor.hpp"
#include "host/parallel.hpp"
#include "host/rows/columns.hpp"
#include "host/short_bytes.hpp"

namespace gpuhash::host {
namespace {

/// Keys that are looked at one after the other, while the rows of as many are on their way.
constexpr std::int64_t kAtOnce = 16;
/// Of a key in its row; the processor sees by itself that more are read.
constexpr std::int64_t kAskedBytes = 512;

/// Calls body(begin, end) for pieces of [0, count), on several threads.
template <class Body>
void in_parallel(std::int64_t count, Body body) {
  for_each_part(count, reader_parts(count),
                [&](int, std::int64_t begin, std::int64_t end) { in_pieces(begin, end, kKeysPerPiece, body); });
}

/// A key of more than 8 bytes.
struct Words {
  const std::byte* key;
  std::int64_t bytes;

  std::uint64_t operator()(std::int64_t w) const {
    const std::int64_t left = bytes - 8 * w;
    if (left >= 8) return detail::load_whole<std::uint64_t>(key + 8 * w);
    return detail::load_whole<std::uint64_t>(key + bytes - 8) >> (8 * (8 - left));
  }
};

const std::byte* key_at(const KeyBatch& keys, std::int64_t i) {
  return static_cast<const std::byte*>(keys.data) + i * std::int64_t{keys.bytes};
}

/// Calls run(bytes) with what is known when compiled of the common lengths.
template <class Run>
void with_length(std::int64_t bytes, Run run) {
  switch (bytes) {
    case 24:
      return run([] { return std::int64_t{24}; });
    case 32:
      return run([] { return std::int64_t{32}; });
    case 64:
      return run([] { return std::int64_t{64}; });
    default:
      return run([bytes] { return bytes; });
  }
}

/// Of more than 8 bytes: words, of which the last two may overlap.
bool same_key(const std::byte* a, const std::byte* b, std::int64_t bytes) {
  constexpr std::int64_t kFew = 128;
  if (bytes > kFew) return std::memcmp(a, b, static_cast<std::size_t>(bytes)) == 0;
  const auto differing = [&](std::int64_t at) {
    return detail::load_whole<std::uint64_t>(a + at) ^ detail::load_whole<std::uint64_t>(b + at);
  };
  std::uint64_t bits = differing(bytes - 8);
  for (std::int64_t at = 0; at < bytes - 8; at += 8) bits |= differing(at);
  return bits == 0;
}

class HostWideKeys final : public WideKeys {
 public:
  void fingerprint(DeviceContext&, const KeyBatch& keys, const Fingerprints& prints, std::uint64_t attempt,
                   std::uint64_t* out, Stream) const override {
    with_length(keys.bytes, [&](auto length) {
      in_parallel(keys.count, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const Words words{key_at(keys, i), length()};
          out[i] = prints.of(hash_words(length(), prints.seed, words)) + attempt;
        }
      });
    });
  }

  void digest(DeviceContext&, const KeyBatch& keys, Uint128* out, Stream) const override {
    in_parallel(keys.count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) out[i] = digest_words(keys.bytes, Words{key_at(keys, i), keys.bytes});
    });
  }

  void match(DeviceContext&, const KeyBatch& keys, const StoredKeys& stored, const Attempt& attempt,
             std::span<const ColumnRead> reads, Stream) const override {
    const auto row_of = [&](std::int64_t i) { return stored.rows.data + attempt.met[i] * stored.rows.bytes; };
    const std::int64_t asked_from = reads.empty() ? stored.offset : 0;
    const std::int64_t asked = std::min(reads.empty() ? std::int64_t{keys.bytes} : stored.rows.bytes, kAskedBytes);
    const auto ask_for = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        if (attempt.met[i] < 0) continue;
        const std::byte* const first = row_of(i) + asked_from;
        for (std::int64_t byte = 0; byte < asked; byte += 64) __builtin_prefetch(first + byte);
        __builtin_prefetch(first + asked - 1);
      }
    };
    with_length(keys.bytes, [&](auto length) {
      in_parallel(keys.count, [&](std::int64_t begin, std::int64_t end) {
        ask_for(begin, std::min(begin + kAtOnce, end));
        for (std::int64_t i = begin; i < end; i += kAtOnce) {
          const std::int64_t next = std::min(i + kAtOnce, end);
          ask_for(next, std::min(next + kAtOnce, end));
          for (std::int64_t k = i; k < next; ++k)
            if (attempt.is_open(k))
              attempt.settle(k, attempt.met[k] >= 0 && same_key(key_at(keys, k), row_of(k) + stored.offset, length()));
          read_columns_now(stored.rows, attempt.rows, i, next, reads);
        }
      });
    });
  }

  void write_found(DeviceContext&, const std::int64_t* rows, std::int64_t count, bool* found, Stream) const override {
    in_parallel(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) found[i] = rows[i] >= 0;
    });
  }

  AbsentKeys count_absent(DeviceContext&, const std::int64_t* rows, std::int64_t count, Stream) const override {
    std::atomic<std::int64_t> absent{0};
    std::atomic<std::int64_t> taken{0};
    in_parallel(count, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t absent_here = 0;
      std::int64_t taken_here = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        absent_here += rows[i] < 0 ? 1 : 0;
        taken_here += rows[i] == kTakenRow ? 1 : 0;
      }
      absent += absent_here;
      taken += taken_here;
    });
    return {absent, taken};
  }

  void list_absent(DeviceContext&, const std::int64_t* rows, const std::uint64_t* slots, std::int64_t count,
                   std::int64_t* positions, std::uint64_t* listed, Stream) const override {
    std::int64_t next = 0;
    in_pieces(0, count, kKeysPerPiece, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        if (rows[i] >= 0) continue;
        positions[next] = i;
        listed[next++] = slots[i];
      }
    });
  }

  std::int64_t part(DeviceContext&, const KeyBatch& keys, const NumberedKeys& numbered, std::int64_t* rows,
                    std::uint64_t* slots, Stream) const override {
    const auto position = [&](std::int64_t i) { return numbered.positions == nullptr ? i : numbered.positions[i]; };
    std::atomic<std::int64_t> parted{0};
    in_parallel(numbered.count, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t parted_here = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t first = numbered.firsts[numbered.codes[i]];
        if (first == i || same_key(key_at(keys, position(i)), key_at(keys, position(first)), keys.bytes)) continue;
        rows[position(i)] = kTakenRow;
        ++slots[position(i)];
        ++parted_here;
      }
      parted += parted_here;
    });
    return parted;
  }

  std::int64_t move_on(DeviceContext&, const std::int64_t* met, std::int64_t count, std::int64_t* rows,
                       std::uint64_t* slots, Stream) const override {
    std::atomic<std::int64_t> moved{0};
    in_parallel(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        if (rows[i] != kTakenRow) continue;
        if (met[i] < 0) {
          rows[i] = kAbsentRow;
        } else {
          ++slots[i];
          ++moved;
        }
      }
    });
    return moved;
  }

  std::uint64_t most_attempts(DeviceContext&, const std::uint64_t* prints, const std::uint64_t* slots,
                              std::int64_t count, Stream) const override {
    std::uint64_t most = 0;
    for (std::int64_t i = 0; i < count; ++i) most = std::max(most, slots[i] - prints[i]);
    return most;
  }

  void pack(DeviceContext&, const PackedColumn& packed, Stream) const override {
    move(packed, [&](std::byte* column, std::byte* row) { copy_bytes(row, column, packed.bytes); });
  }

  void unpack(DeviceContext&, const PackedColumn& packed, Stream) const override {
    move(packed, [&](std::byte* column, std::byte* row) { copy_bytes(column, row, packed.bytes); });
  }

 private:
  template <class Copy>
  static void move(const PackedColumn& packed, Copy copy) {
    auto* const column = static_cast<std::byte*>(packed.column);
    auto* const rows = static_cast<std::byte*>(packed.rows);
    in_parallel(packed.count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) copy(column + i * packed.bytes, rows + i * packed.stride);
    });
  }
};

}  // namespace

const WideKeys& HostAlgorithms::wide_keys() {
  static const auto& keys = *new HostWideKeys;  // never destroyed, as tables may outlive whatever is
  return keys;
}

}  // namespace gpuhash::host
