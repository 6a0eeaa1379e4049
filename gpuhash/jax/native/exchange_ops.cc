// The calls on tables as parts of an exchange between devices (exchange.py): of an operand of keys the first ones
// count, as many as came, and a call that fails says so by a number instead of an error. XLA ends the program of a
// device that returns an error, and the others, who wait for its answers, would wait for ever. When all have exchanged
// their numbers, all fail at once.
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "call.h"
#include "state.h"
#include "table_ops.h"

namespace gpuhash::jax_ops {
namespace {

/// The last failures of this process, by number, until the programs in which they happened end with them.
class Failures {
 public:
  /// Never destroyed: XLA's threads may run when the process ends.
  static Failures& all() {
    static auto* failures = new Failures;
    return *failures;
  }

  /// Its number, which is not 0.
  std::uint32_t add(Failure failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (++last_ == 0) ++last_;
    by_number_.insert_or_assign(last_, std::move(failure));
    if (by_number_.size() > kKept) by_number_.erase(by_number_.begin());
    return last_;
  }

  Failure get(std::uint32_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_number_.find(number);
    if (found != by_number_.end()) return found->second;
    return {ffi::ErrorCode::kInternal, "a call on the table of another device has failed"};
  }

 private:
  static constexpr std::size_t kKept = 1024;

  std::mutex mutex_;
  std::map<std::uint32_t, Failure> by_number_;
  std::uint32_t last_ = 0;
};

using Word = std::uint32_t;

/// Waits on a GPU.
template <std::size_t N>
std::array<Word, N> read_words(const Place& place, const Operand& operand) {
  std::array<Word, N> words{};
  if (operand.size_bytes() != sizeof words)
    throw ShapeError("an operand of " + std::to_string(operand.size_bytes()) + " bytes was given, expected one of " +
                     std::to_string(sizeof words));
  make_context(place)->copy_to_host(words.data(), operand.untyped_data(), sizeof words, place.stream);
  return words;
}

/// An operand that XLA gives back as a result, in the same memory.
void pass_on(const Place& place, const Operand& operand, const Operand& result) {
  if (operand.untyped_data() != result.untyped_data())
    make_context(place)->copy(result.untyped_data(), operand.untyped_data(), operand.size_bytes(), place.stream);
}

/// A call as part of an exchange. Where an earlier part on this device has failed, nothing is done.
///
/// status  // [1], uint32: the number of a failure, or 0
/// told    // [2], uint32: how many keys have come, and the status
/// after   // [1], uint32: the status after the call
template <class Call>
ffi::Error run_part(Place place, Numbers handles, std::string_view answers, std::string_view names, Numbers lengths,
                    Numbers given, std::string_view actions, std::int64_t tables, Operand token, Operand status,
                    Operand told, ffi::RemainingArgs operands, Output next, Output after, ffi::RemainingRets results) {
  return guarded([&] {
    pass_on(place, status, *after);
    std::int64_t limit = kAllKeys;
    if (!Call::kOnlyReads || place.device.platform == "cpu") {  // a GPU would have to wait to be told
      const std::array<Word, 2> words = read_words<2>(place, told);
      if (words[1] != 0) return pass_on(place, token, *next);
      limit = words[0];
    }
    std::optional<Failure> failure = failure_of([&] {
      const Asked asked{handles, answers, names, lengths, given, actions, tables};
      Use use(place, asked.handles, token, next);
      Call::run({use, place.stream, limit, asked, operands, results});
      use.finish();
    });
    if (!failure) return;
    pass_on(place, token, *next);
    const Word number = Failures::all().add(*std::move(failure));
    make_context(place)->copy_from_host(after->untyped_data(), &number, sizeof number, place.stream);
  });
}

template <class P>
auto bind_part() {
  return bind_asked<P>()
      .template Arg<Operand>()
      .template Arg<Operand>()
      .template Arg<Operand>()
      .RemainingArgs()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .RemainingRets();
}

/// The end of an exchange: the error, where the status, which is that of all devices now, is the number of one. Waits
/// on a GPU. Results pass through, so that whoever uses one has this call in his program.
ffi::Error settle(Place place, Operand token, Operand status, ffi::RemainingArgs operands, Output next,
                  ffi::RemainingRets results) {
  std::optional<Failure> failure;
  const ffi::Error error = guarded([&] {
    const std::array<Word, 1> number = read_words<1>(place, status);
    if (number[0] != 0) failure = Failures::all().get(number[0]);
    pass_on(place, token, *next);
    for (std::size_t i = 0; i < operands.size(); ++i)
      pass_on(place, *operands.get<Operand>(i), **results.get<ffi::AnyBuffer>(i));
  });
  return failure ? failure->to_error() : error;
}

template <class P>
auto bind_settle() {
  return ffi::Ffi::Bind()
      .Ctx<P>()
      .template Arg<Operand>()
      .template Arg<Operand>()
      .RemainingArgs()
      .template Ret<ffi::AnyBuffer>()
      .RemainingRets();
}

}  // namespace

GPUHASH_JAX_HANDLER(look_up_part, run_part<LookUpCall>, bind_part);
GPUHASH_JAX_HANDLER(change_part, run_part<ChangeCall>, bind_part);
GPUHASH_JAX_HANDLER(erase_part, run_part<EraseCall>, bind_part);
GPUHASH_JAX_HANDLER(size_part, run_part<SizeCall>, bind_part);
GPUHASH_JAX_HANDLER(settle, settle, bind_settle);

}  // namespace gpuhash::jax_ops
