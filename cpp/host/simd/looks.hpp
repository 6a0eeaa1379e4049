#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

/// What a look at a bucket tells, whatever the processor can do.
namespace gpuhash::host {

/// The same word, of which the compiler does not know where it comes from: knowing that two words tell of the same
/// thing, it would put the branch there that they were made to avoid.
template <class Word>
Word opaque(Word word) {
  asm("" : "+r"(word));
  return word;
}

/// Some slots of one bucket. Slot s is bit s * kStride: comparing lanes yields a bit per lane.
template <class View, std::uint32_t kStride>
class SlotMask {
 public:
  using SlotType = typename View::SlotType;
  explicit SlotMask(std::uint32_t bits) : bits_(bits) {}

  bool any() const { return bits_ != 0; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(std::popcount(bits_)); }
  /// These, and the others if `wanted`, without a branch.
  SlotMask with(SlotMask others, bool wanted) const {
    return SlotMask(bits_ | (others.bits_ & -static_cast<std::uint32_t>(opaque(std::uint32_t{wanted}))));
  }
  /// The first of them; where there are none, the last slot of the bucket.
  SlotType* first(SlotType* bucket) const {
    constexpr std::uint32_t kLast = std::uint32_t{1} << ((View::kSlots - 1) * kStride);
    const auto lane = static_cast<std::size_t>(std::countr_zero(bits_ | kLast));
    return reinterpret_cast<SlotType*>(reinterpret_cast<char*>(bucket) + lane * (sizeof(SlotType) / kStride));
  }

 private:
  std::uint32_t bits_;
};

/// What a look at a bucket tells of a key. Whole words: GCC 12 packs two of type bool into one register and takes them
/// apart again, 0.5 ns.
template <class View>
struct Look {
  typename View::Value value;  // the key's; what stands for it where it was not found
  std::uint64_t match;         // nonzero: it was found
  std::uint64_t empty;         // nonzero: the bucket has an empty slot
};

/// What looks for up to 64 keys tell: bit i is the i-th key's.
struct LooksOf64 {
  std::uint64_t match;      // it was found
  std::uint64_t undecided;  // the bucket is full and lacks it
};

}  // namespace gpuhash::host
