#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "cuda/factorize/rank_firsts.cuh"
#include "cuda/launch.cuh"

namespace gpuhash::cuda {

inline std::int64_t words_for(std::int64_t count) { return (count + 31) / 32; }

/// One bit per position: its key occurs here for the first time; and how these bits are ranked.
class FirstBits {
 public:
  FirstBits(DeviceContext& context, std::int64_t count, Stream stream)
      : words_(words_for(count)),
        bits_(scratch<std::uint32_t>(context, words_, stream)),
        sums_(scratch<unsigned long long>(context, tiles() > 1 ? tiles() : 0, stream)) {}

  std::uint32_t* get() const { return bits_.as<std::uint32_t>(); }

  void clear(DeviceContext& context, Stream stream) { context.fill(bits_.get(), 0, bits_.bytes(), stream); }

  /// Waits.
  std::vector<std::uint32_t> read(DeviceContext& context, Stream stream) const {
    std::vector<std::uint32_t> bits(static_cast<std::size_t>(words_));
    context.copy_to_host(bits.data(), bits_.get(), bits_.bytes(), stream);
    return bits;
  }

  /// *distinct, on the device: how many bits are set. Where one block counts them, it ranks them, too.
  template <class Position>
  void count(Rank<Position>* ranks, unsigned long long* distinct, Stream stream) {
    if (tiles() == 1) return rank(ranks, distinct, stream);
    launch("counting distinct keys", count_firsts_kernel, tiles() * kRankBlock, kRankBlock, stream,
           static_cast<const std::uint32_t*>(get()), words_, sums());
    launch("counting distinct keys", sum_tiles_kernel, kSumBlock, kSumBlock, stream, sums(), tiles(), distinct);
  }

  /// After count(), and best after the host has read what it counted: the device ranks while the host goes on.
  template <class Position>
  void finish(Rank<Position>* ranks, Stream stream) {
    if (tiles() > 1) rank(ranks, nullptr, stream);
  }

 private:
  template <class Position>
  void rank(Rank<Position>* ranks, unsigned long long* distinct, Stream stream) {
    launch("ranking distinct keys", rank_firsts_kernel<Position>, tiles() * kRankBlock, kRankBlock, stream,
           static_cast<const std::uint32_t*>(get()), words_, static_cast<const unsigned long long*>(sums()), ranks,
           distinct);
  }

  std::int64_t tiles() const { return (words_ + kRankTile - 1) / kRankTile; }
  unsigned long long* sums() const { return sums_.as<unsigned long long>(); }

  std::int64_t words_;
  Allocation bits_;  // [ceil(n / 32)]
  Allocation sums_;  // one per tile of them, if there are several
};

}  // namespace gpuhash::cuda
