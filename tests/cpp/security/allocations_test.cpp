// Datagrams of strangers allocate no memory, not even briefly, whatever they contain and however
// often they arrive. Every allocation by `new` of this program is counted.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "support/program.h"
#include "wire/guarded_datagram.h"

namespace mcast::test {
namespace {

std::atomic<uint64_t> g_allocations{0};

void* counted(void* block) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

// Not inlined: otherwise the compiler would see memory from `new` passed to free().
[[gnu::noinline]] void give_back(void* block) noexcept { std::free(block); }

using Bytewise = std::vector<std::byte>;

class Forgeries : public testing::TestWithParam<crypto::Mode> {
 protected:
  static constexpr size_t kTimes = 10'000;

  Forgeries() {
    ClusterOptions o = ranks(2);
    o.security = GetParam();
    o.budget.bytes = size_t{1} << 30;  // so that each is opened: a siege costs less
    o.accounts = [](Member) {
      LaneAccounts accounts;
      accounts.watch = true;
      return accounts;
    };
    o.prepare = [this](SimNetwork& net) {
      net.set_datagram_hook(
          [this](size_t from, size_t to, ConstBytes d) { return see(from, to, d); });
    };
    cluster_ = std::make_unique<Cluster>(o);
    stranger_ = cluster_->net().attach();
    capture();
  }

  // Captures datagrams, beginning with the probes that make the group.
  SimNetwork::Verdict see(size_t from, size_t to, ConstBytes d) {
    wire::GuardedHeader h;
    if (to != 0 || wire::parse_guarded(d, h) != wire::ParseError::kNone) {
      return SimNetwork::Verdict::kPass;
    }
    const bool data = h.inner.type == wire::DatagramType::kData;
    const bool fresh = withheld_ && data && from == 1;
    if (fresh) fresh_.assign(d.begin(), d.end());
    if (!withheld_) (from == 0 ? own_ : data ? placed_ : control_).assign(d.begin(), d.end());
    return fresh ? SimNetwork::Verdict::kDrop : SimNetwork::Verdict::kPass;
  }

  // Rank 1 sends a block that is placed, and one that never reaches rank 0, so that its headers are
  // still unused.
  void capture() {
    Cluster& c = *cluster_;
    const auto run = [&] {
      Runs runs;
      for (Member m = 0; m < 2; m++) runs.push_back(c.allgather(m, 50'000, 1));
      return runs;
    };
    const Runs first = run();
    ASSERT_TRUE(c.run([&] { return all_done(first); }));
    c.run_for(kSecond);  // all data has arrived
    withheld_ = true;
    second_ = run();
    ASSERT_TRUE(c.run([&] { return !fresh_.empty(); }));
    c.net().set_datagram_hook(nullptr);
    for (const Bytewise* d : {&own_, &control_, &placed_, &fresh_}) ASSERT_FALSE(d->empty());
  }

  // Counts allocations while rank 0 receives `datagram` kTimes times; each is counted under
  // `cause`.
  void expect_none(const char* what, const Bytewise& datagram, Cause cause) {
    Cluster& c = *cluster_;
    Lane& lane = c.lane(0);
    // The first of a kind is logged, and so are many within a second.
    const size_t before = std::exchange(warm_, true) ? 100 : Monitor::kStorm + 100;
    uint64_t allocations = 0;
    const uint64_t refused = lane.monitor().count(cause);
    for (size_t i = 0; i < before + kTimes; i++) {
      c.net().inject(0, datagram, stranger_->index());
      const uint64_t until = g_allocations.load();
      (void)lane.poll(c.clock(0));
      if (i >= before) allocations += g_allocations.load() - until;
    }
    EXPECT_EQ(allocations, 0u) << what;
    EXPECT_EQ(lane.monitor().count(cause) - refused, before + kTimes) << what;
  }

  static Bytewise changed(Bytewise datagram, size_t at, std::byte by) {
    datagram[at] ^= by;
    return datagram;
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<SimTransport> stranger_;
  Bytewise own_, control_, placed_, fresh_;
  Runs second_;
  bool withheld_ = false, warm_ = false;
};
INSTANTIATE_TEST_SUITE_P(Modes, Forgeries,
                         testing::Values(crypto::Mode::kAuth, crypto::Mode::kSealed),
                         [](const auto& p) { return crypto::mode_name(p.param); });

TEST_P(Forgeries, AllocateNothing) {
  constexpr size_t kMagic = 4, kTag = 8, kSequence = 16;
  expect_none("garbage", Bytewise(200), Cause::malformed);
  expect_none("half a header", Bytewise(placed_.begin(), placed_.begin() + 20), Cause::malformed);
  Bytewise old = changed(placed_, kMagic + 2, std::byte{0x30});  // version 1
  expect_none("of version 1", old, Cause::downgraded);
  expect_none("of no group", changed(placed_, kTag, std::byte{1}), Cause::foreign);
  expect_none("without the keys", changed(placed_, kSequence, std::byte{1}), Cause::forged_header);
  expect_none("other bytes", changed(fresh_, fresh_.size() - 1, std::byte{1}), Cause::forged);
  expect_none("again", placed_, Cause::source_moved);
  expect_none("a probe again", control_, Cause::replayed);
  expect_none("reflected", own_, Cause::source_moved);
  Cluster& c = *cluster_;
  EXPECT_GT(g_allocations.load(), 0u) << "they are counted";
  ASSERT_TRUE(c.run([&] { return all_done(second_); }, 60 * kSecond));
  expect_good(second_, 2);
}

}  // namespace
}  // namespace mcast::test

void* operator new(size_t bytes) { return mcast::test::counted(std::malloc(bytes)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<size_t>(alignment);
  return mcast::test::counted(std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit));
}
// A sanitizer's own version would not match the `delete` below.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void operator delete(void* block) noexcept { mcast::test::give_back(block); }
void operator delete(void* block, size_t) noexcept { mcast::test::give_back(block); }
void operator delete(void* block, std::align_val_t) noexcept { mcast::test::give_back(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept {
  mcast::test::give_back(block);
}
