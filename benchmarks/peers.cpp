// boost::unordered_flat_map in a plain loop, the yardstick on the host. Built by native.py; not part of gpuhash.

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <memory>
#include <new>

namespace {

using Map = boost::unordered_flat_map<std::int64_t, std::int64_t>;

Map& map_of(void* handle) { return *static_cast<Map*>(handle); }

}  // namespace

/// A map with room for `pairs` pairs; null where there is no memory.
extern "C" void* create_map(std::int64_t pairs) {
  try {
    auto map = std::make_unique<Map>();
    map->reserve(static_cast<std::size_t>(pairs));
    return map.release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

extern "C" void destroy_map(void* handle) { delete static_cast<Map*>(handle); }

extern "C" std::int64_t map_size(void* handle) { return static_cast<std::int64_t>(map_of(handle).size()); }

/// Pairs that the map has room for by now.
extern "C" std::int64_t map_capacity(void* handle) { return static_cast<std::int64_t>(map_of(handle).bucket_count()); }

/// Removes all pairs; the room stays.
extern "C" void clear_map(void* handle) { map_of(handle).clear(); }

/// values and found are [n]; absent keys get 0.
extern "C" void find_all(void* handle, const std::int64_t* keys, std::int64_t n, std::int64_t* values, bool* found) {
  const Map& map = map_of(handle);
  const auto end = map.end();
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = map.find(keys[i]);
    found[i] = at != end;
    values[i] = at != end ? at->second : 0;
  }
}

extern "C" void insert_all(void* handle, const std::int64_t* keys, const std::int64_t* values, std::int64_t n) {
  Map& map = map_of(handle);
  for (std::int64_t i = 0; i < n; ++i) map.emplace(keys[i], values[i]);
}

/// inserted [n] tells which keys were new.
extern "C" void assign_all(void* handle, const std::int64_t* keys, const std::int64_t* values, std::int64_t n,
                           bool* inserted) {
  Map& map = map_of(handle);
  for (std::int64_t i = 0; i < n; ++i) inserted[i] = map.insert_or_assign(keys[i], values[i]).second;
}

/// erased [n] tells which keys were there.
extern "C" void erase_all(void* handle, const std::int64_t* keys, std::int64_t n, bool* erased) {
  Map& map = map_of(handle);
  for (std::int64_t i = 0; i < n; ++i) erased[i] = map.erase(keys[i]) != 0;
}

/// Adds values [n] to those of their keys, which begin at 0.
extern "C" void add_all(void* handle, const std::int64_t* keys, const std::int64_t* values, std::int64_t n) {
  Map& map = map_of(handle);
  for (std::int64_t i = 0; i < n; ++i) map[keys[i]] += values[i];
}
