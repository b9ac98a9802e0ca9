// How ranks find each other's memory. All ranks of these groups are in this process.
#include "shm/attachment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shm/host_world.h"

namespace mcast::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class AttachmentTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = PeerRegistry::make(monotonic);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    registry_ = std::move(made).value();
  }
  void TearDown() override {
    if (registry_) registry_->stop();
  }
  Attachment prepare(Member self) {
    auto made = Attachment::prepare(self, 2, *registry_, true);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }

  std::unique_ptr<PeerRegistry> registry_;
};

TEST_F(AttachmentTest, BothMapTheSameControlBlock) {
  Attachment first = prepare(0), second = prepare(1);
  EXPECT_GE(first.address().segment, 0);
  EXPECT_EQ(second.address().segment, -1);
  const std::vector<HostAddress> addresses{first.address(), second.address()};
  first.attach(addresses, PeerMemory::kMapped, *registry_);
  second.attach(addresses, PeerMemory::kMapped, *registry_);
  EXPECT_EQ(first.verdict(), second.verdict());
  EXPECT_THAT(first.verdict(), AnyOf("mapped", "direct", "slots"));
  EXPECT_TRUE(first.look_after(monotonic(), kSecond).ok());
  const auto a = first.take(), b = second.take();
  ASSERT_NE(&a->block.state(1, 1), &b->block.state(1, 1));
  a->block.state(1, 1).published = 77;
  EXPECT_EQ(b->block.state(1, 1).published, 77u);
  EXPECT_EQ(a->peers[0], nullptr);
  EXPECT_NE(a->peers[1], nullptr);
  EXPECT_EQ(a->peers[1], b->peers[0]) << "one entry for a process";
  EXPECT_EQ(a->segment.fd(), -1) << "nobody else attaches";
}

TEST_F(AttachmentTest, NeighboursAreThoseOfTheOwnHost) {
  Attachment mine = prepare(0);
  const std::vector<HostAddress> addresses{mine.address(), HostAddress{}};
  mine.attach_neighbours(addresses, {0, 1}, PeerMemory::kMapped, *registry_);
  EXPECT_THAT(mine.verdict(), AnyOf("mapped", "direct")) << "rank 1 is elsewhere";
  mine.attach_neighbours({mine.address(), mine.address()}, {0, 0}, PeerMemory::kMapped, *registry_);
  if (mine.verdict() == "slots") GTEST_SKIP() << "needs process_vm_readv";
  const uint64_t word = 12345;
  uint64_t copy = 0;
  EXPECT_TRUE(mine.reader().read(1, reinterpret_cast<uint64_t>(&word),
                                 reinterpret_cast<std::byte*>(&copy), sizeof copy));
  EXPECT_EQ(copy, word);
}

TEST_F(AttachmentTest, AnotherMailboxThanAnnouncedIsRefused) {
  Attachment mine = prepare(0);
  HostAddress other = mine.address();
  other.token++;
  mine.attach({mine.address(), other}, PeerMemory::kMapped, *registry_);
  EXPECT_THAT(mine.verdict(),
              HasSubstr("rank 0 cannot share memory with rank 1: its mailbox belongs"));
  other = mine.address();
  other.segment = other.mailbox;
  Attachment second = prepare(1);
  second.attach({other, second.address()}, PeerMemory::kMapped, *registry_);
  EXPECT_THAT(second.verdict(), HasSubstr("is not the shared memory that was announced"));
}

TEST(Attachment, TheWorstVerdictIsEverybodys) {
  PeerMemory memory = PeerMemory::kSlots;
  EXPECT_EQ(Attachment::unite({"mapped", "mapped"}, memory), "");
  EXPECT_EQ(memory, PeerMemory::kMapped);
  EXPECT_EQ(Attachment::unite({"mapped", "direct"}, memory), "");
  EXPECT_EQ(memory, PeerMemory::kRead);
  EXPECT_EQ(Attachment::unite({"direct", "slots", "mapped"}, memory), "");
  EXPECT_EQ(memory, PeerMemory::kSlots);
  EXPECT_EQ(Attachment::unite({"slots", "no memory", "direct"}, memory), "no memory");
}

}  // namespace
}  // namespace mcast::test
