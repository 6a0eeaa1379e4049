#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <gpuhash/table.hpp>
#include "core/fork_safe_mutex.hpp"
#include "table/hash_table.hpp"
#include "table/wide_keys.hpp"

namespace gpuhash {

/// A table whose keys have more bytes than a slot: around an inner one of 64-bit fingerprints, in whose rows the keys
/// lie, each before its values. Whoever finds a fingerprint compares the whole key.
///
/// Of keys that share a fingerprint, one has it, and the others have the next ones that are free. So a key lies under
/// one of its first `attempts_` fingerprints, whatever was erased among them; nearly always that is 1.
///
/// Insertions wait, as the host has to hear whether all keys are there, and whether two new ones share a fingerprint.
class WideKeyTable final : public Table {
 public:
  WideKeyTable(const TableOptions& options, std::shared_ptr<DeviceContext> context);

  const TableOptions& options() const override { return options_; }
  DeviceContext& context() const override { return *context_; }
  std::uint64_t seed() const override { return inner_->seed(); }

  std::int64_t size(Stream stream) override { return inner_->size(stream); }
  std::int64_t capacity() const override { return inner_->capacity(); }
  std::int64_t nbytes() const override { return inner_->nbytes(); }
  double max_load_factor() const override { return inner_->max_load_factor(); }
  void set_max_load_factor(double factor) override { inner_->set_max_load_factor(factor); }

  using Table::change;
  using Table::erase;
  using Table::look_up;
  std::int64_t look_up(Span<const Lookup> requests) override;
  void change(Span<const Change> requests) override;
  std::int64_t erase(Span<const Erasure> requests) override;
  std::int64_t export_items(const Export& request) override;
  void restore_rows(const KeyBatch& keys, const std::int64_t* rows, Stream stream) override;
  void make_room(const KeyBatch& keys, bool expect_insertion, Stream stream) override;
  void forget_room() override;
  /// Never: make_room() also takes the memory that the insertion needs beside the table's.
  bool has_room(std::int64_t) const override { return false; }
  void clear(Stream stream) override;
  void reserve(std::int64_t keys, Stream stream) override;
  void rehash(std::int64_t slots, bool compact_rows, Stream stream) override;
  [[noreturn]] void fix_in_place(Stream stream) override;
  RowStorage row_storage(Stream stream) override;
  void read_rows(const std::int64_t* rows, std::int64_t count, Span<const Read> reads, Stream stream) override;
  void pool_rows(const std::int64_t* rows, std::int64_t count, const Bags& bags, const Read& out,
                 Stream stream) override;
  void train(const std::int64_t* rows, std::int64_t count, const Gradients& gradients,
             const std::vector<std::size_t>& columns, const OptimizerStep& step, Stream stream) override;
  bool overlaps_rows(const MemoryRange& memory) const override { return inner_->overlaps_rows(memory); }
  bool is_in_call_here() const noexcept override { return mutex_.is_held_here() || inner_->is_in_call_here(); }
  Constants& constants() override { return inner_->constants(); }
  std::shared_ptr<Table> clone(std::shared_ptr<DeviceContext> context, Stream stream) override;

 private:
  using Inner = HashTable<std::uint64_t, std::uint64_t>;

  /// The keys of a batch in the inner table.
  struct Placed {
    Allocation slots;  // [n], uint64
    Allocation rows;   // [n], int64: negative for absent keys
    std::int64_t absent = 0;
    Allocation digests;  // [n], Uint128: what initial rows are drawn from, if any are

    KeyBatch keys(std::int64_t from, std::int64_t count) const {
      return {slots.as<std::uint64_t>() + from, count, sizeof(std::uint64_t)};
    }
  };

  /// Where the keys of the next insertion go, of so many at this address and in the order of this stream.
  struct Expected {
    KeyBatch keys;
    Stream stream;
    Placed placed;

    bool is_for(const KeyBatch& batch, Stream its_stream) const {
      return batch.data == keys.data && batch.count == keys.count && its_stream == stream;
    }
  };

  WideKeyTable(const WideKeyTable& other, std::shared_ptr<DeviceContext> context, std::shared_ptr<Table> inner);

  std::unique_lock<ForkSafeMutex> lock() const;
  std::unique_lock<ForkSafeMutex> lock_for_change();
  void forget();
  const WideKeys& wide_keys() const { return *context_->executors().wide_keys; }
  void search(const KeyBatch& keys, Search search, std::int64_t* rows, std::uint64_t* slots, Span<const Read> reads,
              Stream stream);
  std::int64_t find_in(const Lookup& request);
  Placed place(const KeyBatch& keys, Stream stream);
  Placed find_slots(const KeyBatch& keys, Stream stream);
  bool part_absent(const KeyBatch& keys, const Placed& placed, Stream stream);
  void note_attempts(std::uint64_t attempts);
  void change_placed(Span<const Change> requests, const Placed& placed);
  void make_step(const ChainStep* step, Stream stream);

  TableOptions options_;
  std::shared_ptr<DeviceContext> context_;
  std::shared_ptr<Inner> inner_;
  Fingerprints prints_;
  PlacedColumns columns_;    // of the inner table
  std::int64_t key_offset_;  // in each row, in bytes
  bool draws_ = false;       // initial rows of random numbers
  mutable ForkSafeMutex mutex_;
  std::optional<Expected> expected_;  // until the next change of the keys

  std::uint64_t attempts_ = 1;           // the most that a key has taken to find its slot
  std::uint64_t captured_attempts_ = 0;  // those that a captured CUDA graph makes; 0: there is none
};

}  // namespace gpuhash
