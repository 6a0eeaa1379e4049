// A table as a TensorFlow resource, which TensorFlow's own lookup kernels accept.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gpuhash/registry.hpp>
#include <gpuhash/table.hpp>
#include "context.h"
#include "tensorflow/core/framework/lookup_interface.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/kernels/lookup_util.h"

namespace gpuhash::tensorflow_ops {

using tensorflow::Tensor;
using tensorflow::TensorShape;

/// [*batch, *item].
inline TensorShape joined(TensorShape batch, const TensorShape& item) {
  batch.AppendShape(item);
  return batch;
}

/// Values have the shape of the batch and then their own. TensorFlow ends the process where a shape gets too long.
inline absl::Status check_dimensions(const Tensor& keys, const TensorShape& key_shape, const TensorShape& value_shape) {
  const int dimensions = keys.dims() - key_shape.dims() + value_shape.dims();
  if (dimensions <= TensorShape::MaxDimensions()) return absl::OkStatus();
  return absl::InvalidArgumentError("keys have " + std::to_string(keys.dims()) +
                                    " dimensions, so that their values had " + std::to_string(dimensions) +
                                    "; TensorFlow takes up to " + std::to_string(TensorShape::MaxDimensions()));
}

/// The columns of a table. A single value is the column without a name.
inline std::vector<Column> columns_of(const TableOptions& options) {
  if (!options.columns.empty() || !options.value_dtype) return options.columns;
  return {Column{"", *options.value_dtype, options.value_shape, std::nullopt}};
}

class TableResource final : public tensorflow::lookup::LookupInterface {
 public:
  /// `name`: under which libgpuhash knows the table because of this resource, and only as long as it lives; or empty.
  TableResource(std::shared_ptr<Table> table, TensorShape key_shape, std::string name)
      : table_(std::move(table)),
        columns_(columns_of(table_->options())),
        key_shape_(std::move(key_shape)),
        value_shape_(table_->options().value_shape),
        name_(std::move(name)) {}
  ~TableResource() override {
    if (!name_.empty()) registry::remove(name_, table_);
  }

  Table& table() const { return *table_; }
  const std::shared_ptr<Table>& shared_table() const { return table_; }
  const std::vector<Column>& columns() const { return columns_; }

  absl::Status CheckKeyAndValueTensorsForInsert(const Tensor& keys, const Tensor& values) override {
    TF_RETURN_IF_ERROR(check_single_value());
    TF_RETURN_IF_ERROR(check_dimensions(keys, key_shape_, value_shape_));
    return LookupInterface::CheckKeyAndValueTensorsForInsert(keys, values);
  }
  absl::Status CheckKeyAndValueTensorsForImport(const Tensor& keys, const Tensor& values) override {
    TF_RETURN_IF_ERROR(check_single_value());
    TF_RETURN_IF_ERROR(check_dimensions(keys, key_shape_, value_shape_));
    return LookupInterface::CheckKeyAndValueTensorsForImport(keys, values);
  }

  /// An error for a table with named columns.
  absl::Status check_single_value() const {
    const std::vector<Column>& columns = table_->options().columns;
    if (columns.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("the table has named columns, such as '" + columns.front().name +
                                      "', and the op takes tables with a single value per key: call the methods of "
                                      "gpuhash.tensorflow.ColumnsHashTable");
  }

  /// TensorFlow's lookup operations, in the order of the op's stream. They wait for the device where the table has to
  /// grow, and export always.
  absl::Status Find(OpKernelContext* ctx, const Tensor& keys, Tensor* values, const Tensor& default_value) override {
    const Read read{.values = values->data(),
                    .fallback = default_value.data(),
                    .fallback_per_key = default_value.shape() != value_shape_};
    return guarded([&] { table_->look_up({.keys = batch(keys), .reads = {&read, 1}, .stream = stream_of(ctx)}); });
  }
  absl::Status Insert(OpKernelContext* ctx, const Tensor& keys, const Tensor& values) override {
    return guarded([&] { assign(ctx, keys, values); });
  }
  absl::Status Remove(OpKernelContext* ctx, const Tensor& keys) override {
    return guarded([&] { table_->erase({.keys = batch(keys), .stream = stream_of(ctx)}); });
  }
  absl::Status ExportValues(OpKernelContext* ctx) override {
    TF_RETURN_IF_ERROR(check_single_value());
    return export_columns(ctx, {0});
  }
  /// In the place of all keys that are there.
  absl::Status ImportValues(OpKernelContext* ctx, const Tensor& keys, const Tensor& values) override {
    return guarded([&] {
      // What may fail comes first: the old keys are gone only when the new ones have room.
      const Stream stream = stream_of(ctx);
      table_->reserve(batch(keys).count, stream);
      table_->clear(stream);
      assign(ctx, keys, values);
    });
  }

  /// Sets an op's outputs: all keys, and their values in each of the columns. Waits.
  absl::Status export_columns(OpKernelContext* ctx, const std::vector<std::size_t>& numbers) const {
    std::int64_t size = 0;
    TF_RETURN_IF_ERROR(guarded([&] { size = table_->size(stream_of(ctx)); }));
    for (std::int64_t room = size;; room = size + size / 4 + 1) {
      Tensor keys;
      std::vector<Tensor> values(numbers.size());
      std::vector<Read> reads;
      TF_RETURN_IF_ERROR(ctx->allocate_temp(key_dtype(), joined(TensorShape({room}), key_shape_), &keys));
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const Column& column = columns_[numbers[i]];
        const TensorShape shape = joined(TensorShape({room}), TensorShape(column.shape));
        TF_RETURN_IF_ERROR(ctx->allocate_temp(to_tensorflow(column.dtype), shape, &values[i]));
        reads.push_back({.column = numbers[i], .values = values[i].data()});
      }
      const Export all{.keys = keys.data(), .reads = reads, .room = room, .stream = stream_of(ctx)};
      TF_RETURN_IF_ERROR(guarded([&] { size = table_->export_items(all); }));
      if (size > room) continue;  // other threads insert meanwhile: with more room
      ctx->set_output(0, keys.Slice(0, size));
      for (std::size_t i = 0; i < values.size(); ++i)
        ctx->set_output(static_cast<int>(i) + 1, values[i].Slice(0, size));
      return absl::OkStatus();
    }
  }

  KeyBatch batch(const Tensor& keys) const {
    return {keys.data(), keys.NumElements() / table_->options().key_elements, table_->options().key_bytes()};
  }
  /// The shape of the keys without that of each key: [*batch].
  TensorShape batch_shape(const Tensor& keys) const {
    TensorShape shape = keys.shape();
    shape.RemoveLastDims(key_shape_.dims());
    return shape;
  }

  size_t size() const override { return static_cast<size_t>(table_->size(nullptr)); }
  /// Without a look at the device.
  std::string DebugString() const override { return "A gpuhash table on " + table_->context().device().to_string(); }
  int64_t MemoryUsed() const override { return table_->nbytes(); }
  DataType key_dtype() const override { return to_tensorflow(table_->options().key_dtype); }
  /// DT_INVALID for named columns, so that whatever takes single values refuses the table.
  DataType value_dtype() const override {
    const std::optional<DType> dtype = table_->options().value_dtype;
    return dtype ? to_tensorflow(*dtype) : tensorflow::DT_INVALID;
  }
  TensorShape key_shape() const override { return key_shape_; }
  TensorShape value_shape() const override { return value_shape_; }

 private:
  /// Throws, as the table does.
  void assign(OpKernelContext* ctx, const Tensor& keys, const Tensor& values) {
    const Write write{.values = values.data()};
    table_->change({.keys = batch(keys), .writes = {&write, 1}, .stream = stream_of(ctx)});
  }

  const std::shared_ptr<Table> table_;
  const std::vector<Column> columns_;
  const TensorShape key_shape_;
  const TensorShape value_shape_;
  const std::string name_;
};

using Interface = tensorflow::core::RefCountPtr<tensorflow::lookup::LookupInterface>;

/// The table of an op's input 0, TensorFlow's own or ours.
inline absl::Status find_table(OpKernelContext* ctx, Interface* table) {
  // TensorFlow ends the process over several handles in one tensor.
  const TensorShape& shape = ctx->input(0).shape();
  if (!tensorflow::TensorShapeUtils::IsScalar(shape))
    return absl::InvalidArgumentError("table_handle has the shape " + shape.DebugString() +
                                      ", expected one handle, of shape []");
  tensorflow::lookup::LookupInterface* found = nullptr;
  TF_RETURN_IF_ERROR(tensorflow::lookup::GetResourceLookupTable("table_handle", ctx, &found));
  table->reset(found);
  return absl::OkStatus();
}

/// The same, which has to be ours.
inline absl::Status find_ours(OpKernelContext* ctx, Interface* held, TableResource** table) {
  TF_RETURN_IF_ERROR(find_table(ctx, held));
  *table = dynamic_cast<TableResource*>(held->get());
  if (*table != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "table_handle is of one of TensorFlow's own tables, expected one of gpuhash: make it with "
      "gpuhash.tensorflow.MutableHashTable");
}

}  // namespace gpuhash::tensorflow_ops
