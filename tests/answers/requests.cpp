// Calls with several requests on one table, for tests/test_requests.py.
//   answers requests DEVICE
// Writes a line for each call, of what it has answered and how many keys there are then.

#include "answers.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gpuhash/device_context.hpp>
#include <gpuhash/error.hpp>
#include <gpuhash/platform.hpp>
#include <gpuhash/table.hpp>

namespace {

using Numbers = std::vector<std::int64_t>;

/// Numbers in the memory of a context; streams there are made of the context's own and the default one.
class Device {
 public:
  explicit Device(const std::string& name) {
    const std::size_t colon = name.find(':');
    const int index = colon == std::string::npos ? 0 : std::atoi(name.c_str() + colon + 1);
    context = gpuhash::platform(name.substr(0, colon)).make_context(index, nullptr);
  }

  const std::int64_t* give(const Numbers& numbers) {
    std::int64_t* const memory = make<std::int64_t>(numbers.size());
    context->copy_from_host(memory, numbers.data(), numbers.size() * sizeof(std::int64_t), nullptr);
    context->synchronize(nullptr);
    return memory;
  }
  template <class T>
  T* make(std::size_t count) {
    return static_cast<T*>(memory_.emplace_back(*context, count * sizeof(T), nullptr).get());
  }
  gpuhash::KeyBatch keys(const Numbers& numbers) {
    return {give(numbers), static_cast<std::int64_t>(numbers.size()), sizeof(std::int64_t)};
  }
  template <class T>
  void write(const T* memory, std::size_t count) const {
    context->synchronize_all();
    const auto host = std::make_unique<T[]>(count);
    context->copy_to_host(host.get(), memory, count * sizeof(T), nullptr);
    for (std::size_t i = 0; i < count; ++i) std::cout << host[i] << ' ';
  }

  std::shared_ptr<gpuhash::DeviceContext> context;

 private:
  std::vector<gpuhash::Allocation> memory_;
};

void several_batches(Device& device) {
  gpuhash::TableOptions options;
  options.value_dtype = gpuhash::DType::kInt64;
  options.max_capacity = 64;
  options.deterministic = true;
  const auto table = gpuhash::Table::make(options, device.context);
  const gpuhash::Stream streams[] = {nullptr, device.context->own_stream()};
  const auto done = [&] { std::cout << "of " << table->size(nullptr) << '\n'; };

  const gpuhash::Write writes[] = {{.values = device.give({10, 20, 30})}, {.values = device.give({33, 40})}};
  bool* const masks[] = {device.make<bool>(3), device.make<bool>(2)};
  const gpuhash::Change changes[] = {
      {.keys = device.keys({1, 2, 3}), .writes = {&writes[0], 1}, .inserted = masks[0], .stream = streams[0]},
      {.keys = device.keys({3, 4}), .writes = {&writes[1], 1}, .inserted = masks[1], .stream = streams[1]}};
  table->change(changes);
  device.write(masks[0], 3);
  device.write(masks[1], 2);
  done();

  const gpuhash::Read reads[] = {{.values = device.make<std::int64_t>(2), .fallback = device.give({-5})},
                                 {.values = device.make<std::int64_t>(3)}};
  const gpuhash::Lookup lookups[] = {
      {.keys = device.keys({3, 9}), .reads = {&reads[0], 1}, .count_missing = true, .stream = streams[1]},
      {.keys = device.keys({8, 7, 1}), .reads = {&reads[1], 1}, .count_missing = true, .stream = streams[0]}};
  const std::int64_t missing = table->look_up(lookups);
  device.write(static_cast<std::int64_t*>(reads[0].values), 2);
  device.write(static_cast<std::int64_t*>(reads[1].values), 3);
  std::cout << missing << " missing ";
  done();

  // The first batch would fit by itself.
  Numbers many(100);
  std::iota(many.begin(), many.end(), 100);
  const gpuhash::Write zero{.values = device.give({0}), .broadcast = true};
  const gpuhash::Change too_many[] = {{.keys = device.keys({5, 6}), .writes = {&zero, 1}, .stream = streams[0]},
                                      {.keys = device.keys(many), .writes = {&zero, 1}, .stream = streams[1]}};
  try {
    table->change(too_many);
  } catch (const gpuhash::TableFullError&) {
    std::cout << "full ";
  }
  done();

  const gpuhash::Write five{.values = device.give({5}), .broadcast = true, .action = gpuhash::Action::kAdd};
  const gpuhash::Read sum{.values = device.make<std::int64_t>(2)};
  table->change({.keys = device.keys({1, 50}), .writes = {&five, 1}, .reads = {&sum, 1}});
  device.write(static_cast<std::int64_t*>(sum.values), 2);
  done();

  const gpuhash::Erasure some_absent[] = {{.keys = device.keys({1, 2}), .all_or_none = true, .stream = streams[0]},
                                          {.keys = device.keys({60}), .all_or_none = true, .stream = streams[1]}};
  std::cout << table->erase(some_absent) << " missing ";
  done();
  bool* const erased[] = {device.make<bool>(2), device.make<bool>(2)};
  const gpuhash::Erasure erasures[] = {{.keys = device.keys({1, 60}), .erased = erased[0], .stream = streams[0]},
                                       {.keys = device.keys({1, 2}), .erased = erased[1], .stream = streams[1]}};
  table->erase(erasures);
  device.write(erased[0], 2);
  device.write(erased[1], 2);
  done();
}

/// Rows of 2 numbers, which a change reads as values for other rows.
void rows_as_values(Device& device) {
  gpuhash::TableOptions options;
  options.value_dtype = gpuhash::DType::kInt64;
  options.value_shape = {2};
  const auto table = gpuhash::Table::make(options, device.context);
  Numbers keys(64);
  std::iota(keys.begin(), keys.end(), 0);
  Numbers values(128);
  std::iota(values.begin(), values.end(), 0);
  const gpuhash::Write write{.values = device.give(values)};
  auto* const rows = device.make<std::int64_t>(keys.size());
  table->change({.keys = device.keys(keys), .writes = {&write, 1}, .rows = rows});
  device.write(rows, keys.size());
  std::cout << '\n';

  const gpuhash::RowStorage storage = table->row_storage(nullptr);
  const Numbers reversed(keys.rbegin(), keys.rend());
  const gpuhash::Write own{.values = storage.memory->get()};
  const gpuhash::Read read{.values = device.make<std::int64_t>(values.size())};
  const gpuhash::KeyBatch batch = device.keys(reversed);
  table->change({.keys = batch, .writes = {&own, 1}, .reads = {&read, 1}});
  device.write(static_cast<std::int64_t*>(read.values), values.size());
  std::cout << '\n';
}

}  // namespace

int requests(int, char** arguments) {
  Device device(arguments[1]);
  several_batches(device);
  rows_as_values(device);
  return 0;
}
