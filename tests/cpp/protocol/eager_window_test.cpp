// EagerWindow: the memory of late ranks bounds the data that roots send ahead of credit.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "protocol/eager_window.h"
#include "support/seeds.h"

namespace mcast {
namespace {

TEST(EagerWindow, KeepsUnreleasedDataBelowTheLimit) {
  EagerWindow w(100);
  for (int i = 0; i < 5; i++) w.on_post(40);
  EXPECT_TRUE(w.open(0));
  EXPECT_TRUE(w.open(1));
  EXPECT_FALSE(w.open(2));
  EXPECT_TRUE(w.filling());
  w.on_released(1);
  EXPECT_TRUE(w.open(2));
  EXPECT_FALSE(w.open(3));
  w.on_released(4);
  EXPECT_TRUE(w.open(4));
  EXPECT_FALSE(w.filling());
}

TEST(EagerWindow, OneOperationAlwaysFits) {
  EagerWindow w(0);
  w.on_post(1000);
  w.on_post(1000);
  EXPECT_TRUE(w.open(0));
  EXPECT_FALSE(w.open(1));
  w.on_released(1);
  EXPECT_TRUE(w.open(1));
}

TEST(EagerWindow, OperationsNotSentAheadCostNothing) {
  EagerWindow w(10);
  for (int i = 0; i < 100; i++) w.on_post(0);
  EXPECT_TRUE(w.open(99));
}

// Ranks post at different times, and roots learn of releases at different times. The data that the
// slowest receiver must keep never exceeds the limit (except for a single operation).
TEST(EagerWindow, NoReceiverIsSentMoreThanTheLimit) {
  for (const uint64_t seed : test::seeds(200)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const size_t limit = 200 + rng.below(5000), ranks = 2 + rng.below(4), ops = 60;
    struct Op {
      size_t root, bytes;
    };
    std::vector<Op> calls(ops);
    for (Op& op : calls) op = {rng.below(ranks), 1 + rng.below(300)};
    struct Rank {
      EagerWindow window;
      size_t posted = 0, released = 0, sent = 0;  // sent: considered for sending, in order
      size_t staged = 0;
    };
    std::vector<Rank> all;
    for (size_t r = 0; r < ranks; r++) all.push_back({EagerWindow(limit)});
    std::vector<bool> on_wire(ops);
    for (int turn = 0; turn < 4000; turn++) {
      Rank& me = all[rng.below(ranks)];
      const auto who = static_cast<size_t>(&me - all.data());
      if (me.posted < ops && rng.chance(0.6)) {
        me.window.on_post(EagerWindow::cost(1, calls[me.posted++].bytes));
      }
      while (me.sent < me.posted &&
             (calls[me.sent].root != who || me.window.open(static_cast<Sequence>(me.sent)))) {
        if (calls[me.sent].root == who) on_wire[me.sent] = true;
        me.sent++;
      }
      // Complete everywhere: posted by all ranks, and sent. A rank may learn of it late.
      size_t everywhere = 0;
      while (everywhere < ops && on_wire[everywhere] &&
             std::all_of(all.begin(), all.end(),
                         [&](const Rank& r) { return r.posted > everywhere; })) {
        everywhere++;
      }
      me.released += rng.below(everywhere - me.released + 1);
      me.window.on_released(static_cast<Sequence>(me.released));
      for (const Rank& late : all) {
        size_t ahead = 0, count = 0;
        for (size_t s = late.posted; s < ops; s++) {
          if (!on_wire[s] || calls[s].root == static_cast<size_t>(&late - all.data())) continue;
          ahead += EagerWindow::cost(1, calls[s].bytes);
          count++;
        }
        ASSERT_TRUE(ahead <= limit || count == 1) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace mcast
