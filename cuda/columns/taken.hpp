#pragma once

#include <cstdint>
#include <optional>

#include <gpuhash/key_columns.hpp>

/// Entries of columns by their indices, as ColumnKeys says.
namespace gpuhash::cuda {

void take_columns(DeviceContext& context, Span<const TakenColumn> columns, std::optional<std::int64_t> rows,
                  const std::int64_t* index, std::int64_t count, Stream stream);
std::int64_t take_string_offsets(DeviceContext& context, const std::int64_t* offsets, std::int64_t rows,
                                 const std::int64_t* index, std::int64_t count, std::int64_t* out, Stream stream);
void take_string_bytes(DeviceContext& context, const void* data, const std::int64_t* offsets, const std::int64_t* index,
                       std::int64_t count, const std::int64_t* out_offsets, void* out, Stream stream);

}  // namespace gpuhash::cuda
