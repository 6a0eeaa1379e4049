#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "host/batch_table.hpp"
#include "shared/key_numbers.hpp"

namespace gpuhash::host {

/// Sorts on several threads: each a part, then pairs of neighbouring parts are merged.
template <class T, class Less>
void sort_in_parallel(std::vector<T>& items, Less less) {
  const auto count = static_cast<std::int64_t>(items.size());
  int parts = 1;
  while (2 * parts <= reader_parts(count)) parts *= 2;
  const auto at = [&](int part, int of) { return items.begin() + part_begin(count, part, of); };
  constexpr std::uint32_t kComparisons = 1 << 20;  // between two points at which Ctrl-C can end the sort
  const auto sort_part = [&](auto sort) {
    std::uint32_t comparisons = 0;
    sort([&](const T& a, const T& b) {
      if (++comparisons % kComparisons == 0) interruption_point();
      return less(a, b);
    });
  };
  for_each_part(count, parts, [&](int part, std::int64_t, std::int64_t) {
    sort_part([&](auto compare) { std::sort(at(part, parts), at(part + 1, parts), compare); });
  });
  for (int of = parts; of > 1; of /= 2)
    parallel_for(of / 2, [&](int pair) {
      sort_part([&](auto compare) {
        std::inplace_merge(at(2 * pair, of), at(2 * pair + 1, of), at(2 * pair + 2, of), compare);
      });
    });
}

/// sorted_ids[id] = the rank of distinct key `id` in the order of the keys. collect(put) calls put(id, canonical key)
/// for each, from several threads.
template <class Position, class Collect>
std::vector<Position> sorted_ids(std::int64_t distinct, const NumberFormat& format, Collect collect) {
  const auto by = [&]<class Item>(auto make, auto less, Item) {
    auto items = scratch<Item>(distinct);
    collect([&](std::int64_t id, const auto& key) {
      items[static_cast<std::size_t>(id)] = make(order_word(to_uint128(key), format), static_cast<Position>(id));
    });
    sort_in_parallel(items, less);
    auto ids = scratch<Position>(distinct);
    for_each_chunk(distinct, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t rank = begin; rank < end; ++rank)
        ids[static_cast<std::size_t>(items[static_cast<std::size_t>(rank)].id)] = static_cast<Position>(rank);
    });
    return ids;
  };
  struct Item {
    Uint128 order;
    Position id;
  };
  struct Narrow {
    std::uint64_t order;
    Position id;
  };
  if (order_bits(format) <= 64)
    return by([](const Uint128& order, Position id) { return Narrow{order.low, id}; },
              [](const Narrow& a, const Narrow& b) { return a.order < b.order; }, Narrow{});
  return by([](const Uint128& order, Position id) { return Item{order, id}; },
            [](const Item& a, const Item& b) {
              return a.order.high != b.order.high ? a.order.high < b.order.high : a.order.low < b.order.low;
            },
            Item{});
}

}  // namespace gpuhash::host
