// What is expected of batches, on the host. For tests/test_table_parts.py.

#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gpuhash/platform.hpp>
#include "answers.hpp"
#include "check.hpp"
#include "core/tuning.hpp"
#include "table/forecast.hpp"

namespace {

using gpuhash::DeviceContext;
using gpuhash::KeyBatch;
namespace forecast = gpuhash::forecast;

using Keys = std::vector<std::int64_t>;

Keys drawn(std::int64_t count, std::int64_t distinct) {
  std::mt19937_64 random(7);
  Keys keys(static_cast<std::size_t>(count));
  for (std::int64_t& key : keys) key = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(distinct));
  return keys;
}

/// In no order.
Keys all_distinct(std::int64_t count) {
  Keys keys(static_cast<std::size_t>(count));
  std::iota(keys.begin(), keys.end(), 0);
  for (std::int64_t& key : keys) key *= 0x5851f42d4c957f2d;
  return keys;
}

KeyBatch batch_of(const Keys& keys) { return {keys.data(), static_cast<std::int64_t>(keys.size()), sizeof keys[0]}; }

/// Puts a threshold back at the end.
class Tuned {
 public:
  Tuned(std::string name, std::int64_t value) : name_(std::move(name)), before_(gpuhash::set_threshold(name_, value)) {}
  ~Tuned() { gpuhash::set_threshold(name_, before_); }

 private:
  std::string name_;
  std::int64_t before_;
};

void check_samples() {
  const std::int64_t least = gpuhash::tuning().sample_keys;
  const std::int64_t most = gpuhash::tuning().most_sample_keys;
  check(forecast::samples_for(0) == least && forecast::samples_for(least * 64) == least, "few keys");
  check(forecast::samples_for(least * 128) == 2 * least, "a 64th");
  check(forecast::samples_for(std::int64_t{1} << 40) == most, "many keys");
  const Tuned fewer("most_sample_keys", 100);
  check(forecast::samples_for(std::int64_t{1} << 40) == 100, "the larger bound counts");
}

void check_distinct(DeviceContext& context) {
  const std::int64_t n = std::int64_t{1} << 18;
  const Keys few = drawn(n, 1000), many = drawn(n, n / 8), distinct = all_distinct(n);
  const auto estimate = [&](const KeyBatch& keys) { return forecast::estimate_distinct(context, keys, nullptr); };

  KeyBatch known = batch_of(few);
  known.distinct = true;
  check(estimate(known) == n, "what is known is not asked");
  const std::int64_t of_few = estimate(batch_of(few)), of_many = estimate(batch_of(many));
  check(of_few > 900 && of_few < 4000, "1000 distinct: " + std::to_string(of_few));
  check(of_many > n / 16 && of_many < n / 4, "an eighth distinct: " + std::to_string(of_many));
  check(estimate(batch_of(distinct)) == n, "all distinct");
  KeyBatch sampled = batch_of(few);
  sampled.expected = 77;
  check(estimate(sampled) == 77, "no second sample");
  const KeyBatch small{few.data(), 1 << 13, 8};
  check(estimate(small) == small.count, "a small batch may be distinct");
  const Tuned from_small_ones("least_sampled_keys", 1);
  check(estimate(small) < small.count, "unless it is sampled");
}

void check_uncounted() {
  const auto batch = [](std::int64_t keys, std::int64_t slots) { return forecast::Uncounted{keys, slots}; };
  check(batch(5, 8).least_part() == 1, "no part is empty");
  check(batch(1600, 8).least_part() == 100, "a 16th");

  check(!batch(1000, 16).may_be_trusted() && batch(1024, 16).may_be_trusted(), "a small batch");
  check(!batch(1024, 8200).may_be_trusted() && batch(1025, 8200).may_be_trusted(), "a far larger table");

  check(batch(2048, 16).may_be_guessed() && !batch(2048, 24).may_be_guessed(), "the first batch of a new table");
  check(!batch(16'000, 64).may_be_guessed() && batch(1 << 14, 64).may_be_guessed(), "any other batch");

  check(batch(1000, 64).new_keys(1000, 5, 10) == 500, "half are absent");
  check(batch(1000, 64).new_keys(30, 5, 10) == 30, "no more than are distinct");
  check(batch(1000, 64).new_keys(30, 0, 10) == 0, "none is absent");

  check(batch(800, 99).worth_room(5) == 100, "a table that is far smaller than the batch");
  check(batch(800, 99).worth_room(500) == 500, "more are expected");
  check(batch(800, 100).worth_room(5) == 5, "a larger table");
  check(batch(std::int64_t{1} << 21, 99).worth_room(5) == 5, "a batch for which too much memory would be set aside");
}

void check_counting(DeviceContext& context) {
  for (const std::uint32_t bytes : {1u, 4u, 8u})
    for (const int threads : {1, 2, 8})
      for (std::int64_t n = 1 << 13; n <= std::int64_t{1} << 26; n *= 2) {
        const std::int64_t most = forecast::Counting{true, threads}.most_distinct(n, bytes);
        const std::int64_t without_room = forecast::Counting{false, threads}.most_distinct(n, bytes);
        check(0 < most && most <= without_room && without_room <= n / 2, "keys: " + std::to_string(n));
        check(most <= forecast::Counting{true, 2}.most_distinct(n, bytes), "two threads count no fewer");
      }
  check(forecast::Counting{false, 2}.most_distinct(1 << 16, 8) == 1 << 15, "half of what fits a cache");
  check(forecast::Counting{true, 2}.most_distinct(1 << 20, 8) == (1 << 20) / 12, "a partition, and there is room");

  const Keys few = drawn(1 << 18, 1000), distinct = all_distinct(1 << 18);
  for (const bool has_room : {false, true}) {
    KeyBatch keys = batch_of(few);
    check(forecast::Counting{has_room, 2}.pays(context, keys, nullptr), "few keys");
    keys = batch_of(distinct);
    check(!forecast::Counting{has_room, 2}.pays(context, keys, nullptr), "all distinct");
    check(keys.expected > keys.count / 2, "the batch knows it afterwards");
  }
}

}  // namespace

int forecasts(int, char**) {
  const auto context = gpuhash::platform("cpu").make_context(0, nullptr);
  check_samples();
  check_distinct(*context);
  check_uncounted();
  check_counting(*context);
  return 0;
}
