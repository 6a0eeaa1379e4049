// The ops: their inputs, outputs, attributes and static shapes. What they do is in the files of kernels.
#include <string>
#include <vector>

#include <gpuhash/names.hpp>
#include <gpuhash/registry.hpp>
#include "op_attributes.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gpuhash::tensorflow_ops {
namespace {

using tensorflow::DataType;
using tensorflow::PartialTensorShape;
using tensorflow::register_op::OpDefBuilderWrapper;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeAndType;
using tensorflow::shape_inference::ShapeHandle;

absl::Status attr_shape(InferenceContext* c, const char* attr, ShapeHandle* shape) {
  PartialTensorShape given;
  TF_RETURN_IF_ERROR(c->GetAttr(attr, &given));
  return c->MakeShapeFromPartialTensorShape(given, shape);
}

/// What a handle tells of its table: how keys and values are typed and shaped.
absl::Status set_handle(InferenceContext* c, const ShapeAndType& value) {
  DataType key_dtype;
  ShapeHandle key;
  TF_RETURN_IF_ERROR(c->GetAttr("key_dtype", &key_dtype));
  TF_RETURN_IF_ERROR(attr_shape(c, "key_shape", &key));
  c->set_output(0, c->Scalar());
  c->set_output_handle_shapes_and_types(0, std::vector<ShapeAndType>{{key, key_dtype}, value});
  return absl::OkStatus();
}

absl::Status table_shape(InferenceContext* c) {
  DataType dtype;
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->GetAttr("value_dtype", &dtype));
  TF_RETURN_IF_ERROR(attr_shape(c, "value_shape", &shape));
  return set_handle(c, {shape, dtype});
}

/// Named columns have no place in a handle: ops say themselves which ones they mean.
absl::Status columns_table_shape(InferenceContext* c) { return set_handle(c, {c->Scalar(), tensorflow::DT_VARIANT}); }

/// The shape of a batch of keys, input 1, without that of each key: [*batch]. What the handle tells of keys is checked.
absl::Status batch_shape(InferenceContext* c, ShapeHandle* batch) {
  ShapeHandle handle;
  ShapeHandle key;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &handle));
  TF_RETURN_IF_ERROR(attr_shape(c, "key_shape", &key));
  const auto* table = c->input_handle_shapes_and_types(0);
  if (table != nullptr && table->size() == 2) {
    DataType dtype;
    TF_RETURN_IF_ERROR(c->GetAttr("Tin", &dtype));
    if (dtype != table->front().dtype)
      return absl::InvalidArgumentError("the keys are " + DataTypeString(dtype) + ", and the table has " +
                                        DataTypeString(table->front().dtype) + ": cast the tensor");
    TF_RETURN_IF_ERROR(c->Merge(key, table->front().shape, &key));
  }
  *batch = c->UnknownShape();
  if (!c->RankKnown(key) || !c->RankKnown(c->input(1))) return absl::OkStatus();
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), c->Rank(key), &keys));
  const int dimensions = c->Rank(keys) - c->Rank(key);
  ShapeHandle suffix;
  TF_RETURN_IF_ERROR(c->Subshape(keys, dimensions, &suffix));
  TF_RETURN_IF_ERROR(c->Merge(suffix, key, &suffix));
  return c->Subshape(keys, 0, dimensions, batch);
}

/// The shapes of one value of each column, of which there are as many as dtypes.
absl::Status column_shapes(InferenceContext* c, const std::string& prefix, std::vector<ShapeHandle>* shapes) {
  std::vector<PartialTensorShape> given;
  std::vector<DataType> dtypes;
  TF_RETURN_IF_ERROR(c->GetAttr(prefix + "shapes", &given));
  TF_RETURN_IF_ERROR(c->GetAttr(prefix + "dtypes", &dtypes));
  if (given.size() != dtypes.size())
    return absl::InvalidArgumentError(prefix + "shapes are of " + std::to_string(given.size()) +
                                      " columns, and there are " + std::to_string(dtypes.size()) + " tensors");
  for (const PartialTensorShape& each : given) {
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(each, &shape));
    shapes->push_back(shape);
  }
  return absl::OkStatus();
}

/// Inputs from `first` on, one for each column: one value, or one for each key.
absl::Status check_columns(InferenceContext* c, int first, const ShapeHandle& batch) {
  std::vector<ShapeHandle> shapes;
  TF_RETURN_IF_ERROR(column_shapes(c, "", &shapes));
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const ShapeHandle& given = c->input(first + static_cast<int>(i));
    ShapeHandle expected = shapes[i];
    if (!c->RankKnown(given) || !c->RankKnown(expected)) continue;
    if (c->Rank(given) != c->Rank(expected)) TF_RETURN_IF_ERROR(c->Concatenate(batch, expected, &expected));
    TF_RETURN_IF_ERROR(c->Merge(given, expected, &expected));
  }
  return absl::OkStatus();
}

/// Outputs from 1 on: [*batch, *shape] of each column, and then row numbers, [*batch].
absl::Status set_columns(InferenceContext* c, const std::string& prefix, const ShapeHandle& batch) {
  std::vector<ShapeHandle> shapes;
  TF_RETURN_IF_ERROR(column_shapes(c, prefix, &shapes));
  int output = 1;
  for (const ShapeHandle& shape : shapes) {
    ShapeHandle all;
    TF_RETURN_IF_ERROR(c->Concatenate(batch, shape, &all));
    c->set_output(output++, all);
  }
  while (output < c->num_outputs()) c->set_output(output++, batch);
  return absl::OkStatus();
}

/// Inputs from 2 on are of columns, output 0 is a mask, and others are of the columns that are read.
absl::Status call_shape(InferenceContext* c, const std::string& read) {
  ShapeHandle batch;
  TF_RETURN_IF_ERROR(batch_shape(c, &batch));
  TF_RETURN_IF_ERROR(check_columns(c, 2, batch));
  c->set_output(0, batch);
  return set_columns(c, read, batch);
}

absl::Status lookup_shape(InferenceContext* c) { return call_shape(c, ""); }

absl::Status change_shape(InferenceContext* c) { return call_shape(c, "read_"); }

absl::Status export_shape(InferenceContext* c) {
  ShapeHandle key;
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(attr_shape(c, "key_shape", &key));
  const ShapeHandle batch = c->Vector(InferenceContext::kUnknownDim);
  TF_RETURN_IF_ERROR(c->Concatenate(batch, key, &keys));
  c->set_output(0, keys);
  return set_columns(c, "", batch);
}

/// Input `number` is a scalar, and there are no outputs.
template <int number>
absl::Status scalar_input(InferenceContext* c) {
  ShapeHandle scalar;
  return c->WithRank(c->input(number), 0, &scalar);
}

const std::string kColumnDtypes = std::string("list(") + kValueDtypes + ")";

/// What makes a table. total_buckets: slots to begin with.
OpDefBuilderWrapper table_op(const char* name) {
  OpDefBuilderWrapper op(name);
  op.Output("table_handle: resource")
      .Attr("total_buckets: int = 131072")
      .Attr(std::string("key_dtype: ") + kKeyDtypes)
      .Attr("key_shape: shape = {}")
      .Attr("deterministic: bool = true")
      .SetIsStateful();
  return op;
}

OpDefBuilderWrapper with_value(OpDefBuilderWrapper op) {
  op.Attr(std::string("value_dtype: ") + kValueDtypes).Attr("value_shape: shape = {}").SetShapeFn(table_shape);
  return op;
}

/// Of each column: what new rows are filled with, and in initial_bits five numbers: the bits of both parameters, the
/// seed, and 16 bytes of a constant; see gpuhash::Initializer.
OpDefBuilderWrapper with_columns(OpDefBuilderWrapper op) {
  op.Attr("names: list(string) >= 1")
      .Attr("dtypes: " + kColumnDtypes + " >= 1")
      .Attr("shapes: list(shape) >= 1")
      .Attr("initials: list({'', " + quoted(kDistributions) + "}) >= 1")
      .Attr("initial_bits: list(int) >= 5")
      .SetShapeFn(columns_table_shape);
  return op;
}

/// A table that TensorFlow's resource manager holds.
OpDefBuilderWrapper named(OpDefBuilderWrapper op) {
  op.Attr("container: string = ''").Attr("shared_name: string = ''").Attr("use_node_name_sharing: bool = false");
  return op;
}

/// A table that lives as long as its handles.
OpDefBuilderWrapper anonymous(OpDefBuilderWrapper op) {
  op.Attr("adopted_name: string = ''");
  return op;
}

/// What works on a table and some of its columns, by their names. A single value is the column ''.
OpDefBuilderWrapper columns_op(const char* name, const char* keys) {
  OpDefBuilderWrapper op(name);
  op.Input("table_handle: resource")
      .Attr(std::string(keys) + ": " + kKeyDtypes)
      .Attr("key_shape: shape = {unknown_rank: true}")
      .Attr("names: list(string) = []")
      .Attr("dtypes: " + kColumnDtypes + " >= 0 = []")
      .Attr("shapes: list(shape) = []")
      .SetIsStateful();
  return op;
}

void register_ops() {
  named(with_value(table_op("CUDAMutableHashTableV2")))();
  anonymous(with_value(table_op("CUDAAnonymousMutableHashTable")))();
  named(with_columns(table_op("GpuhashColumnsTable")))();
  anonymous(with_columns(table_op("GpuhashAnonymousColumnsTable")))();

  // with_rows: 1 for row numbers.
  columns_op("GpuhashLookup", "Tin")
      .Input("keys: Tin")
      .Input("defaults: dtypes")
      .Output("found: bool")
      .Output("values: dtypes")
      .Output("rows: with_rows * int64")
      .Attr("with_rows: int >= 0 = 0")
      .SetShapeFn(lookup_shape)();
  columns_op("GpuhashChange", "Tin")
      .Input("keys: Tin")
      .Input("values: dtypes")
      .Attr("actions: list({" + quoted(kActions) + "})")
      .Attr("read_names: list(string) = []")
      .Attr("read_dtypes: " + kColumnDtypes + " >= 0 = []")
      .Attr("read_shapes: list(shape) = []")
      .Output("inserted: bool")
      .Output("read_values: read_dtypes")
      .Output("rows: with_rows * int64")
      .Attr("with_rows: int >= 0 = 0")
      .SetShapeFn(change_shape)();
  // all_or_none: it fails, and erases nothing, if a key is absent.
  columns_op("GpuhashErasure", "Tin")
      .Input("keys: Tin")
      .Input("defaults: dtypes")
      .Output("erased: bool")
      .Output("values: dtypes")
      .Attr("all_or_none: bool = false")
      .SetShapeFn(lookup_shape)();
  columns_op("GpuhashExport", "Tkeys").Output("keys: Tkeys").Output("values: dtypes").SetShapeFn(export_shape)();
  OpDefBuilderWrapper("GpuhashClear").Input("table_handle: resource").SetIsStateful().SetShapeFn(scalar_input<0>)();
  OpDefBuilderWrapper("GpuhashReserve")
      .Input("table_handle: resource")
      .Input("size: int64")
      .SetIsStateful()
      .SetShapeFn(scalar_input<1>)();

  OpDefBuilderWrapper("GpuhashSaveTensor")
      .Input("handle: string")
      .Input("val: dtype")
      .Attr("dtype: type")
      .SetIsStateful()
      .SetShapeFn(scalar_input<0>)();
  OpDefBuilderWrapper("GpuhashGetTensor")
      .Input("handle: string")
      .Output("val: dtype")
      .Attr("dtype: type")
      .Attr("shape: shape = {unknown_rank: true}")
      .SetIsStateful()
      .SetShapeFn([](InferenceContext* c) {
        TF_RETURN_IF_ERROR(scalar_input<0>(c));
        return tensorflow::shape_inference::ExplicitShape(c);
      })();
  OpDefBuilderWrapper("GpuhashDeleteTensor")
      .Input("handle: string")
      .Output("deleted: bool")
      .SetIsStateful()
      .SetShapeFn([](InferenceContext* c) {
        TF_RETURN_IF_ERROR(scalar_input<0>(c));
        c->set_output(0, c->Scalar());
        return absl::OkStatus();
      })();
}

// A second load of this library would register everything again, and every use would fail of it.
[[maybe_unused]] const bool registered = [] {
  const bool first = registry::claim("TensorFlow's op definitions");
  if (first) register_ops();
  return first;
}();

}  // namespace
}  // namespace gpuhash::tensorflow_ops
