// Unknown peers over verbs: how many there may be, and what remains of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "transport/guests.h"
#include "verbs/guarded_world.h"
#include "verbs/pair.h"

namespace mcast::testing {
namespace {

class VerbsStrangers : public ::testing::Test, protected Pair {};

TEST_F(VerbsStrangers, AThousandStrangersAndThenTheOldestGoes) {
  (void)nodes[1].st().add_peer(nodes[0].st().address(false));
  connect();
  const StreamAddress at = nodes[1].st().address(false);
  std::vector<std::unique_ptr<RawConnector>> crowd;
  const auto come = [&](uint64_t uid) {
    verbs::Hello hello;
    hello.source = uid;
    hello.target = at.uid;
    crowd.push_back(std::make_unique<RawConnector>(fake(), at.port));
    crowd.back()->ask(encode(hello));
    poll(2);
    return crowd.back()->answer().first;
  };
  for (uint64_t i = 0; i < Guests::kMost + 5; i++) {
    ASSERT_EQ(come(1000 + i), RDMA_CM_EVENT_ESTABLISHED) << i;
  }
  EXPECT_EQ(transports[1]->stream_stats().crowded_out, 5u);
  std::vector<PeerId> first(5);
  std::iota(first.begin(), first.end(), PeerId{1});
  EXPECT_EQ(nodes[1].strangers_gone, first);
  for (size_t i = 0; i < 5; i++) EXPECT_EQ(crowd[i]->answer().first, RDMA_CM_EVENT_DISCONNECTED);
  // Their ids are reused, and no member is affected.
  EXPECT_TRUE(nodes[1].downs.empty());
  nodes[0].send(peer, Channel::kControl, pattern(10, 2));
  poll();
  EXPECT_EQ(nodes[1].frames.size(), 2u);
  crowd.clear();
  poll();
  EXPECT_EQ(nodes[1].strangers_gone.size(), Guests::kMost + 5);
  EXPECT_TRUE(nodes[1].downs.empty());
}

TEST_F(VerbsStrangers, AStrangerThatIsAddedIsOneNoMore) {
  connect();
  const PeerId id = nodes[1].st().add_peer(nodes[0].st().address(false));
  EXPECT_EQ(id, nodes[1].frames[0].peer) << "its frames are the member's";
  nodes[0].transport.reset();
  poll();
  EXPECT_THAT(down(1), ::testing::HasSubstr("without a goodbye"));
  EXPECT_TRUE(nodes[1].strangers_gone.empty());
}

}  // namespace
}  // namespace mcast::testing
