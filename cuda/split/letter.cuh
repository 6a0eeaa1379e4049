#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <exception>
#include <tuple>

#include <gpuhash/device_context.hpp>
#include "cuda/mailbox.hpp"
#include "table/splitter.hpp"

/// How a kernel tells the host what it has counted, by way of a mailbox.
namespace gpuhash::cuda {

/// Tells the host what has been counted. One warp calls it.
__device__ __forceinline__ void send_letter(CountsMailbox::Letter* letter, std::uint64_t number, int size,
                                            const std::int64_t* counts) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x % 32); i < size; i += 32) letter->counts[i] = counts[i];
  __threadfence_system();
  __syncwarp();
  if (threadIdx.x % 32 == 0) *static_cast<volatile std::uint64_t*>(&letter->number) = number;
}

/// A letter on its way, which must not come when the mailbox has gone.
class ExpectedLetter {
 public:
  ExpectedLetter(DeviceContext& context, CountsMailbox& mailbox, Stream stream) : context_(context), stream_(stream) {
    std::tie(letter_, number_) = mailbox.next(context);
  }
  ExpectedLetter(const ExpectedLetter&) = delete;
  ExpectedLetter& operator=(const ExpectedLetter&) = delete;
  ~ExpectedLetter() {
    if (!on_its_way_) return;
    try {
      context_.synchronize(stream_);
    } catch (const std::exception&) {
      report_ignored_error("giving up a batch whose keys are being counted");
    }
  }

  /// To be called before the kernel that sends it is launched.
  CountsMailbox::Letter* expect() {
    on_its_way_ = true;
    return letter_;
  }
  std::uint64_t number() const { return number_; }

  const std::int64_t* wait() {
    on_its_way_ = false;
    wait_for_number(context_, letter_->number, number_, stream_, "counting a batch's keys");
    return letter_->counts;
  }

 private:
  DeviceContext& context_;
  Stream stream_;
  CountsMailbox::Letter* letter_ = nullptr;
  std::uint64_t number_ = 0;
  bool on_its_way_ = false;
};

}  // namespace gpuhash::cuda
