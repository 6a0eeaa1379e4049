#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include <gpuhash/memory_range.hpp>
#include <gpuhash/requests.hpp>
#include <gpuhash/table.hpp>

namespace gpuhash {

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
  Span<const Change> requests_;
  std::vector<Change> copied_;
  std::deque<std::vector<Write>> writes_;
  std::deque<std::vector<Read>> reads_;
  std::vector<Allocation> memory_;
};

}  // namespace gpuhash
