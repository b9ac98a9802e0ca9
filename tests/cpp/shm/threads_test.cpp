// HostCores of one control block on their own threads: lets a thread sanitizer check the order in
// which slots, headers and tensors are written and read.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "shm/host_world.h"
#include "shm/message_runs.h"
#include "support/errors.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

struct Shared {
  explicit Shared(uint32_t n) : ranks(n), memory(n), bells(n) {}
  const uint32_t ranks;
  const MemoryBlock memory;
  std::vector<std::atomic<uint32_t>> bells;
  std::atomic<uint32_t> over{0};  // number of ranks whose messages are complete
};

class ThreadRank final : public HostPort {
 public:
  ThreadRank(Shared& shared, Member self, PeerMemory memory)
      : memory_(memory), shared_(shared), self_(self) {
    HostParams params;
    params.name = "g";
    params.self = self;
    params.size = shared.ranks;
    params.lane = kMessageLane;
    params.memory = memory;
    core = std::make_unique<HostCore>(params, shared.memory.block(), *this, counters);
  }
  uint64_t place_of(const Slice& slice) override {
    const uint64_t address = HostPort::place_of(slice);
    return memory_ == PeerMemory::kMapped ? kInArena | address : address;
  }
  const std::byte* map(Member, uint64_t place, size_t) override {
    if ((place & kInArena) == 0) return nullptr;
    return reinterpret_cast<const std::byte*>(place & ~kInArena);
  }
  Status read(Member, uint64_t address, std::byte* to, size_t length) override {
    std::memcpy(to, reinterpret_cast<const void*>(address), length);
    return {};
  }
  void wake(Member m, HostWaiter) override {
    shared_.bells[m].fetch_add(1);
    shared_.bells[m].notify_all();
  }
  void wake_all() override {
    for (uint32_t m = 0; m < shared_.ranks; m++) wake(static_cast<Member>(m), HostWaiter::kCaller);
  }
  Nanos now() override { return ++ticks_; }

  // Runs until `over` holds; sleeps as a caller does.
  template <typename Over>
  void finish(Over over) {
    while (!over()) {
      core->disarm();
      const uint32_t seen = shared_.bells[self_].load();
      const bool more = core->progress(true);
      core->deliver();
      if (!more && !over() && core->arm(HostWaiter::kCaller)) shared_.bells[self_].wait(seen);
    }
    core->disarm();
  }
  void finish(const HostCall& call) {
    finish([&] { return call.ended > 0; });
  }

  Counters counters;
  std::unique_ptr<HostCore> core;

 private:
  const PeerMemory memory_;
  Shared& shared_;
  const Member self_;
  Nanos ticks_ = 0;
};

TEST(HostThreads, DeliverExactBytes) {
  constexpr uint32_t kRanks = 3, kCalls = 30;
  for (const PeerMemory memory : {PeerMemory::kSlots, PeerMemory::kRead, PeerMemory::kMapped}) {
    for (const uint64_t seed : seeds(8)) {
      SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
      Shared shared(kRanks);
      std::vector<std::vector<std::vector<std::byte>>> got(kRanks);
      std::vector<std::thread> threads;
      for (uint32_t r = 0; r < kRanks; r++) {
        threads.emplace_back([&, r] {
          const auto m = static_cast<Member>(r);
          ThreadRank rank(shared, m, memory);
          std::vector<std::unique_ptr<HostCall>> calls;
          for (uint32_t i = 0; i < kCalls; i++) {
            calls.push_back(std::make_unique<HostCall>(make_call(seed, i, m, kRanks)));
            Post p = make_post(*calls.back(), i, 0, false);
            if (p.reduce) p.reduce->factor = 0.5 + r;
            rank.core->post(std::move(p));
            // At most three in flight.
            if (i >= 3) rank.finish(*calls[i - 3]);
          }
          for (const auto& call : calls) {
            rank.finish(*call);
            EXPECT_TRUE(call->status.ok()) << call->status.to_string();
            got[r].push_back(call->result);
          }
        });
      }
      for (auto& thread : threads) thread.join();
      for (uint32_t i = 0; i < kCalls; i++) {
        const auto expected = expected_outputs(seed, i, kRanks);
        for (uint32_t r = 0; r < kRanks; r++) ASSERT_TRUE(got[r][i] == expected[r]) << i;
      }
    }
  }
}

// Every rank sends messages of all lengths to every other, more than the rings hold, and receives
// in an order of its own. A lost wake-up would leave a thread asleep forever.
TEST(HostThreads, MessagesDeliverExactBytes) {
  constexpr uint32_t kRanks = 3, kMessages = 40;
  const auto bytes_of = [](uint64_t seed, uint32_t n) -> size_t {
    static constexpr size_t kSizes[] = {0, 10, 5000, 30'000, 33'000, 120'000, 300'000};
    return kSizes[Rng(seed * 977 + n).below(std::size(kSizes))];
  };
  const auto id_of = [](uint32_t from, uint32_t to, uint32_t n) {
    return uint64_t{from} * 100'000 + to * 1000 + n;
  };
  for (const PeerMemory memory : {PeerMemory::kSlots, PeerMemory::kRead, PeerMemory::kMapped}) {
    for (const uint64_t seed : seeds(8)) {
      SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
      Shared shared(kRanks);
      std::vector<std::thread> threads;
      for (uint32_t r = 0; r < kRanks; r++) {
        threads.emplace_back([&, r] {
          const auto self = static_cast<Member>(r);
          ThreadRank rank(shared, self, memory);
          Rng rng(seed * 13 + r);
          MessageRuns sends, receives;
          const auto post = [&](MessageRuns& runs, std::shared_ptr<MessageRun> run) {
            rank.core->post_message(post_of(run));
            runs.push_back(std::move(run));
            if (rng.chance(0.3)) rank.core->progress(rng.chance(0.5));
            rank.core->deliver();
          };
          for (uint32_t n = 0; n < kMessages; n++) {
            for (Member to = 0; to < kRanks; to++) {
              if (to == self) continue;
              post(sends, a_send(self, to, n % 2, bytes_of(seed, n), id_of(r, to, n)));
            }
            // Earlier messages are received while later ones are sent, the later tag first.
            for (Member from = 0; n % 2 == 1 && from < kRanks; from++) {
              if (from == self) continue;
              for (const uint32_t which : {n, n - 1}) {
                auto run = a_receive(self, from, which % 2, bytes_of(seed, which));
                run->id = id_of(from, r, which);
                post(receives, std::move(run));
              }
            }
          }
          const auto all_over = [&] {
            const auto over = [](const auto& run) { return run->ends > 0; };
            return std::all_of(sends.begin(), sends.end(), over) &&
                   std::all_of(receives.begin(), receives.end(), over);
          };
          rank.finish(all_over);
          for (const auto& run : sends) EXPECT_TRUE(run->status.ok()) << run->status.to_string();
          for (const auto& run : receives) expect_got(*run, run->peer, run->id);
          shared.over++;
          rank.wake_all();
          rank.finish([&] { return shared.over == kRanks; });
        });
      }
      for (auto& thread : threads) thread.join();
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(HostThreads, AFailureReachesThoseWhoSleep) {
  const Fields enough{{"rank", "2"}, {"reason", "enough"}};
  for (int round = 0; round < 50; round++) {
    Shared shared(3);
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < 3; r++) {
      threads.emplace_back([&, r] {
        ThreadRank rank(shared, static_cast<Member>(r), PeerMemory::kMapped);
        if (r == 2) {
          rank.core->fail(make_error<ErrorId::aborted>(2, "enough"), 2);
          return;
        }
        // One of them waits only for a message.
        const auto run = a_receive(static_cast<Member>(r), 2, 0, 10);
        if (r == 1) {
          rank.core->post_message(post_of(run));
          rank.finish([&] { return run->ends > 0; });
          EXPECT_TRUE(is_error(run->status, ErrorId::aborted, enough));
          return;
        }
        HostCall call;
        call.descriptor = {wire::Kind::kBarrier, 0xff, kNoMember, 0, "barrier"};
        call.completed = {0};
        rank.core->post(make_post(call, 0, 0, false));
        rank.finish(call);
        EXPECT_TRUE(is_error(call.status, ErrorId::aborted, enough));
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace mcast::test
