#include "table/placed_columns.hpp"

#include <cstddef>
#include <map>
#include <string>

#include <gpuhash/error.hpp>
#include "shared/hash.hpp"

namespace gpuhash {
namespace {

/// Of the n-th column (from 0) that draws with this seed. The first keeps it, and draws what a table of that column
/// alone would; the others get numbers of their own: the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast
/// splittable pseudorandom number generators", OOPSLA 2014) of its n-th state.
std::uint64_t seed_of_column(std::uint64_t seed, std::uint64_t n) {
  if (n == 0) return seed;
  std::uint64_t z = seed + n * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

std::string name_of(const TableOptions& options, std::size_t column) {
  return options.columns.empty() ? "the values" : "the column \"" + options.columns[column].name + "\"";
}

template <class Given>
void check_columns(const TableOptions& options, Span<const Given> given) {
  if (given.empty()) return;
  const std::size_t count = options.column_count();
  if (count == 0) throw DTypeError("values were given to a set, which has none");
  for (const Given& each : given)
    if (each.column >= count)
      throw ShapeError("column " + std::to_string(each.column) + " was given to a table of " + std::to_string(count) +
                       (count == 1 ? " column" : " columns"));
  if (given.size() == 1) return;
  std::vector<bool> seen(count);
  for (const Given& each : given) {
    if (seen[each.column])
      throw ShapeError(name_of(options, each.column) + (options.columns.empty() ? " were" : " was") + " given twice");
    seen[each.column] = true;
  }
}

bool is_trained(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16; }

}  // namespace

PlacedColumns::PlacedColumns(const TableOptions& options) {
  if (options.columns.empty() && options.has_rows())
    places_.push_back({0, *options.value_dtype, options.value_elements()});
  const RowLayout layout = place_columns(options.columns);
  std::map<std::uint64_t, std::uint64_t> drawing;  // columns so far, by seed
  for (std::size_t c = 0; c < options.columns.size(); ++c) {
    const Column& column = options.columns[c];
    places_.push_back({layout.offsets[c], column.dtype, column.elements()});
    Initializer initializer = column.initializer.value_or(Initializer());
    if (initializer.distribution != Distribution::kConstant)
      initializer.seed = seed_of_column(initializer.seed, drawing[initializer.seed]++);
    initial_.push_back({layout.offsets[c], {initializer, column.dtype, column.elements()}});
  }
}

std::vector<ColumnRead> PlacedColumns::reads(Span<const Read> reads) const {
  std::vector<ColumnRead> placed;
  placed.reserve(reads.size());
  for (const Read& read : reads)
    placed.push_back({places_[read.column], read.values, read.fallback, read.fallback_per_key});
  return placed;
}

ColumnsOrder PlacedColumns::order(const Change& change, bool deterministic) const {
  ColumnsOrder order{};
  order.keys = change.keys;
  order.drawn_from = change.keys;
  if (change.drawn_from != nullptr) order.drawn_from = {change.drawn_from, change.keys.count, sizeof(Uint128)};
  order.deterministic = deterministic;
  order.rows = change.rows;
  order.inserted = change.inserted;
  std::vector<bool> given(places_.size());
  for (const Write& write : change.writes) {
    given[write.column] = true;
    const ColumnPlace& place = places_[write.column];
    order.given.push_back({place, {write.values, place.bytes(), write.broadcast}, write.action});
  }
  for (std::size_t c = 0; c < initial_.size(); ++c)
    if (!given[c]) order.initial.push_back(initial_[c]);
  return order;
}

TrainOrder PlacedColumns::train_order(const std::int64_t* rows, std::int64_t count, const Gradients& gradients,
                                      const std::vector<std::size_t>& columns, const OptimizerStep& step) const {
  TrainOrder order{rows, count, gradients, places_[columns.front()], {}, step};
  for (std::size_t i = 1; i < columns.size(); ++i) order.states[i - 1] = places_[columns[i]];
  return order;
}

void check_reads(const TableOptions& options, Span<const Read> reads) { check_columns(options, reads); }

void check_change(const TableOptions& options, const Change& change) {
  check_columns(options, change.writes);
  check_columns(options, change.reads);
  if (change.rows != nullptr || (change.writes.empty() && options.column_count() != 0)) check_has_rows(options);
  for (const Write& write : change.writes) {
    const DType dtype = options.column_dtype(write.column);
    if (has_op(dtype, write.action)) continue;
    const std::string whose =
        options.columns.empty() ? "values" : "the column \"" + options.columns[write.column].name + "\"";
    throw DTypeError(whose + " of dtype " + std::string(name(dtype)) + (options.columns.empty() ? " have" : " has") +
                     " no such operation; bit operations are of integers and bool, and complex numbers have no order");
  }
}

void check_has_rows(const TableOptions& options) {
  if (!options.has_rows()) throw DTypeError("the values of the table lie beside their keys: there are no rows");
}

void check_row_storage(const TableOptions& options) {
  if (!options.has_rows())
    throw ShapeError("this table keeps its values beside their keys and has no row storage; give it a value_shape");
}

void check_row_reads(const TableOptions& options, Span<const Read> reads) {
  check_has_rows(options);
  check_columns(options, reads);
}

void check_pooled(const TableOptions& options, const Read& out) {
  check_row_reads(options, Span(&out, 1));
  const DType dtype = options.column_dtype(out.column);
  if (!is_trained(dtype))
    throw DTypeError(name_of(options, out.column) + " of dtype " + std::string(name(dtype)) +
                     " cannot be summed up by bags; that is for float32 and bfloat16");
}

void check_trained(const TableOptions& options, const std::vector<std::size_t>& columns, const OptimizerStep& step,
                   const Gradients& gradients) {
  check_has_rows(options);
  const std::size_t expected = 1 + state_columns(step.optimizer);
  if (columns.size() != expected)
    throw ShapeError(std::to_string(columns.size()) + " columns were given to an optimizer that has " +
                     std::to_string(expected) + ", the weights' among them");
  for (const std::size_t number : columns)
    if (number >= options.column_count())
      throw ShapeError("column " + std::to_string(number) + " was given to a table of " +
                       std::to_string(options.column_count()) + " columns");
  const DType dtype = options.column_dtype(columns.front());
  const std::int64_t elements =
      options.columns.empty() ? options.value_elements() : options.columns[columns.front()].elements();
  if (!is_trained(dtype))
    throw DTypeError(name_of(options, columns.front()) + " of dtype " + std::string(name(dtype)) +
                     " cannot be trained; optimizers train float32 and bfloat16");
  if (!is_trained(gradients.dtype))
    throw DTypeError("gradients of dtype " + std::string(name(gradients.dtype)) +
                     " were given, expected float32 or bfloat16");
  const bool by_row = step.optimizer == Optimizer::kRowWiseAdagrad;
  if (expected > 1 && options.columns.empty())
    throw ShapeError(
        "an optimizer that keeps a state was given to a table without named columns, which has no place "
        "for it");
  for (std::size_t i = 1; i < columns.size(); ++i) {
    const Column& state = options.columns[columns[i]];
    if (state.dtype != DType::kFloat32 || state.elements() != (by_row ? 1 : elements))
      throw DTypeError("the column \"" + state.name + "\" of " + std::to_string(state.elements()) + " " +
                       std::string(name(state.dtype)) + " cannot be an optimizer's: expected " +
                       std::to_string(by_row ? 1 : elements) + " float32");
  }
  if ((by_row || step.optimizer == Optimizer::kLamb) && elements > kMostOfRow)
    throw ShapeError("rows of " + std::to_string(elements) + " weights were given to an optimizer that looks at " +
                     "whole rows, of up to " + std::to_string(kMostOfRow));
  if (step.number < 1)
    throw ShapeError("steps are counted from 1, and this was to be step " + std::to_string(step.number));
}

}  // namespace gpuhash
