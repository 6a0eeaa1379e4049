#pragma once

#include <vector>

#include <gpuhash/aggregation.hpp>
#include "shared/group_state.hpp"

namespace gpuhash {

/// What the two passes over the rows fold, each word once whatever asks for it, and how the results are read from it.
struct AggregationPlan {
  explicit AggregationPlan(Span<const AggregateRequest> requests);

  /// A column of the second pass, whose words are its mean and its squares.
  struct Squares {
    Fold fold;
    int sum_word;  // of the first pass
    int count_word;

    friend bool operator==(const Squares&, const Squares&) = default;
  };

  std::vector<Fold> folds;       // fold i has word i of the first pass
  std::vector<Squares> squares;  // that with index i has the words 2 * i and 2 * i + 1 of the second
  std::vector<GroupResult> results;

 private:
  int word_of(const Fold& fold);
  int sum_of(const AggregateRequest& request, bool in_floats);
  int count_of(const AggregateRequest& request);
};

}  // namespace gpuhash
