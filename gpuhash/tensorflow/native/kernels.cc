// The kernels, the same for CPU and GPU: all that differs is the stream and the memory that they hand down.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gpuhash/names.hpp>
#include <gpuhash/registry.hpp>
#include <gpuhash/tensor_store.hpp>
#include "context.h"
#include "kernel_registration.h"
#include "table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/kernels/lookup_util.h"

namespace gpuhash::tensorflow_ops {
namespace {

using tensorflow::DEVICE_GPU;
using tensorflow::PartialTensorShape;
using tensorflow::ResourceHandle;
using tensorflow::lookup::LookupInterface;
namespace core = tensorflow::core;

// Tables --------------------------------------------------------------------------------------------------------------

/// What both ops that make tables have in common.
class MakeTable : public OpKernel {
 public:
  explicit MakeTable(OpKernelConstruction* ctx) : OpKernel(ctx) {
    DataType key_dtype;
    PartialTensorShape key_shape;
    std::int64_t buckets = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("key_dtype", &key_dtype));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("key_shape", &key_shape));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("total_buckets", &buckets));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("deterministic", &options_.deterministic));
    OP_REQUIRES_OK(ctx, ctx->HasAttr("value_dtype") ? read_value(ctx) : read_columns(ctx));
    OP_REQUIRES(ctx, key_shape.AsTensorShape(&key_shape_) && key_shape_.dims() <= 1,
                absl::InvalidArgumentError("key_shape is " + key_shape.DebugString() +
                                           ", expected (), or (k,) for vectors of k integers"));
    OP_REQUIRES(ctx, buckets >= 0,
                absl::InvalidArgumentError("total_buckets is " + std::to_string(buckets) + ", expected 0 or more"));
    options_.key_dtype = *from_tensorflow(key_dtype);
    options_.key_elements = key_shape_.num_elements();
    options_.capacity = buckets;
  }

 protected:
  std::shared_ptr<Table> make(OpKernelContext* ctx) const { return Table::make(options_, make_context(ctx)); }

  /// Throws ShapeError unless a table that exists already is the one that this op would make, and where.
  void check(const std::string& name, const Table& table, const Device& device) const {
    const TableOptions& there = table.options();
    const auto describe = [](const TableOptions& options, const Device& where) {
      std::string text = "keys of " + std::to_string(options.key_elements) + " x " +
                         std::string(gpuhash::name(options.key_dtype)) + ", ";
      for (const Column& column : options.columns)
        text += "'" + column.name + "' of " + std::string(gpuhash::name(column.dtype)) + " of shape " +
                TensorShape(column.shape).DebugString() + ", ";
      if (!options.columns.empty()) return text + "on " + where.to_string();
      if (!options.value_dtype) return text + "no values, on " + where.to_string();
      text += "values of " + std::string(gpuhash::name(*options.value_dtype)) + " of shape [";
      for (std::size_t axis = 0; axis < options.value_shape.size(); ++axis)
        text += (axis == 0 ? "" : ", ") + std::to_string(options.value_shape[axis]);
      return text + "], on " + where.to_string();
    };
    const bool same = there.key_dtype == options_.key_dtype && there.key_elements == options_.key_elements &&
                      there.value_dtype == options_.value_dtype && there.value_shape == options_.value_shape &&
                      same_columns(there.columns, options_.columns) && table.context().device() == device;
    if (same) return;
    throw ShapeError("the table named '" + name + "' has " + describe(there, table.context().device()) +
                     "; the op asks for " + describe(options_, device));
  }

  const TensorShape& key_shape() const { return key_shape_; }

 private:
  static absl::Status read_shape(const PartialTensorShape& given, std::vector<std::int64_t>* shape) {
    TensorShape known;
    if (!given.AsTensorShape(&known))
      return absl::InvalidArgumentError("value_shape is " + given.DebugString() +
                                        ", expected one whose extents are all known");
    for (const auto extent : known.dim_sizes()) shape->push_back(extent);
    return absl::OkStatus();
  }

  absl::Status read_value(OpKernelConstruction* ctx) {
    DataType dtype;
    PartialTensorShape shape;
    TF_RETURN_IF_ERROR(ctx->GetAttr("value_dtype", &dtype));
    TF_RETURN_IF_ERROR(ctx->GetAttr("value_shape", &shape));
    options_.value_dtype = from_tensorflow(dtype);
    return read_shape(shape, &options_.value_shape);
  }

  /// The attributes are described in column_ops.cc.
  absl::Status read_columns(OpKernelConstruction* ctx) {
    constexpr std::size_t kBits = 5;
    std::vector<std::string> names;
    std::vector<DataType> dtypes;
    std::vector<PartialTensorShape> shapes;
    std::vector<std::string> initials;
    std::vector<std::int64_t> bits;
    TF_RETURN_IF_ERROR(ctx->GetAttr("names", &names));
    TF_RETURN_IF_ERROR(ctx->GetAttr("dtypes", &dtypes));
    TF_RETURN_IF_ERROR(ctx->GetAttr("shapes", &shapes));
    TF_RETURN_IF_ERROR(ctx->GetAttr("initials", &initials));
    TF_RETURN_IF_ERROR(ctx->GetAttr("initial_bits", &bits));
    if (dtypes.size() != names.size() || shapes.size() != names.size() || initials.size() != names.size() ||
        bits.size() != kBits * names.size())
      return absl::InvalidArgumentError("names, dtypes, shapes, initials and initial_bits are of " +
                                        std::to_string(names.size()) + ", " + std::to_string(dtypes.size()) + ", " +
                                        std::to_string(shapes.size()) + ", " + std::to_string(initials.size()) +
                                        " and " + std::to_string(bits.size()) + " / 5 columns, expected as many each");
    for (std::size_t i = 0; i < names.size(); ++i) {
      Column column{names[i], *from_tensorflow(dtypes[i]), {}, std::nullopt};
      TF_RETURN_IF_ERROR(read_shape(shapes[i], &column.shape));
      if (const auto distribution = find_named(kDistributions, initials[i])) {
        const std::int64_t* const from = bits.data() + kBits * i;
        Initializer& initial = column.initializer.emplace();
        initial.distribution = *distribution;
        std::memcpy(&initial.first, from, sizeof initial.first);
        std::memcpy(&initial.second, from + 1, sizeof initial.second);
        std::memcpy(&initial.seed, from + 2, sizeof initial.seed);
        std::memcpy(initial.constant.data(), from + 3, sizeof initial.constant);
      }
      options_.columns.push_back(std::move(column));
    }
    return absl::OkStatus();
  }

  static bool same_columns(const std::vector<Column>& one, const std::vector<Column>& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(), [](const Column& a, const Column& b) {
      return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape;
    });
  }

  TableOptions options_;
  TensorShape key_shape_;
};

/// A table that lives as long as TensorFlow's resource manager holds it. With a shared_name it is the table of that
/// name in libgpuhash, made now if there is none; but names in a container of TensorFlow's are TensorFlow's alone.
class MakeNamedTable final : public MakeTable {
 public:
  explicit MakeNamedTable(OpKernelConstruction* ctx) : MakeTable(ctx) {
    std::string container;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("container", &container));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shared_name", &shared_name_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_node_name_sharing", &use_node_name_sharing_));
    known_ = container.empty() && !shared_name_.empty();
  }
  ~MakeNamedTable() override {
    if (!made_ || !info_.resource_is_private_to_kernel()) return;
    // It may be gone already: a session's reset drops all resources.
    info_.resource_manager()->Delete<LookupInterface>(info_.container(), info_.name()).IgnoreError();
  }

  // TensorFlow's own LookupTableOp takes the handle's tensor from the device's allocator and then writes to it from the
  // host, which crashes on a GPU. The output of a kernel registered with HostMemory("table_handle") lies on the host.
  void Compute(OpKernelContext* ctx) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!made_) OP_REQUIRES_OK(ctx, info_.Init(ctx->resource_manager(), def(), use_node_name_sharing_));
    core::RefCountPtr<LookupInterface> held;
    TableResource* table = nullptr;
    OP_REQUIRES_OK(ctx, find_or_make(ctx, &held, &table));
    made_ = true;
    if (known_) OP_REQUIRES_OK(ctx, follow_name(ctx, &held, &table));
    OP_REQUIRES_OK(ctx, guarded([&] { check(info_.name(), table->table(), device_of(ctx)); }));
    Tensor* handle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &handle));
    handle->scalar<ResourceHandle>()() =
        tensorflow::MakeResourceHandle<LookupInterface>(ctx, info_.container(), info_.name());
  }

 private:
  absl::Status find_or_make(OpKernelContext* ctx, core::RefCountPtr<LookupInterface>* held, TableResource** table) {
    LookupInterface* found = nullptr;
    TF_RETURN_IF_ERROR(info_.resource_manager()->LookupOrCreate<LookupInterface>(
        info_.container(), info_.name(), &found,
        [&](LookupInterface** resource) { return make_resource(ctx, resource); }));
    held->reset(found);
    *table = dynamic_cast<TableResource*>(found);
    if (*table != nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError("the resource '" + info_.name() + "' is a table of another kind");
  }

  /// The name may have been given up in Python since TensorFlow took the table, and perhaps to another one; then it
  /// means that one, or else it is the table's again. Checked first: an op that fails moves no name.
  absl::Status follow_name(OpKernelContext* ctx, core::RefCountPtr<LookupInterface>* held, TableResource** table) {
    std::shared_ptr<Table> named = registry::find(shared_name_);
    if (named == nullptr) named = (*table)->shared_table();
    TF_RETURN_IF_ERROR(guarded([&] {
      check(info_.name(), *named, device_of(ctx));
      named = registry::find_or_add(shared_name_, named);
    }));
    if (named == (*table)->shared_table()) return absl::OkStatus();
    TF_RETURN_IF_ERROR(info_.resource_manager()->Delete<LookupInterface>(info_.container(), info_.name()));
    return find_or_make(ctx, held, table);
  }

  absl::Status make_resource(OpKernelContext* ctx, LookupInterface** resource) const {
    return guarded([&] {
      std::shared_ptr<Table> table = known_ ? registry::find(shared_name_) : nullptr;
      // A table of another kind must not stay behind in TensorFlow's resource manager, which would hold it for ever.
      if (table != nullptr) check(info_.name(), *table, device_of(ctx));
      std::string registered;
      if (table == nullptr) {
        const std::shared_ptr<Table> made = make(ctx);
        table = known_ ? registry::find_or_add(shared_name_, made) : made;
        if (known_ && table == made) registered = shared_name_;
      }
      *resource = new TableResource(std::move(table), key_shape(), std::move(registered));
    });
  }

  std::mutex mutex_;
  tensorflow::ContainerInfo info_;
  std::string shared_name_;
  bool use_node_name_sharing_ = false;
  bool known_ = false;  // to all of libgpuhash, by its shared_name
  bool made_ = false;
};

/// A new table each time, or with an adopted_name the one that libgpuhash knows by it. It lives as long as its handles.
class MakeAnonymousTable final : public MakeTable {
 public:
  explicit MakeAnonymousTable(OpKernelConstruction* ctx) : MakeTable(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("adopted_name", &adopted_name_));
  }
  void Compute(OpKernelContext* ctx) override {
    Tensor* handle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &handle));
    TableResource* resource = nullptr;
    OP_REQUIRES_OK(ctx, guarded([&] { resource = new TableResource(find_or_make(ctx), key_shape(), {}); }));
    handle->scalar<ResourceHandle>()() =
        ResourceHandle::MakeRefCountingHandle<LookupInterface>(resource, ctx->device()->name());
  }

 private:
  std::shared_ptr<Table> find_or_make(OpKernelContext* ctx) const {
    if (adopted_name_.empty()) return make(ctx);
    std::shared_ptr<Table> table = registry::find(adopted_name_);
    if (table == nullptr) throw ShapeError("there is no table of the name '" + adopted_name_ + "' to adopt");
    check(adopted_name_, *table, device_of(ctx));
    return table;
  }

  std::string adopted_name_;
};

// TensorFlow's own lookup ops on a GPU, for which it has kernels on the CPU alone -------------------------------------

absl::Status find_table(OpKernelContext* ctx, Interface* table) {
  // TensorFlow ends the process over several handles in one tensor.
  const TensorShape& shape = ctx->input(0).shape();
  if (!tensorflow::TensorShapeUtils::IsScalar(shape))
    return absl::InvalidArgumentError("table_handle has the shape " + shape.DebugString() +
                                      ", expected one handle, of shape []");
  LookupInterface* found = nullptr;
  TF_RETURN_IF_ERROR(tensorflow::lookup::GetResourceLookupTable("table_handle", ctx, &found));
  table->reset(found);
  return absl::OkStatus();
}

TensorShape looked_up_shape(const LookupInterface& table, const Tensor& keys) {
  TensorShape shape = keys.shape();
  shape.RemoveLastDims(table.key_shape().dims());
  shape.AppendShape(table.value_shape());
  return shape;
}

absl::Status stock_find(OpKernelContext* ctx) {
  Interface table;
  TF_RETURN_IF_ERROR(find_table(ctx, &table));
  const Tensor& keys = ctx->input(1);
  TF_RETURN_IF_ERROR(check_dimensions(keys, table->key_shape(), table->value_shape()));
  TF_RETURN_IF_ERROR(table->CheckFindArguments(keys, ctx->input(2)));
  Tensor* values = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, looked_up_shape(*table, keys), &values));
  return table->Find(ctx, keys, values, ctx->input(2));
}

absl::Status stock_insert(OpKernelContext* ctx) {
  Interface table;
  TF_RETURN_IF_ERROR(find_table(ctx, &table));
  TF_RETURN_IF_ERROR(table->CheckKeyAndValueTensorsForInsert(ctx->input(1), ctx->input(2)));
  return table->Insert(ctx, ctx->input(1), ctx->input(2));
}

absl::Status stock_remove(OpKernelContext* ctx) {
  Interface table;
  TF_RETURN_IF_ERROR(find_table(ctx, &table));
  TF_RETURN_IF_ERROR(table->CheckKeyTensorForRemove(ctx->input(1)));
  return table->Remove(ctx, ctx->input(1));
}

absl::Status stock_export(OpKernelContext* ctx) {
  Interface table;
  TF_RETURN_IF_ERROR(find_table(ctx, &table));
  return table->ExportValues(ctx);
}

absl::Status stock_import(OpKernelContext* ctx) {
  Interface table;
  TF_RETURN_IF_ERROR(find_table(ctx, &table));
  TF_RETURN_IF_ERROR(table->CheckKeyAndValueTensorsForImport(ctx->input(1), ctx->input(2)));
  return table->ImportValues(ctx, ctx->input(1), ctx->input(2));
}

absl::Status stock_size(OpKernelContext* ctx) {
  Interface table;
  TF_RETURN_IF_ERROR(find_table(ctx, &table));
  Tensor* size = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({}), &size));
  return guarded([&] { size->scalar<std::int64_t>()() = static_cast<std::int64_t>(table->size()); });
}

// What TensorFlow lacks -----------------------------------------------------------------------------------------------

}  // namespace

absl::Status find_ours(OpKernelContext* ctx, Interface* held, TableResource** table) {
  TF_RETURN_IF_ERROR(find_table(ctx, held));
  *table = dynamic_cast<TableResource*>(held->get());
  if (*table != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "table_handle is of one of TensorFlow's own tables, expected one of gpuhash: make it with "
      "gpuhash.tensorflow.MutableHashTable");
}

namespace {

/// Keys for which there are values of another shape, or of another dtype, are refused as TensorFlow refuses them.
absl::Status find_with_values(OpKernelContext* ctx, Interface* held, TableResource** table) {
  TF_RETURN_IF_ERROR(find_ours(ctx, held, table));
  return (*table)->CheckKeyAndValueTensorsForInsert(ctx->input(1), ctx->input(2));
}

absl::Status find_with_keys(OpKernelContext* ctx, Interface* held, TableResource** table) {
  TF_RETURN_IF_ERROR(find_ours(ctx, held, table));
  return (*table)->CheckKeyTensorForRemove(ctx->input(1));
}

bool* mask_data(Tensor* mask) { return mask->flat<bool>().data(); }

absl::Status lookup(OpKernelContext* ctx) {
  Interface held;
  TableResource* table = nullptr;
  TF_RETURN_IF_ERROR(find_ours(ctx, &held, &table));
  const Tensor& keys = ctx->input(1);
  TF_RETURN_IF_ERROR(table->check_single_value());
  TF_RETURN_IF_ERROR(check_dimensions(keys, table->key_shape(), table->value_shape()));
  TF_RETURN_IF_ERROR(table->CheckFindArguments(keys, ctx->input(2)));
  Tensor* values = nullptr;
  Tensor* found = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, table->values_shape(keys), &values));
  TF_RETURN_IF_ERROR(ctx->allocate_output(1, table->batch_shape(keys), &found));
  return table->find(ctx, keys, values, ctx->input(2), mask_data(found));
}

/// As dict.setdefault: the values that are there, or else the given ones, which are there from now on.
absl::Status lookup_or_insert(OpKernelContext* ctx) {
  Interface held;
  TableResource* table = nullptr;
  TF_RETURN_IF_ERROR(find_with_values(ctx, &held, &table));
  const Tensor& keys = ctx->input(1);
  const Tensor& given = ctx->input(2);
  Tensor* values = nullptr;
  Tensor* inserted = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, table->values_shape(keys), &values));
  TF_RETURN_IF_ERROR(ctx->allocate_output(1, table->batch_shape(keys), &inserted));
  return guarded([&] {
    const Write write{.values = given.data(), .action = Action::kKeep};
    const Read read{.values = values->data()};
    table->table().change({.keys = table->batch(keys),
                           .writes = {&write, 1},
                           .reads = {&read, 1},
                           .inserted = mask_data(inserted),
                           .stream = stream_of(ctx)});
  });
}

absl::Status contains(OpKernelContext* ctx) {
  Interface held;
  TableResource* table = nullptr;
  TF_RETURN_IF_ERROR(find_with_keys(ctx, &held, &table));
  const Tensor& keys = ctx->input(1);
  Tensor* found = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, table->batch_shape(keys), &found));
  return guarded([&] {
    table->table().look_up({.keys = table->batch(keys), .found = mask_data(found), .stream = stream_of(ctx)});
  });
}

absl::Status erase(OpKernelContext* ctx) {
  Interface held;
  TableResource* table = nullptr;
  TF_RETURN_IF_ERROR(find_with_keys(ctx, &held, &table));
  const Tensor& keys = ctx->input(1);
  Tensor* erased = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, table->batch_shape(keys), &erased));
  return guarded([&] {
    table->table().erase({.keys = table->batch(keys), .erased = mask_data(erased), .stream = stream_of(ctx)});
  });
}

absl::Status check_rows(const TableResource& table) {
  if (table.table().options().has_rows()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the table has no row storage: its values are scalars of up to 8 bytes, which lie beside their keys");
}

/// Row numbers, and which keys were new. Without values new rows get what the table's initializer says, or else zeros.
absl::Status find_or_insert(OpKernelContext* ctx) {
  Interface held;
  TableResource* table = nullptr;
  const bool has_values = ctx->num_inputs() == 3;
  if (ctx->num_inputs() > 3) return absl::InvalidArgumentError("values are several tensors, expected one or none");
  if (has_values) {
    TF_RETURN_IF_ERROR(find_with_values(ctx, &held, &table));
  } else {
    TF_RETURN_IF_ERROR(find_with_keys(ctx, &held, &table));
    TF_RETURN_IF_ERROR(table->check_single_value());
  }
  TF_RETURN_IF_ERROR(check_rows(*table));
  const Tensor& keys = ctx->input(1);
  Tensor* numbers = nullptr;
  Tensor* inserted = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, table->batch_shape(keys), &numbers));
  TF_RETURN_IF_ERROR(ctx->allocate_output(1, table->batch_shape(keys), &inserted));
  return guarded([&] {
    const Write write{.values = has_values ? ctx->input(2).data() : nullptr, .action = Action::kKeep};
    table->table().change({.keys = table->batch(keys),
                           .writes = {&write, has_values ? std::size_t{1} : 0},
                           .inserted = mask_data(inserted),
                           .rows = static_cast<std::int64_t*>(numbers->data()),
                           .stream = stream_of(ctx)});
  });
}

absl::Status rows(OpKernelContext* ctx) {
  Interface held;
  TableResource* table = nullptr;
  TF_RETURN_IF_ERROR(find_with_keys(ctx, &held, &table));
  TF_RETURN_IF_ERROR(check_rows(*table));
  const Tensor& keys = ctx->input(1);
  Tensor* numbers = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, table->batch_shape(keys), &numbers));
  return guarded([&] {
    table->table().look_up(
        {.keys = table->batch(keys), .rows = static_cast<std::int64_t*>(numbers->data()), .stream = stream_of(ctx)});
  });
}

class InsertOrApply final : public OpKernel {
 public:
  explicit InsertOrApply(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string op;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("op", &op));
    action_ = *find_named(kActions, op);  // the attribute takes no other names
  }
  void Compute(OpKernelContext* ctx) override {
    Interface held;
    TableResource* table = nullptr;
    OP_REQUIRES_OK(ctx, find_with_values(ctx, &held, &table));
    const TableOptions& options = table->table().options();
    OP_REQUIRES(ctx, has_op(*options.value_dtype, action_),
                absl::InvalidArgumentError("values of " + std::string(gpuhash::name(*options.value_dtype)) +
                                           " cannot be combined by this op: bits are of integers and booleans, and "
                                           "complex numbers have no order"));
    const Tensor& keys = ctx->input(1);
    Tensor* inserted = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, table->batch_shape(keys), &inserted));
    OP_REQUIRES_OK(ctx, guarded([&] { table->change(ctx, keys, ctx->input(2), action_, mask_data(inserted)); }));
  }

 private:
  Action action_{};
};

// Named tensors -------------------------------------------------------------------------------------------------------

absl::Status take_name(OpKernelContext* ctx, std::string* name) {
  const Tensor& handle = ctx->input(0);
  if (!tensorflow::TensorShapeUtils::IsScalar(handle.shape()))
    return absl::InvalidArgumentError("handle has the shape " + handle.shape().DebugString() +
                                      ", expected one name, of shape []");
  *name = handle.scalar<tensorflow::tstring>()();
  return absl::OkStatus();
}

/// Keeps the tensor's buffer, which TensorFlow then neither frees nor writes into.
absl::Status save_tensor(OpKernelContext* ctx) {
  std::string name;
  TF_RETURN_IF_ERROR(take_name(ctx, &name));
  return guarded([&] {
    auto tensor = std::make_shared<const Tensor>(ctx->input(1));
    StoredTensor stored;
    stored.dtype = from_tensorflow(tensor->dtype());
    for (const auto extent : tensor->shape().dim_sizes()) stored.shape.push_back(extent);
    stored.device = device_of(ctx);
    stored.stream = stream_of(ctx);
    if (stored.dtype) stored.memory = std::shared_ptr<void>(tensor, tensor->data());
    stored.native = std::move(tensor);
    stored.framework = "tensorflow";
    stored.readonly = true;
    tensor_store::put(name, std::move(stored));
  });
}

/// Memory of another framework, lent to TensorFlow, which does not write into it.
class LentBuffer final : public tensorflow::TensorBuffer {
 public:
  LentBuffer(std::shared_ptr<void> memory, std::size_t bytes)
      : TensorBuffer(memory.get()), memory_(std::move(memory)), bytes_(bytes) {}
  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<std::int64_t>(bytes_));
    description->set_allocator_name("gpuhash.store");
  }

 private:
  const std::shared_ptr<void> memory_;
  const std::size_t bytes_;
};

std::string text_of(const Tensor& tensor) {
  return DataTypeString(tensor.dtype()) + " of shape " + tensor.shape().DebugString();
}

class GetTensor final : public OpKernel {
 public:
  explicit GetTensor(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shape", &shape_));
  }
  void Compute(OpKernelContext* ctx) override {
    std::string name;
    OP_REQUIRES_OK(ctx, take_name(ctx, &name));
    std::optional<StoredTensor> stored;
    OP_REQUIRES_OK(ctx, guarded([&] { stored = tensor_store::get(name, stream_of(ctx)); }));
    OP_REQUIRES(ctx, stored.has_value(),
                absl::NotFoundError("no tensor named '" + name + "' is stored; there are: " + all_names()));
    OP_REQUIRES(ctx, stored->device == device_of(ctx),
                absl::InvalidArgumentError("the tensor named '" + name + "' lies on " + stored->device.to_string() +
                                           ", and the op runs on " + device_of(ctx).to_string() +
                                           ": place the op with tf.device where the tensor lies"));
    Tensor tensor;
    OP_REQUIRES_OK(ctx, borrow(ctx, *stored, &tensor));
    OP_REQUIRES(
        ctx, tensor.dtype() == dtype_ && shape_.IsCompatibleWith(tensor.shape()),
        absl::InvalidArgumentError("the tensor named '" + name + "' is " + text_of(tensor) + ", and the op asks for " +
                                   DataTypeString(dtype_) + " of shape " + shape_.DebugString()));
    ctx->set_output(0, tensor);
  }

 private:
  static std::string all_names() {
    std::string text;
    for (const std::string& name : tensor_store::names()) text += (text.empty() ? "" : ", ") + name;
    return text.empty() ? "none" : text;
  }

  static absl::Status borrow(OpKernelContext* ctx, const StoredTensor& stored, Tensor* tensor) {
    if (stored.framework == "tensorflow") {
      *tensor = *static_cast<const Tensor*>(stored.native.get());
      return absl::OkStatus();
    }
    TensorShape shape;
    TF_RETURN_IF_ERROR(tensorflow::TensorShapeUtils::MakeShape(stored.shape, &shape));
    const DataType dtype = to_tensorflow(*stored.dtype);
    const std::size_t bytes = static_cast<std::size_t>(shape.num_elements()) * itemsize(*stored.dtype);
    auto* const buffer = new LentBuffer(stored.memory, bytes);
    const Tensor lent(dtype, shape, buffer);
    buffer->Unref();
    if (lent.IsAligned()) {
      *tensor = lent;
      return absl::OkStatus();
    }
    // TensorFlow's kernels count on 64 bytes, which a slice of another framework's array need not have.
    TF_RETURN_IF_ERROR(ctx->allocate_temp(dtype, shape, tensor));
    return guarded([&] {
      platform(stored.device.platform)
          .make_context(stored.device.index, nullptr)
          ->copy(tensor->data(), lent.data(), bytes, stream_of(ctx));
    });
  }

  DataType dtype_;
  PartialTensorShape shape_;
};

absl::Status delete_tensor(OpKernelContext* ctx) {
  std::string name;
  TF_RETURN_IF_ERROR(take_name(ctx, &name));
  Tensor* deleted = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({}), &deleted));
  return guarded([&] { deleted->scalar<bool>()() = tensor_store::remove(name); });
}

// Registration --------------------------------------------------------------------------------------------------------

/// A stock op on GPUs, of dtypes that our tables have, unless TensorFlow has got a kernel for it there. `keys`,
/// `values`: the op's attributes of their dtypes, or null.
template <absl::Status (*kCompute)(OpKernelContext*)>
void register_stock(const char* op, const char* keys, const char* values, const std::vector<const char*>& on_host) {
  const tensorflow::KernelList there = tensorflow::GetRegisteredKernelsForOp(op);
  for (const tensorflow::KernelDef& kernel : there.kernel())
    if (kernel.device_type() == DEVICE_GPU) return;
  std::vector<DataType> integers;
  std::vector<DataType> all;
  for (const DTypePair& pair : kDTypes) {
    if (is_integer(pair.gpuhash)) integers.push_back(pair.tensorflow);
    all.push_back(pair.tensorflow);
  }
  Name builder(op);
  builder.Device(DEVICE_GPU);
  if (keys != nullptr) builder.TypeConstraint(keys, integers);
  if (values != nullptr) builder.TypeConstraint(values, all);
  for (const char* argument : on_host) builder.HostMemory(argument);
  register_kernel<FunctionKernel<kCompute>>(builder);
}

void register_kernels() {
  register_on_both<MakeNamedTable>("CUDAMutableHashTableV2", {"table_handle"});
  register_on_both<MakeAnonymousTable>("CUDAAnonymousMutableHashTable", {"table_handle"});
  register_on_both<MakeNamedTable>("GpuhashColumnsTable", {"table_handle"});
  register_on_both<MakeAnonymousTable>("GpuhashAnonymousColumnsTable", {"table_handle"});
  register_on_both<FunctionKernel<lookup>>("GpuhashLookup", {"table_handle"});
  register_on_both<FunctionKernel<lookup_or_insert>>("GpuhashLookupOrInsert", {"table_handle"});
  register_on_both<FunctionKernel<find_or_insert>>("GpuhashFindOrInsert", {"table_handle"});
  register_on_both<FunctionKernel<erase>>("GpuhashErase", {"table_handle"});
  register_on_both<FunctionKernel<contains>>("GpuhashContains", {"table_handle"});
  register_on_both<FunctionKernel<rows>>("GpuhashRows", {"table_handle"});
  register_on_both<InsertOrApply>("GpuhashInsertOrApply", {"table_handle"});
  register_on_both<FunctionKernel<save_tensor>>("GpuhashSaveTensor", {"handle"});
  register_on_both<GetTensor>("GpuhashGetTensor", {"handle"});
  register_on_both<FunctionKernel<delete_tensor>>("GpuhashDeleteTensor", {"handle", "deleted"});

  register_stock<stock_find>("LookupTableFindV2", "Tin", "Tout", {"table_handle"});
  register_stock<stock_insert>("LookupTableInsertV2", "Tin", "Tout", {"table_handle"});
  register_stock<stock_remove>("LookupTableRemoveV2", "Tin", nullptr, {"table_handle"});
  register_stock<stock_export>("LookupTableExportV2", "Tkeys", "Tvalues", {"table_handle"});
  register_stock<stock_import>("LookupTableImportV2", "Tin", "Tout", {"table_handle"});
  register_stock<stock_size>("LookupTableSizeV2", nullptr, nullptr, {"table_handle", "size"});
}

// See ops.cc.
[[maybe_unused]] const bool registered = [] {
  const bool first = registry::claim("TensorFlow's kernels");
  if (first) register_kernels();
  return first;
}();

}  // namespace
}  // namespace gpuhash::tensorflow_ops
