// The main() of all test programs. It differs from GoogleTest's in one point: if MCAST_CI is set, a
// skipped test counts as failed. Otherwise a machine that lacks a requirement of a test would
// always pass without running it.
#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "assembly/assembly.h"

namespace {

bool in_ci() {
  const char* const text = std::getenv("MCAST_CI");
  return text != nullptr && *text != 0 && std::strcmp(text, "0") != 0;
}

int count_skipped() {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  int skipped = 0;
  for (int s = 0; s < all.total_test_suite_count(); s++) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); t++) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (!test.should_run() || !test.result()->Skipped()) continue;
      std::printf("[  FAILED  ] %s.%s: skipped, but MCAST_CI is set\n", suite.name(), test.name());
      skipped++;
    }
  }
  return skipped;
}

}  // namespace

int main(int argc, char** argv) {
  mcast::use_products(&mcast::assemble);
  testing::InitGoogleMock(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  return in_ci() && count_skipped() > 0 ? 1 : failed;
}
