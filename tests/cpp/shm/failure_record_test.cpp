// All ranks get one reason: the first that is claimed.
#include "shm/failure_record.h"

#include <gtest/gtest.h>

#include "shm/memory_block.h"

namespace mcast::test {
namespace {

TEST(FailureRecord, KeepsTheFirstReason) {
  const MemoryBlock memory(2);
  FailureRecord& record = memory.block().failure();
  EXPECT_FALSE(failure_claimed(record));
  EXPECT_TRUE(claim_failure(record, Status(Code::kTimeout, "too late"), 1, 0));
  EXPECT_FALSE(claim_failure(record, Status(Code::kAborted, "why not"), 0, 1));
  EXPECT_TRUE(failure_claimed(record));
  ASSERT_TRUE(failure_readable(record));
  const Status why = read_failure(record);
  EXPECT_EQ(why.code(), Code::kTimeout);
  EXPECT_EQ(why.message(), "too late");
  EXPECT_EQ(record.culprit, 1);
  EXPECT_EQ(record.reporter, 0);
}

TEST(FailureRecord, IsNotReadableWhileItIsWritten) {
  const MemoryBlock memory(2);
  FailureRecord& record = memory.block().failure();
  record.state = 1;  // its process is interrupted after the claim
  EXPECT_TRUE(failure_claimed(record));
  EXPECT_FALSE(failure_readable(record));
  EXPECT_FALSE(claim_failure(record, Status(Code::kAborted, "why not"), 0, 1));
}

TEST(FailureRecord, LongTextsAreCutAndUnknownCodesAreAborts) {
  const MemoryBlock memory(2);
  FailureRecord& record = memory.block().failure();
  const std::string text(5000, 'x');
  EXPECT_TRUE(claim_failure(record, Status(Code::kAborted, text), 0, 0));
  EXPECT_EQ(read_failure(record).message(), text.substr(0, kHostText - 1));
  record.code = 1000;
  std::fill(std::begin(record.text), std::end(record.text), 'y');  // no terminator
  EXPECT_EQ(read_failure(record).code(), Code::kAborted);
  EXPECT_EQ(read_failure(record).message(), std::string(kHostText, 'y'));
}

}  // namespace
}  // namespace mcast::test
