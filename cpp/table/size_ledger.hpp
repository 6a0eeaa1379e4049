#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <gpuhash/device_context.hpp>
#include "shared/layout.hpp"

namespace gpuhash {

/// What a table knows of its size without waiting for the device. Who inserts says how many keys there may be
/// afterwards; who looks at the counters makes that bound exact. Knows numbers alone, no slots. Used under the table's
/// lock.
class SizeLedger {
 public:
  /// There are at most so many keys, as long as is_sure().
  std::int64_t bound() const { return bound_; }
  /// The largest bound since the last rebuild.
  std::int64_t peak() const { return peak_; }
  /// False: a CUDA graph that inserts may be replayed, and nobody tells of it.
  bool is_sure() const { return !replays_insert_; }
  /// Most keys of the last insertions were there already.
  bool expects_present() const { return expects_present_; }
  /// Nothing was inserted since the slots were cleared.
  bool is_pristine() const { return is_pristine_; }
  /// The next insertion is to rebuild the table.
  bool is_worn() const { return is_worn_; }
  /// Filter bits that the last rebuild left.
  std::uint64_t fresh_filter_bits() const { return fresh_filter_bits_; }
  /// Do so many more keys stay within the limit, with nothing else to see to before they are inserted?
  bool has_room(std::int64_t keys, std::int64_t limit) const {
    return is_sure() && !is_worn_ && bound_ + keys <= limit;
  }

  // ---- What the table does ----

  /// There may be up to `size` keys from now on.
  void expect(std::int64_t size);
  /// Likewise; and what the device was asked for tells nothing of that.
  void expect_anew(std::int64_t size);
  /// None of the keys beyond `bound` that were expected is in yet.
  void retract(std::int64_t bound);
  /// An insertion brings `keys` keys, some of which may be there.
  void offer(std::int64_t keys) { offered_ += keys; }
  /// Of a batch of `keys` keys, `added` were counted as new.
  void note_new(std::int64_t added, std::int64_t keys) { expects_present_ = 2 * added < keys; }
  /// Slots are about to be written.
  void note_change() { is_pristine_ = false; }
  /// An insertion was captured into a CUDA graph.
  void note_captured_insertion() { replays_insert_ = true; }
  void note_cleared();
  void note_rebuilt(std::uint64_t filter_bits);
  void set_worn(bool is_worn) { is_worn_ = is_worn; }
  /// The table is a copy of another one, of `size` keys.
  void note_copied(const SizeLedger& original, std::int64_t size);

  // ---- What the device says ----

  /// Allocates what a GPU's counters are read with, so that read() needs no memory. Throws OutOfMemoryError.
  void prepare_to_read(DeviceContext& context);
  /// Waits: the counters as they are now. What was asked for before is forgotten.
  Control read(DeviceContext& context, const Control* counters, Stream stream);
  /// The counters said that there are `size` keys.
  void note_size(std::int64_t size);
  /// After an insertion of `keys` keys: might the next ones have to wait for the size, unless it is asked for now?
  bool wants_to_ask(std::int64_t keys, std::int64_t limit) const {
    return !asked_ && is_sure() && offered_ != 0 && bound_ + 2 * keys > limit;
  }
  /// Asks a GPU for the counters, without waiting. Throws as prepare_to_read().
  void ask(DeviceContext& context, const Control* counters, Stream stream);
  /// If the counters that were asked for have come: calls note(them), which calls note_size(), and adds what was
  /// inserted since. False: they have not.
  template <class Note>
  bool hear(Note note) {
    const std::optional<Heard> heard = take_arrived();
    if (!heard) return false;
    note(heard->control);
    expect(bound_ + heard->added);
    offered_ = heard->offered;
    return true;
  }

 private:
  /// What was known when the device was asked.
  struct Asked {
    std::int64_t bound;
    std::int64_t offered;
  };
  struct Heard {
    Control control;
    std::int64_t added;    // to the bound, since the device was asked
    std::int64_t offered;  // likewise
  };

  std::optional<Heard> take_arrived();

  std::int64_t bound_ = 0;
  std::int64_t peak_ = 0;
  std::int64_t exact_ = 0;    // the size when it was last known
  std::int64_t offered_ = 0;  // keys of insertions since then
  std::uint64_t fresh_filter_bits_ = 0;
  bool expects_present_ = false;
  bool is_pristine_ = true;
  bool is_worn_ = false;
  bool replays_insert_ = false;
  std::unique_ptr<Readback> readback_;  // of the counters; null: not needed yet, or on the host
  std::optional<Asked> asked_;          // the counters are on their way
};

}  // namespace gpuhash
