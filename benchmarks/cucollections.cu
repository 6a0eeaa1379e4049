// cuco::static_map of cuCollections (https://github.com/NVIDIA/cuCollections), measured by peer_maps.cuh for
// peers_h200.csv. Not part of gpuhash, and not built with it: it needs the headers of cuCollections and of the CCCL
// that these ask for, C++20 with nvcc's extended lambdas and relaxed constexpr, and CUCO_COMMIT, a string that names
// the commit.
//
// The map has a fixed number of slots and reserves two keys, which here are kEmptyKey and kErasedKey: of 64-bit keys
// 0xb4d055fcf2cbbd7b and 0xda26e52fa3730902, of 32-bit keys 0x81f16f39 and 0x7995c304. The value 0 stands for "absent".
#include <cuco/static_map.cuh>
#include <cuco/utility/reduction_functors.cuh>
#include <cuda/version>

#include "peer_maps.cuh"

namespace {

using peer_maps::Configuration;
using peer_maps::kEmptyKey;
using peer_maps::kEmptyValue;
using peer_maps::kErasedKey;
using peer_maps::Operation;

template <class Word, class Probing, int kBucketSize>
class CucoMap : public peer_maps::Map<cuco::pair<Word, Word>> {
 public:
  using Pair = cuco::pair<Word, Word>;

  CucoMap(std::int64_t slots, cudaStream_t stream)
      : stream_(stream),
        map_(Slots(static_cast<std::size_t>(slots)), cuco::empty_key<Word>(kEmptyKey<Word>),
             cuco::empty_value<Word>(kEmptyValue<Word>), cuco::erased_key<Word>(kErasedKey<Word>), {}, {}, {}, {}, {},
             stream) {}

  std::int64_t slots() const override { return static_cast<std::int64_t>(map_.capacity()); }
  bool has(Operation) const override { return true; }
  void clear() override { map_.clear_async(stream_); }
  void insert(const Pair* pairs, std::int64_t n) override { map_.insert_async(pairs, pairs + n, stream_); }
  void find(const Word* keys, std::int64_t n, Word* values) override {
    map_.find_async(keys, keys + n, values, stream_);
  }
  void insert_or_assign(const Pair* pairs, std::int64_t n) override {
    map_.insert_or_assign_async(pairs, pairs + n, stream_);
  }
  /// With the value of empty slots as the sum of nothing, the map need not wait for the value of a slot just taken.
  void insert_or_apply(const Pair* pairs, std::int64_t n) override {
    map_.insert_or_apply_async(pairs, pairs + n, kEmptyValue<Word>, cuco::reduce::plus{}, stream_);
  }
  void erase(const Word* keys, std::int64_t n) override { map_.erase_async(keys, keys + n, stream_); }

 private:
  using Slots = cuco::extent<std::size_t>;
  using Storage = cuco::storage<kBucketSize>;

  cuda::stream_ref stream_;
  cuco::static_map<Word, Word, Slots, cuda::thread_scope_device, thrust::equal_to<Word>, Probing,
                   cuco::cuda_allocator<Pair>, Storage>
      map_;
};

template <class Word, class Probing, int kBucketSize>
Configuration<cuco::pair<Word, Word>> configuration(const char* probing) {
  return {"cuco " + std::string(probing) + " cg " + std::to_string(Probing::cg_size) + " bucket " +
              std::to_string(kBucketSize),
          [](std::int64_t slots, cudaStream_t stream) {
            return std::make_unique<CucoMap<Word, Probing, kBucketSize>>(slots, stream);
          }};
}

/// Groups of 1 to 8 threads, each with buckets of one and two slots, in both orders of probing.
template <class Word, int... kGroupSizes>
std::vector<Configuration<cuco::pair<Word, Word>>> configurations(std::integer_sequence<int, kGroupSizes...>) {
  using Hash = cuco::default_hash_function<Word>;
  return {configuration<Word, cuco::double_hashing<kGroupSizes, Hash>, 1>("double")...,
          configuration<Word, cuco::double_hashing<kGroupSizes, Hash>, 2>("double")...,
          configuration<Word, cuco::linear_probing<kGroupSizes, Hash>, 1>("linear")...,
          configuration<Word, cuco::linear_probing<kGroupSizes, Hash>, 2>("linear")...};
}

}  // namespace

int main(int argc, char** argv) {
  using GroupSizes = std::integer_sequence<int, 1, 2, 4, 8>;
  const std::string library = "cuCollections " CUCO_COMMIT ", CCCL " + std::to_string(CCCL_MAJOR_VERSION) + "." +
                              std::to_string(CCCL_MINOR_VERSION) + "." + std::to_string(CCCL_PATCH_VERSION);
  return peer_maps::benchmark(argc, argv, library, configurations<std::uint64_t>(GroupSizes{}),
                              configurations<std::uint32_t>(GroupSizes{}));
}
