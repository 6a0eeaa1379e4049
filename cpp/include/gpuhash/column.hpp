#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gpuhash/dtype.hpp>
#include <gpuhash/export.hpp>
#include <gpuhash/initializer.hpp>

namespace gpuhash {

/// One of several values that a key has, by its name. Those of one key lie side by side in one row.
struct GPUHASH_API Column {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  /// Of new rows that are given no value of this column; nullopt: zeros. Columns whose initializers draw with the same
  /// seed draw apart all the same: all but the first of them with another seed, which is made of it.
  std::optional<Initializer> initializer;

  std::int64_t elements() const;
  std::int64_t bytes() const;
};

/// How the columns of a table lie in its rows.
struct RowLayout {
  std::vector<std::int64_t> offsets;  // of each column, in bytes: multiples of its element size
  std::int64_t bytes = 0;             // per row: a multiple of each element size
};

/// The widest elements come first, so that no gap is between two columns. Rows of 16 bytes or more are a multiple of 16
/// long, as the widest words are by which they are copied.
GPUHASH_API RowLayout place_columns(const std::vector<Column>& columns);

}  // namespace gpuhash
