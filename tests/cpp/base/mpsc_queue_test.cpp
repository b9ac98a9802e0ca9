// The queue under many producers (also run with -DMCAST_SANITIZE=thread): no item is lost or
// duplicated, the order per producer is kept, and a consumer that sleeps according to push()'s
// result never misses work.
#include "base/mpsc_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <semaphore>
#include <thread>

namespace mcast {
namespace {

TEST(MpscQueue, DrainsInOrderAndReportsEmptiness) {
  MpscQueue<int> queue;
  std::vector<int> out = {99};
  EXPECT_FALSE(queue.drain(out));
  EXPECT_TRUE(out.empty());
  EXPECT_TRUE(queue.push(1));
  EXPECT_FALSE(queue.push(2));
  EXPECT_TRUE(queue.drain(out));
  EXPECT_EQ(out, (std::vector<int>{1, 2}));
  EXPECT_TRUE(queue.push(3));
  EXPECT_TRUE(queue.drain(out));
  EXPECT_EQ(out, (std::vector<int>{3}));
  EXPECT_FALSE(queue.drain(out));
}

TEST(MpscQueue, HoldsMoveOnlyItems) {
  MpscQueue<std::unique_ptr<int>> queue;
  queue.push(std::make_unique<int>(5));
  std::vector<std::unique_ptr<int>> out;
  ASSERT_TRUE(queue.drain(out));
  EXPECT_EQ(*out.at(0), 5);
}

TEST(MpscQueue, OldItemsMayPushWhileTheyAreDestroyed) {
  // A completion's destructor can post again, so drain() must not hold the lock while it runs.
  MpscQueue<std::shared_ptr<void>> queue;
  queue.push(std::shared_ptr<void>(nullptr, [&](void*) { queue.push(nullptr); }));
  std::vector<std::shared_ptr<void>> out;
  ASSERT_TRUE(queue.drain(out));
  EXPECT_TRUE(queue.drain(out));  // the item that the destructor pushed
  EXPECT_EQ(out.size(), 1u);
}

TEST(MpscQueue, ManyProducersAndASleepingConsumer) {
  constexpr int kProducers = 4, kItems = 5000;
  MpscQueue<std::pair<int, int>> queue;
  std::counting_semaphore<> wake(0);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (int i = 0; i < kItems; ++i) {
        if (queue.push({p, i})) wake.release();
      }
    });
  }
  std::vector<std::pair<int, int>> out;
  std::vector<int> next(kProducers);
  for (int total = 0; total < kProducers * kItems;) {
    wake.acquire();  // a missed wake-up would hang here
    EXPECT_TRUE(queue.drain(out));
    for (const auto& [p, i] : out) ASSERT_EQ(i, next[static_cast<size_t>(p)]++);
    total += static_cast<int>(out.size());
  }
  for (std::thread& thread : producers) thread.join();
  EXPECT_FALSE(queue.drain(out));
}

}  // namespace
}  // namespace mcast
