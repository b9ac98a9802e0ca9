// What Subgroups posts on its groups: every byte once, completed ends in order, one end.
#include "engine/subgroups.h"

#include <algorithm>

#include "engine/copy_group.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

using wire::Kind;

TEST(Subgroups, CarryWhatIsLarge) {
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

TEST(Subgroups, DeliverExactBytesInAnyOrder) {
  constexpr uint32_t kRanks = 3;
  for (const uint64_t seed : seeds(12)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const size_t count = 2 + rng.below(3);
    std::vector<std::vector<CopyGroup*>> groups(count);
    std::vector<std::unique_ptr<Subgroups>> ranks;
    for (uint32_t r = 0; r < kRanks; r++) {
      std::vector<std::shared_ptr<GroupBase>> own;
      for (size_t i = 0; i < count; i++) {
        const auto group = std::make_shared<CopyGroup>("g/sub " + std::to_string(i), r, kRanks);
        groups[i].push_back(group.get());
        own.push_back(group);
      }
      ranks.push_back(std::make_unique<Subgroups>(std::move(own)));
    }
    const bool all = rng.chance(0.5);
    const auto root = static_cast<Member>(all ? kNoMember : rng.below(kRanks));
    const size_t bytes = (4u << 20) + rng.below(300'000), blocks = all ? kRanks : 1;
    std::vector<std::vector<std::byte>> outputs(kRanks, std::vector<std::byte>(blocks * bytes));
    std::vector<std::vector<uint64_t>> marked(kRanks, std::vector<uint64_t>(blocks));
    std::vector<int> arrived(kRanks), ended(kRanks);
    for (Member m = 0; m < kRanks; m++) {
      auto region = std::make_shared<Region>(outputs[m].data(), outputs[m].size(), nullptr);
      Post p;
      p.descriptor = call(all ? Kind::kAllgather : Kind::kBroadcast, root, bytes);
      for (size_t b = 0; b < blocks; b++) p.outputs.push_back({region, b * bytes, bytes});
      if (all || root == m) {
        p.input = p.outputs[all ? m : 0];
        for (size_t i = 0; i < bytes; i++) p.input.data()[i] = pattern(m, i, seed);
      }
      p.completed_step = 100'000;
      p.on_completed = [&, m](uint32_t b, uint64_t to) {
        EXPECT_GT(to, marked[m][b]);
        const auto from = all ? static_cast<Member>(b) : root;
        for (size_t i = marked[m][b]; i < to; i += 977) {
          ASSERT_EQ(outputs[m][b * bytes + i], pattern(from, i, seed)) << i << " is not final";
        }
        marked[m][b] = to;
      };
      Split::Events events;
      events.arrived = [&, m] { arrived[m]++; };
      events.trouble = [](const Status& why) { ADD_FAILURE() << why.to_string(); };
      events.ended = [&, m] { ended[m]++; };
      ranks[m]->post(std::move(p), std::move(events));
    }
    std::vector<std::vector<size_t>> progress(count);
    for (int idle = 0; idle < 100;) {
      const size_t i = rng.below(count);
      idle = carry_out(groups[i], progress[i], true, rng) ? 0 : idle + 1;
    }
    for (Member m = 0; m < kRanks; m++) {
      ASSERT_EQ(arrived[m], 1);
      ASSERT_EQ(ended[m], 1);
      for (size_t b = 0; b < blocks; b++) {
        const auto from = all ? static_cast<Member>(b) : root;
        for (size_t i = 0; i < bytes; i++) {
          ASSERT_EQ(outputs[m][b * bytes + i], pattern(from, i, seed)) << i;
        }
        if (from != m) {
          EXPECT_EQ(marked[m][b], bytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mcast::test
