#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gpuhash/device_context.hpp>
#include <gpuhash/dtype.hpp>
#include <gpuhash/export.hpp>

namespace gpuhash {

/// A dense, row-major tensor somewhere in this process's memory.
struct GPUHASH_API StoredTensor {
  std::optional<DType> dtype;  // nullopt: one that only `native` knows, such as TensorFlow's strings
  std::vector<std::int64_t> shape;
  Device device;
  /// The first element (null if there are none); the last to let go of it gives the memory back.
  std::shared_ptr<void> memory;
  Stream stream = nullptr;             // whose work filled the memory, and in whose order it is given back
  std::shared_ptr<const void> native;  // the framework's own object, if it is to be handed out again as it is
  std::string framework;  // of `native`: "tensorflow" (a tensorflow::Tensor), "python" (a PyObject); else empty
  bool readonly = false;  // its owner counts on nobody writing
};

/// The named tensors of this process, shared by all libraries and Python as the named tables are
/// (<gpuhash/registry.hpp>).
///
/// A stream that is being captured into a CUDA graph neither waits nor is waited for: its work runs later.
namespace tensor_store {

/// A tensor in the store, with the point in its stream's work at which it was put there.
class GPUHASH_API Entry {
 public:
  explicit Entry(StoredTensor tensor);

  /// As it was put. `memory` taken from here is in the order of nobody's stream.
  const StoredTensor& tensor() const noexcept { return tensor_; }
  const std::shared_ptr<DeviceContext>& context() const noexcept { return context_; }
  /// Work that is enqueued on `stream` from now on sees the tensor as its producer's stream left it at put().
  void wait(Stream stream) const;
  /// wait(), and the tensor for use on `stream`; see get().
  StoredTensor lend(Stream stream) const;

 private:
  StoredTensor tensor_;
  std::shared_ptr<DeviceContext> context_;
  std::unique_ptr<Fence> filled_;  // null where the producer's stream was being captured
  std::uint64_t filled_by_ = 0;    // that stream's id
};

/// Holds the tensor under the name, in the place of what had it before. PlatformError where its device is none of this
/// build or machine. The host does not wait.
GPUHASH_API void put(const std::string& name, StoredTensor tensor);
/// nullopt where there is none. Work that is enqueued on `stream` from now on sees the tensor as its producer's stream
/// left it at put(); when the last holder of the returned `memory` lets go, the producer's stream waits for what was
/// enqueued on `stream` until then. The host does not wait.
GPUHASH_API std::optional<StoredTensor> get(const std::string& name, Stream stream);
/// Null where there is none. For those who have to look at the tensor before they know what to do with it.
GPUHASH_API std::shared_ptr<const Entry> find(const std::string& name);
/// False where there was none.
GPUHASH_API bool remove(const std::string& name);
/// In ascending order.
GPUHASH_API std::vector<std::string> names();

}  // namespace tensor_store
}  // namespace gpuhash
