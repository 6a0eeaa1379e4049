// Answers of GrowthRule, for tests/test_growth_rule.py: reads questions of one line each, writes one line for each.
//   most_slots max_capacity max_load_factor keys slots size
// max_capacity 0 stands for none.

#include "answers.hpp"

#include <cstdint>
#include <iomanip>
#include <iostream>
#include <string>

#include <gpuhash/error.hpp>
#include "table/growth_rule.hpp"

namespace {

/// What question() says, or why it throws.
template <class Question>
std::string answer(Question question) {
  try {
    return std::to_string(question());
  } catch (const gpuhash::TableFullError&) {
    return "full";
  } catch (const gpuhash::ShapeError&) {
    return "impossible";
  }
}

}  // namespace

int growth_rule(int, char**) {
  gpuhash::GrowthRule rule{};
  std::int64_t max_capacity = 0;
  std::int64_t keys = 0;
  std::int64_t slots = 0;
  std::int64_t size = 0;
  while (std::cin >> rule.most_slots >> max_capacity >> rule.max_load_factor >> keys >> slots >> size) {
    rule.max_capacity = max_capacity == 0 ? std::nullopt : std::optional(max_capacity);
    std::cout << rule.key_limit(slots) << ' ' << rule.may_hold(keys) << ' '
              << answer([&] { return rule.slots_for(keys); }) << ' ' << rule.grown(slots) << ' '
              << rule.may_grow_beyond(slots) << ' ' << rule.may_grow_afterwards(keys, slots) << ' '
              << (rule.most_new(size) >= keys) << ' ' << rule.uncounted_limit(slots) << ' '
              << answer([&] { return rule.grown_ahead(size, keys, slots); }) << '\n';
  }
  return 0;
}
