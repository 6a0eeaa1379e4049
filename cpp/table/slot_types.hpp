#pragma once

#include <cstddef>
#include <cstdint>

#include "shared/layout.hpp"

namespace gpuhash {

/// Stored keys and values of one kind of table.
template <class KeyType, class ValueType>
struct SlotType {
  using Key = KeyType;
  using Value = ValueType;
  static constexpr bool kHasValue = TableView<Key, Value>::kHasValue;

  /// Do keys of so many bytes fit, and values of so many? nullptr: there are none.
  static constexpr bool fits(std::size_t key_bytes, const std::size_t* value_bytes) {
    if (key_bytes > sizeof(Key) || kHasValue != (value_bytes != nullptr)) return false;
    return !kHasValue || *value_bytes <= sizeof(Value);
  }
};

template <class... Types>
struct TypeList {};

/// All slot types, narrow ones first: a table takes the first one that fits. A new one is a line here and one in an
/// executors_*.cpp of each platform. Each key type needs a set, too, in which new keys are counted.
using SlotTypes =
    TypeList<SlotType<std::uint32_t, NoValue>, SlotType<std::uint32_t, std::uint32_t>, SlotType<std::uint64_t, NoValue>,
             SlotType<std::uint64_t, std::uint64_t>, SlotType<Uint128, NoValue>, SlotType<Uint128, std::uint64_t>>;

/// Longer keys lie in rows: see WideKeyTable.
inline constexpr std::uint32_t kMostSlotKeyBytes = sizeof(Uint128);

/// Calls body(SlotType()) for one after the other until it returns true; false where it never did.
template <class Body, class... Types>
bool any_slot_type(Body body, TypeList<Types...>) {
  return (body(Types()) || ...);
}
template <class Body>
bool any_slot_type(Body body) {
  return any_slot_type(body, SlotTypes());
}

}  // namespace gpuhash
