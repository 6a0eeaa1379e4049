#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gpuhash/export.hpp>
#include <gpuhash/table.hpp>

/// The named tables of this process: one registry, because it lives in the one libgpuhash that all neighbours link to.
namespace gpuhash::registry {

/// Holds the table until unregistered. std::invalid_argument where the name is taken, or has the handle of another
/// (<gpuhash/handles.hpp>).
GPUHASH_API void add(const std::string& name, std::shared_ptr<Table> table);
/// The table that has the name from now on: this one, or the one that has it already.
GPUHASH_API std::shared_ptr<Table> find_or_add(const std::string& name, std::shared_ptr<Table> table);
/// Null where there is none.
GPUHASH_API std::shared_ptr<Table> find(const std::string& name);
/// False where no table had the name, or another one than this. Null: whatever table has it.
GPUHASH_API bool remove(const std::string& name, const std::shared_ptr<Table>& table);
GPUHASH_API std::vector<std::string> names();

/// True for the first caller in this process, which then does what must not be done twice in it.
GPUHASH_API bool claim(const std::string& what);

}  // namespace gpuhash::registry
