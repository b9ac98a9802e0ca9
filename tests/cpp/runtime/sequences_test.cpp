// Limits of numbers: sequences of operations, tags of removed groups, rounds of ranks of one host.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "copy_group.h"
#include "support/cluster.h"

namespace mcast::test {
namespace {

TEST(Sequences, AGroupRefusesWhatItCannotNumberAndCarriesOutAllBefore) {
  CopyGroup group("g", 0, 2);
  group.start_at(GroupBase::kSequences - 2);
  for (int i = 0; i < 2; i++) {
    const auto posted = group.post_barrier({});
    ASSERT_TRUE(posted.ok()) << posted.status().to_string();
    EXPECT_LT(posted.value(), GroupBase::kSequences);
  }
  std::vector<std::byte> bytes(8);
  auto region = std::make_shared<Region>(bytes.data(), bytes.size(), nullptr);
  const size_t before = group.posts.size();
  const auto barrier = group.post_barrier({});
  const auto broadcast = group.post_broadcast({region, 0, 8}, 0, {});
  for (const Status& refused : {barrier.status(), broadcast.status()}) {
    EXPECT_EQ(refused.code(), Code::kResourceExhausted);
    EXPECT_NE(refused.message().find(" sequence numbers; destroy it"), std::string::npos)
        << refused.message();
  }
  EXPECT_EQ(group.posts.size(), before) << "nothing of them was begun";
}

Result<Sequence> post_sum(CopyGroup& group) {
  static std::array<int32_t, 1> data;
  auto region = std::make_shared<Region>(reinterpret_cast<std::byte*>(data.data()), 4, nullptr);
  const Slice memory{std::move(region), 0, 4};
  return group.post_allreduce(memory, memory, {Element::kInt32, Reduction::kSum}, {});
}

TEST(Sequences, ABarrierAfterAReductionHasANumberOnEachLaneAndEndsOnce) {
  CopyGroup group("g", 0, 2);
  ASSERT_TRUE(group.post_barrier({}).ok());
  ASSERT_EQ(post_sum(group).value(), 0u);
  group.posts.clear();
  std::vector<Status> ends;
  PostOptions options;
  options.moments = std::make_shared<Moments>();
  options.done = [&](const Status& status) { ends.push_back(status); };
  ASSERT_EQ(group.post_barrier(std::move(options)).value(), 1u);
  ASSERT_EQ(group.posts.size(), 2u) << "one for each lane";
  EXPECT_EQ(group.posts[0].sequence, 1u);
  EXPECT_EQ(group.posts[1].sequence, 1u);
  EXPECT_NE(group.posts[0].moments != nullptr, group.posts[1].moments != nullptr)
      << "only one lane writes them";
  group.posts[1].done(make_error<ErrorId::rank_lost>(1, "it was killed"));
  EXPECT_TRUE(ends.empty());
  group.posts[0].done({});
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].code(), Code::kPeerLost);
  ASSERT_EQ(group.post_barrier({}).value(), 2u);
  EXPECT_EQ(group.posts.size(), 3u) << "no reduction since the last barrier";
}

TEST(Sequences, ABarrierThatOneLaneCannotNumberGoesToNeither) {
  CopyGroup group("g", 0, 2);
  group.start_at(GroupBase::kSequences - 1);
  ASSERT_TRUE(post_sum(group).ok());
  for (int i = 0; i < 2; i++) {
    EXPECT_EQ(group.post_barrier({}).status().code(), Code::kResourceExhausted);
  }
  EXPECT_EQ(group.posts.size(), 1u);
  EXPECT_EQ(group.stats().next_sequence.multicast, GroupBase::kSequences - 1);
}

// The oldest tag is forgotten first, not the smallest.
TEST(Sequences, FramesOfTheGroupThatWasRemovedLastAreLateOnes) {
  ClusterOptions o;
  o.ranks = 2;
  Cluster c(o);
  Lane& lane = c.lane(0);
  const uint64_t first = 1u << 20;
  uint64_t tag = first;
  for (size_t i = 0; i <= RetiredTags::kMost + 10; i++) {
    GroupParams params;
    params.tag = --tag;
    params.agreed.members = 2;
    lane.add_group(params, {{9, 9000, false}}, {kNoPeer, 1}, c.now());
    lane.remove_group(tag);
  }
  std::vector<std::byte> frame(wire::kFrameHeader);
  wire::write_frame_header(frame.data(), {wire::FrameType::kPong, 0, 1, tag, 0, 0}, {});
  c.net().inject_frame(1, 0, Channel::kControl, frame);
  c.run_for(kMilli);
  EXPECT_EQ(lane.late(), 1u);
  EXPECT_EQ(lane.foreign(), 0u);
}

// Two ranks, one of which sends frames of a group that the other has not made.
class EarlyFrames {
 public:
  EarlyFrames() : cluster_(two()) {
    params_.tag = 1u << 20;
    params_.agreed.members = 2;
  }
  uint64_t tag() const { return params_.tag; }
  uint64_t foreign() { return cluster_.lane(0).foreign(); }
  void run_for(Nanos time) { cluster_.run_for(time); }
  void inject(uint64_t tag) {
    std::vector<std::byte> frame(wire::kFrameHeader);
    wire::write_frame_header(frame.data(), {wire::FrameType::kPong, 0, 1, tag, 0, 0}, {});
    cluster_.net().inject_frame(1, 0, Channel::kControl, frame);
  }
  // Makes the group and returns the number of frames that were kept for it.
  uint64_t kept() {
    LaneGroup& group =
        cluster_.lane(0).add_group(params_, {{9, 9000, false}}, {kNoPeer, 1}, cluster_.now());
    cluster_.run_for(kMilli);
    return group.counters().get(Counter::frames_received);
  }

 private:
  static ClusterOptions two() {
    ClusterOptions o;
    o.ranks = 2;
    return o;
  }
  GroupParams params_;
  Cluster cluster_;
};

TEST(Sequences, FramesOfAGroupThatIsNotThereYetAreKept) {
  EarlyFrames early;
  early.inject(early.tag());
  early.run_for(kMilli);
  EXPECT_EQ(early.kept(), 1u);
  EXPECT_EQ(early.foreign(), 0u);
}

// Dropped after a minute, when the next frame of that peer is kept.
TEST(Sequences, FramesOfAGroupThatNeverComesAreDropped) {
  EarlyFrames early;
  early.inject(early.tag());
  early.run_for(61 * kSecond);
  EXPECT_EQ(early.foreign(), 0u);
  early.inject(early.tag() + 1);
  early.run_for(kMilli);
  EXPECT_EQ(early.foreign(), 1u);
  EXPECT_EQ(early.kept(), 0u);
}

}  // namespace
}  // namespace mcast::test
