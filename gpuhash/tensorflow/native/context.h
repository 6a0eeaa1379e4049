// What the kernels hand to libgpuhash of TensorFlow's: its stream, its memory, its dtypes; and errors on the way back.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <gpuhash/device_context.hpp>
#include <gpuhash/dtype.hpp>
#include <gpuhash/error.hpp>
#include <gpuhash/platform.hpp>
#include <gpuhash/table.hpp>
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/logging.h"
#include "xla/stream_executor/stream.h"

namespace gpuhash::tensorflow_ops {

using tensorflow::Allocator;
using tensorflow::DataType;
using tensorflow::OpKernelContext;

/// Runs what may throw; TensorFlow knows statuses alone.
template <class Work>
absl::Status guarded(Work&& work) {
  try {
    work();
    return absl::OkStatus();
  } catch (const TableFullError& error) {
    return absl::ResourceExhaustedError(error.what());
  } catch (const OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(error.what());
  } catch (const PlatformError& error) {
    return absl::FailedPreconditionError(error.what());
  } catch (const std::invalid_argument& error) {
    return absl::InvalidArgumentError(error.what());
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

/// The stream of the op's device context; the host has none.
inline Stream stream_of(OpKernelContext* ctx) {
  auto* const device = ctx->op_device_context();
  if (device == nullptr || device->stream() == nullptr) return nullptr;
  return device->stream()->platform_specific_handle().stream;
}

inline Device device_of(OpKernelContext* ctx) {
  const auto* const accelerator = ctx->device()->tensorflow_accelerator_device_info();
  return accelerator == nullptr ? Device{"cpu", 0} : Device{"cuda", accelerator->gpu_id};
}

/// Makes work enqueued on `after` from now on wait for what was enqueued on `before`.
inline void order(DeviceContext& context, Stream before, Stream after) {
  if (before == after) return;
  const std::unique_ptr<Fence> fence = context.make_fence();
  fence->record(before);
  fence->wait(after);
}

/// The allocator of a GPU of TensorFlow's, which took nearly all of its memory. It hands memory out again as soon as it
/// is given back, in the order of TensorFlow's one stream. A table may be used from other streams, too, in PyTorch for
/// instance, and these have to wait for that one, and the reverse.
class TensorFlowMemory final : public MemoryResource {
 public:
  TensorFlowMemory(Allocator* allocator, Stream stream, std::shared_ptr<DeviceContext> device)
      : allocator_(allocator), stream_(stream), device_(std::move(device)) {}

  void* allocate(std::size_t bytes, Stream stream) override {
    order(*device_, stream_, stream);
    void* const data = allocator_->AllocateRaw(kAlignment, bytes);
    if (data == nullptr)
      throw OutOfMemoryError("TensorFlow's allocator " + allocator_->Name() + " has no " + std::to_string(bytes) +
                             " bytes");
    return data;
  }

  void deallocate(void* data, std::size_t, Stream stream) noexcept override {
    try {
      order(*device_, stream, stream_);
    } catch (const std::exception& error) {
      // Work on the memory may still be under way, and nothing tells when it ends.
      LOG(ERROR) << "gpuhash keeps memory from TensorFlow's allocator: " << error.what();
      return;
    }
    allocator_->DeallocateRaw(data);
  }

 private:
  static constexpr std::size_t kAlignment = 128;

  Allocator* const allocator_;  // the process's
  const Stream stream_;
  const std::shared_ptr<DeviceContext> device_;
};

/// A context on the op's device. On a GPU, memory is TensorFlow's. On the host it is libgpuhash's own, which asks for
/// huge pages, and TensorFlow's allocator is no pool there.
inline std::shared_ptr<DeviceContext> make_context(OpKernelContext* ctx) {
  const Device device = device_of(ctx);
  std::shared_ptr<DeviceContext> context = platform(device.platform).make_context(device.index, nullptr);
  if (device.platform == "cpu") return context;
  Allocator* const allocator = ctx->device()->GetAllocator(tensorflow::AllocatorAttributes());
  auto memory = std::make_shared<TensorFlowMemory>(allocator, stream_of(ctx), std::move(context));
  return platform(device.platform).make_context(device.index, std::move(memory));
}

struct DTypePair {
  DataType tensorflow;
  DType gpuhash;
};

inline constexpr DTypePair kDTypes[] = {{tensorflow::DT_BOOL, DType::kBool},
                                        {tensorflow::DT_INT8, DType::kInt8},
                                        {tensorflow::DT_INT16, DType::kInt16},
                                        {tensorflow::DT_INT32, DType::kInt32},
                                        {tensorflow::DT_INT64, DType::kInt64},
                                        {tensorflow::DT_UINT8, DType::kUInt8},
                                        {tensorflow::DT_UINT16, DType::kUInt16},
                                        {tensorflow::DT_UINT32, DType::kUInt32},
                                        {tensorflow::DT_UINT64, DType::kUInt64},
                                        {tensorflow::DT_HALF, DType::kFloat16},
                                        {tensorflow::DT_BFLOAT16, DType::kBFloat16},
                                        {tensorflow::DT_FLOAT, DType::kFloat32},
                                        {tensorflow::DT_DOUBLE, DType::kFloat64},
                                        {tensorflow::DT_COMPLEX64, DType::kComplex64},
                                        {tensorflow::DT_COMPLEX128, DType::kComplex128}};

/// nullopt for what tables do not take, such as strings.
inline std::optional<DType> from_tensorflow(DataType dtype) {
  for (const DTypePair& pair : kDTypes)
    if (pair.tensorflow == dtype) return pair.gpuhash;
  return std::nullopt;
}

inline DataType to_tensorflow(DType dtype) {
  for (const DTypePair& pair : kDTypes)
    if (pair.gpuhash == dtype) return pair.tensorflow;
  return tensorflow::DT_INVALID;
}

}  // namespace gpuhash::tensorflow_ops
