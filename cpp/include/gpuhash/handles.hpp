#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <gpuhash/export.hpp>
#include <gpuhash/table.hpp>

/// Numbers that stand for tables in compiled programs, which can carry a number and nothing else. All are positive.
///
/// A table's *own* handle means that table as long as it lives, and nothing after it: neither this process nor, but for
/// a chance of 2^-60, another one uses it again. The handle of a *name* is a hash of the name, the same in each
/// process, and means whichever table has the name when it is looked up, so that a program that was saved finds its
/// table again.
namespace gpuhash {

/// That of its name, if it has one now (of several names the first in ascending order); otherwise its own.
GPUHASH_API std::int64_t handle_of(const std::shared_ptr<Table>& table);
/// The table's own, whatever its name; made at the first call.
GPUHASH_API std::int64_t own_handle_of(const std::shared_ptr<Table>& table);
/// Of a name, whether or not a table has it.
GPUHASH_API std::int64_t handle_of_name(const std::string& name) noexcept;
/// Null where the table has been freed, no table has the name, or nobody has made such a handle. About 30 ns.
GPUHASH_API std::shared_ptr<Table> table_of(std::int64_t handle);

}  // namespace gpuhash
