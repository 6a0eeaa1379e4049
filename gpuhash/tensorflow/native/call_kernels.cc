// The kernels of a table's calls, over columns, the same for CPU and GPU. The single value of a table without named
// columns is the column ''.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gpuhash/names.hpp>
#include <gpuhash/registry.hpp>
#include "context.h"
#include "kernel_registration.h"
#include "table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gpuhash::tensorflow_ops::calls {
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
  absl::Status find_in(const TableResource& table, std::vector<std::size_t>* numbers) const {
    const std::vector<Column>& columns = table.columns();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (names_[i].empty()) TF_RETURN_IF_ERROR(table.check_single_value());
      const auto found =
          std::find_if(columns.begin(), columns.end(), [&](const Column& column) { return column.name == names_[i]; });
      if (found == columns.end()) return absl::InvalidArgumentError(missing(names_[i], columns));
      if (to_tensorflow(found->dtype) != dtypes_[i])
        return absl::InvalidArgumentError((names_[i].empty() ? "the value" : "the column '" + names_[i] + "'") +
                                          " is " + DataTypeString(dtypes_[i]) + ", and the table has it as " +
                                          std::string(gpuhash::name(found->dtype)) + ": cast the tensor");
      numbers->push_back(static_cast<std::size_t>(found - columns.begin()));
    }
    return absl::OkStatus();
  }

 private:
  static std::string missing(const std::string& wanted, const std::vector<Column>& columns) {
    if (columns.front().name.empty()) return "the table has a single value per key, and no column '" + wanted + "'";
    std::string names;
    for (const Column& column : columns) names += (names.empty() ? "" : ", ") + column.name;
    return "the table has no column '" + wanted + "'; it has " + names;
  }

  std::vector<std::string> names_;
  std::vector<DataType> dtypes_;
};

/// An op's table, held, and its batch of keys, with what goes in and out for each of them.
class Batch {
 public:
  explicit Batch(OpKernelContext* ctx) : ctx_(ctx) {}

  /// Finds the table, and checks the keys.
  absl::Status begin() {
    TF_RETURN_IF_ERROR(find_ours(ctx_, &held_, &table_));
    TF_RETURN_IF_ERROR(table_->CheckKeyTensorForRemove(keys()));
    shape_ = table_->batch_shape(keys());
    return absl::OkStatus();
  }

  Table& table() const { return table_->table(); }
  KeyBatch key_batch() const { return table_->batch(keys()); }

  /// Output 0, a mask.
  absl::Status make_mask(bool** mask) const {
    Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(ctx_->allocate_output(0, shape_, &tensor));
    *mask = tensor->flat<bool>().data();
    return absl::OkStatus();
  }

  /// Row numbers, if the op is to give them.
  absl::Status make_rows(std::int64_t** rows) const {
    OpOutputList outputs;
    TF_RETURN_IF_ERROR(ctx_->output_list("rows", &outputs));
    if (outputs.size() == 0) return absl::OkStatus();
    if (outputs.size() > 1) return absl::InvalidArgumentError("with_rows is more than 1");
    if (!table().options().has_rows())
      return absl::InvalidArgumentError(
          "the table has no row storage: its values are scalars of up to 8 bytes, which lie beside their keys");
    Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(outputs.allocate(0, shape_, &tensor));
    *rows = static_cast<std::int64_t*>(tensor->data());
    return absl::OkStatus();
  }

  /// An output for each column that is read.
  absl::Status make_reads(const ColumnNames& names, const char* output, std::vector<Read>* reads) const {
    std::vector<std::size_t> numbers;
    OpOutputList values;
    TF_RETURN_IF_ERROR(names.find_in(*table_, &numbers));
    TF_RETURN_IF_ERROR(ctx_->output_list(output, &values));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      TensorShape shape;
      Tensor* tensor = nullptr;
      TF_RETURN_IF_ERROR(shape_of_values(table_->columns()[numbers[i]], &shape));
      TF_RETURN_IF_ERROR(values.allocate(static_cast<int>(i), shape, &tensor));
      reads->push_back({.column = numbers[i], .values = tensor->data()});
    }
    return absl::OkStatus();
  }

  /// What absent keys get in each column that is read.
  absl::Status take_defaults(std::vector<Read>* reads) const {
    OpInputList defaults;
    TF_RETURN_IF_ERROR(ctx_->input_list("defaults", &defaults));
    for (std::size_t i = 0; i < reads->size(); ++i) {
      Read& read = (*reads)[i];
      const Tensor& given = defaults[static_cast<int>(i)];
      TF_RETURN_IF_ERROR(check_values(table_->columns()[read.column], given, &read.fallback_per_key));
      read.fallback = given.data();
    }
    return absl::OkStatus();
  }

  absl::Status take_writes(const ColumnNames& names, const std::vector<Action>& actions,
                           std::vector<Write>* writes) const {
    std::vector<std::size_t> numbers;
    OpInputList values;
    TF_RETURN_IF_ERROR(names.find_in(*table_, &numbers));
    TF_RETURN_IF_ERROR(ctx_->input_list("values", &values));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const Tensor& given = values[static_cast<int>(i)];
      bool per_key = false;
      TF_RETURN_IF_ERROR(check_values(table_->columns()[numbers[i]], given, &per_key));
      writes->push_back({.column = numbers[i], .values = given.data(), .broadcast = !per_key, .action = actions[i]});
    }
    return absl::OkStatus();
  }

 private:
  const Tensor& keys() const { return ctx_->input(1); }

  /// [*batch, *shape] of a column.
  absl::Status shape_of_values(const Column& column, TensorShape* shape) const {
    const TensorShape item(column.shape);
    TF_RETURN_IF_ERROR(check_dimensions(keys(), table_->key_shape(), item));
    *shape = joined(shape_, item);
    return absl::OkStatus();
  }

  /// Is it one value for each key, and not one for all? An error where it is neither.
  absl::Status check_values(const Column& column, const Tensor& given, bool* per_key) const {
    TensorShape each;
    TF_RETURN_IF_ERROR(shape_of_values(column, &each));
    const TensorShape one(column.shape);
    *per_key = given.shape() == each;
    if (*per_key || given.shape() == one) return absl::OkStatus();
    return absl::InvalidArgumentError("the values" + (column.name.empty() ? "" : " of '" + column.name + "'") +
                                      " have the shape " + given.shape().DebugString() + ", expected " +
                                      each.DebugString() + ", or " + one.DebugString() + " for all keys alike");
  }

  OpKernelContext* const ctx_;
  Interface held_;
  TableResource* table_ = nullptr;
  TensorShape shape_;
};

/// A kernel with a list of columns.
class ColumnsKernel : public OpKernel {
 public:
  explicit ColumnsKernel(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, names_.read(ctx, "names", "dtypes"));
  }
  void Compute(OpKernelContext* ctx) final { OP_REQUIRES_OK(ctx, call(ctx)); }

 protected:
  const ColumnNames& names() const { return names_; }

 private:
  virtual absl::Status call(OpKernelContext* ctx) const = 0;

  ColumnNames names_;
};

class LookUpKernel final : public ColumnsKernel {
  using ColumnsKernel::ColumnsKernel;

  absl::Status call(OpKernelContext* ctx) const override {
    Batch batch(ctx);
    bool* found = nullptr;
    std::int64_t* rows = nullptr;
    std::vector<Read> reads;
    TF_RETURN_IF_ERROR(batch.begin());
    TF_RETURN_IF_ERROR(batch.make_mask(&found));
    TF_RETURN_IF_ERROR(batch.make_reads(names(), "values", &reads));
    TF_RETURN_IF_ERROR(batch.take_defaults(&reads));
    TF_RETURN_IF_ERROR(batch.make_rows(&rows));
    return guarded([&] {
      batch.table().look_up(
          {.keys = batch.key_batch(), .reads = reads, .found = found, .rows = rows, .stream = stream_of(ctx)});
    });
  }
};

/// Inserts keys and changes columns; then, of a read column, its values for all keys, as dict.setdefault gives them.
class ChangeKernel final : public ColumnsKernel {
 public:
  explicit ChangeKernel(OpKernelConstruction* ctx) : ColumnsKernel(ctx) {
    std::vector<std::string> actions;
    OP_REQUIRES_OK(ctx, read_names_.read(ctx, "read_names", "read_dtypes"));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("actions", &actions));
    OP_REQUIRES(ctx, actions.size() == names().size(),
                absl::InvalidArgumentError("actions are " + std::to_string(actions.size()) + ", and columns " +
                                           std::to_string(names().size())));
    for (const std::string& action : actions)
      actions_.push_back(*find_named(kActions, action));  // the attribute takes no other names
  }

 private:
  absl::Status call(OpKernelContext* ctx) const override {
    Batch batch(ctx);
    bool* inserted = nullptr;
    std::int64_t* rows = nullptr;
    std::vector<Write> writes;
    std::vector<Read> reads;
    TF_RETURN_IF_ERROR(batch.begin());
    TF_RETURN_IF_ERROR(batch.take_writes(names(), actions_, &writes));
    TF_RETURN_IF_ERROR(batch.make_mask(&inserted));
    TF_RETURN_IF_ERROR(batch.make_reads(read_names_, "read_values", &reads));
    TF_RETURN_IF_ERROR(batch.make_rows(&rows));
    return guarded([&] {
      batch.table().change({.keys = batch.key_batch(),
                            .writes = writes,
                            .reads = reads,
                            .inserted = inserted,
                            .rows = rows,
                            .stream = stream_of(ctx)});
    });
  }

  ColumnNames read_names_;
  std::vector<Action> actions_;
};

class EraseKernel final : public ColumnsKernel {
 public:
  explicit EraseKernel(OpKernelConstruction* ctx) : ColumnsKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("all_or_none", &all_or_none_));
  }

 private:
  absl::Status call(OpKernelContext* ctx) const override {
    Batch batch(ctx);
    bool* erased = nullptr;
    std::vector<Read> reads;
    TF_RETURN_IF_ERROR(batch.begin());
    TF_RETURN_IF_ERROR(batch.make_mask(&erased));
    TF_RETURN_IF_ERROR(batch.make_reads(names(), "values", &reads));
    TF_RETURN_IF_ERROR(batch.take_defaults(&reads));
    std::int64_t missing = 0;
    TF_RETURN_IF_ERROR(guarded([&] {
      missing = batch.table().erase({.keys = batch.key_batch(),
                                     .reads = reads,
                                     .erased = erased,
                                     .all_or_none = all_or_none_,
                                     .stream = stream_of(ctx)});
    }));
    if (missing == 0) return absl::OkStatus();
    return absl::NotFoundError(std::to_string(missing) + " of " + std::to_string(batch.key_batch().count) +
                               " keys are absent; none was erased");  // as calls.py looks for it
  }

  bool all_or_none_ = false;
};

/// Waits, as TensorFlow's export does.
class ExportKernel final : public ColumnsKernel {
  using ColumnsKernel::ColumnsKernel;

  absl::Status call(OpKernelContext* ctx) const override {
    Interface held;
    TableResource* table = nullptr;
    std::vector<std::size_t> numbers;
    TF_RETURN_IF_ERROR(find_ours(ctx, &held, &table));
    TF_RETURN_IF_ERROR(names().find_in(*table, &numbers));
    const DataType expected = ctx->expected_output_dtype(0);
    if (table->key_dtype() == expected) return table->export_columns(ctx, numbers);
    return absl::InvalidArgumentError("keys are " + DataTypeString(expected) + ", and the table has " +
                                      DataTypeString(table->key_dtype()));
  }
};

absl::Status clear(OpKernelContext* ctx) {
  Interface held;
  TableResource* table = nullptr;
  TF_RETURN_IF_ERROR(find_ours(ctx, &held, &table));
  return guarded([&] { table->table().clear(stream_of(ctx)); });
}

absl::Status reserve(OpKernelContext* ctx) {
  Interface held;
  TableResource* table = nullptr;
  TF_RETURN_IF_ERROR(find_ours(ctx, &held, &table));
  const Tensor& size = ctx->input(1);
  if (!tensorflow::TensorShapeUtils::IsScalar(size.shape()) || size.scalar<std::int64_t>()() < 0)
    return absl::InvalidArgumentError("size=" + size.DebugString() + " was given, expected a number from 0 on");
  return guarded([&] { table->table().reserve(size.scalar<std::int64_t>()(), stream_of(ctx)); });
}

// See ops.cc.
[[maybe_unused]] const bool registered = [] {
  const bool first = registry::claim("TensorFlow's kernels of calls");
  if (!first) return first;
  register_on_both<LookUpKernel>("GpuhashLookup", {"table_handle"});
  register_on_both<ChangeKernel>("GpuhashChange", {"table_handle"});
  register_on_both<EraseKernel>("GpuhashErasure", {"table_handle"});
  register_on_both<ExportKernel>("GpuhashExport", {"table_handle"});
  register_on_both<FunctionKernel<clear>>("GpuhashClear", {"table_handle"});
  register_on_both<FunctionKernel<reserve>>("GpuhashReserve", {"table_handle", "size"});
  return first;
}();

}  // namespace
}  // namespace gpuhash::tensorflow_ops::calls
