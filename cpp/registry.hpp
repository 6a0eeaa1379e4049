#pragma once

#include <memory>
#include <string>
#include <vector>

#include "table.hpp"

/// The named tables of this process: one registry, because it lives in the one libgpuhash that all neighbours link to.
namespace gpuhash::registry {

/// Holds the table until unregistered. std::invalid_argument where the name is taken.
GPUHASH_API void add(const std::string& name, std::shared_ptr<Table> table);
/// Null where there is none.
GPUHASH_API std::shared_ptr<Table> find(const std::string& name);
/// False where there was none.
GPUHASH_API bool remove(const std::string& name);
GPUHASH_API std::vector<std::string> names();

}  // namespace gpuhash::registry
