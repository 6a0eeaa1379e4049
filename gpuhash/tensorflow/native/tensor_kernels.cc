// The kernels of named tensors, the same for CPU and GPU.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <gpuhash/registry.hpp>
#include <gpuhash/tensor_store.hpp>
#include "context.h"
#include "kernel_registration.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace gpuhash::tensorflow_ops::tensors {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;

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

// See ops.cc.
[[maybe_unused]] const bool registered = [] {
  const bool first = registry::claim("TensorFlow's kernels of named tensors");
  if (!first) return first;
  register_on_both<FunctionKernel<save_tensor>>("GpuhashSaveTensor", {"handle"});
  register_on_both<GetTensor>("GpuhashGetTensor", {"handle"});
  register_on_both<FunctionKernel<delete_tensor>>("GpuhashDeleteTensor", {"handle", "deleted"});
  return first;
}();

}  // namespace
}  // namespace gpuhash::tensorflow_ops::tensors
