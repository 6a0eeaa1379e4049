// The kernels that make tables, the same for CPU and GPU: all that differs is the stream and the memory that they hand
// down.
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
#include "context.h"
#include "kernel_registration.h"
#include "table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace gpuhash::tensorflow_ops::tables {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::ResourceHandle;
using tensorflow::lookup::LookupInterface;
namespace core = tensorflow::core;

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

  /// The attributes are described in ops.cc.
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

// See ops.cc.
[[maybe_unused]] const bool registered = [] {
  const bool first = registry::claim("TensorFlow's kernels that make tables");
  if (!first) return first;
  register_on_both<MakeNamedTable>("CUDAMutableHashTableV2", {"table_handle"});
  register_on_both<MakeAnonymousTable>("CUDAAnonymousMutableHashTable", {"table_handle"});
  register_on_both<MakeNamedTable>("GpuhashColumnsTable", {"table_handle"});
  register_on_both<MakeAnonymousTable>("GpuhashAnonymousColumnsTable", {"table_handle"});
  return first;
}();

}  // namespace
}  // namespace gpuhash::tensorflow_ops::tables
