// RepairQueue: requests that wait for an asker's connection.
#include <gtest/gtest.h>

#include <vector>

#include "protocol/chunk_set.h"
#include "protocol/repair_queue.h"

namespace mcast {
namespace {

using Ranges = std::vector<ChunkRange>;

ChunkSet chunks(const Ranges& runs) { return ChunkSet(runs); }

TEST(RepairQueue, AskingAgainAddsNothing) {
  RepairQueue q;
  for (uint32_t id = 1; id <= 1000; id++) q.park(3, {7, 0, id, chunks({{10, 20}, {15, 30}})});
  q.park(3, {7, 0, 1001, chunks({{2, 4}, {28, 33}})});
  EXPECT_EQ(q.size(), 1u);
  RepairQueue::Request r;
  ASSERT_TRUE(q.next(3, 1000, r));
  EXPECT_EQ(r.id, 1001u) << "answers to earlier requests would not count";
  EXPECT_EQ(r.chunks, chunks({{2, 4}, {10, 33}}));
  EXPECT_TRUE(q.empty());
  EXPECT_FALSE(q.next(3, 1000, r));
}

TEST(RepairQueue, ServesInPiecesOneStreamAfterTheOther) {
  RepairQueue q;
  q.park(3, {7, 0, 1, chunks({{0, 5}, {8, 10}})});
  q.park(3, {7, 1, 2, chunks({{0, 1}})});
  q.park(3, {8, 0, 3, chunks({{4, 5}})});
  q.park(1, {7, 0, 4, chunks({{0, 1}})});
  EXPECT_EQ(q.askers(), (std::vector<Member>{1, 3}));
  RepairQueue::Request r;
  ASSERT_TRUE(q.next(3, 6, r));
  EXPECT_EQ(r.chunks, chunks({{0, 5}, {8, 9}}));
  ASSERT_TRUE(q.next(3, 6, r));
  EXPECT_EQ(r.chunks, chunks({{9, 10}}));
  EXPECT_EQ(r.sequence, 7u);
  ASSERT_TRUE(q.next(3, 6, r));
  EXPECT_EQ(r.root, 1);
  q.on_released(8);
  EXPECT_EQ(q.askers(), (std::vector<Member>{3}));
  q.drop(3);
  EXPECT_TRUE(q.empty());
}

}  // namespace
}  // namespace mcast
