// Spans of memory that a client shares with its engine.
#include "host_engine/client/client_arenas.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <vector>

#include "base/fd.h"

namespace mcast::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class ClientArenasTest : public testing::Test {
 protected:
  // Pages of all arenas together, which are charged to the memory cgroup of the process that
  // created them.
  size_t page_bytes() const {
    size_t sum = 0;
    for (const Fd& file : files_) {
      struct stat info {};
      EXPECT_EQ(::fstat(file.get(), &info), 0);
      sum += static_cast<size_t>(info.st_blocks) * 512;
    }
    return sum;
  }
  std::shared_ptr<ClientArenas::Span> take(size_t bytes) {
    auto span = arenas_.take(bytes);
    EXPECT_TRUE(span.ok()) << span.status().to_string();
    return std::move(span).value();
  }

  std::vector<Fd> files_;
  ClientArenas arenas_{[this](const Segment& segment) -> Result<uint16_t> {
    files_.emplace_back(::dup(segment.fd()));
    return static_cast<uint16_t>(files_.size());
  }};
};

// The engine writes outputs. Without pages of the client, the engine would touch them first and its
// own cgroup would be charged.
TEST_F(ClientArenasTest, SpansHavePagesBeforeTheEngineSeesThem) {
  auto first = take(8 * kMiB);
  EXPECT_EQ(page_bytes(), 8 * kMiB);
  auto second = take(kMiB + 1);
  EXPECT_EQ(page_bytes(), 9 * kMiB + ClientArenas::kAlign);
  EXPECT_EQ(files_.size(), 1u);
  // Pages that were touched before are reused; only the new part gets pages.
  const uint64_t before = second->offset;
  second.reset();
  auto third = take(2 * kMiB);
  EXPECT_EQ(third->offset, before);
  EXPECT_EQ(page_bytes(), 10 * kMiB);
  first.reset();
  auto fourth = take(4 * kMiB);
  EXPECT_EQ(fourth->offset, 0u);
  EXPECT_EQ(page_bytes(), 10 * kMiB);
  // A span that is larger than any arena gets its own.
  auto large = take(ClientArenas::kLeast + 1);
  EXPECT_EQ(files_.size(), 2u);
  EXPECT_EQ(page_bytes(), 10 * kMiB + ClientArenas::kLeast + ClientArenas::kAlign);
  std::byte sum{};
  for (size_t i = 0; i < large->bytes; i += 4096) sum |= large->data[i];
  EXPECT_EQ(sum, std::byte{0});
}

// A model that grows, or sequences of all lengths: each size used to get its own arena.
TEST_F(ClientArenasTest, GrowingSpansNeedFewArenas) {
  for (size_t size = 32; size <= 256; size++) take(size * kMiB);
  size_t bytes = 0;
  for (const Fd& file : files_) {
    struct stat info {};
    EXPECT_EQ(::fstat(file.get(), &info), 0);
    bytes += static_cast<size_t>(info.st_size);
  }
  EXPECT_EQ(files_.size(), 4u) << "32, 64, 128 and 256 MiB";
  EXPECT_EQ(bytes, 480 * kMiB);
  EXPECT_LE(page_bytes(), 256 * kMiB) << "no more than was in use at once";
}

TEST_F(ClientArenasTest, PagesThatAreNotNeededLatelyGoBack) {
  auto large = take(300 * kMiB);
  large->data[5 * kMiB] = std::byte{7};
  large.reset();
  EXPECT_EQ(page_bytes(), 300 * kMiB) << "the next step wants as much again";
  large = take(300 * kMiB);
  EXPECT_EQ(large->offset, 0u);
  large.reset();
  for (int i = 0; i < 200; i++) take(kMiB);
  EXPECT_LE(page_bytes(), 257 * kMiB);
  // A span that is returned and taken again is new: zeros, with pages.
  large = take(300 * kMiB);
  EXPECT_EQ(files_.size(), 1u);
  EXPECT_EQ(page_bytes(), 300 * kMiB);
  EXPECT_EQ(large->data[5 * kMiB], std::byte{0});
}

}  // namespace
}  // namespace mcast::test
