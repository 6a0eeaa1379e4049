// A custom call of XLA that does nothing: what a call costs before it has any work.
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error nothing(ffi::AnyBuffer, ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>, ffi::Result<ffi::AnyBuffer>) {
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    gpuhash_benchmark_nothing, nothing,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
