// CompletionTracker: which ranks have completed, and calls that differ.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "protocol/completion.h"

namespace mcast {
namespace {

TEST(Completion, ReportsAreCumulativeAndHeldALittle) {
  CompletionTracker t(0, false, 100);
  for (Sequence s = 0; s < 5; s++) t.on_post(s, 10 + s);
  CompletionTracker::Up up;
  t.complete_own(2, false, 1000);
  EXPECT_EQ(t.deadline(), 1100);
  EXPECT_FALSE(t.report_due(1099, up));
  t.complete_own(4, false, 1050);
  EXPECT_TRUE(t.report_due(1100, up));
  EXPECT_EQ(up.first, 0u);
  EXPECT_EQ(up.end, 4u);
  EXPECT_EQ(up.hashes, (std::vector<uint32_t>{10, 11, 12, 13}));
  EXPECT_FALSE(t.report_due(5000, up));
  t.complete_own(5, true, 6000);
  EXPECT_TRUE(t.report_due(6000, up)) << "urgent";
  EXPECT_EQ(up.first, 4u);
}

TEST(Completion, ASubtreeIsAsCompleteAsItsLastChild) {
  CompletionTracker t(2, true, 100);
  for (Sequence s = 0; s < 3; s++) t.on_post(s, s);
  Sequence where = 0;
  uint32_t other = 0;
  t.complete_own(3, true, 0);
  EXPECT_EQ(t.subtree_complete(), 0u);
  const std::vector<uint32_t> two = {0, 1}, three = {0, 1, 2}, third = {2};
  EXPECT_EQ(t.on_child(0, 3, 0, three, where, other, 0), CompletionTracker::Report::kOk);
  EXPECT_EQ(t.on_child(1, 2, 0, two, where, other, 0), CompletionTracker::Report::kOk);
  EXPECT_EQ(t.subtree_complete(), 2u);
  EXPECT_TRUE(t.on_released(2));
  EXPECT_FALSE(t.on_released(2));
  EXPECT_FALSE(t.on_released(1));
  EXPECT_EQ(t.on_child(1, 3, 2, third, where, other, 0), CompletionTracker::Report::kOk);
  EXPECT_EQ(t.subtree_complete(), 3u);
  CompletionTracker::Up up;
  EXPECT_FALSE(t.report_due(kSecond, up)) << "the top has nobody to report to";
}

TEST(Completion, OtherHashesAreMismatchesWhoeverComesFirst) {
  Sequence where = 9;
  uint32_t other = 9;
  const std::vector<uint32_t> one = {1}, two = {2};
  {
    CompletionTracker t(1, true, 0);
    t.on_post(0, 1);
    EXPECT_EQ(t.on_child(0, 1, 0, two, where, other, 0), CompletionTracker::Report::kMismatch);
    EXPECT_EQ(where, 0u);
    EXPECT_EQ(other, CompletionTracker::kOwn);
  }
  {
    CompletionTracker t(2, true, 0);
    EXPECT_EQ(t.on_child(1, 1, 0, one, where, other, 0), CompletionTracker::Report::kOk);
    EXPECT_EQ(t.on_child(0, 1, 0, two, where, other, 0), CompletionTracker::Report::kMismatch);
    EXPECT_EQ(other, 1u);
    EXPECT_EQ(t.on_post(0, 2), std::optional<uint32_t>(1u));
  }
  {
    CompletionTracker t(1, true, 0);
    t.on_child(0, 1, 0, one, where, other, 0);
    EXPECT_EQ(t.on_post(0, 1), std::nullopt);
  }
}

TEST(Completion, ReportsThatGoBackOrDoNotFitAreInvalid) {
  CompletionTracker t(1, true, 0);
  Sequence where = 0;
  uint32_t other = 0;
  const std::vector<uint32_t> two = {5, 6}, none;
  EXPECT_EQ(t.on_child(0, 3, 0, two, where, other, 0), CompletionTracker::Report::kInvalid);
  EXPECT_EQ(t.on_child(0, 3, 1, two, where, other, 0), CompletionTracker::Report::kInvalid)
      << "hole";
  EXPECT_EQ(t.on_child(0, 2, 0, two, where, other, 0), CompletionTracker::Report::kOk);
  EXPECT_EQ(t.on_child(0, 1, 1, none, where, other, 0), CompletionTracker::Report::kInvalid);
  EXPECT_EQ(t.on_child(0, 0, 2, none, where, other, 0), CompletionTracker::Report::kInvalid);
  EXPECT_EQ(t.child_complete(0), 2u);
}

TEST(Completion, ManyOpsAtOnceAreReportedInSlicesThatFitAFrame) {
  CompletionTracker t(0, false, 100);
  constexpr Sequence kOps = 3 * CompletionTracker::kMaxReport + 17;
  for (Sequence s = 0; s < kOps; s++) t.on_post(s, s);
  t.complete_own(kOps, true, 0);
  CompletionTracker::Up up;
  Sequence next = 0;
  while (t.report_due(0, up)) {
    EXPECT_EQ(up.first, next);
    EXPECT_LE(up.hashes.size(), CompletionTracker::kMaxReport);
    EXPECT_EQ(up.hashes.size(), up.end - up.first);
    EXPECT_EQ(up.hashes.back(), up.end - 1);
    next = up.end;
  }
  EXPECT_EQ(next, kOps);
  EXPECT_EQ(t.deadline(), kNever);
}

}  // namespace
}  // namespace mcast
