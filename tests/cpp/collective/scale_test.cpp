// Control frames at scale: the frames that members send while they wait for a late rank, and the
// frames of an operation if no rank is late. Neither may grow with the group at any single member.
// MCAST_TEST_SCALE=n prints the table's row for n ranks (64, 256, 1024).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "support/cluster.h"
#include "support/program.h"

namespace mcast::test {
namespace {

struct Frames {
  uint64_t all = 0, most = 0;  // of all members; of the one that sent most
};

class Tally {
 public:
  explicit Tally(Cluster& c) : c_(c) { reset(); }
  void reset() {
    before_.clear();
    for (Member r = 0; r < c_.size(); r++) before_.push_back(sent(r));
  }
  Frames since() const {
    Frames f;
    for (Member r = 0; r < c_.size(); r++) {
      const uint64_t n = sent(r) - before_[r];
      f.all += n;
      f.most = std::max(f.most, n);
    }
    return f;
  }

 private:
  uint64_t sent(Member r) const { return c_.group(r).counters().get(Counter::frames_sent); }
  Cluster& c_;
  std::vector<uint64_t> before_;
};

struct Row {
  Frames waiting;            // per second; a rank is late to two operations
  Frames gather, broadcast;  // per operation
};

Row measure(uint32_t ranks) {
  ClusterOptions o;
  o.ranks = ranks;
  o.net.receive_budget = o.group.agreed.budget = 8 << 20;
  o.net.jitter = 0;  // reordering would cause repairs
  Cluster c(o);
  Row row;
  const auto last = static_cast<Member>(ranks - 1);
  Runs runs;
  for (Member r = 0; r < last; r++) {
    runs.push_back(c.allgather(r, 64, 1));
    runs.push_back(c.broadcast(r, 0, 200'000, 2));
  }
  c.run_for(200 * kMilli);
  Tally tally(c);
  c.run_for(2 * kSecond);
  row.waiting = tally.since();
  row.waiting.all /= 2;
  row.waiting.most /= 2;
  runs.push_back(c.allgather(last, 64, 1));
  runs.push_back(c.broadcast(last, 0, 200'000, 2));
  finish(c, runs);
  tally.reset();
  finish(c, allgather_all(c, 64, 3));
  row.gather = tally.since();
  tally.reset();
  finish(c, broadcast_all(c, 0, 1 << 20, 4));
  row.broadcast = tally.since();
  return row;
}

TEST(Scale, WaitingAndOperationsCostTheSameAtEveryMember) {
  for (const uint32_t ranks : {16u, 64u}) {
    const Row row = measure(ranks);
    // Pings and replies: to and from 33 children, a parent and two neighbours.
    EXPECT_LE(row.waiting.most, 2u * 36u) << ranks;
    EXPECT_LE(row.waiting.all, 8u * ranks) << ranks;
    // Completion up and release down; a broadcast also has credit, a few times per window.
    EXPECT_LE(row.gather.all, 3u * ranks) << ranks;
    EXPECT_LE(row.broadcast.all, 8u * ranks) << ranks;
  }
}

TEST(Scale, TableRowIsPrintedForTheGivenRanks) {
  const char* const ranks = std::getenv("MCAST_TEST_SCALE");
  const auto n = static_cast<uint32_t>(ranks == nullptr ? 4 : std::atoi(ranks));
  const Row row = measure(n);
  ASSERT_GT(row.broadcast.all, 0u);
  if (ranks == nullptr) return;
  std::printf("| %u | %lu, %lu | %lu, %lu | %lu, %lu |\n", n, row.waiting.all, row.waiting.most,
              row.gather.all, row.gather.most, row.broadcast.all, row.broadcast.most);
}

}  // namespace
}  // namespace mcast::test
