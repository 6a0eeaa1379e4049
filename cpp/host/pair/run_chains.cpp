#include <gpuhash/run_chains.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "host/executor.hpp"
#include "host/parallel.hpp"

namespace gpuhash::host {
namespace {

/// Rows that are asked for before they are copied.
constexpr std::int64_t kRowsAhead = 16;

/// Calls body(begin, end) for pieces of [0, count), on several threads.
template <class Body>
void for_each_piece(std::int64_t count, const Body& body) {
  for_each_part(count, reader_parts(count),
                [&](int, std::int64_t begin, std::int64_t end) { in_pieces(begin, end, kKeysPerPiece, body); });
}

/// Calls body with the number of bytes, a constant where rows are words.
template <class Body>
void with_row_bytes(std::int64_t bytes, Body body) {
  switch (bytes) {
    case 1:
      return body(std::integral_constant<std::int64_t, 1>());
    case 2:
      return body(std::integral_constant<std::int64_t, 2>());
    case 4:
      return body(std::integral_constant<std::int64_t, 4>());
    case 8:
      return body(std::integral_constant<std::int64_t, 8>());
    case 16:
      return body(std::integral_constant<std::int64_t, 16>());
    default:
      return body(bytes);
  }
}

class HostRunChains final : public RunChains {
 public:
  void append(DeviceContext&, const Runs& runs, std::int64_t first, std::int64_t base, const std::int64_t* offsets,
              const std::int64_t* tails, std::int64_t count, std::int64_t* ids, Stream) const override {
    runs.begins[first] = base;
    for_each_piece(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        ids[i] = first + i;
        runs.begins[first + i + 1] = base + (offsets == nullptr ? i + 1 : offsets[i + 1]);
        runs.nexts[first + i] = -1;
        if (tails != nullptr && tails[i] >= 0) runs.nexts[tails[i]] = first + i;
      }
    });
  }

  void list(DeviceContext&, const Runs& runs, const std::int64_t* heads, const std::int64_t* offsets,
            std::int64_t count, std::int64_t* listed, Stream) const override {
    for_each_piece(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        std::int64_t run = heads[i];
        for (std::int64_t at = offsets[i]; at < offsets[i + 1]; ++at, run = runs.nexts[run]) {
          if (at % kKeysPerPiece == kKeysPerPiece - 1) interruption_point();
          listed[at] = run;
        }
      }
    });
  }

  std::int64_t sum_up(DeviceContext&, const std::int64_t* counts, std::int64_t count, std::int64_t* offsets,
                      Stream) const override {
    const int parts = reader_parts(count);
    auto sums = scratch<std::int64_t>(parts);
    for_each_part(count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
      std::int64_t sum = 0;
      for (std::int64_t i = begin; i < end; ++i) sum += counts[i];
      sums[static_cast<std::size_t>(part)] = sum;
    });
    std::int64_t all = 0;
    for (std::int64_t& sum : sums) all += std::exchange(sum, all);
    for_each_part(count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
      std::int64_t sum = sums[static_cast<std::size_t>(part)];
      for (std::int64_t i = begin; i < end; ++i) {
        offsets[i] = sum;
        sum += counts[i];
      }
    });
    offsets[count] = all;
    return all;
  }

  void gather(DeviceContext&, const void* from, std::int64_t bytes, const std::int64_t* positions, std::int64_t count,
              void* to, Stream) const override {
    with_row_bytes(bytes, [&](auto width) {
      const auto size = static_cast<std::size_t>(std::int64_t{width});
      for_each_piece(count, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          __builtin_prefetch(static_cast<const char*>(from) + positions[std::min(i + kRowsAhead, end - 1)] * width);
          std::memcpy(static_cast<char*>(to) + i * width, static_cast<const char*>(from) + positions[i] * width, size);
        }
      });
    });
  }
};

}  // namespace

const RunChains& HostAlgorithms::run_chains() {
  static const auto& run_chains = *new HostRunChains;  // never destroyed: threads may work at exit
  return run_chains;
}

}  // namespace gpuhash::host
