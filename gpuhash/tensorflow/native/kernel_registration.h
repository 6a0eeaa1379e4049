// How kernels are made and registered.
#pragma once

#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace gpuhash::tensorflow_ops {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::register_kernel::Name;

/// A kernel that is one function of its context.
template <absl::Status (*kCompute)(OpKernelContext*)>
class FunctionKernel final : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, kCompute(ctx)); }
};

template <class Kernel>
void register_kernel(tensorflow::KernelDefBuilder& builder) {
  const tensorflow::kernel_factory::OpKernelRegistrar registrar(
      builder.Build(), "gpuhash", [](OpKernelConstruction* ctx) -> OpKernel* { return new Kernel(ctx); });
}

/// For both devices; handles, names and the like are on the host for both.
template <class Kernel>
void register_on_both(const char* op, const std::vector<const char*>& on_host) {
  for (const char* device : {tensorflow::DEVICE_CPU, tensorflow::DEVICE_GPU}) {
    Name builder(op);
    builder.Device(device);
    if (device == tensorflow::DEVICE_GPU)
      for (const char* argument : on_host) builder.HostMemory(argument);
    register_kernel<Kernel>(builder);
  }
}

}  // namespace gpuhash::tensorflow_ops
