// Flips one bit of one stream frame in transit, at every place of the header and in the body.
// Wherever it hits, every rank (also the frame's sender) completes with exact bytes or raises
// immediately, long before a liveness limit could pass.
#include <gtest/gtest.h>

#include <optional>

#include "support/program.h"

namespace mcast::test {
namespace {

class CorruptFrame : public testing::TestWithParam<bool> {};

TEST_P(CorruptFrame, RaisesEverywhereAtOnce) {
  const bool multicast = GetParam();
  int raised = 0;
  for (const int target : {1, 7, 20, 41}) {
    for (size_t place = 0; place < wire::kFrameHeader + 4; place++) {
      ClusterOptions options;
      options.ranks = 4;
      options.net.seed = 1 + place;
      options.group.multicast.wanted = multicast;
      Cluster cluster(options);
      int seen = 0;
      std::optional<size_t> hit;
      cluster.net().set_frame_hook([&](size_t from, size_t to, Channel channel, ConstBytes frame) {
        if (hit || ++seen < target || frame.size() <= place) return true;
        hit = place;
        std::vector<std::byte> damaged(frame.begin(), frame.end());
        damaged[place] ^= std::byte{0x10};
        cluster.net().inject_frame(from, to, channel, damaged);
        return false;
      });
      Runs runs;
      for (uint64_t id = 1; id < 4; id++) {
        for (Member r = 0; r < 4; r++) runs.push_back(cluster.allgather(r, 200000, id));
      }
      const std::string where =
          "frame " + std::to_string(target) + " byte " + std::to_string(place);
      ASSERT_TRUE(cluster.run([&] { return all_done(runs); }, kSecond)) << where;
      ASSERT_TRUE(hit.has_value()) << where;
      bool failed = false;
      for (const auto& run : runs) {
        if (run->status.ok()) {
          EXPECT_EQ(run->check(4), "") << where;
        } else {
          failed = true;
          EXPECT_NE(run->status.message().find("arrived corrupt"), std::string::npos)
              << where << ": " << run->status.to_string();
        }
      }
      raised += failed ? 1 : 0;
    }
  }
  EXPECT_GT(raised, 80);  // of 112; the last frames may arrive after all operations
}

INSTANTIATE_TEST_SUITE_P(Paths, CorruptFrame, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "Multicast" : "Ring"); });

}  // namespace
}  // namespace mcast::test
