#pragma once

#include <memory>
#include <string>

#include <gpuhash/handles.hpp>

/// What the registry of names tells of them, under its own lock.
namespace gpuhash::handles {

/// The name's handle means this table from now on. std::invalid_argument where another name that a table has now has
/// the same one.
void bind_name(const std::string& name, const std::shared_ptr<Table>& table);
/// The name's handle means no table any more.
void release_name(const std::string& name) noexcept;

}  // namespace gpuhash::handles
