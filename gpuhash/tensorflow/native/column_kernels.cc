// The kernels of tables with named columns, the same for CPU and GPU.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gpuhash/names.hpp>
#include <gpuhash/registry.hpp>
#include "context.h"
#include "kernel_registration.h"
#include "table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gpuhash::tensorflow_ops::columns {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpOutputList;

/// The columns that an op means, by names and dtypes in its attributes.
class ColumnNames {
 public:
  absl::Status read(OpKernelConstruction* ctx, const char* names, const char* dtypes) {
    TF_RETURN_IF_ERROR(ctx->GetAttr(names, &names_));
    TF_RETURN_IF_ERROR(ctx->GetAttr(dtypes, &dtypes_));
    if (names_.size() == dtypes_.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(std::string(names) + " are " + std::to_string(names_.size()) + ", and " + dtypes +
                                      " " + std::to_string(dtypes_.size()));
  }

  std::size_t size() const { return names_.size(); }

  /// Their numbers in a table.
  absl::Status find_in(const std::vector<Column>& columns, std::vector<std::size_t>* numbers) const {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const auto found =
          std::find_if(columns.begin(), columns.end(), [&](const Column& column) { return column.name == names_[i]; });
      if (found == columns.end()) return absl::InvalidArgumentError(missing(names_[i], columns));
      if (to_tensorflow(found->dtype) != dtypes_[i])
        return absl::InvalidArgumentError("the column '" + names_[i] + "' is " + DataTypeString(dtypes_[i]) +
                                          ", and the table has it as " + std::string(gpuhash::name(found->dtype)) +
                                          ": cast the tensor");
      numbers->push_back(static_cast<std::size_t>(found - columns.begin()));
    }
    return absl::OkStatus();
  }

 private:
  static std::string missing(const std::string& wanted, const std::vector<Column>& columns) {
    if (columns.empty()) return "the table has a single value per key, and no column '" + wanted + "'";
    std::string names;
    for (const Column& column : columns) names += (names.empty() ? "" : ", ") + column.name;
    return "the table has no column '" + wanted + "'; it has " + names;
  }

  std::vector<std::string> names_;
  std::vector<DataType> dtypes_;
};

/// A call on a table and a batch of keys: the table, held, and the shapes of what goes with the keys.
class BatchOfKeys {
 public:
  explicit BatchOfKeys(OpKernelContext* ctx) : ctx_(ctx) {}

  /// Finds the table, and checks the keys.
  absl::Status begin() {
    TF_RETURN_IF_ERROR(find_ours(ctx_, &held_, &table_));
    TF_RETURN_IF_ERROR(table_->CheckKeyTensorForRemove(keys()));
    batch_ = table_->batch_shape(keys());
    return absl::OkStatus();
  }

  const Tensor& keys() const { return ctx_->input(1); }
  KeyBatch key_batch() const { return table_->batch(keys()); }
  Table& table() const { return table_->table(); }
  const std::vector<Column>& columns() const { return table().options().columns; }
  const TensorShape& batch_shape() const { return batch_; }

  /// [*batch, *shape] of a column.
  absl::Status shape_of_values(const Column& column, TensorShape* shape) const {
    const TensorShape item = shape_of(column);
    TF_RETURN_IF_ERROR(check_dimensions(keys(), table_->key_shape(), item));
    *shape = batch_;
    shape->AppendShape(item);
    return absl::OkStatus();
  }

  /// Is it one value for each key, and not one for all? An error where it is neither.
  absl::Status check_values(const Column& column, const Tensor& given, bool* per_key) const {
    TensorShape each;
    TF_RETURN_IF_ERROR(shape_of_values(column, &each));
    *per_key = given.shape() == each;
    if (*per_key || given.shape() == shape_of(column)) return absl::OkStatus();
    return absl::InvalidArgumentError("the values of '" + column.name + "' have the shape " +
                                      given.shape().DebugString() + ", expected " + each.DebugString() + ", or " +
                                      shape_of(column).DebugString() + " for all keys alike");
  }

  /// Says of each write which column it is of, what is written, and whether that is one value for all keys.
  absl::Status take_values(const std::vector<std::size_t>& numbers, const OpInputList& values,
                           std::vector<Write>* writes) const {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const Tensor& given = values[static_cast<int>(i)];
      bool per_key = false;
      TF_RETURN_IF_ERROR(check_values(columns()[numbers[i]], given, &per_key));
      (*writes)[i].column = numbers[i];
      (*writes)[i].values = given.data();
      (*writes)[i].broadcast = !per_key;
    }
    return absl::OkStatus();
  }

  absl::Status allocate(const std::vector<std::size_t>& numbers, OpOutputList* values, std::vector<Read>* reads) const {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      TensorShape shape;
      Tensor* tensor = nullptr;
      TF_RETURN_IF_ERROR(shape_of_values(columns()[numbers[i]], &shape));
      TF_RETURN_IF_ERROR(values->allocate(static_cast<int>(i), shape, &tensor));
      reads->push_back({.column = numbers[i], .values = tensor->data()});
    }
    return absl::OkStatus();
  }

  /// Row numbers, as scratch memory of TensorFlow's.
  absl::Status allocate_rows(Tensor* rows) const {
    return ctx_->allocate_temp(tensorflow::DT_INT64, TensorShape({key_batch().count}), rows);
  }

  static TensorShape shape_of(const Column& column) {
    TensorShape shape;
    for (const std::int64_t length : column.shape) shape.AddDim(length);
    return shape;
  }

 private:
  OpKernelContext* const ctx_;
  Interface held_;
  TableResource* table_ = nullptr;
  TensorShape batch_;
};

class FindColumns final : public OpKernel {
 public:
  explicit FindColumns(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, names_.read(ctx, "names", "dtypes"));
  }
  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, find(ctx)); }

 private:
  absl::Status find(OpKernelContext* ctx) const {
    BatchOfKeys batch(ctx);
    TF_RETURN_IF_ERROR(batch.begin());
    std::vector<std::size_t> numbers;
    TF_RETURN_IF_ERROR(names_.find_in(batch.columns(), &numbers));
    OpInputList defaults;
    OpOutputList values;
    TF_RETURN_IF_ERROR(ctx->input_list("defaults", &defaults));
    TF_RETURN_IF_ERROR(ctx->output_list("values", &values));
    Tensor* found = nullptr;
    Tensor rows;
    std::vector<Read> reads;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, batch.batch_shape(), &found));
    TF_RETURN_IF_ERROR(batch.allocate(numbers, &values, &reads));
    TF_RETURN_IF_ERROR(batch.allocate_rows(&rows));
    for (std::size_t i = 0; i < reads.size(); ++i) {
      const Tensor& given = defaults[static_cast<int>(i)];
      TF_RETURN_IF_ERROR(batch.check_values(batch.columns()[numbers[i]], given, &reads[i].fallback_per_key));
      reads[i].fallback = given.data();
    }
    return guarded([&] {
      batch.table().look_up({.keys = batch.key_batch(),
                             .reads = reads,
                             .found = found->flat<bool>().data(),
                             .rows = static_cast<std::int64_t*>(rows.data()),
                             .stream = stream_of(ctx)});
    });
  }

  ColumnNames names_;
};

/// Inserts keys and changes columns; then, of a read column, its values for all keys, as dict.setdefault gives them.
class ChangeColumns final : public OpKernel {
 public:
  explicit ChangeColumns(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<std::string> actions;
    OP_REQUIRES_OK(ctx, names_.read(ctx, "names", "dtypes"));
    OP_REQUIRES_OK(ctx, read_names_.read(ctx, "read_names", "read_dtypes"));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("actions", &actions));
    OP_REQUIRES(ctx, actions.size() == names_.size(),
                absl::InvalidArgumentError("actions are " + std::to_string(actions.size()) + ", and columns " +
                                           std::to_string(names_.size())));
    for (const std::string& action : actions)
      actions_.push_back(*find_named(kActions, action));  // the attribute takes no other names
  }
  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, change(ctx)); }

 private:
  absl::Status change(OpKernelContext* ctx) const {
    BatchOfKeys batch(ctx);
    TF_RETURN_IF_ERROR(batch.begin());
    std::vector<std::size_t> numbers;
    std::vector<std::size_t> read;
    TF_RETURN_IF_ERROR(names_.find_in(batch.columns(), &numbers));
    TF_RETURN_IF_ERROR(read_names_.find_in(batch.columns(), &read));
    OpInputList values;
    OpOutputList read_values;
    TF_RETURN_IF_ERROR(ctx->input_list("values", &values));
    TF_RETURN_IF_ERROR(ctx->output_list("read_values", &read_values));
    std::vector<Write> writes(numbers.size());
    TF_RETURN_IF_ERROR(batch.take_values(numbers, values, &writes));
    for (std::size_t i = 0; i < writes.size(); ++i) writes[i].action = actions_[i];
    Tensor* inserted = nullptr;
    std::vector<Read> reads;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, batch.batch_shape(), &inserted));
    TF_RETURN_IF_ERROR(batch.allocate(read, &read_values, &reads));
    return guarded([&] {
      batch.table().change({.keys = batch.key_batch(),
                            .writes = writes,
                            .reads = reads,
                            .inserted = inserted->flat<bool>().data(),
                            .stream = stream_of(ctx)});
    });
  }

  ColumnNames names_;
  ColumnNames read_names_;
  std::vector<Action> actions_;
};

/// Row numbers, and which keys were new. Columns that are not given have their initial values in new rows.
class FindOrInsertColumns final : public OpKernel {
 public:
  explicit FindOrInsertColumns(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, names_.read(ctx, "names", "dtypes"));
  }
  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, find_or_insert(ctx)); }

 private:
  absl::Status find_or_insert(OpKernelContext* ctx) const {
    BatchOfKeys batch(ctx);
    TF_RETURN_IF_ERROR(batch.begin());
    std::vector<std::size_t> numbers;
    TF_RETURN_IF_ERROR(names_.find_in(batch.columns(), &numbers));
    OpInputList values;
    TF_RETURN_IF_ERROR(ctx->input_list("values", &values));
    std::vector<Write> writes(numbers.size(), Write{.action = Action::kKeep});
    TF_RETURN_IF_ERROR(batch.take_values(numbers, values, &writes));
    Tensor* rows = nullptr;
    Tensor* inserted = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, batch.batch_shape(), &rows));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, batch.batch_shape(), &inserted));
    return guarded([&] {
      batch.table().change({.keys = batch.key_batch(),
                            .writes = writes,
                            .inserted = inserted->flat<bool>().data(),
                            .rows = static_cast<std::int64_t*>(rows->data()),
                            .stream = stream_of(ctx)});
    });
  }

  ColumnNames names_;
};

/// Waits, as TensorFlow's export does.
class ExportColumns final : public OpKernel {
 public:
  explicit ExportColumns(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, names_.read(ctx, "names", "dtypes"));
  }
  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, export_all(ctx)); }

 private:
  absl::Status export_all(OpKernelContext* ctx) const {
    Interface held;
    TableResource* table = nullptr;
    TF_RETURN_IF_ERROR(find_ours(ctx, &held, &table));
    const std::vector<Column>& columns = table->table().options().columns;
    std::vector<std::size_t> numbers;
    TF_RETURN_IF_ERROR(names_.find_in(columns, &numbers));
    if (table->key_dtype() != ctx->expected_output_dtype(0))
      return absl::InvalidArgumentError("keys are " + DataTypeString(ctx->expected_output_dtype(0)) +
                                        ", and the table has " + DataTypeString(table->key_dtype()));
    std::int64_t size = 0;
    TF_RETURN_IF_ERROR(guarded([&] { size = table->table().size(stream_of(ctx)); }));
    for (std::int64_t room = size;; room = size + size / 4 + 1) {
      Tensor keys;
      std::vector<Tensor> values(numbers.size());
      std::vector<Read> reads;
      TF_RETURN_IF_ERROR(allocate(ctx, table->key_dtype(), room, table->key_shape(), &keys));
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const Column& column = columns[numbers[i]];
        TF_RETURN_IF_ERROR(allocate(ctx, to_tensorflow(column.dtype), room, BatchOfKeys::shape_of(column), &values[i]));
        reads.push_back({.column = numbers[i], .values = values[i].data()});
      }
      const Export all{.keys = keys.data(), .reads = reads, .room = room, .stream = stream_of(ctx)};
      TF_RETURN_IF_ERROR(guarded([&] { size = table->table().export_items(all); }));
      if (size > room) continue;  // other threads insert meanwhile: with more room
      ctx->set_output(0, keys.Slice(0, size));
      for (std::size_t i = 0; i < values.size(); ++i)
        ctx->set_output(static_cast<int>(i) + 1, values[i].Slice(0, size));
      return absl::OkStatus();
    }
  }

  static absl::Status allocate(OpKernelContext* ctx, DataType dtype, std::int64_t count, const TensorShape& item,
                               Tensor* tensor) {
    TensorShape shape({count});
    shape.AppendShape(item);
    return ctx->allocate_temp(dtype, shape, tensor);
  }

  ColumnNames names_;
};

/// In the place of all keys that are there.
class ImportColumns final : public OpKernel {
 public:
  explicit ImportColumns(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, names_.read(ctx, "names", "dtypes"));
  }
  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, import_all(ctx)); }

 private:
  absl::Status import_all(OpKernelContext* ctx) const {
    BatchOfKeys batch(ctx);
    TF_RETURN_IF_ERROR(batch.begin());
    std::vector<std::size_t> numbers;
    TF_RETURN_IF_ERROR(names_.find_in(batch.columns(), &numbers));
    OpInputList values;
    TF_RETURN_IF_ERROR(ctx->input_list("values", &values));
    std::vector<Write> writes(numbers.size());
    TF_RETURN_IF_ERROR(batch.take_values(numbers, values, &writes));
    return guarded([&] {
      // What may fail comes first: the old keys are gone only when the new ones have room.
      const Stream stream = stream_of(ctx);
      const KeyBatch keys = batch.key_batch();
      batch.table().reserve(keys.count, stream);
      batch.table().clear(stream);
      batch.table().change({.keys = keys, .writes = writes, .stream = stream});
    });
  }

  ColumnNames names_;
};

// See ops.cc.
[[maybe_unused]] const bool registered = [] {
  const bool first = registry::claim("TensorFlow's kernels of columns");
  if (!first) return first;
  register_on_both<FindColumns>("GpuhashFindColumns", {"table_handle"});
  register_on_both<ChangeColumns>("GpuhashChangeColumns", {"table_handle"});
  register_on_both<FindOrInsertColumns>("GpuhashFindOrInsertColumns", {"table_handle"});
  register_on_both<ExportColumns>("GpuhashExportColumns", {"table_handle"});
  register_on_both<ImportColumns>("GpuhashImportColumns", {"table_handle"});
  return first;
}();

}  // namespace
}  // namespace gpuhash::tensorflow_ops::columns
