// The calls on tables, for their handlers, alone (table_ops.cc) or as parts of an exchange (exchange_ops.cc). Each is
// one request of the table's, over its columns; the single value of a table is the one column without a name.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "call.h"
#include "state.h"

namespace gpuhash::jax_ops {

using Numbers = ffi::Span<const std::int64_t>;

/// What is given for a column: operands, and how often.
enum class Given : std::int64_t { kNothing, kOneForAll, kOneForEach };

/// The attributes of a call, the same for all calls. Lists of names have commas between them.
///
/// A program on the host may meet another table than it was compiled for, so its columns are looked for by their names
/// in each call. `names` has these one behind the other, `lengths` in bytes: 0 is the column without a name.
struct Asked {
  Numbers handles;           // of tables: see Use
  std::string_view answers;  // of the manifest (gpuhash/signatures.py), in the order of the results; or "scratch"
  std::string_view names;
  Numbers lengths;
  Numbers given;             // for each column: Given
  std::string_view actions;  // of a change, for each column
  std::int64_t tables;       // whose sizes the program adds up
};

/// Binds a handler to them, in their order. One by one: XLA looks for the names of a struct's members in each call.
template <class P>
auto bind_asked() {
  return ffi::Ffi::Bind()
      .Ctx<P>()
      .template Attr<Numbers>("handles")
      .template Attr<std::string_view>("answers")
      .template Attr<std::string_view>("names")
      .template Attr<Numbers>("lengths")
      .template Attr<Numbers>("given")
      .template Attr<std::string_view>("actions")
      .template Attr<std::int64_t>("tables");
}

/// Of the keys, a call is about as many as this, from the first one on.
inline constexpr std::int64_t kAllKeys = std::numeric_limits<std::int64_t>::max();

/// One call. Of n keys, operands and results are as long, whatever part of them the call is about.
struct TableCall {
  Use& use;
  Stream stream;
  std::int64_t limit;
  const Asked& asked;
  const ffi::RemainingArgs& operands;  // the keys, and what is given: [n, *shape], or one value for all keys
  const ffi::RemainingRets& results;   // an array of each answer; of values one for each column
};

// What handlers are made for. A call that only reads may look up what lies behind its keys, too.

struct LookUpCall {
  static constexpr bool kOnlyReads = true;
  static void run(const TableCall& call);
};

struct ChangeCall {
  static constexpr bool kOnlyReads = false;
  static void run(const TableCall& call);
};

struct EraseCall {
  static constexpr bool kOnlyReads = false;
  static void run(const TableCall& call);
};

/// Waits. Throws where the keys of all tables together might be more than the result's integers can count.
struct SizeCall {
  static constexpr bool kOnlyReads = true;
  static void run(const TableCall& call);
};

}  // namespace gpuhash::jax_ops
