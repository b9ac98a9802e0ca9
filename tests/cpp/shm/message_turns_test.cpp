// Work that one poll of a rank leaves to the next. A driver that releases the lane is notified if
// there is more to do, and a caller that waits for something short is not delayed by a long
// transfer.
#include <gtest/gtest.h>

#include "shm/host_world.h"
#include "shm/message_runs.h"

namespace mcast::test {
namespace {

HostCall small_broadcast(Member rank) {
  HostCall call;
  call.descriptor.kind = wire::Kind::kBroadcast;
  call.descriptor.bytes = 1000;
  call.descriptor.root = 0;
  call.output.resize(1000);
  if (rank == 0) call.inputs.emplace_back(1000);
  call.completed.assign(1, 0);
  return call;
}

// An operation ends in the third pass of the poll, beside a copy.
void copy_beside_operations(bool large) {
  HostWorld world(2, PeerMemory::kRead, 1);
  const auto r = receive(world, 1, 0, 7, 3'000'000);
  for (int i = 0; i < 3; i++) {
    world.post(0, small_broadcast(0));
    world.post(1, small_broadcast(1));
  }
  const auto s = send(world, 0, 1, 7, 3'000'000, 5);
  while (world.turn(0)) {
  }
  EXPECT_TRUE(world.core(0).arm(HostWaiter::kThread));
  const bool more = world.turn(1, large);
  EXPECT_EQ(world.calls(1)[2]->ended, 1);
  EXPECT_EQ(r->ends, 0);
  EXPECT_TRUE(more) << "there is more to copy, and nobody is told";
  if (!more) {
    EXPECT_FALSE(world.core(1).arm(HostWaiter::kThread)) << "asleep with a copy to make";
  }
}
TEST(HostMessageTurns, CopyContinuesAfterAnOperationOfALaterPass) { copy_beside_operations(true); }
TEST(HostMessageTurns, CopyContinuesAfterAPostingPoll) { copy_beside_operations(false); }

// As in help(): one operation, a long copy in progress, and the operation's data arrives in the
// third pass.
TEST(HostMessageTurns, CopyContinuesAfterTheAwaitedOperation) {
  HostWorld world(2, PeerMemory::kRead, 1);
  const auto r = receive(world, 1, 0, 7, 64'000'000);
  world.post(1, small_broadcast(1));
  const auto s = send(world, 0, 1, 7, 64'000'000, 5);
  while (world.turn(0)) {
  }
  world.core(0).arm(HostWaiter::kThread);
  int reads = 0;
  world.on_read = [&] {
    if (++reads == 5) {  // another process: rank 0 publishes its broadcast
      world.on_read = nullptr;
      world.post(0, small_broadcast(0));
      world.turn(0, false);
    }
  };
  const bool more = world.turn(1, true);
  EXPECT_EQ(world.calls(1)[0]->ended, 1);
  EXPECT_EQ(r->ends, 0);
  EXPECT_TRUE(more);
  if (!more) {
    EXPECT_FALSE(world.core(1).arm(HostWaiter::kThread)) << "asleep with a copy to make";
  }
}

// Many granted pieces become readable before a poll that posts.
TEST(HostMessageTurns, PiecesThatHaveBecomeReadableAllLeave) {
  HostWorld world(2, PeerMemory::kSlots, 1);
  std::vector<std::shared_ptr<Region>> regions;
  MessageRuns receives, sends;
  for (int i = 0; i < 300; i++) {
    receives.push_back(receive(world, 1, 0, 7, 64));
    auto run = a_send(0, 1, 7, 64, i);
    MessagePost post = post_of(run);
    post.memory.region->set_readable(0);
    regions.push_back(post.memory.region);
    sends.push_back(run);
    world.post(0, std::move(post));
  }
  ASSERT_TRUE(world.run());
  for (const auto& region : regions) region->set_readable(64);
  const bool more = world.turn(0, false);  // look_again
  int ended = 0;
  for (const auto& s : sends) ended += s->ends;
  EXPECT_TRUE(more) << ended << " of 300 have left";
  if (!more) {
    EXPECT_FALSE(world.core(0).arm(HostWaiter::kThread)) << "asleep; " << ended;
  }
}

// Rank 0 sends 300 messages and closes. Rank 1 then posts two receives from any source.
TEST(HostMessageTurns, ReceiveFromAnySourceTakesMessagesOfALeftSender) {
  HostWorld world(2, PeerMemory::kRead, 1);
  MessageRuns sends;
  for (uint32_t i = 0; i < 300; i++) sends.push_back(send(world, 0, 1, i, 100, i));
  while (world.turn(0)) {
  }
  for (const auto& s : sends) ASSERT_EQ(s->ends, 1);
  world.leave(0);
  // The order of HostLane::run(): drain, progress(false), watch (its tick has passed), deliver.
  const auto first = receive(world, 1, kNoMember, 299, 100);
  world.turn(1, false);
  world.core(1).check({});
  const auto second = receive(world, 1, kNoMember, 298, 100);
  for (int i = 0; i < 100; i++) world.turn(1, true);
  EXPECT_EQ(first->ends, 1);
  EXPECT_TRUE(first->status.ok()) << first->status.to_string();
  EXPECT_EQ(second->ends, 1);
  EXPECT_TRUE(second->status.ok()) << second->status.to_string();
}

// The same with few messages: the sender writes and leaves between progress() and check() of one
// poll.
TEST(HostMessageTurns, ReceiveFromAnySourceTakesTheLastMessagesOfASender) {
  HostWorld world(2, PeerMemory::kRead, 1);
  const auto first = receive(world, 1, kNoMember, 1, 100);
  world.turn(1, true);
  const auto a = send(world, 0, 1, 1, 100, 1), b = send(world, 0, 1, 2, 100, 2);
  while (world.turn(0)) {
  }
  world.leave(0);
  world.core(1).check({});
  world.core(1).deliver();
  const auto second = receive(world, 1, kNoMember, 2, 100);
  for (int i = 0; i < 10; i++) world.turn(1, true);
  EXPECT_TRUE(first->ends == 1 && first->status.ok()) << first->status.to_string();
  EXPECT_TRUE(second->ends == 1 && second->status.ok()) << second->status.to_string();
}

// Its ring is full, but a short enough record still fits: the report of a copy, which takes two
// passes.
TEST(HostMessageTurns, ARingThatIsFullIsWaitedForBesideACopy) {
  HostWorld world(2, PeerMemory::kRead, 1);
  const auto out = a_send(0, 1, 7, 1'000'000, 5);
  MessagePost post = post_of(out);
  const auto region = post.memory.region;
  region->set_readable(0);  // so it is not lent
  world.post(0, std::move(post));
  const auto in = receive(world, 1, 0, 7, 1'000'000);
  ASSERT_TRUE(world.run());
  const auto lent = send(world, 1, 0, 8, 700'000, 6);
  world.turn(1);
  region->set_readable(1'000'000);
  const auto copied = receive(world, 0, 1, 8, 700'000);
  world.core(0).disarm();
  while (world.turn(0)) {
  }
  EXPECT_EQ(copied->ends, 1);
  EXPECT_EQ(out->ends, 0);
  ASSERT_TRUE(world.core(0).arm(HostWaiter::kThread));
  while (world.turn(1)) {
  }
  EXPECT_EQ(world.block().board(0).need.load(), 0u) << "nobody was woken";
  for (int i = 0; i < 20; i++) {
    world.turn(0);
    world.turn(1);
  }
  expect_got(*in, 0, 5);
  EXPECT_EQ(out->ends, 1);
  EXPECT_EQ(lent->ends, 1);
}

TEST(HostMessageTurns, AShortReceiveIsNotKeptForALongCopy) {
  HostWorld world(2, PeerMemory::kRead, 1);
  const auto big = receive(world, 1, 0, 7, 30'000'000);
  const auto small = receive(world, 1, 0, 8, 10);
  send(world, 0, 1, 7, 30'000'000, 5);
  send(world, 0, 1, 8, 10, 6);
  while (world.turn(0)) {
  }
  int reads = 0;
  world.on_read = [&] { reads++; };
  world.turn(1, true);
  EXPECT_EQ(small->ends, 1);
  EXPECT_LE(reads, 2) << "pieces of 512 KiB copied before the short one's end is told";
}

}  // namespace
}  // namespace mcast::test
