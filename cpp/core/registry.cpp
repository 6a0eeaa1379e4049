#include <gpuhash/registry.hpp>

#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "core/fork_safe_mutex.hpp"
#include "core/handles.hpp"

namespace gpuhash::registry {
namespace {

struct Tables {
  ForkSafeMutex mutex;
  std::map<std::string, std::shared_ptr<Table>> by_name;
};

/// Never destroyed: at exit, Python objects and CUDA may already be gone when a table would be freed.
Tables& tables() {
  static auto* tables = new Tables;
  return *tables;
}

/// The name's entry, new or not, and whether it is new. To be called under the lock.
auto enter(const std::string& name, const std::shared_ptr<Table>& table) {
  const auto entry = tables().by_name.try_emplace(name, table);
  if (!entry.second) return entry;
  try {
    handles::bind_name(name, table);
  } catch (...) {
    tables().by_name.erase(entry.first);
    throw;
  }
  return entry;
}

}  // namespace

void add(const std::string& name, std::shared_ptr<Table> table) {
  const std::lock_guard lock(tables().mutex);
  if (!enter(name, table).second)
    throw std::invalid_argument("a table named '" + name + "' exists already; open it, or unregister it first");
}

std::shared_ptr<Table> find_or_add(const std::string& name, std::shared_ptr<Table> table) {
  const std::lock_guard lock(tables().mutex);
  return enter(name, table).first->second;
}

std::shared_ptr<Table> find(const std::string& name) {
  const std::lock_guard lock(tables().mutex);
  const auto found = tables().by_name.find(name);
  return found == tables().by_name.end() ? nullptr : found->second;
}

bool remove(const std::string& name, const std::shared_ptr<Table>& table) {
  std::shared_ptr<Table> removed;  // freed after the lock
  const std::lock_guard lock(tables().mutex);
  const auto found = tables().by_name.find(name);
  if (found == tables().by_name.end() || (table != nullptr && found->second != table)) return false;
  handles::release_name(name);
  removed = std::move(found->second);
  tables().by_name.erase(found);
  return true;
}

std::vector<std::string> names() {
  const std::lock_guard lock(tables().mutex);
  std::vector<std::string> names;
  for (const auto& entry : tables().by_name) names.push_back(entry.first);
  return names;
}

bool claim(const std::string& what) {
  static auto* claimed = new std::set<std::string>;
  const std::lock_guard lock(tables().mutex);
  return claimed->insert(what).second;
}

}  // namespace gpuhash::registry
