// Compares the name and the fields of an error instead of its text.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"

namespace mcast::test {

using Fields = std::vector<std::pair<std::string, std::string>>;

// Succeeds if `status` is this error and the given fields have these values.
inline ::testing::AssertionResult is_error(const Status& status, ErrorId id,
                                           const Fields& fields = {}) {
  const auto wrong = [&] { return ::testing::AssertionFailure() << status.to_string() << ": "; };
  const auto found = find_error(status.message());
  if (!found || found->id != id) return wrong() << "expected " << row_of(id).name;
  if (status.code() != row_of(id).code) return wrong() << "expected " << code_name(row_of(id).code);
  for (const auto& field : fields) {
    const auto& all = found->fields;
    if (std::find(all.begin(), all.end(), field) == all.end()) {
      return wrong() << "expected " << field.first << " " << field.second;
    }
  }
  return ::testing::AssertionSuccess();
}

// Succeeds if rank `odd` called `odd_call` as operation `sequence` and another rank `call`,
// whichever of the two is named first.
inline ::testing::AssertionResult calls_differ(const Status& status, Sequence sequence,
                                               const std::string& call, Member odd,
                                               const std::string& odd_call) {
  const std::string number = std::to_string(sequence), rank = std::to_string(odd);
  const auto second =
      is_error(status, ErrorId::operation_differs,
               {{"sequence", number}, {"call", call}, {"other", rank}, {"other_call", odd_call}});
  if (second) return second;
  return is_error(status, ErrorId::operation_differs,
                  {{"sequence", number}, {"rank", rank}, {"call", odd_call}, {"other_call", call}});
}

}  // namespace mcast::test
