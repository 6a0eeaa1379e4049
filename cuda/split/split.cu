#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "cuda/apply/cell.cuh"
#include "cuda/batch.cuh"
#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows/rows.cuh"
#include "cuda/split/combine.cuh"
#include "cuda/split/count.cuh"
#include "cuda/split/letter.cuh"
#include "cuda/split/move.cuh"
#include "cuda/split/sample.cuh"
#include "cuda/split/sort_keys.cuh"
#include "cuda/split/tile.cuh"
#include "table/owner_keys.hpp"
#include "table/splitter.hpp"

/// The splitter of GPUs: which kernels a batch needs, how they are launched, and the memory between them. What they do:
/// cuda/split/tile.cuh.
namespace gpuhash::cuda {
namespace {

/// Calls run(word, whole) with a word that is as wide as the keys or wider; whole as for load_key().
template <class Run>
void with_key_word(const KeyBatch& keys, Run run) {
  const auto call = [&](auto key) {
    using Key = decltype(key);
    run(key, keys.bytes == sizeof(Key) && is_aligned<Key>(keys.data));
  };
  if (keys.bytes <= 4) return call(std::uint32_t{});
  if (keys.bytes <= 8) return call(std::uint64_t{});
  call(Uint128{});
}

/// Calls run(word, shape) for items that are one word, of up to 8 bytes, or of several words.
template <class One, class Several>
void with_items(std::int64_t bytes, std::initializer_list<const void*> arrays, One one, Several several) {
  std::uint64_t bits = static_cast<std::uint64_t>(bytes);
  for (const void* const array : arrays) bits |= reinterpret_cast<std::uintptr_t>(array);
  if (bytes == 8 && bits % 8 == 0) return one(std::uint64_t{});
  if (bytes == 4 && bits % 4 == 0) return one(std::uint32_t{});
  if (bytes == 2 && bits % 2 == 0) return one(std::uint16_t{});
  if (bytes == 1) return one(std::uint8_t{});
  with_row_words(bytes, arrays, several);
}

/// Blocks of the kernel that the current GPU runs at a time.
template <class Kernel>
std::int64_t resident_blocks(Kernel kernel, int device) {
  int blocks = 0;
  int multiprocessors = 0;
  const BesideCaptures relaxed;  // the kernel may have to be loaded
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kSplitBlock, 0), "splitting a batch");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "splitting a batch");
  return std::max(1, blocks * multiprocessors);
}

class CudaSample final : public Sample {
 public:
  CudaSample(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, CountsMailbox& mailbox, Stream stream)
      : letter_(context, mailbox, stream) {
    const DeviceGuard guard(context.device().index);
    with_key_word(keys, [&](auto key, bool whole) {
      using Key = decltype(key);
      hot_ = Allocation(context, sizeof(HotKeys<Key>), stream);
      launch("counting repeated keys", sample_kernel<Key>, kSampleBlock, kSampleBlock, stream, keys, whole, seed,
             hot_.as<HotKeys<Key>>(), letter_.expect(), letter_.number());
    });
  }

  template <class Key>
  const HotKeys<Key>* hot() const {
    return hot_.as<HotKeys<Key>>();
  }

 protected:
  Repeats wait() override {
    const std::int64_t* const counts = letter_.wait();
    return {counts[0], counts[1]};
  }

 private:
  ExpectedLetter letter_;
  Allocation hot_;
};

class CudaSplit final : public Split {
 public:
  CudaSplit(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, const Parts& parts,
            CountsMailbox& mailbox, const std::shared_ptr<Sample>& sample, Stream stream)
      : Split(parts),
        context_(context),
        stream_(stream),
        letter_(context, mailbox, stream),
        given_(keys),
        owner_keys_(context, keys, seed, stream),
        keys_(owner_keys_.keys()),
        seed_(seed) {
    const DeviceGuard guard(context.device().index);
    const auto count_keys = [&] {
      with_kernels(
          [&](auto key, bool whole, auto owner_bits, auto merges) { count<decltype(key), owner_bits, merges>(whole); });
    };
    count_keys();
    if (sample == nullptr || !sample->has_hot_keys()) return;
    hot_ = std::static_pointer_cast<const CudaSample>(sample);
    set_merges();
    count_keys();
  }

  void tell(std::span<const std::int64_t> notes, std::int64_t* told) const override {
    const DeviceGuard guard(context_.device().index);
    Notes told_beside{{}, static_cast<int>(notes.size())};
    std::ranges::copy(notes, told_beside.notes);
    launch("telling the keys of parts", tell_kernel, kSplitBlock, kSplitBlock, stream_, sizes_,
           static_cast<int>(parts().count), static_cast<unsigned>(chunks_), told_beside, told);
  }

  void sort_keys(void* sorted) override {
    const DeviceGuard guard(context_.device().index);
    if (!owner_keys_.are_hashes()) return sort_owner_keys(sorted);
    const Allocation sorted_hashes =
        scratch<std::byte>(context_, parts().most_positions(keys_.count) * std::int64_t{keys_.bytes}, stream_);
    sort_owner_keys(sorted_hashes.get());
    sort(given_.data, given_.bytes, sorted, stream_);
  }

  void wait() override { set_counts(letter_.wait()); }

  void sort(const void* items, std::int64_t bytes, void* out, Stream stream) const override {
    const DeviceGuard guard(context_.device().index);
    with_items(
        bytes, {items, out},
        [&](auto word) {
          using Word = decltype(word);
          launch_tiles("sorting a batch by shards", sort_words_kernel<Word>, stream, static_cast<const Word*>(items),
                       static_cast<Word*>(out));
        },
        [&](auto word, RowShape shape) {
          using Word = decltype(word);
          launch_tiles("sorting a batch by shards", sort_rows_kernel<Word>, stream, static_cast<const Word*>(items),
                       shape, static_cast<Word*>(out));
        });
  }

  void gather(const void* items, std::int64_t bytes, void* out, const GatherOptions& options,
              Stream stream) const override {
    const DeviceGuard guard(context_.device().index);
    with_items(
        bytes, {items, out, options.fallback},
        [&](auto word) {
          using Word = decltype(word);
          const bool needs_found = options.fallback != nullptr || options.found_out != nullptr;
          launch_tiles("gathering answers",
                       needs_found ? gather_words_kernel<Word, true> : gather_words_kernel<Word, false>, stream,
                       static_cast<const Word*>(items), options, static_cast<Word*>(out));
        },
        [&](auto word, RowShape shape) {
          using Word = decltype(word);
          launch_tiles("gathering answers", gather_rows_kernel<Word>, stream, static_cast<const Word*>(items), shape,
                       options, static_cast<Word*>(out));
        });
  }

  void gather_rows(const std::int64_t* rows, std::int64_t* out, Stream stream) const override {
    const DeviceGuard guard(context_.device().index);
    launch_tiles("gathering row numbers", gather_row_numbers_kernel, stream, rows, out);
  }

  void gather_mask(const bool* mask, bool* out, Stream stream) const override {
    if (hot_ == nullptr) return gather(mask, sizeof(bool), out, {}, stream);
    const DeviceGuard guard(context_.device().index);
    launch_tiles("gathering answers", gather_mask_once_kernel, stream, mask, out);
  }

  void combine(const void* values, bool broadcast, const Reduction& reduction, void* out,
               Stream stream) const override {
    const DeviceGuard guard(context_.device().index);
    const auto run = [&](auto word) {
      using Word = decltype(word);
      const WordReducer<Word> reducer{reduction.op, reduction.dtype,
                                      static_cast<Word>(identity_bits(reduction.op, reduction.dtype).low)};
      launch_tiles("combining the values of hot keys", combine_words_kernel<Word>, stream,
                   static_cast<const Word*>(values), broadcast, reducer, static_cast<Word*>(out));
    };
    if (reduction.bytes() == 8)
      run(std::uint64_t{});
    else
      run(std::uint32_t{});
  }

 private:
  /// Calls run(word, whole, owner bits, merges): word and whole as of with_key_word().
  template <class Run>
  void with_kernels(Run run) {
    const auto with_bits = [&](auto key, bool whole, auto owner_bits) {
      if (hot_ == nullptr)
        run(key, whole, owner_bits, std::false_type());
      else
        run(key, whole, owner_bits, std::true_type());
    };
    with_key_word(keys_, [&](auto key, bool whole) {
      if (parts().count <= 2)
        with_bits(key, whole, std::integral_constant<int, 1>());
      else if (parts().count <= 8)
        with_bits(key, whole, std::integral_constant<int, 3>());
      else
        with_bits(key, whole, std::integral_constant<int, kMaxOwnerBits>());
    });
  }

  void sort_owner_keys(void* sorted) {
    with_kernels([&](auto key, bool whole, auto owner_bits, auto merges) {
      using Key = decltype(key);
      launch("splitting a batch", sort_keys_kernel<Key, owner_bits, merges>, chunks_ * kSplitBlock, kSplitBlock,
             stream_, keys_, whole, seed_, chunk_keys_, hot<Key>(), sizes_, ranked_, sorted,
             keys_.bytes == sizeof(Key) && is_aligned<Key>(sorted), letter_.expect(), letter_.number());
    });
  }

  template <class Key>
  const HotKeys<Key>* hot() const {
    return hot_ == nullptr ? nullptr : hot_->hot<Key>();
  }

  template <class Key, int kOwnerBits, bool kMerges>
  void count(bool whole) {
    constexpr int kTileKeys = tile_keys(kOwnerBits);
    const auto part_count = static_cast<std::int64_t>(parts().count);
    const std::int64_t tiles = (keys_.count + kTileKeys - 1) / kTileKeys;
    static const std::int64_t resident =
        resident_blocks(sort_keys_kernel<Key, kOwnerBits, kMerges>, context_.device().index);
    const std::int64_t chunk_tiles = (tiles + resident - 1) / resident;
    chunks_ = (tiles + chunk_tiles - 1) / chunk_tiles;
    chunk_keys_ = chunk_tiles * kTileKeys;

    const std::int64_t offsets_end = tiles * part_count * static_cast<std::int64_t>(sizeof(std::int64_t));
    const std::int64_t sizes_end =
        offsets_end + chunks_ * part_count * static_cast<std::int64_t>(sizeof(std::uint32_t));
    const std::int64_t marks_end =
        sizes_end + (kMerges ? tiles * (kTileKeys / 32) * static_cast<std::int64_t>(sizeof(std::uint32_t)) : 0);
    const std::int64_t bytes = marks_end + keys_.count * static_cast<std::int64_t>(sizeof(std::uint16_t));
    memory_ = scratch<std::byte>(context_, bytes, stream_);
    auto* const sizes = reinterpret_cast<std::uint32_t*>(memory_.as<std::byte>() + offsets_end);
    sizes_ = sizes;
    ranked_ = {reinterpret_cast<std::uint16_t*>(memory_.as<std::byte>() + marks_end),
               memory_.as<std::int64_t>(),
               kMerges ? reinterpret_cast<std::uint32_t*>(memory_.as<std::byte>() + sizes_end) : nullptr,
               keys_.count,
               parts(),
               kTileKeys,
               16 - kOwnerBits};
    launch("splitting a batch", count_kernel<Key, kOwnerBits, kMerges>, chunks_ * kSplitBlock, kSplitBlock, stream_,
           keys_, whole, seed_, static_cast<int>(part_count), chunk_keys_, hot<Key>(), sizes);
  }

  template <class... Parameters, class... Arguments>
  void launch_tiles(const char* action, void (*kernel)(Ranked, Parameters...), Stream stream,
                    Arguments... arguments) const {
    const std::int64_t tiles = (ranked_.count + ranked_.tile_keys - 1) / ranked_.tile_keys;
    launch(action, kernel, tiles * kSplitBlock, kSplitBlock, stream, ranked_, arguments...);
  }

  DeviceContext& context_;
  Stream stream_;
  std::shared_ptr<const CudaSample> hot_;  // null: nothing is merged
  ExpectedLetter letter_;
  KeyBatch given_;
  OwnerKeys owner_keys_;
  KeyBatch keys_;  // those by which owners are found
  std::uint64_t seed_;
  std::int64_t chunks_ = 0;
  std::int64_t chunk_keys_ = 0;
  Allocation memory_;  // offsets int64 [tiles, parts], sizes uint32 [parts, chunks], marks, ranks uint16 [n]
  const std::uint32_t* sizes_ = nullptr;
  Ranked ranked_{nullptr, nullptr, nullptr, 0, parts(), 0, 0};
};

class CudaSplitter final : public Splitter {
 public:
  std::unique_ptr<Split> split(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, const Parts& parts,
                               CountsMailbox& mailbox, std::shared_ptr<Sample> sample, Stream stream) const override {
    return std::make_unique<CudaSplit>(context, keys, seed, parts, mailbox, sample, stream);
  }
  std::shared_ptr<Sample> sample(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed,
                                 CountsMailbox& mailbox, Stream stream) const override {
    return std::make_shared<CudaSample>(context, keys, seed, mailbox, stream);
  }
  void find_owners(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, std::uint32_t parts,
                   std::int32_t* owners, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const OwnerKeys owner_keys(context, keys, seed, stream);
    const KeyBatch& by = owner_keys.keys();
    with_key_word(by, [&](auto key, bool whole) {
      launch("finding the owners of keys", owners_kernel<decltype(key)>, by.count, kSplitBlock, stream, by, whole, seed,
             parts, owners);
    });
  }
  void number_rows(DeviceContext& context, std::int64_t* rows, std::int64_t count, std::size_t shard,
                   Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("numbering rows", number_rows_kernel, count, kSplitBlock, stream, rows, count,
           static_cast<std::int64_t>(shard) << kShardShift);
  }
};

}  // namespace

const Splitter& CudaAlgorithms::splitter() {
  static const auto& splitter = *new CudaSplitter;  // never destroyed: threads may work at exit
  return splitter;
}

}  // namespace gpuhash::cuda
