// The kernels of HashEmbedding, the same for CPU and GPU.
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gpuhash/names.hpp>
#include <gpuhash/registry.hpp>
#include "context.h"
#include "embedding_rows.h"
#include "kernel_registration.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace gpuhash::tensorflow_ops::embeddings {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::ResourceHandle;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;
using tensorflow::tstring;
namespace core = tensorflow::core;

/// Makes a new table each time, or with a shared_name where TensorFlow has none of that name.
class MakeEmbedding final : public OpKernel {
 public:
  explicit MakeEmbedding(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string optimizer;
    std::int64_t max_capacity = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("optimizer", &optimizer));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("capacity", &options_.capacity));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_capacity", &max_capacity));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("container", &container_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shared_name", &shared_name_));
    if (max_capacity >= 0) options_.max_capacity = max_capacity;
    optimizer_ = *find_named(kOptimizers, optimizer);  // the attribute takes no other names
    OP_REQUIRES_OK(ctx, read_columns(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& fallback = ctx->input(0);
    const Tensor& parameters = ctx->input(1);
    const std::int64_t dim = options_.columns.front().elements();
    OP_REQUIRES(ctx, fallback.dims() == 1 && (fallback.NumElements() == 0 || fallback.NumElements() == dim),
                absl::InvalidArgumentError("default_row has the shape " + fallback.shape().DebugString() +
                                           ", expected [" + std::to_string(dim) + "], or [0] for zeros"));
    const auto columns = static_cast<std::int64_t>(options_.columns.size());
    OP_REQUIRES(ctx, parameters.shape() == TensorShape({columns, 2}),
                absl::InvalidArgumentError("parameters have the shape " + parameters.shape().DebugString() +
                                           ", expected [" + std::to_string(columns) + ", 2]"));
    const auto make = [&](EmbeddingRows** made) {
      return guarded([&] {
        TableOptions options = options_;
        for (std::int64_t i = 0; i < columns; ++i) {
          Column& column = options.columns[i];
          if (!column.initializer) continue;
          column.initializer->first = parameters.matrix<double>()(i, 0);
          column.initializer->second = parameters.matrix<double>()(i, 1);
        }
        *made = new EmbeddingRows(Table::make(options, make_context(ctx)), optimizer_, fallback);
      });
    };
    Tensor* handle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &handle));
    EmbeddingRows* made = nullptr;
    if (shared_name_.empty()) {
      OP_REQUIRES_OK(ctx, make(&made));
      handle->scalar<ResourceHandle>()() = ResourceHandle::MakeRefCountingHandle(made, ctx->device()->name());
      return;
    }
    OP_REQUIRES_OK(ctx, ctx->resource_manager()->LookupOrCreate<EmbeddingRows>(container_, shared_name_, &made, make));
    const core::ScopedUnref held(made);
    handle->scalar<ResourceHandle>()() = tensorflow::MakeResourceHandle<EmbeddingRows>(ctx, container_, shared_name_);
  }

 private:
  absl::Status read_columns(OpKernelConstruction* ctx) {
    DataType dtype;
    std::vector<std::string> names;
    std::vector<PartialTensorShape> shapes;
    std::vector<std::string> distributions;
    std::vector<std::int64_t> seeds;
    std::vector<std::string> constants;
    TF_RETURN_IF_ERROR(ctx->GetAttr("dtype", &dtype));
    TF_RETURN_IF_ERROR(ctx->GetAttr("columns", &names));
    TF_RETURN_IF_ERROR(ctx->GetAttr("shapes", &shapes));
    TF_RETURN_IF_ERROR(ctx->GetAttr("distributions", &distributions));
    TF_RETURN_IF_ERROR(ctx->GetAttr("seeds", &seeds));
    TF_RETURN_IF_ERROR(ctx->GetAttr("constants", &constants));
    const std::size_t count = 1 + state_columns(optimizer_);
    for (const std::size_t given : {names.size(), shapes.size(), distributions.size(), seeds.size(), constants.size()})
      if (given != count)
        return absl::InvalidArgumentError(std::to_string(given) + " columns were given, expected " +
                                          std::to_string(count) +
                                          " in each attribute, the weights' and the optimizer's");
    return guarded([&] {
      for (std::size_t i = 0; i < count; ++i) {
        Column column{names[i], i == 0 ? *from_tensorflow(dtype) : DType::kFloat32, {}, {}};
        TensorShape shape;
        if (!shapes[i].AsTensorShape(&shape) || (i == 0 && shape.dims() != 1))
          throw ShapeError("column " + names[i] + " has the shape " + shapes[i].DebugString() +
                           ", expected one whose extents are all known, and [dim] of the weights");
        for (const auto extent : shape.dim_sizes()) column.shape.push_back(extent);
        if (!distributions[i].empty()) {
          Initializer initializer;
          initializer.distribution = named(kDistributions, distributions[i]);
          initializer.seed = static_cast<std::uint64_t>(seeds[i]);
          if (constants[i].size() > initializer.constant.size())
            throw ShapeError("the constant of column " + names[i] + " is longer than an element");
          std::memcpy(initializer.constant.data(), constants[i].data(), constants[i].size());
          column.initializer = initializer;
        }
        options_.columns.push_back(std::move(column));
      }
    });
  }

  TableOptions options_;
  Optimizer optimizer_;
  std::string container_;
  std::string shared_name_;
};

using Held = core::RefCountPtr<EmbeddingRows>;

/// The rows whose handle is input 0.
absl::Status find_rows(OpKernelContext* ctx, Held* rows) {
  const TensorShape& shape = ctx->input(0).shape();
  if (!TensorShapeUtils::IsScalar(shape))
    return absl::InvalidArgumentError("embedding has the shape " + shape.DebugString() +
                                      ", expected one handle, of shape []");
  TF_RETURN_IF_ERROR(tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, 0), rows));
  const Device there = (*rows)->table()->context().device();
  if (there == device_of(ctx)) return absl::OkStatus();
  return absl::InvalidArgumentError("the rows of the embedding are on " + there.to_string() + ", and the op runs on " +
                                    device_of(ctx).to_string() + ": place the op with tf.device where the rows are");
}

absl::Status check_shape(const char* what, const Tensor& given, const TensorShape& expected) {
  if (given.shape() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(what) + " has the shape " + given.shape().DebugString() +
                                    ", expected " + expected.DebugString());
}

absl::Status check_dtype(const EmbeddingRows& rows, DataType given) {
  const DataType expected = to_tensorflow(rows.weights().dtype);
  if (given == expected) return absl::OkStatus();
  return absl::InvalidArgumentError("the op is of " + DataTypeString(given) + ", and the weights are " +
                                    DataTypeString(expected));
}

/// Attribute dim is for static shapes alone, and has to be true.
class DimKernel : public OpKernel {
 public:
  explicit DimKernel(OpKernelConstruction* ctx) : OpKernel(ctx) { OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_)); }

 protected:
  absl::Status find(OpKernelContext* ctx, Held* rows, DataType dtype) const {
    TF_RETURN_IF_ERROR(find_rows(ctx, rows));
    TF_RETURN_IF_ERROR(check_dtype(**rows, dtype));
    if ((*rows)->dim() == dim_) return absl::OkStatus();
    return absl::InvalidArgumentError("dim is " + std::to_string(dim_) + ", and rows have " +
                                      std::to_string((*rows)->dim()) + " weights");
  }
  absl::Status weights_shape(const TensorShape& ids, TensorShape* weights) const {
    if (ids.dims() >= TensorShape::MaxDimensions())
      return absl::InvalidArgumentError("ids have " + std::to_string(ids.dims()) + " dimensions, expected less than " +
                                        std::to_string(TensorShape::MaxDimensions()));
    *weights = ids;
    return weights->AddDimWithStatus(dim_);
  }

 private:
  std::int64_t dim_ = 0;
};

class LookUp final : public DimKernel {
 public:
  explicit LookUp(OpKernelConstruction* ctx) : DimKernel(ctx) { OP_REQUIRES_OK(ctx, ctx->GetAttr("insert", &insert_)); }
  void Compute(OpKernelContext* ctx) override {
    Held embedding;
    OP_REQUIRES_OK(ctx, find(ctx, &embedding, ctx->expected_output_dtype(0)));
    const Tensor& ids = ctx->input(1);
    TensorShape shape;
    OP_REQUIRES_OK(ctx, weights_shape(ids.shape(), &shape));
    Tensor* weights = nullptr;
    Tensor* rows = nullptr;
    Tensor* generation = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &weights));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, ids.shape(), &rows));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, TensorShape({}), &generation));
    OP_REQUIRES_OK(ctx, guarded([&] {
                     generation->scalar<std::int64_t>()() =
                         embedding->look_up({ids.data(), ids.NumElements(), sizeof(std::int64_t)}, weights->data(),
                                            static_cast<std::int64_t*>(rows->data()), insert_, stream_of(ctx));
                   }));
  }

 private:
  bool insert_ = false;
};

class Train final : public DimKernel {
 public:
  using DimKernel::DimKernel;
  void Compute(OpKernelContext* ctx) override {
    Held embedding;
    OP_REQUIRES_OK(ctx, find(ctx, &embedding, ctx->input_dtype(3)));
    const Tensor& rows = ctx->input(1);
    const Tensor& gradients = ctx->input(3);
    TensorShape shape;
    OP_REQUIRES_OK(ctx, weights_shape(rows.shape(), &shape));
    OP_REQUIRES_OK(ctx, check_shape("generation", ctx->input(2), TensorShape({})));
    OP_REQUIRES_OK(ctx, check_shape("gradients", gradients, shape));
    OP_REQUIRES_OK(ctx, check_shape("rate", ctx->input(4), TensorShape({})));
    OP_REQUIRES_OK(ctx, check_shape("schedule", ctx->input(5), TensorShape({})));
    Tensor* done = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({0}), &done));
    OP_REQUIRES_OK(ctx, guarded([&] {
                     const Gradients given{gradients.data(), *from_tensorflow(gradients.dtype()), nullptr, nullptr};
                     embedding->train(static_cast<const std::int64_t*>(rows.data()), rows.NumElements(),
                                      ctx->input(2).scalar<std::int64_t>()(), given,
                                      {ctx->input(4).scalar<double>()(), ctx->input(5).scalar<std::int64_t>()()},
                                      stream_of(ctx));
                   }));
  }
};

absl::Status set_optimizer(OpKernelContext* ctx) {
  Held embedding;
  TF_RETURN_IF_ERROR(find_rows(ctx, &embedding));
  TF_RETURN_IF_ERROR(check_shape("numbers", ctx->input(1), TensorShape({5})));
  TF_RETURN_IF_ERROR(check_shape("stochastic_rounding", ctx->input(2), TensorShape({})));
  TF_RETURN_IF_ERROR(check_shape("seed", ctx->input(3), TensorShape({})));
  TF_RETURN_IF_ERROR(check_shape("schedule", ctx->input(4), TensorShape({})));
  embedding->set_optimizer(ctx->input(1).flat<double>().data(), ctx->input(2).scalar<bool>()(),
                           ctx->input(3).scalar<std::uint64_t>()(), ctx->input(4).scalar<std::int64_t>()());
  return absl::OkStatus();
}

absl::Status count_steps(OpKernelContext* ctx) {
  Held embedding;
  TF_RETURN_IF_ERROR(find_rows(ctx, &embedding));
  Tensor* steps = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({}), &steps));
  steps->scalar<std::int64_t>()() = embedding->steps();
  return absl::OkStatus();
}

/// The shape of a column of so many rows.
TensorShape column_shape(const Column& column, std::int64_t rows) {
  TensorShape shape({rows});
  for (const std::int64_t extent : column.shape) shape.AddDim(extent);
  return shape;
}

/// The list "columns" that begins at that input or output has the table's dtypes.
absl::Status check_columns(const std::vector<Column>& columns, int given, const std::function<DataType(int)>& dtype) {
  if (given != static_cast<int>(columns.size()))
    return absl::InvalidArgumentError(std::to_string(given) + " columns were given, and the embedding has " +
                                      std::to_string(columns.size()));
  for (int i = 0; i < given; ++i) {
    const DataType expected = to_tensorflow(columns[i].dtype);
    if (dtype(i) != expected)
      return absl::InvalidArgumentError("the column " + columns[i].name + " was given as " + DataTypeString(dtype(i)) +
                                        ", expected " + DataTypeString(expected));
  }
  return absl::OkStatus();
}

absl::Status export_rows(OpKernelContext* ctx) {
  Held embedding;
  TF_RETURN_IF_ERROR(find_rows(ctx, &embedding));
  Table& table = *embedding->table();
  const std::vector<Column>& columns = table.options().columns;
  const int count = ctx->num_outputs() - 2;
  TF_RETURN_IF_ERROR(check_columns(columns, count, [&](int i) { return ctx->expected_output_dtype(1 + i); }));
  Tensor* steps = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(1 + count, TensorShape({}), &steps));
  steps->scalar<std::int64_t>()() = embedding->steps();
  std::int64_t size = 0;
  TF_RETURN_IF_ERROR(guarded([&] { size = table.size(stream_of(ctx)); }));
  for (std::int64_t room = size;; room = size + size / 4 + 1) {
    Tensor keys;
    std::vector<Tensor> values(count);
    std::vector<Read> reads;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_INT64, TensorShape({room}), &keys));
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(
          ctx->allocate_temp(to_tensorflow(columns[i].dtype), column_shape(columns[i], room), &values[i]));
      reads.push_back({.column = static_cast<std::size_t>(i), .values = values[i].data()});
    }
    const Export all{.keys = keys.data(), .reads = reads, .room = room, .stream = stream_of(ctx)};
    TF_RETURN_IF_ERROR(guarded([&] { size = table.export_items(all); }));
    if (size > room) continue;  // other threads insert meanwhile: with more room
    ctx->set_output(0, keys.Slice(0, size));
    for (int i = 0; i < count; ++i) ctx->set_output(1 + i, values[i].Slice(0, size));
    return absl::OkStatus();
  }
}

absl::Status import_rows(OpKernelContext* ctx) {
  Held embedding;
  TF_RETURN_IF_ERROR(find_rows(ctx, &embedding));
  const std::vector<Column>& columns = embedding->table()->options().columns;
  const int count = ctx->num_inputs() - 3;
  TF_RETURN_IF_ERROR(check_columns(columns, count, [&](int i) { return ctx->input_dtype(2 + i); }));
  const Tensor& keys = ctx->input(1);
  const Tensor& steps = ctx->input(2 + count);
  if (keys.dims() != 1)
    return absl::InvalidArgumentError("keys have the shape " + keys.shape().DebugString() + ", expected [n]");
  if (!TensorShapeUtils::IsScalar(steps.shape()) || steps.scalar<std::int64_t>()() < 0)
    return absl::InvalidArgumentError("steps are " + steps.DebugString() + ", expected one number, 0 or more");
  std::vector<Write> writes;
  for (int i = 0; i < count; ++i) {
    const Tensor& values = ctx->input(2 + i);
    TF_RETURN_IF_ERROR(check_shape(columns[i].name.c_str(), values, column_shape(columns[i], keys.NumElements())));
    writes.push_back({.column = static_cast<std::size_t>(i), .values = values.data()});
  }
  return guarded([&] {
    embedding->replace({keys.data(), keys.NumElements(), sizeof(std::int64_t)}, writes, steps.scalar<std::int64_t>()(),
                       stream_of(ctx));
  });
}

absl::Status register_rows(OpKernelContext* ctx) {
  Held embedding;
  TF_RETURN_IF_ERROR(find_rows(ctx, &embedding));
  TF_RETURN_IF_ERROR(check_shape("table_name", ctx->input(1), TensorShape({})));
  return guarded([&] { registry::add(ctx->input(1).scalar<tstring>()(), embedding->table()); });
}

void register_kernels() {
  register_on_both<MakeEmbedding>("GpuhashEmbedding", {"parameters", "embedding"});
  register_on_both<LookUp>("GpuhashEmbeddingLookup", {"embedding", "generation"});
  register_on_both<Train>("GpuhashEmbeddingTrain", {"embedding", "generation", "rate", "schedule"});
  register_on_both<FunctionKernel<set_optimizer>>("GpuhashEmbeddingSetOptimizer",
                                                  {"embedding", "numbers", "stochastic_rounding", "seed", "schedule"});
  register_on_both<FunctionKernel<count_steps>>("GpuhashEmbeddingSteps", {"embedding", "steps"});
  register_on_both<FunctionKernel<export_rows>>("GpuhashEmbeddingExport", {"embedding", "steps"});
  register_on_both<FunctionKernel<import_rows>>("GpuhashEmbeddingImport", {"embedding", "steps"});
  register_on_both<FunctionKernel<register_rows>>("GpuhashEmbeddingRegister", {"embedding", "table_name"});
}

// See ops.cc.
[[maybe_unused]] const bool registered = [] {
  const bool first = registry::claim("TensorFlow's kernels of embeddings");
  if (first) register_kernels();
  return first;
}();

}  // namespace
}  // namespace gpuhash::tensorflow_ops::embeddings
