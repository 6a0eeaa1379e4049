#pragma once

#include <cstdint>
#include <optional>

#include <gpuhash/key_columns.hpp>

/// Entries of columns by their indices, as ColumnKeys says.
namespace gpuhash::host {

void take_columns(Span<const TakenColumn> columns, std::optional<std::int64_t> rows, const std::int64_t* index,
                  std::int64_t count);
std::int64_t take_string_offsets(const std::int64_t* offsets, std::int64_t rows, const std::int64_t* index,
                                 std::int64_t count, std::int64_t* out);
void take_string_bytes(const void* data, const std::int64_t* offsets, const std::int64_t* index, std::int64_t count,
                       const std::int64_t* out_offsets, void* out);

}  // namespace gpuhash::host
