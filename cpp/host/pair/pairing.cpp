#include <gpuhash/pairing.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "host/executor.hpp"
#include "host/parallel.hpp"
#include "host/simd/simd.hpp"

namespace gpuhash::host {
namespace {

template <class T>
Allocation room_for(DeviceContext& context, std::int64_t count) {
  return scratch_by<T>([&](std::size_t n) { return Allocation(context, n * sizeof(T), nullptr); }, count);
}

/// Calls body(begin, end) for pieces of [0, count), on several threads.
template <class Body>
void for_each_piece(std::int64_t count, const Body& body) {
  for_each_part(count, reader_parts(count),
                [&](int, std::int64_t begin, std::int64_t end) { in_pieces(begin, end, kKeysPerPiece, body); });
}

/// Left rows of which it is known how many pairs come before them. Some hundred KB of pairs, so that threads find work.
constexpr std::int64_t kBlock = std::int64_t{1} << 13;

/// Calls body(std::true_type) or body(std::false_type).
template <class Body>
void with_flag(bool flag, const Body& body) {
  flag ? body(std::true_type()) : body(std::false_type());
}

class HostPairs final : public Pairs {
 public:
  HostPairs(DeviceContext& context, const PairSides& sides, PairKind kind)
      : sides_(sides),
        kind_(kind),
        is_single_(sides.offsets == nullptr || kind == PairKind::kSemi || kind == PairKind::kAnti),
        blocks_((sides.count + kBlock - 1) / kBlock),
        memory_(room_for<std::int64_t>(context, blocks_ + 1)),
        begins_(memory_.as<std::int64_t>()) {
    const int parts = static_cast<int>(std::min<std::int64_t>(reader_parts(sides.count), blocks_));
    for_each_part(blocks_, std::max(parts, 1), [&](int, std::int64_t begin, std::int64_t end) {
      in_pieces(begin, end, kKeysPerPiece / kBlock, [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t block = from; block < to; ++block) begins_[block] = count_block(block);
      });
    });
    std::int64_t sum = 0;
    for (std::int64_t block = 0; block < blocks_; ++block) sum += std::exchange(begins_[block], sum);
    begins_[blocks_] = count_ = sum;
  }

  void write(std::int64_t begin, std::int64_t end, std::int64_t* left, std::int64_t* right) const override {
    for_each_part(end - begin, reader_parts(end - begin), [&](int, std::int64_t first, std::int64_t last) {
      std::int64_t from = begin + first;
      const std::int64_t stop = begin + last;
      for (std::int64_t block = block_of(from); from < stop; ++block) {
        interruption_point();
        const std::int64_t to = std::min(stop, begins_[block + 1]);
        std::int64_t* const left_here = left == nullptr ? nullptr : left + (from - begin);
        std::int64_t* const right_here = right == nullptr ? nullptr : right + (from - begin);
        write_block(block, from - begins_[block], to - from, left_here, right_here);
        from = to;
      }
    });
  }

 private:
  /// The block that has a pair.
  std::int64_t block_of(std::int64_t pair) const {
    return std::upper_bound(begins_, begins_ + blocks_ + 1, pair) - begins_ - 1;
  }

  std::int64_t partners_of(std::int64_t code) const { return sides_.offsets[code + 1] - sides_.offsets[code]; }

  std::int64_t count_block(std::int64_t block) const {
    const std::int64_t* const codes = sides_.codes + block * kBlock;
    const std::int64_t rows = std::min(kBlock, sides_.count - block * kBlock);
    std::int64_t without = 0;
    with_simd([&without, codes, rows](auto) {
      std::int64_t negative = 0;
      for (std::int64_t i = 0; i < rows; ++i) negative += codes[i] < 0;
      without = negative;
    });
    if (kind_ == PairKind::kAnti) return without;
    std::int64_t pairs = rows - without;
    if (!is_single_) {
      pairs = 0;
      for (std::int64_t i = 0; i < rows; ++i)
        if (codes[i] >= 0) pairs += partners_of(codes[i]);
    }
    return kind_ == PairKind::kLeft ? pairs + without : pairs;
  }

  /// `count` pairs of the block, after the first `skipped`.
  void write_block(std::int64_t block, std::int64_t skipped, std::int64_t count, std::int64_t* left,
                   std::int64_t* right) const {
    with_flag(left != nullptr, [&](auto with_left) {
      with_flag(right != nullptr, [&](auto with_right) {
        const auto put = [&](std::int64_t k, std::int64_t row, std::int64_t partner) {
          if constexpr (with_left) left[k] = row;
          if constexpr (with_right) right[k] = partner;
        };
        const std::int64_t first = block * kBlock;
        if (!is_single_) return write_many(first, skipped, count, put);
        if (kind_ == PairKind::kLeft) return write_each(first + skipped, count, put);
        write_chosen(first, skipped, count, put);
      });
    });
  }

  std::int64_t partner(std::int64_t at) const { return sides_.partners == nullptr ? at : sides_.partners[at]; }

  /// One pair of each row.
  template <class Put>
  void write_each(std::int64_t row, std::int64_t count, const Put& put) const {
    const std::int64_t* const codes = sides_.codes + row;
    const std::int64_t* const partners = sides_.partners;
    if (partners == nullptr) {
      for (std::int64_t k = 0; k < count; ++k) put(k, row + k, std::max<std::int64_t>(codes[k], -1));
    } else {
      for (std::int64_t k = 0; k < count; ++k) put(k, row + k, codes[k] < 0 ? -1 : partners[codes[k]]);
    }
  }

  /// One pair of each row of which the kind says so. Without a branch on that: all are written, and those that are not
  /// to be are written over. The last one is to be, so that nothing is written beyond the end.
  template <class Put>
  void write_chosen(std::int64_t row, std::int64_t skipped, std::int64_t count, const Put& put) const {
    const std::int64_t* const codes = sides_.codes;
    const std::int64_t* const partners = sides_.partners;
    const bool wants_none = kind_ == PairKind::kAnti;
    for (; skipped > 0; ++row) skipped -= (codes[row] < 0) == wants_none;
    const auto write = [&](const auto& partner_of) {
      for (std::int64_t k = 0; k < count; ++row) {
        const std::int64_t code = codes[row];
        put(k, row, partner_of(code));
        k += (code < 0) == wants_none;
      }
    };
    if (kind_ != PairKind::kInner) return write([](std::int64_t) { return std::int64_t{-1}; });
    if (partners == nullptr) return write([](std::int64_t code) { return code; });
    write([&](std::int64_t code) { return partners[std::max<std::int64_t>(code, 0)]; });
  }

  /// All partners of each row.
  template <class Put>
  void write_many(std::int64_t row, std::int64_t skipped, std::int64_t count, const Put& put) const {
    std::int64_t k = 0;
    for (; k < count; ++row) {
      const std::int64_t code = sides_.codes[row];
      if (code < 0 && kind_ == PairKind::kInner) continue;
      const std::int64_t pairs = code < 0 ? 1 : partners_of(code);
      if (skipped >= pairs) {
        skipped -= pairs;
        continue;
      }
      const std::int64_t end = std::min(count, k + pairs - skipped);
      if (code < 0) {
        put(k++, row, -1);
        continue;
      }
      for (std::int64_t at = sides_.offsets[code] + std::exchange(skipped, 0); k < end; ++at, ++k) {
        if (k % kKeysPerPiece == kKeysPerPiece - 1) interruption_point();
        put(k, row, partner(at));
      }
    }
  }

  PairSides sides_;
  PairKind kind_;
  bool is_single_;  // no row has more than one pair
  std::int64_t blocks_;
  Allocation memory_;
  std::int64_t* begins_;  // [blocks + 1], pairs before each block
};

/// Groups positions by counting: those of each thread's rows have places of their own in each group.
void group_few(DeviceContext& context, const std::int64_t* codes, std::int64_t count, std::int64_t groups,
               std::int64_t* offsets, std::int64_t* order) {
  const int parts = reader_parts(count);
  const Allocation memory = room_for<std::int64_t>(context, parts * groups);
  auto* const places = memory.as<std::int64_t>();  // [parts, groups]
  for_each_part(count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    std::int64_t* const mine = places + part * groups;
    std::fill_n(mine, groups, std::int64_t{0});
    in_pieces(begin, end, kKeysPerPiece, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i)
        if (codes[i] >= 0) ++mine[codes[i]];
    });
  });
  std::int64_t sum = 0;
  for (std::int64_t group = 0; group < groups; ++group) {
    offsets[group] = sum;
    for (int part = 0; part < parts; ++part) sum += std::exchange(places[part * groups + group], sum);
  }
  offsets[groups] = sum;
  for_each_part(count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    std::int64_t* const mine = places + part * groups;
    in_pieces(begin, end, kKeysPerPiece, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i)
        if (codes[i] >= 0) order[mine[codes[i]]++] = i;
    });
  });
}

/// Groups that are counted at once, in a cache of the second level.
constexpr int kGroupBits = 14;
constexpr std::int64_t kFewGroups = std::int64_t{1} << kGroupBits;
/// Parts that rows are dealt out to at once.
constexpr int kMostPartBits = 11;

/// As group_few(), in two steps where groups are many: rows go to parts of neighbouring groups, and then to these.
template <class Position>
class ManyGroups {
 public:
  ManyGroups(DeviceContext& context, const std::int64_t* codes, std::int64_t count, std::int64_t groups)
      : codes_(codes),
        count_(count),
        groups_(groups),
        shift_(
            std::max(kGroupBits, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(groups))) - kMostPartBits)),
        parts_(((groups - 1) >> shift_) + 1),
        threads_(reader_parts(count)),
        places_(room_for<std::int64_t>(context, threads_ * parts_)),
        memory_(room_for<Row>(context, count)) {}

  void write(std::int64_t* offsets, std::int64_t* order) {
    const std::unique_ptr<std::int64_t[]> begins = deal_out();
    offsets[groups_] = begins[static_cast<std::size_t>(parts_)];
    std::atomic<std::int64_t> next{0};
    for_each_part(threads_, threads_, [&](int, std::int64_t, std::int64_t) {
      for (std::int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts_;) {
        interruption_point();
        const auto at = static_cast<std::size_t>(part);
        write_part(part, begins[at], begins[at + 1], offsets, order);
      }
    });
  }

 private:
  struct Row {
    Position group;  // in its part
    Position position;
  };

  /// Returns where each part's rows begin: [parts + 1].
  std::unique_ptr<std::int64_t[]> deal_out() {
    auto* const places = places_.as<std::int64_t>();
    auto* const rows = memory_.as<Row>();
    for_each_part(count_, threads_, [&](int thread, std::int64_t begin, std::int64_t end) {
      std::int64_t* const mine = places + thread * parts_;
      std::fill_n(mine, parts_, std::int64_t{0});
      in_pieces(begin, end, kKeysPerPiece, [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t i = from; i < to; ++i)
          if (codes_[i] >= 0) ++mine[codes_[i] >> shift_];
      });
    });
    auto begins = uninitialised<std::int64_t>(parts_ + 1);
    std::int64_t sum = 0;
    for (std::int64_t part = 0; part < parts_; ++part) {
      begins[static_cast<std::size_t>(part)] = sum;
      for (int thread = 0; thread < threads_; ++thread) sum += std::exchange(places[thread * parts_ + part], sum);
    }
    begins[static_cast<std::size_t>(parts_)] = sum;
    const std::int64_t in_part = (std::int64_t{1} << shift_) - 1;
    for_each_part(count_, threads_, [&](int thread, std::int64_t begin, std::int64_t end) {
      std::int64_t* const mine = places + thread * parts_;
      in_pieces(begin, end, kKeysPerPiece, [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t i = from; i < to; ++i) {
          const std::int64_t code = codes_[i];
          if (code >= 0)
            rows[mine[code >> shift_]++] = {static_cast<Position>(code & in_part), static_cast<Position>(i)};
        }
      });
    });
    return begins;
  }

  void write_part(std::int64_t part, std::int64_t begin, std::int64_t end, std::int64_t* offsets,
                  std::int64_t* order) const {
    const Row* const rows = memory_.as<Row>();
    std::int64_t* const mine = offsets + (part << shift_);
    const std::int64_t groups = std::min(std::int64_t{1} << shift_, groups_ - (part << shift_));
    auto next = scratch<std::int64_t>(groups);
    for (std::int64_t i = begin; i < end; ++i) ++next[static_cast<std::size_t>(rows[i].group)];
    std::int64_t sum = begin;
    for (std::int64_t group = 0; group < groups; ++group) {
      mine[group] = sum;
      sum += std::exchange(next[static_cast<std::size_t>(group)], sum);
    }
    for (std::int64_t i = begin; i < end; ++i)
      order[next[static_cast<std::size_t>(rows[i].group)]++] = static_cast<std::int64_t>(rows[i].position);
  }

  const std::int64_t* codes_;
  std::int64_t count_;
  std::int64_t groups_;
  int shift_;
  std::int64_t parts_;
  int threads_;
  Allocation places_;  // [threads, parts], in `memory_`
  Allocation memory_;  // [count], rows by part
};

class HostPairing final : public Pairing {
 public:
  void group_positions(DeviceContext& context, const std::int64_t* codes, std::int64_t count, std::int64_t groups,
                       std::int64_t* offsets, std::int64_t* order, Stream) const override {
    if (groups <= kFewGroups) return group_few(context, codes, count, groups, offsets, order);
    if (std::max(count, groups) <= std::numeric_limits<std::uint32_t>::max())
      return ManyGroups<std::uint32_t>(context, codes, count, groups).write(offsets, order);
    ManyGroups<std::uint64_t>(context, codes, count, groups).write(offsets, order);
  }

  std::unique_ptr<Pairs> pair(DeviceContext& context, const PairSides& sides, PairKind kind, Stream) const override {
    return std::make_unique<HostPairs>(context, sides, kind);
  }

  void keep_common(DeviceContext& context, const std::int64_t* codes, std::int64_t count, const std::int64_t* others,
                   std::int64_t other_count, std::int64_t groups, std::int64_t* kept, Stream) const override {
    const Allocation memory = room_for<std::uint8_t>(context, groups);
    auto* const met = memory.as<std::uint8_t>();
    std::fill_n(met, groups, std::uint8_t{0});
    for_each_piece(other_count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        if (others[i] < 0) continue;
        const std::atomic_ref byte(met[others[i]]);
        if (byte.load(std::memory_order_relaxed) == 0) byte.store(1, std::memory_order_relaxed);
      }
    });
    for_each_piece(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) kept[i] = codes[i] >= 0 && met[codes[i]] != 0 ? codes[i] : -1;
    });
  }
};

}  // namespace

const Pairing& HostAlgorithms::pairing() {
  static const auto& pairing = *new HostPairing;  // never destroyed: threads may work at exit
  return pairing;
}

}  // namespace gpuhash::host
