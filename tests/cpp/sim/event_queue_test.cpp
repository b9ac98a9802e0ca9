// Compares the event queue with a sorted list, and tests small parts of the network model: trains
// count their bytes, losses have their rate and bursts, queues keep their order.
#include "sim/network/event_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <tuple>

#include "base/rng.h"
#include "sim/network/fifo.h"
#include "sim/network/loss.h"
#include "sim/network/train.h"

namespace mcast::sim {
namespace {

TEST(EventQueue, HandsOutByTimeAndThenByOrder) {
  Rng rng(1);
  EventQueue queue;
  std::vector<std::tuple<Nanos, uint32_t>> waiting;  // time, number of the push
  uint32_t pushed = 0;
  for (int round = 0; round < 20000; round++) {
    if (waiting.empty() || rng.chance(0.52)) {
      const Nanos at = queue.now() + static_cast<Nanos>(rng.below(50));
      queue.push(at, EventKind::kAction, pushed);
      waiting.emplace_back(at, pushed++);
    } else {
      const auto least = std::min_element(waiting.begin(), waiting.end());
      const Event event = queue.pop();
      ASSERT_EQ(std::tuple(event.at, event.index), *least);
      ASSERT_EQ(queue.now(), event.at);
      waiting.erase(least);
    }
    ASSERT_EQ(queue.size(), waiting.size());
  }
}

TEST(EventQueue, PastEventsHappenNow) {
  EventQueue queue;
  queue.move_to(100);
  queue.push(50, EventKind::kAction, 1);
  EXPECT_EQ(queue.next(), 100);
  queue.move_to(90);
  EXPECT_EQ(queue.now(), 100);
}

TEST(Fifo, KeepsOrderWhileItsMemoryIsUsedAgain) {
  Rng rng(2);
  Fifo<int> fifo;
  int in = 0, out = 0;
  for (int round = 0; round < 10000; round++) {
    if (fifo.empty() || rng.chance(0.5)) {
      fifo.push(in++);
    } else {
      ASSERT_EQ(fifo.front(), out++);
      fifo.pop();
    }
    ASSERT_EQ(fifo.size(), static_cast<size_t>(in - out));
    if (!fifo.empty()) {
      ASSERT_EQ(fifo[fifo.size() - 1], in - 1);
    }
  }
}

TEST(Train, CountsWireBytesOfRemainingPackets) {
  TrainPool pool;
  {
    const TrainRef train = pool.make();
    train->overhead = 66;
    for (const size_t length : {100, 200, 300}) train->add(length);
    EXPECT_EQ(train->wire, 600u + 3 * 66);
    EXPECT_EQ(train->wire_of(train->all()), train->wire);
    EXPECT_EQ(train->wire_of(0b101), 400u + 2 * 66);
    EXPECT_EQ(train->begin_of(2), 300u);
    const TrainRef other = train;
    EXPECT_EQ(pool.used(), 1u);
  }
  EXPECT_EQ(pool.used(), 0u);
  EXPECT_EQ(pool.make()->count, 0u) << "a train that is used again is empty";
}

// Otherwise a stream whose timer doubles would lose each of the few packets that it sends.
TEST(Loss, ABurstEndsWhereNothingIsSent) {
  Loss idle(0.3, 1000, 7), busy(0.3, 1000, 7);
  int lost = 0, most = 0, run = 0;
  Nanos now = 0;
  for (int i = 0; i < 100'000; i++) {
    lost += busy.survivors(1, now += kMilli) == 0 ? 1 : 0;
  }
  EXPECT_GT(lost, 10'000);
  for (int i = 0; i < 100'000; i++) {
    run = idle.survivors(1, now += Loss::kIdle + 1) == 0 ? run + 1 : 0;
    most = std::max(most, run);
  }
  EXPECT_EQ(most, 1);
}

TEST(Loss, HasItsRateAndItsBursts) {
  for (const double rate : {0.0, 1e-3, 0.02, 0.3, 1.0}) {
    for (const double burst : {1.0, 5.0}) {
      Loss loss(rate, burst, 7);
      constexpr uint64_t kPackets = 64 * 40000;
      uint64_t lost = 0, runs = 0;
      bool losing = false;
      for (uint64_t i = 0; i < kPackets / 64; i++) {
        const uint64_t kept = loss.survivors(~uint64_t{0});
        lost += static_cast<uint64_t>(64 - std::popcount(kept));
        for (unsigned b = 0; b < 64; b++) {
          const bool gone = (kept >> b & 1) == 0;
          runs += gone && !losing;
          losing = gone;
        }
      }
      const double share = static_cast<double>(lost) / kPackets;
      EXPECT_NEAR(share, rate, 0.1 * rate + 1e-9) << rate << " " << burst;
      if (rate > 0 && rate < 1) {
        const double mean = static_cast<double>(lost) / static_cast<double>(runs);
        const double want = std::max(burst, 1 / (1 - rate));
        EXPECT_NEAR(mean, want, 0.15 * want) << rate << " " << burst;
      }
    }
  }
}

}  // namespace
}  // namespace mcast::sim
