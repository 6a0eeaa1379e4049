// Steps of chains of calls on a device, for tests/test_call_chain.py.
//   answers chain_steps DEVICE COUNTERS     with lines "chain version how" to read
// how: 0 alone; by a table on the way 1 to a lookup, 2 to a lookup of no keys; 3 to an insertion, 4 of no keys, 5 of
// values in rows, 6 into a deterministic table, 7 of many keys. Writes for each the owner in the state after it, its
// chain and version, and what is in the mailbox, which is emptied.

#include "answers.hpp"

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include <gpuhash/device_context.hpp>
#include <gpuhash/platform.hpp>
#include <gpuhash/table.hpp>

namespace {

constexpr std::int64_t kMany = std::int64_t{1} << 21;

std::shared_ptr<gpuhash::Table> make_table(const std::shared_ptr<gpuhash::DeviceContext>& context, int columns,
                                           bool deterministic) {
  gpuhash::TableOptions options;  // of 8-byte keys
  options.value_dtype = gpuhash::DType::kFloat64;
  if (columns != 1) options.value_shape = {columns};
  options.capacity = 1 << 12;
  options.deterministic = deterministic;
  return gpuhash::Table::make(options, context);
}

}  // namespace

int chain_steps(int, char** arguments) {
  const std::string device = arguments[1];
  const std::uint64_t count = std::strtoull(arguments[2], nullptr, 10);
  const std::size_t colon = device.find(':');
  const int index = colon == std::string::npos ? 0 : std::atoi(device.c_str() + colon + 1);
  const auto context = gpuhash::platform(device.substr(0, colon)).make_context(index, nullptr);
  const gpuhash::Stream stream = context->own_stream();
  const gpuhash::Allocation counters(*context, count * sizeof(gpuhash::ChainCounter), stream);
  const gpuhash::Allocation memory(*context, sizeof(gpuhash::ChainState), stream);
  // Whatever the bytes, they are keys, and values.
  const gpuhash::Allocation bytes(*context, kMany * 8, stream);
  context->fill(counters.get(), 0, counters.bytes(), stream);
  context->fill(bytes.get(), 1, bytes.bytes(), stream);
  const auto mailbox = context->make_mailbox(2 * sizeof(std::int64_t));
  const auto plain = make_table(context, 1, false);
  const auto with_rows = make_table(context, 4, false);
  const auto deterministic = make_table(context, 1, true);

  gpuhash::ChainState taken{};
  int how = 0;
  while (std::cin >> taken.chain >> taken.version >> how) {
    taken.owner = 1000 + static_cast<std::int64_t>(taken.chain);
    context->copy_from_host(memory.get(), &taken, sizeof taken, stream);
    gpuhash::ChainStep step;
    step.taken = step.next = memory.as<gpuhash::ChainState>();
    step.counters = counters.as<gpuhash::ChainCounter>();
    step.count = count;
    step.misused_by = static_cast<std::int64_t*>(mailbox.get()) + 1;
    const auto insert = [&](gpuhash::Table& table, std::int64_t keys) {
      const gpuhash::Write write{.values = bytes.get(), .broadcast = true};
      table.change({.keys = {bytes.get(), keys, 8}, .writes = {&write, 1}, .stream = stream, .step = &step});
    };
    if (how == 0) context->advance(step, stream);
    if (how == 1) plain->look_up({.keys = {bytes.get(), 3, 8}, .stream = stream, .step = &step});
    if (how == 2) plain->look_up({.keys = {nullptr, 0, 8}, .stream = stream, .step = &step});
    if (how == 3) insert(*plain, 3);
    if (how == 4) insert(*plain, 0);
    if (how == 5) insert(*with_rows, 3);
    if (how == 6) insert(*deterministic, 3);
    if (how == 7) insert(*plain, kMany);
    gpuhash::ChainState next{};
    context->copy_to_host(&next, memory.get(), sizeof next, stream);
    std::cout << next.owner << ' ' << next.chain << ' ' << next.version << ' ' << *step.misused_by << '\n';
    *step.misused_by = 0;
  }
  return *static_cast<std::int64_t*>(mailbox.get()) == 0 ? 0 : 1;
}
