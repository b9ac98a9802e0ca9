// The places of the slices of a client's operation as its engine sees them, and the memory that is
// withdrawn from a lost engine.
#include "host_engine/client/client_staging.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace mcast::test {
namespace {

class ClientStagingTest : public testing::Test {
 protected:
  static constexpr size_t kPage = ArenaPool::kPage, kMiB = size_t{1} << 20;
  static constexpr ClientAccess kMapped{.mapped = true, .moved = false};
  static constexpr ClientAccess kMappedOrMoved{.mapped = true, .moved = true};

  ClientStagingTest() : pool_(**ArenaPool::open_for_process()), block_(pool_.allocate(4 * kMiB)) {
    std::memset(block_, 0, 4 * kMiB);
  }
  ~ClientStagingTest() override { pool_.release(block_); }

  static Slice slice_of(std::byte* data, size_t bytes) {
    return {std::make_shared<Region>(data, bytes, nullptr), 0, bytes};
  }
  std::unique_ptr<ClientStaging> receive(const Slice& slice, ClientAccess access = kMapped) {
    auto made = ClientStaging::make(slice, true, arenas_, access);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  // An all-gather to `all` whose own block is `input`.
  std::unique_ptr<ClientStaging> gather(Slice input, const std::vector<Slice>& all, Member self) {
    Post post;
    post.descriptor.kind = wire::Kind::kAllgather;
    post.input = std::move(input);
    post.outputs = all;
    auto made = ClientStaging::make(post, self, arenas_, kMapped);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  bool in_pool(const ipc::SliceRun& run) const {
    return static_cast<uint16_t>(run.space) == pool_space_;
  }

  uint16_t pool_space_ = 0, offered_ = 16;
  ArenaPool& pool_;
  std::byte* const block_;
  ClientArenas arenas_{[this](const Segment& segment) -> Result<uint16_t> {
    if (segment.data() == pool_.segment().data()) pool_space_ = offered_;
    return offered_++;
  }};
};

TEST_F(ClientStagingTest, OnlySlicesThatHaveTheirPagesAloneStayWhereTheyLie) {
  EXPECT_TRUE(in_pool(receive(slice_of(block_, 4 * kMiB))->runs()[0]));
  EXPECT_TRUE(in_pool(receive(slice_of(block_ + kPage, 8 * kPage))->runs()[0]));
  const auto view = receive(slice_of(block_ + 100, 2 * kMiB));
  EXPECT_FALSE(in_pool(view->runs()[0]));
  EXPECT_FALSE(in_pool(receive(slice_of(block_, 5 * kPage + 4))->runs()[0]));
  EXPECT_EQ(receive(slice_of(block_ + 100, 64), kMappedOrMoved)->runs()[0].space, ipc::Space::kOwn);
}

// The blocks of one tensor share pages only with each other.
TEST_F(ClientStagingTest, BlocksThatFillPagesTogetherStayWhereTheyLie) {
  constexpr size_t kBlock = 4 * kMiB / 3, kRest = 4 * kMiB - 2 * kBlock;
  const std::vector<Slice> all = {slice_of(block_, kBlock), slice_of(block_ + kBlock, kBlock),
                                  slice_of(block_ + 2 * kBlock, kRest)};
  const auto staging = gather(all[1], all, 1);
  for (const ipc::SliceRun& run : staging->runs()) EXPECT_TRUE(in_pool(run));
  EXPECT_EQ(staging->input_bytes(), 0u);
  EXPECT_TRUE(staging->withdraw(false));
  EXPECT_FALSE(pool_.offset_of(block_, 1)) << "withdrawn";
  EXPECT_FALSE(pool_.offset_of(block_ + 4 * kMiB - 1, 1));
}

// One slice of each kind: in the pool, outside it, and copied by the engine.
TEST_F(ClientStagingTest, BytesAreCountedByTheWayThatTheyGo) {
  std::vector<std::byte> elsewhere(3 * kPage);
  const Slice other = slice_of(elsewhere.data(), elsewhere.size());
  Counters counters;
  receive(slice_of(block_, kMiB))->count(counters);
  EXPECT_EQ(counters.get(Counter::engine_mapped_bytes), kMiB);
  receive(other)->count(counters);
  EXPECT_EQ(counters.get(Counter::engine_span_bytes), 3 * kPage);
  receive(other, kMappedOrMoved)->count(counters);
  EXPECT_EQ(counters.get(Counter::engine_moved_bytes), 3 * kPage);
  // The input is copied to its output; inputs and outputs count.
  const std::vector<Slice> all = {slice_of(block_, kPage), slice_of(block_ + kPage, kPage)};
  gather(slice_of(elsewhere.data(), kPage), all, 1)->count(counters);
  EXPECT_EQ(counters.get(Counter::engine_mapped_bytes), kMiB + 2 * kPage);
  EXPECT_EQ(counters.get(Counter::engine_span_bytes), 4 * kPage);
  EXPECT_EQ(counters.get(Counter::engine_moved_bytes), 3 * kPage);
}

// An own block at another place is copied once, to its output.
TEST_F(ClientStagingTest, AnInputWithoutPagesOfItsOwnIsCopiedToItsOutput) {
  const std::vector<Slice> all = {slice_of(block_, 2 * kMiB),
                                  slice_of(block_ + 2 * kMiB, 2 * kMiB)};
  std::vector<std::byte> elsewhere(2 * kMiB, std::byte{5});
  const auto staging = gather(slice_of(elsewhere.data(), elsewhere.size()), all, 1);
  for (const ipc::SliceRun& run : staging->runs()) EXPECT_TRUE(in_pool(run));
  EXPECT_EQ(staging->input_bytes(), 2 * kMiB);
  EXPECT_EQ(staging->copy_in(0, SIZE_MAX), 2 * kMiB);
  EXPECT_EQ(block_[2 * kMiB], std::byte{5});
}

// A training thread writes to words on the first and last page of a view while the view is
// withdrawn from a lost engine. Each word has the value that was written last, never a mixture.
// (0x013D3B20 was one: the copy's first bytes and the old page's last one.)
TEST_F(ClientStagingTest, WordsBesideAWithdrawnViewAreWhatTheirThreadWrote) {
  constexpr uint32_t kWords[] = {0x013D345B, 0x013D3520, 0x013D3B5B};
  constexpr size_t kViews = 400, kBetween = 2 * kPage;
  std::atomic<size_t> view{0};
  std::atomic<uint64_t> strange{0}, writes{0};
  std::thread writer([&] {
    for (size_t v = 0; (v = view) < kViews; writes++) {
      std::byte* const begin = block_ + v * kBetween;
      const uint32_t value = kWords[writes % 3];
      for (std::byte* const at : {begin + 96, begin + kPage + 200}) {
        std::atomic_ref<uint32_t> word(*reinterpret_cast<uint32_t*>(at));
        word.store(value, std::memory_order_relaxed);
        strange += word.load(std::memory_order_relaxed) != value;
      }
    }
  });
  for (size_t v = 0; v < kViews; v++) {
    view = v;
    const auto staging = receive(slice_of(block_ + v * kBetween + 100, kPage + 100));
    EXPECT_TRUE(staging->withdraw(false));
    for (const uint64_t seen = writes; writes < seen + 2;) std::this_thread::yield();
  }
  view = kViews;
  writer.join();
  EXPECT_EQ(strange, 0u);
}

}  // namespace
}  // namespace mcast::test
