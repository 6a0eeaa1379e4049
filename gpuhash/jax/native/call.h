// What the handlers hand to libgpuhash of XLA's: its stream, its memory, its dtypes; and errors on the way back.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <gpuhash/device_context.hpp>
#include <gpuhash/dtype.hpp>
#include <gpuhash/error.hpp>
#include <gpuhash/platform.hpp>
#include "xla/ffi/api/ffi.h"

namespace gpuhash::jax_ops {

namespace ffi = xla::ffi;
using Operand = ffi::AnyBuffer;
using Output = ffi::Result<ffi::AnyBuffer>;

/// Where a call runs.
struct Place {
  const XLA_FFI_Api* api;
  XLA_FFI_ExecutionContext* call;
  Device device;
  Stream stream;
};

// What a handler's binding names to be given a Place, on either platform.
struct OnHost {};
struct OnGpu {};

/// A state that cannot be used any more.
class StateError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What XLA is told of an exception.
struct Failure {
  ffi::ErrorCode code;
  std::string message;

  ffi::Error to_error() const { return {code, message}; }
};

/// Runs what may throw; XLA knows codes and messages alone.
template <class Work>
std::optional<Failure> failure_of(Work&& work) {
  try {
    work();
    return std::nullopt;
  } catch (const TableFullError& error) {
    return Failure{ffi::ErrorCode::kResourceExhausted, error.what()};
  } catch (const OutOfMemoryError& error) {
    return Failure{ffi::ErrorCode::kResourceExhausted, error.what()};
  } catch (const StateError& error) {
    return Failure{ffi::ErrorCode::kFailedPrecondition, error.what()};
  } catch (const PlatformError& error) {
    return Failure{ffi::ErrorCode::kFailedPrecondition, error.what()};
  } catch (const std::invalid_argument& error) {
    return Failure{ffi::ErrorCode::kInvalidArgument, error.what()};
  } catch (const std::exception& error) {
    return Failure{ffi::ErrorCode::kInternal, error.what()};
  }
}

template <class Work>
ffi::Error guarded(Work&& work) {
  const std::optional<Failure> failure = failure_of(std::forward<Work>(work));
  return failure ? failure->to_error() : ffi::Error::Success();
}

/// XLA's memory on a GPU, for the time of one call: it is given out again in the order of the call's stream.
class XlaMemory final : public MemoryResource {
 public:
  explicit XlaMemory(const Place& place) : api_(place.api), call_(place.call) {}

  void* allocate(std::size_t bytes, Stream) override {
    XLA_FFI_DeviceMemory_Allocate_Args args{};
    args.struct_size = XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE;
    args.ctx = call_;
    args.size = bytes;
    args.alignment = kMostAlignment;
    XLA_FFI_Error* const error = api_->XLA_FFI_DeviceMemory_Allocate(&args);
    if (error != nullptr || args.data == nullptr)
      throw OutOfMemoryError("XLA's allocator has no " + std::to_string(bytes) + " bytes" + reason(error));
    if (reinterpret_cast<std::uintptr_t>(args.data) % kAlignment == 0) return args.data;
    deallocate(args.data, bytes, nullptr);
    throw std::runtime_error("XLA's allocator gave memory that is not aligned to 128 bytes");
  }

  void deallocate(void* data, std::size_t bytes, Stream) noexcept override {
    XLA_FFI_DeviceMemory_Free_Args args{};
    args.struct_size = XLA_FFI_DeviceMemory_Free_Args_STRUCT_SIZE;
    args.ctx = call_;
    args.size = bytes;
    args.data = data;
    if (XLA_FFI_Error* const error = api_->XLA_FFI_DeviceMemory_Free(&args))
      ffi::internal::DestroyError(api_, error);  // the memory stays XLA's, who knows of it
  }

 private:
  static constexpr std::size_t kAlignment = 128;
  static constexpr std::size_t kMostAlignment = 16;  // that may be asked for; XLA's memory on GPUs has 256

  std::string reason(XLA_FFI_Error* error) const {
    if (error == nullptr) return "";
    std::string text = std::string(": ") + ffi::internal::GetErrorMessage(api_, error);
    ffi::internal::DestroyError(api_, error);
    return text;
  }

  const XLA_FFI_Api* const api_;
  XLA_FFI_ExecutionContext* const call_;
};

/// A context for one call that has no table. On a GPU, memory is XLA's. On the host it is libgpuhash's own, as XLA
/// gives calls none there.
inline std::shared_ptr<DeviceContext> make_context(const Place& place) {
  std::shared_ptr<MemoryResource> memory;
  if (place.device.platform != "cpu") memory = std::make_shared<XlaMemory>(place);
  return platform(place.device.platform).make_context(place.device.index, std::move(memory));
}

struct DTypePair {
  ffi::DataType xla;
  DType gpuhash;
};

inline constexpr DTypePair kDTypes[] = {
    {ffi::PRED, DType::kBool},   {ffi::S8, DType::kInt8},       {ffi::S16, DType::kInt16},
    {ffi::S32, DType::kInt32},   {ffi::S64, DType::kInt64},     {ffi::U8, DType::kUInt8},
    {ffi::U16, DType::kUInt16},  {ffi::U32, DType::kUInt32},    {ffi::U64, DType::kUInt64},
    {ffi::F16, DType::kFloat16}, {ffi::BF16, DType::kBFloat16}, {ffi::F32, DType::kFloat32},
    {ffi::F64, DType::kFloat64}, {ffi::C64, DType::kComplex64}, {ffi::C128, DType::kComplex128}};

/// ShapeError unless the array has this dtype and as many elements. `column`: whose role it has, where it has a name.
inline void check_array(const Operand& array, const char* role, DType dtype, std::int64_t elements,
                        std::string_view column = {}) {
  for (const DTypePair& pair : kDTypes) {
    if (pair.xla != array.element_type() || pair.gpuhash != dtype) continue;
    if (static_cast<std::int64_t>(array.element_count()) == elements) return;
    break;
  }
  throw ShapeError("the " + std::string(role) + (column.empty() ? "" : " of " + std::string(column)) + " are " +
                   std::to_string(array.element_count()) +
                   " elements that are not as the program's table has them, expected " + std::to_string(elements) +
                   " of " + std::string(name(dtype)) + ": give each compiled program tables of one kind");
}

inline DType dtype_of(const Operand& array) {
  for (const DTypePair& pair : kDTypes)
    if (pair.xla == array.element_type()) return pair.gpuhash;
  throw DTypeError("an array of a dtype that tables do not take was given");
}

/// An output of 64-bit integers. Without 64-bit mode, where XLA's programs have none, it is one of pairs of 32-bit
/// integers, the lower half first, and the program takes that one.
class WideOutput {
 public:
  WideOutput(Output output, std::int64_t count, const char* role)
      : data_(static_cast<std::int64_t*>(output->untyped_data())), narrow_(output->element_type() != ffi::S64) {
    if (static_cast<std::int64_t>(output->size_bytes()) != count * static_cast<std::int64_t>(sizeof(std::int64_t)))
      throw ShapeError("the output of " + std::string(role) + " has " + std::to_string(output->size_bytes()) +
                       " bytes, expected " + std::to_string(count) + " integers of 8 bytes");
  }

  std::int64_t* data() const { return data_; }
  /// No integer that is written may be larger than this.
  void check_bound(std::int64_t largest) const {
    if (narrow_ && largest > INT32_MAX)
      throw ShapeError("there may be numbers up to " + std::to_string(largest) +
                       ", and without 64-bit mode JAX has none beyond 2^31 - 1: set jax_enable_x64");
  }

 private:
  std::int64_t* data_;
  bool narrow_;
};

}  // namespace gpuhash::jax_ops

namespace xla::ffi {

template <>
struct CtxDecoding<gpuhash::jax_ops::OnHost> {
  using Type = gpuhash::jax_ops::Place;
  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* call, DiagnosticEngine&) {
    return Type{api, call, gpuhash::Device{"cpu", 0}, nullptr};
  }
};

template <>
struct CtxDecoding<gpuhash::jax_ops::OnGpu> {
  using Type = gpuhash::jax_ops::Place;
  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* call,
                                    DiagnosticEngine& diagnostic) {
    const auto stream = CtxDecoding<PlatformStream<void*>>::Decode(api, call, diagnostic);
    const auto index = CtxDecoding<DeviceOrdinal>::Decode(api, call, diagnostic);
    if (!stream || !index) return std::nullopt;
    return Type{api, call, gpuhash::Device{"cuda", *index}, *stream};
  }
};

}  // namespace xla::ffi

/// One handler for the host and one for GPUs: gpuhash_jax_NAME_cpu and gpuhash_jax_NAME_cuda. XLA does not put their
/// calls into command buffers, which are replayed without asking a handler: a table may have moved or gone.
#define GPUHASH_JAX_HANDLER(name, function, bind)                                                      \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(gpuhash_jax_##name##_cpu, function, bind<gpuhash::jax_ops::OnHost>()); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(gpuhash_jax_##name##_cuda, function, bind<gpuhash::jax_ops::OnGpu>())

/// The same, and gpuhash_jax_NAME_fixed_cpu and _cuda for tables that stay where they are (Table::fix_in_place()) and
/// live as long as the program. Of these a command buffer may keep the addresses, as each run does the same.
#define GPUHASH_JAX_TABLE_HANDLER(name, function, bind)                                                      \
  GPUHASH_JAX_HANDLER(name, function, bind);                                                                 \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(gpuhash_jax_##name##_fixed_cpu, function, bind<gpuhash::jax_ops::OnHost>()); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(gpuhash_jax_##name##_fixed_cuda, function, bind<gpuhash::jax_ops::OnGpu>(),  \
                                {xla::ffi::Traits::kCmdBufferCompatible})
