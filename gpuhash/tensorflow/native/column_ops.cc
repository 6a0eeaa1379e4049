// The ops of tables with named columns: their inputs, outputs, attributes and static shapes. What they do is in
// column_kernels.cc, and in kernels.cc for those that make a table.
#include <string>
#include <vector>

#include <gpuhash/registry.hpp>
#include "op_dtypes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gpuhash::tensorflow_ops::columns {
namespace {

using tensorflow::DataType;
using tensorflow::PartialTensorShape;
using tensorflow::register_op::OpDefBuilderWrapper;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeAndType;
using tensorflow::shape_inference::ShapeHandle;

const std::string kColumnDtypes = std::string("list(") + kValueDtypes + ")";

absl::Status key_shape(InferenceContext* c, ShapeHandle* shape) {
  PartialTensorShape given;
  TF_RETURN_IF_ERROR(c->GetAttr("key_shape", &given));
  return c->MakeShapeFromPartialTensorShape(given, shape);
}

/// A handle tells how keys are typed and shaped. Columns have no place there: ops say themselves which ones they mean.
absl::Status handle_shape(InferenceContext* c) {
  DataType key_dtype;
  ShapeHandle key;
  TF_RETURN_IF_ERROR(c->GetAttr("key_dtype", &key_dtype));
  TF_RETURN_IF_ERROR(key_shape(c, &key));
  c->set_output(0, c->Scalar());
  c->set_output_handle_shapes_and_types(
      0, std::vector<ShapeAndType>{{key, key_dtype}, {c->Scalar(), tensorflow::DT_VARIANT}});
  return absl::OkStatus();
}

/// The shape of a batch of keys, input 1, without that of each key: [*batch].
absl::Status batch_shape(InferenceContext* c, ShapeHandle* batch) {
  ShapeHandle handle;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &handle));
  *batch = c->UnknownShape();
  ShapeHandle key;
  TF_RETURN_IF_ERROR(key_shape(c, &key));
  if (!c->RankKnown(key) || !c->RankKnown(c->input(1))) return absl::OkStatus();
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), c->Rank(key), &keys));
  const int dimensions = c->Rank(keys) - c->Rank(key);
  ShapeHandle suffix;
  TF_RETURN_IF_ERROR(c->Subshape(keys, dimensions, &suffix));
  TF_RETURN_IF_ERROR(c->Merge(suffix, key, &suffix));
  return c->Subshape(keys, 0, dimensions, batch);
}

absl::Status column_shapes(InferenceContext* c, const char* attr, std::vector<ShapeHandle>* shapes) {
  std::vector<PartialTensorShape> given;
  TF_RETURN_IF_ERROR(c->GetAttr(attr, &given));
  for (const PartialTensorShape& each : given) {
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(each, &shape));
    shapes->push_back(shape);
  }
  return absl::OkStatus();
}

absl::Status check_count(const char* attr, std::size_t shapes, int tensors) {
  if (shapes == static_cast<std::size_t>(tensors)) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(attr) + " are of " + std::to_string(shapes) +
                                    " columns, and there are " + std::to_string(tensors) + " tensors");
}

/// Inputs from `first` on, one for each column: one value, or one for each key.
absl::Status check_columns(InferenceContext* c, int first, const ShapeHandle& batch) {
  std::vector<ShapeHandle> shapes;
  TF_RETURN_IF_ERROR(column_shapes(c, "shapes", &shapes));
  TF_RETURN_IF_ERROR(check_count("shapes", shapes.size(), c->num_inputs() - first));
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const ShapeHandle& given = c->input(first + static_cast<int>(i));
    ShapeHandle expected = shapes[i];
    if (!c->RankKnown(given) || !c->RankKnown(expected)) continue;
    if (c->Rank(given) != c->Rank(expected)) TF_RETURN_IF_ERROR(c->Concatenate(batch, expected, &expected));
    TF_RETURN_IF_ERROR(c->Merge(given, expected, &expected));
  }
  return absl::OkStatus();
}

/// Outputs from `first` on, one for each column: [*batch, *shape].
absl::Status set_columns(InferenceContext* c, int first, const char* attr, const ShapeHandle& batch) {
  std::vector<ShapeHandle> shapes;
  TF_RETURN_IF_ERROR(column_shapes(c, attr, &shapes));
  TF_RETURN_IF_ERROR(check_count(attr, shapes.size(), c->num_outputs() - first));
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    ShapeHandle all;
    TF_RETURN_IF_ERROR(c->Concatenate(batch, shapes[i], &all));
    c->set_output(first + static_cast<int>(i), all);
  }
  return absl::OkStatus();
}

absl::Status find_shape(InferenceContext* c) {
  ShapeHandle batch;
  TF_RETURN_IF_ERROR(batch_shape(c, &batch));
  TF_RETURN_IF_ERROR(check_columns(c, 2, batch));
  c->set_output(0, batch);
  return set_columns(c, 1, "shapes", batch);
}

absl::Status change_shape(InferenceContext* c) {
  ShapeHandle batch;
  TF_RETURN_IF_ERROR(batch_shape(c, &batch));
  TF_RETURN_IF_ERROR(check_columns(c, 2, batch));
  c->set_output(0, batch);
  return set_columns(c, 1, "read_shapes", batch);
}

absl::Status find_or_insert_shape(InferenceContext* c) {
  ShapeHandle batch;
  TF_RETURN_IF_ERROR(batch_shape(c, &batch));
  TF_RETURN_IF_ERROR(check_columns(c, 2, batch));
  c->set_output(0, batch);
  c->set_output(1, batch);
  return absl::OkStatus();
}

absl::Status export_shape(InferenceContext* c) {
  ShapeHandle key;
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(key_shape(c, &key));
  const ShapeHandle batch = c->Vector(InferenceContext::kUnknownDim);
  TF_RETURN_IF_ERROR(c->Concatenate(batch, key, &keys));
  c->set_output(0, keys);
  return set_columns(c, 1, "shapes", batch);
}

absl::Status import_shape(InferenceContext* c) {
  ShapeHandle batch;
  TF_RETURN_IF_ERROR(batch_shape(c, &batch));
  return check_columns(c, 2, batch);
}

/// What makes a table. total_buckets: slots to begin with. Of each column: what new rows are filled with, and in
/// initial_bits five numbers: the bits of both parameters, the seed, and 16 bytes of a constant; see
/// gpuhash::Initializer.
OpDefBuilderWrapper table_op(const char* name) {
  OpDefBuilderWrapper op(name);
  op.Output("table_handle: resource")
      .Attr("total_buckets: int = 131072")
      .Attr(std::string("key_dtype: ") + kKeyDtypes)
      .Attr("key_shape: shape = {}")
      .Attr("names: list(string) >= 1")
      .Attr("dtypes: " + kColumnDtypes + " >= 1")
      .Attr("shapes: list(shape) >= 1")
      .Attr("initials: list({'', 'constant', 'uniform', 'normal', 'truncated_normal'}) >= 1")
      .Attr("initial_bits: list(int) >= 5")
      .Attr("deterministic: bool = true")
      .SetIsStateful()
      .SetShapeFn(handle_shape);
  return op;
}

/// What works on a table and some of its columns, by their names.
OpDefBuilderWrapper columns_op(const char* name, const char* keys) {
  OpDefBuilderWrapper op(name);
  op.Input("table_handle: resource")
      .Attr(std::string(keys) + ": " + kKeyDtypes)
      .Attr("key_shape: shape = {}")
      .Attr("names: list(string) >= 0")
      .Attr("dtypes: " + kColumnDtypes + " >= 0")
      .Attr("shapes: list(shape) >= 0")
      .SetIsStateful();
  return op;
}

void register_ops() {
  table_op("GpuhashColumnsTable")
      .Attr("container: string = ''")
      .Attr("shared_name: string = ''")
      .Attr("use_node_name_sharing: bool = false")();
  table_op("GpuhashAnonymousColumnsTable").Attr("adopted_name: string = ''")();

  columns_op("GpuhashFindColumns", "Tin")
      .Input("keys: Tin")
      .Input("defaults: dtypes")
      .Output("found: bool")
      .Output("values: dtypes")
      .SetShapeFn(find_shape)();
  columns_op("GpuhashChangeColumns", "Tin")
      .Input("keys: Tin")
      .Input("values: dtypes")
      .Attr("actions: list({'keep', 'assign', 'add', 'multiply', 'min', 'max', 'bit_and', 'bit_or', 'bit_xor'}) >= 0")
      .Attr("read_names: list(string) >= 0")
      .Attr("read_dtypes: " + kColumnDtypes + " >= 0")
      .Attr("read_shapes: list(shape) >= 0")
      .Output("inserted: bool")
      .Output("read_values: read_dtypes")
      .SetShapeFn(change_shape)();
  columns_op("GpuhashFindOrInsertColumns", "Tin")
      .Input("keys: Tin")
      .Input("values: dtypes")
      .Output("rows: int64")
      .Output("inserted: bool")
      .SetShapeFn(find_or_insert_shape)();
  columns_op("GpuhashExportColumns", "Tkeys").Output("keys: Tkeys").Output("values: dtypes").SetShapeFn(export_shape)();
  columns_op("GpuhashImportColumns", "Tin").Input("keys: Tin").Input("values: dtypes").SetShapeFn(import_shape)();
}

// See ops.cc.
[[maybe_unused]] const bool registered = [] {
  const bool first = registry::claim("TensorFlow's op definitions of columns");
  if (first) register_ops();
  return first;
}();

}  // namespace
}  // namespace gpuhash::tensorflow_ops::columns
