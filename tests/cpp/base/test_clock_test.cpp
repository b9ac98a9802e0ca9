#include "base/test_clock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "base/fd.h"

namespace mcast::test {
namespace {

// There is only one test, since the clock lasts as long as the process.
TEST(TestClock, OffsetOfTheMappedFileIsAddedAndNapsAreShort) {
  EXPECT_EQ(test_clock::offset(), 0);
  EXPECT_EQ(test_clock::nap(kSecond), kSecond);
  EXPECT_EQ(test_clock::nap(kNever), kNever);

  EXPECT_TRUE(test_clock::use_environment().ok()) << "without the variable";
  ASSERT_EQ(::setenv("MCAST_TEST_CLOCK", "/nowhere", 1), 0);
  EXPECT_EQ(test_clock::use_environment().code(), Code::kSystem);
  char path[] = "/tmp/mcast_clock_XXXXXX";
  const Fd file(::mkstemp(path));
  ASSERT_TRUE(file.valid());
  const Status empty = test_clock::use(path);
  EXPECT_EQ(empty.code(), Code::kInvalidArgument) << empty.to_string();
  EXPECT_EQ(test_clock::nap(kSecond), kSecond) << "no clock was taken";

  int64_t offset = 60 * kSecond;
  ASSERT_EQ(::pwrite(file.get(), &offset, sizeof offset, 0), 8);
  ASSERT_EQ(::setenv("MCAST_TEST_CLOCK", path, 1), 0);
  const Status used = test_clock::use_environment();
  ::unsetenv("MCAST_TEST_CLOCK");
  ::unlink(path);
  ASSERT_TRUE(used.ok()) << used.to_string();
  EXPECT_EQ(test_clock::offset(), 60 * kSecond);
  offset = 61 * kSecond;
  ASSERT_EQ(::pwrite(file.get(), &offset, sizeof offset, 0), 8);
  EXPECT_EQ(test_clock::offset(), 61 * kSecond);
  EXPECT_EQ(test_clock::nap(kNever), 5 * kMilli);
  EXPECT_EQ(test_clock::nap(kMilli), kMilli);
}

}  // namespace
}  // namespace mcast::test
