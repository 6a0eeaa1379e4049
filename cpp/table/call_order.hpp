#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include <gpuhash/device_context.hpp>
#include <gpuhash/error.hpp>
#include "core/float_mode.hpp"
#include "core/fork_safe_mutex.hpp"

namespace gpuhash {

/// Puts the calls of one table one after the other, whatever their threads and streams: a lock for what the host does,
/// a fence for what the device does. Knows what a call has to know of those before it: on which stream the last one
/// was, whether one was captured into a CUDA graph, and whether a change has failed midway.
class CallOrder {
 public:
  class Turn;

  /// The context has to outlive it.
  explicit CallOrder(DeviceContext& context) : context_(context), fence_(context.make_fence()) {}

  /// The next call follows what has been enqueued on this stream so far. For a table that no caller has yet.
  void record(Stream stream) { fence_->record(stream); }
  /// A stream that is there for sure and follows the work of all calls: those of callers may have been destroyed, and
  /// their addresses given to others.
  Stream stream_after_all();
  /// For a look at what the host alone keeps, which is no call.
  [[nodiscard]] std::unique_lock<ForkSafeMutex> lock() const { return std::unique_lock(mutex_); }
  /// Does this thread hold the lock, or the one that it works for?
  bool is_held_here() const noexcept { return mutex_.is_held_here(); }
  /// A CUDA graph may be replayed on the table's memory. To be asked under the lock.
  bool captured() const { return captured_; }
  /// Somebody will capture one without asking. Likewise.
  void expect_capture() { captured_ = true; }

 private:
  DeviceContext& context_;
  std::unique_ptr<Fence> fence_;  // recorded after the last call's work
  mutable ForkSafeMutex mutex_;

  std::optional<std::uint64_t> last_stream_;  // whose work the fence is known to follow: its id
  bool unfenced_ = false;                     // there is work that the fence does not follow
  bool captured_ = false;
  bool broken_ = false;  // a change has failed midway: only what makes all slots anew makes the table good
};

/// One call's turn at the table: holds the lock, makes the stream wait for the call before, and leaves a fence for the
/// call after. All that a call computes on this thread it computes in the default mode of floats.
class CallOrder::Turn {
 public:
  enum class For { kAnyCall, kClear };

  /// Throws CudaError where the table is broken, unless the call is to clear it.
  Turn(CallOrder& order, Stream stream, For call = For::kAnyCall);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// The call's work runs when a CUDA graph is replayed: later, perhaps often, perhaps never.
  bool capturing() const { return capturing_; }

  /// Where the call's work goes now.
  Stream stream() const { return stream_; }
  /// The call's work goes on in the order of this stream. Throws ShapeError where another one is being captured.
  void go_on(Stream stream);

  /// Runs what changes the slots. Where CUDA fails between two kernels of it, nobody knows what the table holds; before
  /// the first one, it is as it was.
  template <class Work>
  void change(Work work) const {
    const std::uint64_t launched = launched_kernels();
    try {
      work();
    } catch (const CudaError&) {
      if (!capturing_ && launched_kernels() != launched) order_.broken_ = true;
      throw;
    }
  }

  /// Runs what makes all slots anew, whatever they held: a broken table is good afterwards.
  template <class Work>
  void remake(Work work) const {
    try {
      work();
    } catch (const CudaError&) {
      if (!capturing_) order_.broken_ = true;
      throw;
    }
    if (!capturing_) order_.broken_ = false;
  }

 private:
  static std::unique_lock<ForkSafeMutex> lock(const CallOrder& order);

  DefaultFloatMode float_mode_;
  CallOrder& order_;
  std::unique_lock<ForkSafeMutex> lock_;
  Stream stream_;
  bool capturing_;
};

}  // namespace gpuhash
