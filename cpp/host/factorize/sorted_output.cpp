#include "host/factorize/sorted_output.hpp"

#include <cstddef>
#include <type_traits>
#include <utility>

#include "host/factorize/key_reader.hpp"
#include "host/factorize/radix_sort.hpp"
#include "host/factorize/sorted_ids.hpp"
#include "host/short_bytes.hpp"

namespace gpuhash::host {
namespace {

/// What is known of the distinct keys, in order of first occurrence, to be put into another order.
struct InOrder {
  Allocation uniques;
  Allocation counts;
  Allocation firsts;
};

/// Makes keys of the order words that belong to [distinct] of them. Two keys have more than one form, 0 and NaN: the
/// form is kept that is to be given back.
template <class Key>
struct KeyMaker {
  NumberFormat format;
  Key zero = 0;
  Key nan = 0;

  KeyMaker(const NumberFormat& of, const Key* uniques, std::int64_t distinct) : format(of) {
    if (!format.is_float) return;
    for_each_chunk(distinct, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t id = begin; id < end; ++id) {
        const std::uint64_t key = canonical(std::uint64_t{uniques[id]}, format);
        if (key == 0) zero = uniques[id];  // one thread meets it, if any does
        if (key == gpuhash::detail::canonical_nan(format)) nan = uniques[id];
      }
    });
  }
  static std::uint64_t order(Key raw, const NumberFormat& format) {
    return gpuhash::detail::ordered(canonical(std::uint64_t{raw}, format), format);
  }
  Key operator()(std::uint64_t order) const {
    const auto key = static_cast<Key>(key_of_order(order, format));
    if (!format.is_float) return key;
    return key == 0 ? zero : key == gpuhash::detail::canonical_nan(format) ? nan : key;
  }
};

class SortedOutput {
 public:
  SortedOutput(const DistinctKeys& known, const std::function<void(const FactorizationOutput&)>& write_in_order)
      : known_(known), write_in_order_(write_in_order) {}

  void write(const FactorizationOutput& out) {
    if (known_.distinct == 0) return;
    const auto run = [&]<class Key>(Key) {
      if (out.codes == nullptr && out.counts == nullptr && out.firsts == nullptr)
        write_keys_sorted<Key>(out);
      else
        write_numbers_sorted<Key>(out);
    };
    if (!is_order_reversible(known_.format)) return write_rows_sorted(out);
    switch (known_.bytes) {
      case 1:
        return run(std::uint8_t{});
      case 2:
        return run(std::uint16_t{});
      case 4:
        return run(std::uint32_t{});
      default:
        return run(std::uint64_t{});
    }
  }

 private:
  /// Sorts nothing but order words.
  template <class Key>
  void write_keys_sorted(const FactorizationOutput& out) {
    if (out.uniques == nullptr) return;
    write_in_order_(out);
    auto* const uniques = static_cast<Key*>(out.uniques);
    const NumberFormat format = known_.format;
    const KeyMaker<Key> key(format, uniques, known_.distinct);
    using Order = std::conditional_t<sizeof(Key) <= 4, std::uint32_t, std::uint64_t>;
    const Allocation memory(known_.context, 2 * static_cast<std::size_t>(known_.distinct) * sizeof(Order), nullptr);
    auto* const words = memory.as<Order>();
    for_each_chunk(known_.distinct, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t id = begin; id < end; ++id)
        words[id] = static_cast<Order>(KeyMaker<Key>::order(uniques[id], format));
    });
    RadixSort<Order>::sort(words, words + known_.distinct, known_.distinct);
    for_each_chunk(known_.distinct, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t rank = begin; rank < end; ++rank) uniques[rank] = key(words[rank]);
    });
  }

  InOrder write_aside(const FactorizationOutput& out) {
    const auto room = [&](bool wanted, std::int64_t bytes) {
      return Allocation(known_.context, wanted ? static_cast<std::size_t>(known_.distinct * bytes) : 0, nullptr);
    };
    constexpr std::int64_t kBytes = sizeof(std::int64_t);
    InOrder aside{room(true, known_.bytes), room(out.counts != nullptr, kBytes), room(out.firsts != nullptr, kBytes)};
    FactorizationOutput in_order = out;
    in_order.uniques = aside.uniques.get();
    if (out.counts != nullptr) in_order.counts = aside.counts.as<std::int64_t>();
    if (out.firsts != nullptr) in_order.firsts = aside.firsts.as<std::int64_t>();
    write_in_order_(in_order);
    return aside;
  }

  template <class Key>
  void write_numbers_sorted(const FactorizationOutput& out) {
    const InOrder aside = write_aside(out);
    const auto* const uniques = aside.uniques.as<Key>();
    const NumberFormat format = known_.format;
    const KeyMaker<Key> key(format, uniques, known_.distinct);
    const auto order_at = [&](std::int64_t id) { return KeyMaker<Key>::order(uniques[id], format); };
    with_ids_in_order(known_.context, known_.distinct, order_at, [&](auto id_at, auto sorted_at) {
      auto* const to = static_cast<Key*>(out.uniques);
      if (to != nullptr) for_each_rank([&](std::int64_t rank) { to[rank] = key(sorted_at(rank)); });
      put_in_order(out, aside, id_at);
    });
  }

  /// Keys of several numbers, and complex ones.
  void write_rows_sorted(const FactorizationOutput& out) {
    const InOrder aside = write_aside(out);
    const NumberFormat format = known_.format;
    const auto unique = [&](std::int64_t id) {
      return load_word<std::uint64_t>(aside.uniques.get(), id, known_.bytes);
    };
    const auto order_at = [&](std::int64_t id) {
      return order_word(to_uint128(canonical(unique(id), format)), format).low;
    };
    with_ids_in_order(known_.context, known_.distinct, order_at, [&](auto id_at, auto) {
      if (out.uniques != nullptr)
        for_each_rank([&](std::int64_t rank) { store_word(out.uniques, rank, known_.bytes, unique(id_at(rank))); });
      put_in_order(out, aside, id_at);
    });
  }

  template <class Body>
  void for_each_rank(Body body) const {
    for_each_chunk(known_.distinct, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t rank = begin; rank < end; ++rank) body(rank);
    });
  }

  /// All but the keys. Loops of their own: the processor has more of their random accesses under way.
  template <class IdAt>
  void put_in_order(const FactorizationOutput& out, const InOrder& aside, IdAt id_at) const {
    const auto* const counts = aside.counts.as<std::int64_t>();
    const auto* const firsts = aside.firsts.as<std::int64_t>();
    if (out.counts != nullptr) for_each_rank([&](std::int64_t rank) { out.counts[rank] = counts[id_at(rank)]; });
    if (out.firsts != nullptr) for_each_rank([&](std::int64_t rank) { out.firsts[rank] = firsts[id_at(rank)]; });
    if (out.codes == nullptr) return;
    const Allocation memory(known_.context, static_cast<std::size_t>(known_.distinct) * sizeof(std::uint32_t), nullptr);
    auto* const ranks = memory.as<std::uint32_t>();
    for_each_rank([&](std::int64_t rank) { ranks[id_at(rank)] = static_cast<std::uint32_t>(rank); });
    std::int64_t* const codes = out.codes;
    for_each_chunk(known_.keys, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) codes[i] = ranks[codes[i]];
    });
  }

  const DistinctKeys& known_;
  const std::function<void(const FactorizationOutput&)>& write_in_order_;
};

}  // namespace

void write_sorted(const DistinctKeys& known, const FactorizationOutput& out,
                  const std::function<void(const FactorizationOutput&)>& write_in_order) {
  SortedOutput(known, write_in_order).write(out);
}

}  // namespace gpuhash::host
