#include "table/apart_changes.hpp"

#include <algorithm>
#include <cstddef>

namespace gpuhash {
namespace {

MemoryRange memory_of(const KeyBatch& keys) { return {keys.data, keys.count * keys.bytes}; }

/// `one`: a single value for all keys.
MemoryRange memory_of(const KeyBatch& keys, const void* values, bool one, std::int64_t bytes) {
  return {values, one ? bytes : keys.count * bytes};
}

MemoryRange memory_of(const KeyBatch& keys, const Write& write, const TableOptions& options) {
  return memory_of(keys, write.values, write.broadcast, options.column_bytes(write.column));
}

MemoryRange fallback_of(const KeyBatch& keys, const Read& read, const TableOptions& options) {
  if (read.fallback == nullptr) return {};
  return memory_of(keys, read.fallback, !read.fallback_per_key, options.column_bytes(read.column));
}

}  // namespace

ApartChanges::ApartChanges(Span<const Change> requests, const TableOptions& options, DeviceContext& context,
                           const IsRows& is_rows, const Follow& follow)
    : requests_(requests) {
  const auto reads_rows = [&](const Change& request) {
    const KeyBatch& keys = request.keys;
    return keys.count != 0 &&
           (is_rows(memory_of(keys)) ||
            std::ranges::any_of(request.writes,
                                [&](const Write& write) { return is_rows(memory_of(keys, write, options)); }) ||
            std::ranges::any_of(request.reads,
                                [&](const Read& read) { return is_rows(fallback_of(keys, read, options)); }));
  };
  if (std::ranges::none_of(requests, reads_rows)) return;
  copied_.assign(requests.begin(), requests.end());
  for (Change& request : copied_) {
    if (!reads_rows(request)) continue;
    follow(request.stream);
    const auto apart = [&](const MemoryRange& memory) -> const void* {
      if (!is_rows(memory)) return memory.data;
      const auto bytes = static_cast<std::size_t>(memory.bytes);
      void* const copy = memory_.emplace_back(context, bytes, request.stream).get();
      context.copy(copy, memory.data, bytes, request.stream);
      return copy;
    };
    std::vector<Write>& writes = writes_.emplace_back(request.writes.begin(), request.writes.end());
    for (Write& write : writes) write.values = apart(memory_of(request.keys, write, options));
    std::vector<Read>& reads = reads_.emplace_back(request.reads.begin(), request.reads.end());
    for (Read& read : reads)
      if (read.fallback != nullptr) read.fallback = apart(fallback_of(request.keys, read, options));
    request.keys.data = apart(memory_of(request.keys));
    request.writes = writes;
    request.reads = reads;
  }
  requests_ = copied_;
}

}  // namespace gpuhash
