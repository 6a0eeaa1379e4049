#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <gpuhash/action.hpp>
#include <gpuhash/initializer.hpp>
#include <gpuhash/optimizer.hpp>
#include <gpuhash/pairing.hpp>

/// Actions, distributions, optimizers and kinds of pairs by the names that Python and all frameworks' ops have for
/// them.
namespace gpuhash {

template <class Choice, std::size_t kCount>
using Names = std::array<std::pair<std::string_view, Choice>, kCount>;

inline constexpr Names<Action, 9> kActions = {{{"keep", Action::kKeep},
                                               {"assign", Action::kAssign},
                                               {"add", Action::kAdd},
                                               {"multiply", Action::kMultiply},
                                               {"min", Action::kMin},
                                               {"max", Action::kMax},
                                               {"bit_and", Action::kBitAnd},
                                               {"bit_or", Action::kBitOr},
                                               {"bit_xor", Action::kBitXor}}};

inline constexpr Names<Distribution, 4> kDistributions = {{{"constant", Distribution::kConstant},
                                                           {"uniform", Distribution::kUniform},
                                                           {"normal", Distribution::kNormal},
                                                           {"truncated_normal", Distribution::kTruncatedNormal}}};

inline constexpr Names<Optimizer, 5> kOptimizers = {{{"sgd", Optimizer::kSgd},
                                                     {"adagrad", Optimizer::kAdagrad},
                                                     {"row_wise_adagrad", Optimizer::kRowWiseAdagrad},
                                                     {"adam", Optimizer::kAdam},
                                                     {"lamb", Optimizer::kLamb}}};

inline constexpr Names<PairKind, 4> kPairKinds = {
    {{"inner", PairKind::kInner}, {"left", PairKind::kLeft}, {"semi", PairKind::kSemi}, {"anti", PairKind::kAnti}}};

/// Nothing where there is none of that name. As in Python, hyphens may stand for the underscores.
template <class Choice, std::size_t kCount>
std::optional<Choice> find_named(const Names<Choice, kCount>& names, std::string_view given) {
  const auto same = [](char a, char b) { return a == b || (a == '_' && b == '-'); };
  for (const auto& [name, choice] : names)
    if (std::equal(name.begin(), name.end(), given.begin(), given.end(), same)) return choice;
  return std::nullopt;
}

/// Throws std::invalid_argument where there is none of that name.
template <class Choice, std::size_t kCount>
Choice named(const Names<Choice, kCount>& names, std::string_view given) {
  if (const std::optional<Choice> choice = find_named(names, given)) return *choice;
  std::string expected;
  for (const auto& [name, choice] : names) expected.append(expected.empty() ? "" : ", ").append(name);
  throw std::invalid_argument("\"" + std::string(given) + "\" was given, expected one of " + expected);
}

}  // namespace gpuhash
