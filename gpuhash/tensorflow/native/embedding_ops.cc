// The ops of HashEmbedding: their inputs, outputs, attributes and static shapes. What they do is in
// embedding_kernels.cc.
#include <string>
#include <vector>

#include <gpuhash/names.hpp>
#include <gpuhash/registry.hpp>
#include "op_attributes.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace gpuhash::tensorflow_ops::embeddings {
namespace {

using tensorflow::register_op::OpDefBuilderWrapper;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

/// Attribute dim: weights of a row.
absl::Status weights_shape(InferenceContext* c, const ShapeHandle& ids, ShapeHandle* weights) {
  std::int64_t dim = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  return c->Concatenate(ids, c->Vector(dim), weights);
}

absl::Status scalar(InferenceContext* c, int input) {
  ShapeHandle given;
  return c->WithRank(c->input(input), 0, &given);
}

absl::Status lookup_shape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(scalar(c, 0));
  ShapeHandle weights;
  TF_RETURN_IF_ERROR(weights_shape(c, c->input(1), &weights));
  c->set_output(0, weights);
  c->set_output(1, c->input(1));
  c->set_output(2, c->Scalar());
  return absl::OkStatus();
}

absl::Status train_shape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(scalar(c, 0));
  for (const int input : {2, 4, 5}) TF_RETURN_IF_ERROR(scalar(c, input));
  ShapeHandle weights;
  TF_RETURN_IF_ERROR(weights_shape(c, c->input(1), &weights));
  TF_RETURN_IF_ERROR(c->Merge(c->input(3), weights, &weights));
  c->set_output(0, c->Vector(0));
  return absl::OkStatus();
}

absl::Status export_shape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(scalar(c, 0));
  for (int output = 0; output + 1 < c->num_outputs(); ++output) c->set_output(output, c->UnknownShape());
  c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
  c->set_output(c->num_outputs() - 1, c->Scalar());
  return absl::OkStatus();
}

/// Without outputs.
absl::Status no_shape(InferenceContext* c) { return scalar(c, 0); }

/// What works on the rows of an embedding.
OpDefBuilderWrapper rows_op(const char* name) {
  OpDefBuilderWrapper op(name);
  op.Input("embedding: resource").SetIsStateful();
  return op;
}

void register_ops() {
  // Columns: that of the weights, of dtype, and the optimizer's, of float32. Of each the name, the shape, and what new
  // rows get: a distribution ('' for zeros), its parameters [columns, 2], a seed, or the bytes of a constant element.
  // default_row is [dim], or [0] for zeros. With a shared_name the rows are TensorFlow's resource of that name, made
  // now if there is none; without one they live as long as their handles.
  OpDefBuilderWrapper("GpuhashEmbedding")
      .Input("default_row: dtype")
      .Input("parameters: double")
      .Output("embedding: resource")
      .Attr("dtype: {float, bfloat16}")
      .Attr("optimizer: {" + quoted(kOptimizers) + "}")
      .Attr("columns: list(string) >= 1")
      .Attr("shapes: list(shape) >= 1")
      .Attr("distributions: list(string) >= 1")
      .Attr("seeds: list(int) >= 1")
      .Attr("constants: list(string) >= 1")
      .Attr("capacity: int >= 0 = 0")
      .Attr("max_capacity: int = -1")
      .Attr("container: string = ''")
      .Attr("shared_name: string = ''")
      .SetIsStateful()
      .SetShapeFn([](InferenceContext* c) {
        c->set_output(0, c->Scalar());
        return absl::OkStatus();
      })();

  // The anchor is not looked at. A tape that watches it keeps the call, and so asks for its gradient. Those of
  // ids that are the padding train nothing. Attribute layer is for Python, which finds the layer by it.
  rows_op("GpuhashEmbeddingLookup")
      .Input("ids: int64")
      .Input("anchor: float")
      .Output("weights: dtype")
      .Output("rows: int64")
      .Output("generation: int64")
      .Attr("dtype: {float, bfloat16}")
      .Attr("dim: int >= 1")
      .Attr("insert: bool")
      .Attr("has_padding: bool = false")
      .Attr("padding: int = 0")
      .Attr("layer: string = ''")
      .SetShapeFn(lookup_shape)();
  // rate: the learning rate, where a schedule of that number gives it; schedule 0: the one that was set.
  // done: [0], the gradient of the anchor.
  rows_op("GpuhashEmbeddingTrain")
      .Input("rows: int64")
      .Input("generation: int64")
      .Input("gradients: dtype")
      .Input("rate: double")
      .Input("schedule: int64")
      .Output("done: float")
      .Attr("dtype: {float, bfloat16}")
      .Attr("dim: int >= 1")
      .SetShapeFn(train_shape)();
  // numbers: learning rate, both betas, epsilon, weight decay. schedule: the number of what gives the rate of each
  // step in the place of the first of them; 0: nothing does.
  rows_op("GpuhashEmbeddingSetOptimizer")
      .Input("numbers: double")
      .Input("stochastic_rounding: bool")
      .Input("seed: uint64")
      .Input("schedule: int64")
      .SetShapeFn(no_shape)();
  rows_op("GpuhashEmbeddingSteps").Output("steps: int64").SetShapeFn([](InferenceContext* c) {
    c->set_output(0, c->Scalar());
    return scalar(c, 0);
  })();
  rows_op("GpuhashEmbeddingExport")
      .Output("keys: int64")
      .Output("columns: dtypes")
      .Output("steps: int64")
      .Attr("dtypes: list({float, bfloat16}) >= 1")
      .SetShapeFn(export_shape)();
  rows_op("GpuhashEmbeddingImport")
      .Input("keys: int64")
      .Input("columns: dtypes")
      .Input("steps: int64")
      .Attr("dtypes: list({float, bfloat16}) >= 1")
      .SetShapeFn(no_shape)();
  // From now on libgpuhash knows the table by this name, until someone takes it away.
  rows_op("GpuhashEmbeddingRegister").Input("table_name: string").SetShapeFn(no_shape)();
}

// See ops.cc.
[[maybe_unused]] const bool registered = [] {
  const bool first = registry::claim("TensorFlow's op definitions of embeddings");
  if (first) register_ops();
  return first;
}();

}  // namespace
}  // namespace gpuhash::tensorflow_ops::embeddings
