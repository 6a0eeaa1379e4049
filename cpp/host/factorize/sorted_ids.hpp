#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "host/factorize/key_reader.hpp"
#include "host/factorize/radix_sort.hpp"
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
  const auto by = [&]<class Item>(auto make, auto sort, Item) {
    auto items = scratch<Item>(distinct);
    collect([&](std::int64_t id, const auto& key) {
      items[static_cast<std::size_t>(id)] = make(order_word(to_uint128(key), format), static_cast<Position>(id));
    });
    sort(items);
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
  using Narrow = NumberedWord<Position>;
  if (order_bits(format) <= 64)
    return by([](const Uint128& order, Position id) { return Narrow{order.low, id}; },
              [&](std::vector<Narrow>& items) {
                const auto other = uninitialised<Narrow>(distinct);
                RadixSort<Narrow>::sort(items.data(), other.get(), distinct);
              },
              Narrow{});
  return by([](const Uint128& order, Position id) { return Item{order, id}; },
            [](std::vector<Item>& items) {
              sort_in_parallel(items, [](const Item& a, const Item& b) {
                return a.order.high != b.order.high ? a.order.high < b.order.high : a.order.low < b.order.low;
              });
            },
            Item{});
}

/// The same for words, without an array of ranks: calls body(id_at, sorted_at): id_at(rank) is the id of the word that
/// comes at that rank, and sorted_at(rank) its order word. order_at(id): the order word of distinct word `id`.
/// `distinct` > 0, < 2^32.
template <class OrderAt, class Body>
void with_ids_in_order(DeviceContext& context, std::int64_t distinct, OrderAt order_at, Body body) {
  const auto [least, most] = word_limits(distinct, order_at);
  const int id_bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(distinct - 1)));
  const auto sort = [&]<class Item>(auto make, int low, auto id_of, auto order_of, Item) {
    const Allocation memory(context, 2 * static_cast<std::size_t>(distinct) * sizeof(Item), nullptr);
    auto* const items = memory.as<Item>();
    for_each_chunk(distinct, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t id = begin; id < end; ++id) items[id] = make(order_at(id), static_cast<std::uint32_t>(id));
    });
    RadixSort<Item>::sort(items, items + distinct, distinct, low);
    body([=](std::int64_t rank) { return static_cast<std::int64_t>(id_of(items[rank])); },
         [=](std::int64_t rank) { return order_of(items[rank]); });
  };
  if (static_cast<int>(std::bit_width(most - least)) + id_bits <= 64) {  // both fit into one word
    const std::uint64_t mask = (std::uint64_t{1} << id_bits) - 1;
    const std::uint64_t base = least;
    return sort([=](std::uint64_t order, std::uint32_t id) { return (order - base) << id_bits | id; }, id_bits,
                [=](std::uint64_t item) { return item & mask; },
                [=](std::uint64_t item) { return (item >> id_bits) + base; }, std::uint64_t{});
  }
  using Numbered = NumberedWord<std::uint32_t>;
  sort([](std::uint64_t order, std::uint32_t id) { return Numbered{order, id}; }, 0,
       [](const Numbered& item) { return item.id; }, [](const Numbered& item) { return item.word; }, Numbered{});
}

}  // namespace gpuhash::host
