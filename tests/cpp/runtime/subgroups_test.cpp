// The posts of Subgroups on its groups: every byte once, completed ends in order, one end.
#include "runtime/subgroups.h"

#include <algorithm>

#include "runtime/copy_group.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

using wire::Kind;

TEST(Subgroups, CarryLargeOperations) {
  const Subgroups s(
      {std::make_shared<CopyGroup>("g/sub 0", 0, 2), std::make_shared<CopyGroup>("g/sub 1", 0, 2)});
  EXPECT_TRUE(s.carries(call(Kind::kBroadcast, 0, 4 << 20)));
  EXPECT_TRUE(s.carries(call(Kind::kAllgather, kNoMember, 4 << 20)));
  EXPECT_FALSE(s.carries(call(Kind::kAllgather, kNoMember, (4 << 20) - 1)));
  EXPECT_FALSE(s.carries(call(Kind::kAllreduce, kNoMember, 64 << 20)));
  EXPECT_EQ(s.streams_text(), "every rank, in 2 subgroups");
}

TEST(Subgroups, SharesCoverABlock) {
  for (const size_t bytes :
       {size_t{1}, size_t{64}, size_t{65}, size_t{4u << 20}, size_t{9999999}}) {
    for (const size_t parts : {1u, 2u, 3u, 16u}) {
      const Shares shares(bytes, parts);
      ASSERT_EQ(shares.lengths.size(), parts);
      size_t sum = 0;
      for (size_t i = 0; i < parts; i++) {
        if (shares.lengths[i] > 0) {
          EXPECT_EQ(sum, i * shares.share);
        }
        sum += shares.lengths[i];
      }
      EXPECT_EQ(sum, bytes);
      EXPECT_EQ(shares.share % 64, 0u);
    }
  }
}

// One operation of three ranks, each with the same number of subgroups.
class Split3 {
 public:
  static constexpr uint32_t kRanks = 3;

  explicit Split3(uint64_t seed) : seed_(seed), rng_(seed), groups_(2 + rng_.below(3)) {
    for (uint32_t r = 0; r < kRanks; r++) {
      std::vector<std::shared_ptr<GroupBase>> own;
      for (size_t i = 0; i < groups_.size(); i++) {
        const auto group = std::make_shared<CopyGroup>("g/sub " + std::to_string(i), r, kRanks);
        groups_[i].push_back(group.get());
        own.push_back(group);
      }
      ranks_.push_back(std::make_unique<Subgroups>(std::move(own)));
    }
    all_ = rng_.chance(0.5);
    root_ = static_cast<Member>(all_ ? kNoMember : rng_.below(kRanks));
    bytes_ = (4u << 20) + rng_.below(300'000);
    blocks_ = all_ ? kRanks : 1;
    for (Output& o : outputs_) {
      o.memory.resize(blocks_ * bytes_);
      o.completed.resize(blocks_);
    }
  }

  void post(Member m) {
    Output& out = outputs_[m];
    auto region = std::make_shared<Region>(out.memory.data(), out.memory.size(), nullptr);
    Post p;
    p.descriptor = call(all_ ? Kind::kAllgather : Kind::kBroadcast, root_, bytes_);
    for (size_t b = 0; b < blocks_; b++) p.outputs.push_back({region, b * bytes_, bytes_});
    if (all_ || root_ == m) {
      p.input = p.outputs[all_ ? m : 0];
      for (size_t i = 0; i < bytes_; i++) p.input.data()[i] = pattern(m, i, seed_);
    }
    p.completed_step = 100'000;
    p.on_completed = [this, &out](uint32_t b, uint64_t to) {
      EXPECT_GT(to, out.completed[b]);
      expect_bytes(out, b, out.completed[b], to, 977);
      out.completed[b] = to;
    };
    Split::Events events;
    events.arrived = [&out] { out.arrived++; };
    events.trouble = [](const Status& why) { ADD_FAILURE() << why.to_string(); };
    events.ended = [&out] { out.ended++; };
    ranks_[m]->post(std::move(p), std::move(events));
  }

  // Carries out all subgroups, one step of one at a time.
  void carry_out_all() {
    std::vector<std::vector<size_t>> progress(groups_.size());
    for (int idle = 0; idle < 100;) {
      const size_t i = rng_.below(groups_.size());
      idle = carry_out(groups_[i], progress[i], true, rng_) ? 0 : idle + 1;
    }
  }

  void expect_exact(Member m) {
    Output& out = outputs_[m];
    ASSERT_EQ(out.arrived, 1);
    ASSERT_EQ(out.ended, 1);
    for (uint32_t b = 0; b < blocks_; b++) {
      expect_bytes(out, b, 0, bytes_, 1);
      if (from(b) != m) {
        EXPECT_EQ(out.completed[b], bytes_);
      }
    }
  }

 private:
  struct Output {
    std::vector<std::byte> memory;
    std::vector<uint64_t> completed;  // by block
    int arrived = 0, ended = 0;
  };

  Member from(uint32_t block) const { return all_ ? static_cast<Member>(block) : root_; }
  void expect_bytes(const Output& out, uint32_t block, size_t begin, size_t end, size_t step) {
    for (size_t i = begin; i < end; i += step) {
      ASSERT_EQ(out.memory[block * bytes_ + i], pattern(from(block), i, seed_))
          << "byte " << i << " of block " << block;
    }
  }

  uint64_t seed_;
  Rng rng_;
  std::vector<std::vector<CopyGroup*>> groups_;  // members by subgroup
  std::vector<std::unique_ptr<Subgroups>> ranks_;
  bool all_ = false;
  Member root_ = 0;
  size_t bytes_ = 0, blocks_ = 0;
  Output outputs_[kRanks];
};

TEST(Subgroups, DeliverExactBytesInAnyOrder) {
  for (const uint64_t seed : seeds(12)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Split3 it(seed);
    for (Member m = 0; m < Split3::kRanks; m++) it.post(m);
    it.carry_out_all();
    for (Member m = 0; m < Split3::kRanks; m++) it.expect_exact(m);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace mcast::test
