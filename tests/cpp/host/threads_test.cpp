// HostCores of one control block on threads of their own: what a thread sanitizer can say about the
// order in which slots, headers and tensors are written and read.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "host/host_world.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

struct Shared {
  explicit Shared(uint32_t n) : ranks(n), memory(n), bells(n) {}
  const uint32_t ranks;
  const MemoryBlock memory;
  std::vector<std::atomic<uint32_t>> bells;
};

class ThreadRank final : public HostPort {
 public:
  ThreadRank(Shared& shared, Member self, PeerMemory memory)
      : memory_(memory), shared_(shared), self_(self) {
    HostParams params;
    params.name = "g";
    params.self = self;
    params.size = shared.ranks;
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

  // Until `call` is over; sleeps as a caller does.
  void finish(const HostCall& call) {
    while (call.ended == 0) {
      core->disarm();
      const uint32_t seen = shared_.bells[self_].load();
      core->progress(true);
      core->deliver();
      if (call.ended == 0 && core->arm(HostWaiter::kCaller)) shared_.bells[self_].wait(seen);
    }
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
            // Up to three in flight.
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

TEST(HostThreads, AFailureReachesThoseWhoSleep) {
  for (int round = 0; round < 50; round++) {
    Shared shared(3);
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < 3; r++) {
      threads.emplace_back([&, r] {
        ThreadRank rank(shared, static_cast<Member>(r), PeerMemory::kMapped);
        if (r == 2) {
          rank.core->fail(Status(Code::kAborted, "aborted by rank 2: enough"), 2);
          return;
        }
        HostCall call;
        call.descriptor = {wire::Kind::kBarrier, 0xff, kNoMember, 0, "barrier"};
        call.completed = {0};
        rank.core->post(make_post(call, 0, 0, false));
        rank.finish(call);
        EXPECT_EQ(call.status.code(), Code::kAborted);
        EXPECT_NE(call.status.message().find("aborted by rank 2: enough"), std::string::npos);
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace mcast::test
