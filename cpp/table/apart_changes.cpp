#include "table/apart_changes.hpp"

#include <cstddef>

namespace gpuhash {

ApartChanges::ApartChanges(Span<const Change> requests, const TableOptions& options, DeviceContext& context,
                           const IsRows& is_rows, const Follow& follow)
    : requests_(requests.begin(), requests.end()) {
  for (Change& request : requests_) {
    if (!any_input(request, options, is_rows)) continue;
    follow(request.stream);
    const std::int64_t count = request.keys.count;
    const auto apart = [&](const void* data, std::int64_t bytes) -> const void* {
      if (!is_rows({data, bytes})) return data;
      const auto length = static_cast<std::size_t>(bytes);
      void* const copy = memory_.emplace_back(context, length, request.stream).get();
      context.copy(copy, data, length, request.stream);
      return copy;
    };
    std::vector<Write>& writes = writes_.emplace_back(request.writes.begin(), request.writes.end());
    for (Write& write : writes)
      write.values = apart(write.values, (write.broadcast ? 1 : count) * options.column_bytes(write.column));
    std::vector<Read>& reads = reads_.emplace_back(request.reads.begin(), request.reads.end());
    for (Read& read : reads)
      if (read.fallback != nullptr)
        read.fallback = apart(read.fallback, (read.fallback_per_key ? count : 1) * options.column_bytes(read.column));
    request.keys.data = apart(request.keys.data, count * request.keys.bytes);
    request.writes = writes;
    request.reads = reads;
  }
}

}  // namespace gpuhash
