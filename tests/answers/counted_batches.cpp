// CountedBatch against a std::map. For tests/test_table_parts.py.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gpuhash/error.hpp>
#include <gpuhash/platform.hpp>
#include "answers.hpp"
#include "check.hpp"
#include "table/counted_batch.hpp"

namespace {

using gpuhash::Action;
using gpuhash::ApplyOrder;
using gpuhash::CountedBatch;
using gpuhash::DeviceContext;
using gpuhash::DType;

constexpr std::uint64_t kSeed = 3;

std::unique_ptr<bool[]> mask_of(std::size_t n) { return std::make_unique<bool[]>(n); }

std::optional<CountedBatch> counted(DeviceContext& context, ApplyOrder& order, bool deterministic = false) {
  return CountedBatch::of(context, order, deterministic, kSeed, [] { return false; }, nullptr);
}

/// Of one key.
struct Met {
  std::uint64_t times = 0;
  std::int64_t first = 0;
};

/// What the value comes to that is combined with itself so often.
std::int64_t repeated(Action op, std::int64_t value, std::uint64_t times) {
  if (op == Action::kAdd) return value * static_cast<std::int64_t>(times);
  if (op == Action::kBitXor) return times % 2 == 0 ? 0 : value;
  return value;  // a maximum
}

template <class Key>
void check_against_a_map(DeviceContext& context, Action op, std::int64_t elements, bool deterministic, bool masked) {
  const std::int64_t n = 30'000;
  std::mt19937_64 random(5);
  std::vector<Key> keys(static_cast<std::size_t>(n));
  std::map<Key, Met> met;
  std::vector<Key> in_order;  // of first occurrence
  for (std::int64_t i = 0; i < n; ++i) {
    const auto key = static_cast<Key>(random() % 700 * 0x9e3779b97f4a7c15);
    keys[static_cast<std::size_t>(i)] = key;
    if (met[key].times++ != 0) continue;
    met[key].first = i;
    in_order.push_back(key);
  }
  const std::vector<std::int64_t> value{11, -4, 6};
  const auto mask = mask_of(static_cast<std::size_t>(n));
  ApplyOrder order{{keys.data(), n, sizeof(Key)},
                   {value.data(), elements * std::int64_t{sizeof value[0]}, true},
                   op,
                   DType::kInt64,
                   elements,
                   masked ? mask.get() : nullptr};
  check(CountedBatch::may_be_made(context, order), "may_be_made");
  const std::optional<CountedBatch> batch = counted(context, order, deterministic);
  check(batch.has_value(), "few distinct keys");

  const ApplyOrder& smaller = batch->order();
  check(smaller.keys.count == static_cast<std::int64_t>(met.size()) && smaller.keys.distinct, "each key once");
  check(!smaller.values.broadcast && (smaller.inserted != nullptr) == masked, "a value and a mark for each");
  const auto* const got = static_cast<const Key*>(smaller.keys.data);
  const auto* const values = static_cast<const std::int64_t*>(smaller.values.data);
  std::map<Key, std::int64_t> places;
  for (std::int64_t i = 0; i < smaller.keys.count; ++i) {
    check(met.contains(got[i]) && places.emplace(got[i], i).second, "a key of the batch, once");
    if (deterministic) check(got[i] == in_order[static_cast<std::size_t>(i)], "the order of first occurrence");
    for (std::int64_t e = 0; e < elements; ++e)
      check(values[i * elements + e] == repeated(op, value[static_cast<std::size_t>(e)], met[got[i]].times),
            "the value as many times");
    if (masked) smaller.inserted[i] = got[i] % 3 == 0;  // as a table would that has the others
  }
  if (!masked) return;
  batch->write_inserted(mask.get());
  for (std::int64_t i = 0; i < n; ++i) {
    const Key key = keys[static_cast<std::size_t>(i)];
    check(mask[static_cast<std::size_t>(i)] == (met[key].first == i && key % 3 == 0),
          "new keys where they first occur");
  }
}

void check_other_batches(DeviceContext& context) {
  std::vector<std::int64_t> keys(1 << 14);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::int64_t>(i * 0x9e3779b97f4a7c15);
  const std::int64_t one = 1;
  const ApplyOrder order{
      {keys.data(), std::int64_t{1} << 14, 8}, {&one, 8, true}, Action::kAdd, DType::kInt64, 1, nullptr};
  const auto refused = [&](auto change) {
    ApplyOrder other = order;
    change(other);
    return !CountedBatch::may_be_made(context, other);
  };
  check(!refused([](ApplyOrder&) {}), "the batch as it is");
  check(refused([](ApplyOrder& other) { other.dtype = DType::kFloat64; }), "sums that depend on the order");
  check(refused([](ApplyOrder& other) { other.values.broadcast = false; }), "a value for each key");
  check(refused([](ApplyOrder& other) { other.keys.count = 1000; }), "a small batch");
  check(refused([](ApplyOrder& other) { other.keys.distinct = true; }), "nothing to count");
  check(refused([](ApplyOrder& other) { other.keys.bytes = 16; }), "keys of more than a word");
  ApplyOrder distinct = order;
  check(!counted(context, distinct), "all keys are distinct");
  check(distinct.keys.expected != 0, "which the order knows afterwards");
}

/// Gives so many blocks, and then none.
class FewBlocks final : public gpuhash::MemoryResource {
 public:
  void* allocate(std::size_t bytes, gpuhash::Stream) override {
    if (left-- <= 0) throw gpuhash::OutOfMemoryError("no block is left");
    return ::operator new(bytes, std::align_val_t{64});
  }
  void deallocate(void* data, std::size_t bytes, gpuhash::Stream) noexcept override {
    ::operator delete(data, bytes, std::align_val_t{64});
  }

  int left = 0;
};

void check_without_memory() {
  const auto memory = std::make_shared<FewBlocks>();
  const auto context = gpuhash::platform("cpu").make_context(0, memory);
  std::vector<std::int64_t> keys(1 << 14);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::int64_t>(i * i % 97);
  const std::int64_t values[] = {1, 2};
  const auto mask = mask_of(keys.size());
  for (int blocks = 0;; ++blocks) {
    memory->left = blocks;
    ApplyOrder order{{keys.data(), 1 << 14, 8}, {values, 16, true}, Action::kAdd, DType::kInt64, 2, mask.get()};
    if (!counted(*context, order)) continue;
    check(blocks >= 4, "keys, times, values and marks take a block each");
    return;
  }
}

}  // namespace

int counted_batches(int, char**) {
  const auto context = gpuhash::platform("cpu").make_context(0, nullptr);
  for (const Action op : {Action::kAdd, Action::kMax, Action::kBitXor})
    for (const std::int64_t elements : {1, 3})
      for (const bool deterministic : {false, true})
        for (const bool masked : {false, true}) {
          check_against_a_map<std::uint32_t>(*context, op, elements, deterministic, masked);
          check_against_a_map<std::uint64_t>(*context, op, elements, deterministic, masked);
        }
  check_other_batches(*context);
  check_without_memory();
  return 0;
}
