// Steps of chains of calls on a device, for tests/test_call_chain.py.
//   chain_steps DEVICE COUNTERS     with lines "chain version" to read
// Writes for each the owner in the state after it, its chain and version, and what is in the mailbox, which is emptied.

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include <gpuhash/device_context.hpp>
#include <gpuhash/platform.hpp>

int main(int, char** arguments) {
  const std::string device = arguments[1];
  const std::uint64_t count = std::strtoull(arguments[2], nullptr, 10);
  const std::size_t colon = device.find(':');
  const int index = colon == std::string::npos ? 0 : std::atoi(device.c_str() + colon + 1);
  const auto context = gpuhash::platform(device.substr(0, colon)).make_context(index, nullptr);
  const gpuhash::Stream stream = context->own_stream();
  const gpuhash::Allocation counters(*context, count * sizeof(gpuhash::ChainCounter), stream);
  const gpuhash::Allocation state(*context, sizeof(gpuhash::ChainState), stream);
  context->fill(counters.get(), 0, counters.bytes(), stream);
  const auto mailbox = context->make_mailbox(2 * sizeof(std::int64_t));
  auto* const misused_by = static_cast<std::int64_t*>(mailbox.get()) + 1;

  gpuhash::ChainState taken{};
  while (std::cin >> taken.chain >> taken.version) {
    taken.owner = 1000 + static_cast<std::int64_t>(taken.chain);
    context->copy_from_host(state.get(), &taken, sizeof taken, stream);
    auto* const here = state.as<gpuhash::ChainState>();
    context->advance({here, here, counters.as<gpuhash::ChainCounter>(), count, misused_by}, stream);
    gpuhash::ChainState next{};
    context->copy_to_host(&next, here, sizeof next, stream);
    std::cout << next.owner << ' ' << next.chain << ' ' << next.version << ' ' << *misused_by << '\n';
    *misused_by = 0;
  }
  return *static_cast<std::int64_t*>(mailbox.get()) == 0 ? 0 : 1;
}
