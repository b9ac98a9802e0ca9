// Actions of a stranger without a place in any group against a lane: leaving frames, disconnecting
// silently, and sending datagrams that only look like the group's. They must cost bounded memory
// and must not affect members.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>

#include "runtime/lane.h"
#include "support/cluster.h"

namespace mcast::test {
namespace {

std::vector<std::byte> early_frame(uint64_t tag, size_t body) {
  std::vector<std::byte> frame(wire::kFrameHeader + body);
  const ConstBytes payload[] = {ConstBytes(frame).subspan(wire::kFrameHeader)};
  wire::write_frame_header(frame.data(), {wire::FrameType::kPong, 0, 1, tag, 0, 0}, payload);
  return frame;
}

GroupParams params_of(uint64_t tag) {
  GroupParams params;
  params.tag = tag;
  params.agreed.members = 2;
  return params;
}

struct Pair {
  Pair() : cluster(options()) {}
  static ClusterOptions options() {
    ClusterOptions o;
    o.ranks = 2;
    return o;
  }
  void send(const std::vector<std::byte>& frame, size_t count) {
    for (size_t i = 0; i < count; i++) {
      cluster.net().inject_frame(1, 0, Channel::kControl, frame);
    }
    cluster.run_for(kMilli);
  }
  Cluster cluster;
};

TEST(Strangers, EarlyFramesOfOnePeerAreBoundedAndTheLossHasAName) {
  Pair pair;
  Lane& lane = pair.cluster.lane(0);
  const uint64_t tag = 1u << 20;
  pair.send(early_frame(tag, 4096), 40);
  const size_t kept = Lane::kEarlyBytes / (wire::kFrameHeader + 4096 + 64);
  EXPECT_EQ(lane.foreign(), 40 - kept);
  EXPECT_EQ(lane.monitor().count(Cause::foreign), 40 - kept);
  LaneGroup& group =
      lane.add_group(params_of(tag), {{9, 9000, false}}, {kNoPeer, 1}, pair.cluster.now());
  std::optional<Status> outcome;
  group.core().start_probe(pair.cluster.now(), [&](const Status& s) { outcome = s; });
  pair.cluster.run_for(kMilli);
  ASSERT_TRUE(outcome.has_value()) << "the creation would wait for what was lost";
  EXPECT_EQ(outcome->code(), Code::kResourceExhausted);
  EXPECT_NE(outcome->message().find("rank 1 sent more than 64 KiB before this rank had the group"),
            std::string::npos)
      << outcome->message();
}

TEST(Strangers, FramesOfOneGroupThatAreLostDoNotFailAnother) {
  Pair pair;
  Lane& lane = pair.cluster.lane(0);
  pair.send(early_frame(1u << 20, 4096), 40);
  LaneGroup& other =
      lane.add_group(params_of(1u << 21), {{9, 9000, false}}, {kNoPeer, 1}, pair.cluster.now());
  std::optional<Status> outcome;
  other.core().start_probe(pair.cluster.now(), [&](const Status& s) { outcome = s; });
  pair.cluster.run_for(kMilli);
  EXPECT_FALSE(outcome.has_value());
}

TEST(Strangers, PlacesOfEarlyFramesAreGivenBack) {
  Pair pair;
  Lane& lane = pair.cluster.lane(0);
  const size_t some = 10;
  for (uint64_t i = 0; i < 20; i++) {
    const uint64_t tag = (1u << 20) + i;
    pair.send(early_frame(tag, 4096), some);
    LaneGroup& group =
        lane.add_group(params_of(tag), {{9, 9000, false}}, {kNoPeer, 1}, pair.cluster.now());
    pair.cluster.run_for(kMilli);
    EXPECT_EQ(group.counters().get(Counter::frames_received), some);
    lane.remove_group(tag);
  }
  EXPECT_EQ(lane.foreign(), 0u);
  // Frames also expire by time, which frees their room.
  pair.send(early_frame(7, 4096), 40);
  const uint64_t dropped = lane.foreign();
  EXPECT_GT(dropped, 0u);
  pair.cluster.run_for(61 * kSecond);
  pair.send(early_frame(8, 4096), some);
  EXPECT_EQ(lane.foreign(), 40u) << "those that were kept count now, the new ones do not";
}

// Coalescing and the pacing of reductions depend on arriving data, which forgers must not
// influence.
TEST(Strangers, OnlyVerifiedDatagramsCountAsArrived) {
  ClusterOptions o;
  o.ranks = 2;
  Cluster c(o);
  auto arrived = std::make_shared<std::atomic<uint64_t>>(0);
  Lane lane(c.net().attach(), {arrived, nullptr, nullptr, true, nullptr});
  LaneGroup& group = lane.add_group(params_of(99), {{9, 9000, false}}, {kNoPeer, 0}, c.now());
  const auto datagram = [](uint64_t tag, Member member, uint8_t lane_bit = 0) {
    wire::DatagramHeader h;
    h.type = wire::DatagramType::kProbe;
    h.group_tag = tag;
    h.member = member;
    h.lane = lane_bit;
    std::vector<std::byte> bytes(wire::kDatagramHeader + 1000);
    wire::write_datagram(bytes, h, std::vector<std::byte>(1000));
    return bytes;
  };
  auto damaged = datagram(99, 1);
  damaged.back() ^= std::byte{1};
  auto garbage = datagram(99, 1);
  garbage[4] = std::byte{0};
  const size_t endpoint = 2;  // after the ranks' endpoints
  for (const auto& bytes :
       {datagram(98, 1), datagram(99, 1, 1), datagram(99, 7), damaged, garbage, datagram(99, 0)}) {
    c.net().inject(endpoint, bytes);
  }
  c.run_for(kMilli);
  lane.poll(c.now());
  EXPECT_EQ(arrived->load(), 0u);
  EXPECT_EQ(lane.monitor().count(Cause::foreign), 2u);
  EXPECT_EQ(lane.monitor().count(Cause::malformed), 2u);
  EXPECT_EQ(lane.monitor().count(Cause::damaged), 1u);
  EXPECT_EQ(group.counters().get(Counter::own_echo), 1u);
  EXPECT_TRUE(lane.monitor().watches());
  const auto good = datagram(99, 1);
  c.net().inject(endpoint, good);
  c.run_for(kMilli);
  lane.poll(c.now());
  EXPECT_EQ(arrived->load(), good.size());
}

}  // namespace
}  // namespace mcast::test
