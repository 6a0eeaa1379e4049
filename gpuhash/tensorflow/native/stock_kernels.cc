// TensorFlow's own lookup ops on a GPU, for which TensorFlow has kernels on the CPU alone.
#include <cstdint>
#include <vector>

#include <gpuhash/registry.hpp>
#include "context.h"
#include "kernel_registration.h"
#include "table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace gpuhash::tensorflow_ops::stock {
namespace {

using tensorflow::DEVICE_GPU;
using tensorflow::lookup::LookupInterface;

TensorShape looked_up_shape(const LookupInterface& table, const Tensor& keys) {
  TensorShape shape = keys.shape();
  shape.RemoveLastDims(table.key_shape().dims());
  shape.AppendShape(table.value_shape());
  return shape;
}

absl::Status find(OpKernelContext* ctx) {
  Interface table;
  TF_RETURN_IF_ERROR(find_table(ctx, &table));
  const Tensor& keys = ctx->input(1);
  TF_RETURN_IF_ERROR(check_dimensions(keys, table->key_shape(), table->value_shape()));
  TF_RETURN_IF_ERROR(table->CheckFindArguments(keys, ctx->input(2)));
  Tensor* values = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, looked_up_shape(*table, keys), &values));
  return table->Find(ctx, keys, values, ctx->input(2));
}

absl::Status insert(OpKernelContext* ctx) {
  Interface table;
  TF_RETURN_IF_ERROR(find_table(ctx, &table));
  TF_RETURN_IF_ERROR(table->CheckKeyAndValueTensorsForInsert(ctx->input(1), ctx->input(2)));
  return table->Insert(ctx, ctx->input(1), ctx->input(2));
}

absl::Status remove(OpKernelContext* ctx) {
  Interface table;
  TF_RETURN_IF_ERROR(find_table(ctx, &table));
  TF_RETURN_IF_ERROR(table->CheckKeyTensorForRemove(ctx->input(1)));
  return table->Remove(ctx, ctx->input(1));
}

absl::Status export_values(OpKernelContext* ctx) {
  Interface table;
  TF_RETURN_IF_ERROR(find_table(ctx, &table));
  return table->ExportValues(ctx);
}

absl::Status import_values(OpKernelContext* ctx) {
  Interface table;
  TF_RETURN_IF_ERROR(find_table(ctx, &table));
  TF_RETURN_IF_ERROR(table->CheckKeyAndValueTensorsForImport(ctx->input(1), ctx->input(2)));
  return table->ImportValues(ctx, ctx->input(1), ctx->input(2));
}

absl::Status size(OpKernelContext* ctx) {
  Interface table;
  TF_RETURN_IF_ERROR(find_table(ctx, &table));
  Tensor* size = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({}), &size));
  return guarded([&] { size->scalar<std::int64_t>()() = static_cast<std::int64_t>(table->size()); });
}

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

// See ops.cc.
[[maybe_unused]] const bool registered = [] {
  const bool first = registry::claim("TensorFlow's lookup ops on GPUs");
  if (!first) return first;
  register_stock<find>("LookupTableFindV2", "Tin", "Tout", {"table_handle"});
  register_stock<insert>("LookupTableInsertV2", "Tin", "Tout", {"table_handle"});
  register_stock<remove>("LookupTableRemoveV2", "Tin", nullptr, {"table_handle"});
  register_stock<export_values>("LookupTableExportV2", "Tkeys", "Tvalues", {"table_handle"});
  register_stock<import_values>("LookupTableImportV2", "Tin", "Tout", {"table_handle"});
  register_stock<size>("LookupTableSizeV2", nullptr, nullptr, {"table_handle", "size"});
  return first;
}();

}  // namespace
}  // namespace gpuhash::tensorflow_ops::stock
