#include "core/handles.hpp"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "core/fork_safe_mutex.hpp"
#include "core/random_seed.hpp"

namespace gpuhash {
namespace {

// One bit tells the handles of names from tables' own ones.
constexpr std::int64_t kOfName = std::int64_t{1} << 62;

struct Named {
  std::weak_ptr<Table> table;
  const Table* address;  // of the table, which lives as long as it has the name
  std::string name;
};

struct Handles {
  ForkSafeMutex mutex;
  std::unordered_map<std::int64_t, Named> named;
  std::unordered_map<std::int64_t, std::weak_ptr<Table>> own;
  std::unordered_map<const Table*, std::int64_t> own_by_address;  // stale where the table has been freed
  std::size_t swept_size = 64;                                    // of `own`, at which stale ones are dropped next
  // Other processes, to which a saved program may be brought, begin elsewhere.
  std::int64_t last_own = static_cast<std::int64_t>(random_seed() >> 2);

  /// Takes constant time per table that was ever asked for its handle.
  void sweep() {
    if (own.size() < swept_size) return;
    std::erase_if(own_by_address, [this](const auto& entry) {  // each asked once: threads may be freeing tables
      const auto found = own.find(entry.second);
      if (!found->second.expired()) return false;
      own.erase(found);
      return true;
    });
    swept_size = std::max<std::size_t>(64, 2 * own.size());
  }
};

/// Never destroyed, as the registry of names.
Handles& all() {
  static auto* handles = new Handles;
  return *handles;
}

/// To be called under the lock.
std::int64_t own_handle(Handles& handles, const std::shared_ptr<Table>& table) {
  const auto known = handles.own_by_address.find(table.get());
  if (known != handles.own_by_address.end()) {
    if (!handles.own.at(known->second).expired()) return known->second;
    handles.own.erase(known->second);  // of a table that was freed, and lay where this one lies
    handles.own_by_address.erase(known);
  }
  handles.sweep();
  handles.last_own = std::max<std::int64_t>(1, (handles.last_own + 1) & (kOfName - 1));
  handles.own.emplace(handles.last_own, table);
  handles.own_by_address.emplace(table.get(), handles.last_own);
  return handles.last_own;
}

}  // namespace

std::int64_t handle_of(const std::shared_ptr<Table>& table) {
  const std::lock_guard lock(all().mutex);
  const Named* first = nullptr;
  for (const auto& [handle, named] : all().named)
    if (named.address == table.get() && (first == nullptr || named.name < first->name)) first = &named;
  return first != nullptr ? handle_of_name(first->name) : own_handle(all(), table);
}

std::int64_t own_handle_of(const std::shared_ptr<Table>& table) {
  const std::lock_guard lock(all().mutex);
  return own_handle(all(), table);
}

/// FNV-1a (G. Fowler, L. C. Noll, K.-P. Vo; RFC 9923), which has to stay what it is: saved programs hold it.
std::int64_t handle_of_name(const std::string& name) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char character : name) hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3;
  return static_cast<std::int64_t>(hash >> 2) | kOfName;
}

std::shared_ptr<Table> table_of(std::int64_t handle) {
  const std::lock_guard lock(all().mutex);
  if ((handle & kOfName) != 0) {
    const auto found = all().named.find(handle);
    return found == all().named.end() ? nullptr : found->second.table.lock();
  }
  const auto found = all().own.find(handle);
  return found == all().own.end() ? nullptr : found->second.lock();
}

namespace handles {

void bind_name(const std::string& name, const std::shared_ptr<Table>& table) {
  const std::lock_guard lock(all().mutex);
  const auto [entry, is_new] = all().named.try_emplace(handle_of_name(name), Named{table, table.get(), name});
  if (!is_new)
    throw std::invalid_argument(
        "the name '" + name + "' has the same 62-bit hash as '" + entry->second.name +
        "', which a table has already, and compiled programs could not tell them apart: " + "choose another name");
}

void release_name(const std::string& name) noexcept {
  const std::lock_guard lock(all().mutex);
  all().named.erase(handle_of_name(name));
}

}  // namespace handles

}  // namespace gpuhash
