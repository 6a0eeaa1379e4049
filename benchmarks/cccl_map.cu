// fixed_capacity_map of CCCL (https://github.com/NVIDIA/cccl), to where cuCollections moves its maps, measured by
// peer_maps.cuh for peers_h200.csv. It inserts and finds, and does not erase, assign or apply yet. Not part of gpuhash,
// and not built with it: it needs the headers of CCCL with those of cudax, C++20 with nvcc's extended lambdas and
// relaxed constexpr, and CCCL_COMMIT, a string that names the commit.
//
// The map has a fixed number of slots and reserves one key, which here is kEmptyKey: of 64-bit keys 0xb4d055fcf2cbbd7b,
// of 32-bit keys 0x81f16f39. The value 0 stands for "absent".
#include <cuda/experimental/__cuco/fixed_capacity_map.cuh>
#include <cuda/memory_pool>

#include "peer_maps.cuh"

namespace {

namespace cudax = cuda::experimental;
using peer_maps::Configuration;
using peer_maps::kEmptyKey;
using peer_maps::kEmptyValue;
using peer_maps::Operation;

template <class Word, class Probing, int kBucketSize>
class CcclMap : public peer_maps::Map<cuda::std::pair<Word, Word>> {
 public:
  using Pair = cuda::std::pair<Word, Word>;

  CcclMap(std::int64_t slots, cudaStream_t stream)
      : stream_(stream),
        map_(stream_, cuda::device_default_memory_pool(cuda::device_ref{0}), static_cast<std::size_t>(slots),
             cudax::cuco::empty_key<Word>(kEmptyKey<Word>), cudax::cuco::empty_value<Word>(kEmptyValue<Word>)) {}

  std::int64_t slots() const override { return static_cast<std::int64_t>(map_.capacity()); }
  bool has(Operation operation) const override {
    return operation == Operation::kFindPresent || operation == Operation::kFindAbsent ||
           operation == Operation::kInsert;
  }
  void clear() override { map_.clear_async(stream_); }
  void insert(const Pair* pairs, std::int64_t n) override { map_.insert_async(stream_, pairs, pairs + n); }
  void find(const Word* keys, std::int64_t n, Word* values) override {
    map_.find_async(stream_, keys, keys + n, values);
  }

 private:
  cuda::stream_ref stream_;
  cudax::cuco::fixed_capacity_map<Word, Word, cuda::std::dynamic_extent, cuda::thread_scope_device,
                                  cuda::std::equal_to<Word>, Probing, kBucketSize>
      map_;
};

template <class Word, class Probing, int kBucketSize>
Configuration<cuda::std::pair<Word, Word>> configuration(const char* probing) {
  return {"cccl " + std::string(probing) + " cg " + std::to_string(Probing::cg_size) + " bucket " +
              std::to_string(kBucketSize),
          [](std::int64_t slots, cudaStream_t stream) {
            return std::make_unique<CcclMap<Word, Probing, kBucketSize>>(slots, stream);
          }};
}

/// Groups of 1 to 8 threads, each with buckets of one and two slots, in both orders of probing.
template <class Word, int... kGroupSizes>
std::vector<Configuration<cuda::std::pair<Word, Word>>> configurations(std::integer_sequence<int, kGroupSizes...>) {
  using Hash = cuda::hash<Word>;
  return {configuration<Word, cudax::cuco::double_hashing<kGroupSizes, Hash>, 1>("double")...,
          configuration<Word, cudax::cuco::double_hashing<kGroupSizes, Hash>, 2>("double")...,
          configuration<Word, cudax::cuco::linear_probing<kGroupSizes, Hash>, 1>("linear")...,
          configuration<Word, cudax::cuco::linear_probing<kGroupSizes, Hash>, 2>("linear")...};
}

}  // namespace

int main(int argc, char** argv) {
  using GroupSizes = std::integer_sequence<int, 1, 2, 4, 8>;
  const std::string library = "CCCL " CCCL_COMMIT ", version " + std::to_string(CCCL_MAJOR_VERSION) + "." +
                              std::to_string(CCCL_MINOR_VERSION) + "." + std::to_string(CCCL_PATCH_VERSION);
  return peer_maps::benchmark(argc, argv, library, configurations<std::uint64_t>(GroupSizes{}),
                              configurations<std::uint32_t>(GroupSizes{}));
}
