#pragma once

#include <cstddef>
#include <cstdint>

#include <gpuhash/device_context.hpp>
#include "shared/layout.hpp"
#include "table/orders.hpp"

namespace gpuhash::cuda {

/// Fills what begins at `offset` bytes in the rows of keys that were new; `numbers` are those of all keys' rows.
void initialise_rows(const RowView& rows, const InitialRows& initial, std::int64_t offset, const KeyBatch& keys,
                     const bool* is_new, const std::int64_t* numbers, Stream stream);

/// Keys of a batch of which the GPU alone knows how many they are, and the values of the table's slots.
struct ListedKeys {
  const std::uint32_t* positions;  // [*count]
  const std::uint64_t* count;
  const std::byte* slot_values;  // the first slot's
  std::int64_t slot_bytes;
};

/// So many listed keys are worked on at a time.
inline constexpr std::int64_t kListedAtOnce = 1 << 17;

/// As initialise_rows(), of the listed keys; puts row numbers into `numbers` where those of slots are.
void initialise_listed_rows(const RowView& rows, const InitialRows& initial, std::int64_t offset, const KeyBatch& keys,
                            const bool* is_new, std::int64_t* numbers, const ListedKeys& listed, Stream stream);

}  // namespace gpuhash::cuda
