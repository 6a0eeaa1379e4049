// The ops: their inputs, outputs, attributes and static shapes. What they do is in kernels.cc.
#include <string>
#include <vector>

#include <gpuhash/registry.hpp>
#include "op_dtypes.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gpuhash::tensorflow_ops {
namespace {

using tensorflow::DataType;
using tensorflow::PartialTensorShape;
using tensorflow::register_op::OpDefBuilderWrapper;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeAndType;
using tensorflow::shape_inference::ShapeHandle;

/// What a handle tells of its table: how keys and values are typed and shaped.
absl::Status shape_of_handle(InferenceContext* c) {
  DataType key_dtype;
  DataType value_dtype;
  PartialTensorShape key_shape;
  PartialTensorShape value_shape;
  TF_RETURN_IF_ERROR(c->GetAttr("key_dtype", &key_dtype));
  TF_RETURN_IF_ERROR(c->GetAttr("value_dtype", &value_dtype));
  TF_RETURN_IF_ERROR(c->GetAttr("key_shape", &key_shape));
  TF_RETURN_IF_ERROR(c->GetAttr("value_shape", &value_shape));
  ShapeHandle key;
  ShapeHandle value;
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(key_shape, &key));
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(value_shape, &value));
  c->set_output(0, c->Scalar());
  c->set_output_handle_shapes_and_types(0, std::vector<ShapeAndType>{{key, key_dtype}, {value, value_dtype}});
  return absl::OkStatus();
}

/// The shapes of a batch of keys, input 1: [*batch, *key_shape], and of their values: [*batch, *value_shape].
struct BatchShapes {
  ShapeHandle batch;
  ShapeHandle values;
};

absl::Status check_dtype(InferenceContext* c, const char* attr, DataType expected) {
  DataType given;
  TF_RETURN_IF_ERROR(c->GetAttr(attr, &given));
  if (given == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(attr) + " is " + DataTypeString(given) + ", and the table has " +
                                    DataTypeString(expected) + ": cast the tensor");
}

absl::Status batch_shapes(InferenceContext* c, BatchShapes* shapes) {
  ShapeHandle handle;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &handle));
  *shapes = {c->UnknownShape(), c->UnknownShape()};
  const auto* table = c->input_handle_shapes_and_types(0);
  if (table == nullptr || table->size() != 2) return absl::OkStatus();
  const ShapeAndType& key = (*table)[0];
  const ShapeAndType& value = (*table)[1];
  TF_RETURN_IF_ERROR(check_dtype(c, "Tin", key.dtype));
  if (!c->RankKnown(key.shape) || !c->RankKnown(c->input(1))) return absl::OkStatus();
  const int key_rank = c->Rank(key.shape);
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), key_rank, &keys));
  ShapeHandle suffix;
  TF_RETURN_IF_ERROR(c->Subshape(keys, c->Rank(keys) - key_rank, &suffix));
  TF_RETURN_IF_ERROR(c->Merge(suffix, key.shape, &suffix));
  TF_RETURN_IF_ERROR(c->Subshape(keys, 0, c->Rank(keys) - key_rank, &shapes->batch));
  return c->Concatenate(shapes->batch, value.shape, &shapes->values);
}

absl::Status check_value_dtype(InferenceContext* c) {
  const auto* table = c->input_handle_shapes_and_types(0);
  if (table == nullptr || table->size() != 2) return absl::OkStatus();
  return check_dtype(c, "Tout", (*table)[1].dtype);
}

/// Output 0 has the shape of the batch.
absl::Status mask_shape(InferenceContext* c) {
  BatchShapes shapes;
  TF_RETURN_IF_ERROR(batch_shapes(c, &shapes));
  c->set_output(0, shapes.batch);
  return absl::OkStatus();
}

/// Input 2 are values; output 0 is a mask.
absl::Status apply_shape(InferenceContext* c) {
  BatchShapes shapes;
  TF_RETURN_IF_ERROR(batch_shapes(c, &shapes));
  TF_RETURN_IF_ERROR(check_value_dtype(c));
  ShapeHandle values;
  TF_RETURN_IF_ERROR(c->Merge(c->input(2), shapes.values, &values));
  c->set_output(0, shapes.batch);
  return absl::OkStatus();
}

/// Outputs are row numbers and a mask. Of values there may be none.
absl::Status find_or_insert_shape(InferenceContext* c) {
  BatchShapes shapes;
  TF_RETURN_IF_ERROR(batch_shapes(c, &shapes));
  for (int i = 2; i < c->num_inputs(); ++i) {
    ShapeHandle values;
    TF_RETURN_IF_ERROR(c->Merge(c->input(i), shapes.values, &values));
  }
  c->set_output(0, shapes.batch);
  c->set_output(1, shapes.batch);
  return absl::OkStatus();
}

/// Outputs are values and a mask. Input 2 has any shape that the kernel takes.
absl::Status lookup_shape(InferenceContext* c) {
  BatchShapes shapes;
  TF_RETURN_IF_ERROR(batch_shapes(c, &shapes));
  TF_RETURN_IF_ERROR(check_value_dtype(c));
  c->set_output(0, shapes.values);
  c->set_output(1, shapes.batch);
  return absl::OkStatus();
}

absl::Status scalar_name(InferenceContext* c) {
  ShapeHandle name;
  return c->WithRank(c->input(0), 0, &name);
}

/// What makes a table. total_buckets: slots to begin with.
OpDefBuilderWrapper table_op(const char* name) {
  OpDefBuilderWrapper op(name);
  op.Output("table_handle: resource")
      .Attr("total_buckets: int = 131072")
      .Attr(std::string("key_dtype: ") + kKeyDtypes)
      .Attr(std::string("value_dtype: ") + kValueDtypes)
      .Attr("value_shape: shape = {}")
      .Attr("key_shape: shape = {}")
      .Attr("deterministic: bool = true")
      .SetIsStateful()
      .SetShapeFn(shape_of_handle);
  return op;
}

/// What works on a table and a batch of keys.
OpDefBuilderWrapper batch_op(const char* name) {
  OpDefBuilderWrapper op(name);
  op.Input("table_handle: resource").Input("keys: Tin").Attr(std::string("Tin: ") + kKeyDtypes).SetIsStateful();
  return op;
}

void register_ops() {
  table_op("CUDAMutableHashTableV2")
      .Attr("container: string = ''")
      .Attr("shared_name: string = ''")
      .Attr("use_node_name_sharing: bool = false")();
  table_op("CUDAAnonymousMutableHashTable").Attr("adopted_name: string = ''")();

  const std::string tout = std::string("Tout: ") + kValueDtypes;
  batch_op("GpuhashLookup")
      .Input("default_value: Tout")
      .Output("values: Tout")
      .Output("found: bool")
      .Attr(tout)
      .SetShapeFn(lookup_shape)();
  batch_op("GpuhashFindOrInsert")
      .Input("values: dtypes")
      .Output("rows: int64")
      .Output("inserted: bool")
      .Attr("dtypes: list(type) >= 0")
      .SetShapeFn(find_or_insert_shape)();
  batch_op("GpuhashLookupOrInsert")
      .Input("values: Tout")
      .Output("found_values: Tout")
      .Output("inserted: bool")
      .Attr(tout)
      .SetShapeFn(lookup_shape)();
  batch_op("GpuhashInsertOrApply")
      .Input("values: Tout")
      .Output("inserted: bool")
      .Attr(tout)
      .Attr("op: {'keep', 'assign', 'add', 'multiply', 'min', 'max', 'bit_and', 'bit_or', 'bit_xor'}")
      .SetShapeFn(apply_shape)();
  batch_op("GpuhashContains").Output("found: bool").SetShapeFn(mask_shape)();
  batch_op("GpuhashErase").Output("erased: bool").SetShapeFn(mask_shape)();
  batch_op("GpuhashRows").Output("rows: int64").SetShapeFn(mask_shape)();

  OpDefBuilderWrapper("GpuhashSaveTensor")
      .Input("handle: string")
      .Input("val: dtype")
      .Attr("dtype: type")
      .SetIsStateful()
      .SetShapeFn(scalar_name)();
  OpDefBuilderWrapper("GpuhashGetTensor")
      .Input("handle: string")
      .Output("val: dtype")
      .Attr("dtype: type")
      .Attr("shape: shape = {unknown_rank: true}")
      .SetIsStateful()
      .SetShapeFn([](InferenceContext* c) {
        TF_RETURN_IF_ERROR(scalar_name(c));
        return tensorflow::shape_inference::ExplicitShape(c);
      })();
  OpDefBuilderWrapper("GpuhashDeleteTensor")
      .Input("handle: string")
      .Output("deleted: bool")
      .SetIsStateful()
      .SetShapeFn([](InferenceContext* c) {
        TF_RETURN_IF_ERROR(scalar_name(c));
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
