#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <gpuhash/memory_range.hpp>
#include <gpuhash/requests.hpp>
#include <gpuhash/table.hpp>

namespace gpuhash {

/// Calls visit(memory) for all that a change reads, until one says true: then it does, too.
template <class Visit>
bool any_input(const Change& change, const TableOptions& options, Visit visit) {
  const std::int64_t count = change.keys.count;
  if (count == 0) return false;
  if (visit(MemoryRange{change.keys.data, count * change.keys.bytes})) return true;
  for (const Write& write : change.writes)
    if (visit(MemoryRange{write.values, (write.broadcast ? 1 : count) * options.column_bytes(write.column)}))
      return true;
  for (const Read& read : change.reads)
    if (read.fallback != nullptr &&
        visit(MemoryRange{read.fallback, (read.fallback_per_key ? count : 1) * options.column_bytes(read.column)}))
      return true;
  return false;
}

/// Changes of a table whose rows they write: of what they read besides, copies are made where it is the table's own
/// rows, as callers may have these as arrays. The copies lie in the order of their requests' streams.
class ApartChanges {
 public:
  using IsRows = std::function<bool(const MemoryRange&)>;
  using Follow = std::function<void(Stream)>;

  /// is_rows(memory): are some of these bytes the table's rows? follow(stream) is called before work on the stream.
  ApartChanges(Span<const Change> requests, const TableOptions& options, DeviceContext& context, const IsRows& is_rows,
               const Follow& follow);
  ApartChanges(const ApartChanges&) = delete;
  ApartChanges& operator=(const ApartChanges&) = delete;

  Span<const Change> get() const { return requests_; }

 private:
  std::vector<Change> requests_;
  std::vector<std::vector<Write>> writes_;
  std::vector<std::vector<Read>> reads_;
  std::vector<Allocation> memory_;
};

}  // namespace gpuhash
