#include "base/trace.h"

#include <gtest/gtest.h>

namespace mcast::test {
namespace {

TraceEvent event(uint32_t sequence) {
  TraceEvent e;
  e.sequence = sequence;
  return e;
}

TEST(Trace, KeepsTheNewestInOrder) {
  Trace trace(3);
  EXPECT_TRUE(trace.events().empty());
  for (uint32_t i = 0; i < 5; i++) trace.record(event(i));
  const auto events = trace.events();
  ASSERT_EQ(events.size(), 3u);
  for (uint32_t i = 0; i < 3; i++) EXPECT_EQ(events[i].sequence, i + 2);
}

TEST(Trace, CapacityZeroKeepsNothing) {
  Trace trace(0);
  trace.record(event(1));
  EXPECT_TRUE(trace.events().empty());
}

}  // namespace
}  // namespace mcast::test
