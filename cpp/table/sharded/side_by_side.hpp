#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <vector>

#include <gpuhash/device_context.hpp>
#include "core/thread_pool.hpp"
#include "table/sharded/split_batch.hpp"

namespace gpuhash {

/// Is each of several batches to be launched by a thread of its own, so that no GPU waits for launches on another one?
inline bool are_launched_apart(const std::deque<SplitBatch>& batches) {
  for (std::size_t i = 0; i < batches.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (&batches[i].routes() == &batches[j].routes()) return false;  // what routes have is for one batch at a time
  return batches.size() > 1 && std::ranges::all_of(batches, &SplitBatch::may_be_launched_apart);
}

/// Calls body(number of the batch, batch), on each origin's own thread.
template <class Body>
void for_each_batch(std::deque<SplitBatch>& batches, Body body) {
  auto run = [&](int i) { body(static_cast<std::size_t>(i), batches[static_cast<std::size_t>(i)]); };
  const int count = static_cast<int>(batches.size());
  if (are_launched_apart(batches)) return launch_side_by_side(count, run);
  for (int i = 0; i < count; ++i) run(i);
}

/// Calls body(number of the batch, batch, shard), on each shard's device's own thread: for the shards at the origins of
/// all batches first, as their keys are there already, and then for the others, whose keys are being copied meanwhile.
template <class Body>
void for_each_shard(std::deque<SplitBatch>& batches, Body body) {
  const auto run = [&](auto is_mine) {
    for (const bool local : {true, false})
      for (std::size_t i = 0; i < batches.size(); ++i)
        for (std::size_t shard = 0; shard < batches[i].shards(); ++shard)
          if (batches[i].is_local(shard) == local && is_mine(batches[i].device(shard))) body(i, batches[i], shard);
  };
  if (!are_launched_apart(batches)) return run([](const Device&) { return true; });
  std::vector<Device> devices;
  for (std::size_t shard = 0; shard < batches.front().shards(); ++shard)
    if (const Device& device = batches.front().device(shard); std::ranges::find(devices, device) == devices.end())
      devices.push_back(device);
  launch_side_by_side(static_cast<int>(devices.size()), [&](int number) {
    run([&](const Device& device) { return device == devices[static_cast<std::size_t>(number)]; });
  });
}

}  // namespace gpuhash
