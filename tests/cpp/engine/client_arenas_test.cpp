// Spans of memory that a client shares with its engine.
#include "engine/client_arenas.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <vector>

#include "base/fd.h"

namespace mcast::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class ClientArenasTest : public testing::Test {
 protected:
  // Of all arenas together: what the memory cgroup of whoever made the pages is charged for.
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

// The engine writes outputs: without pages of the client's it would be the first to touch them, and
// its own cgroup would pay.
TEST_F(ClientArenasTest, SpansHavePagesBeforeTheEngineSeesThem) {
  auto first = take(8 * kMiB);
  EXPECT_EQ(page_bytes(), 8 * kMiB);
  auto second = take(kMiB + 1);
  EXPECT_EQ(page_bytes(), 9 * kMiB + ClientArenas::kAlign);
  EXPECT_EQ(files_.size(), 1u);
  // What was touched before is taken as it is, and what is new of it gets pages.
  const uint64_t before = second->offset;
  second.reset();
  auto third = take(2 * kMiB);
  EXPECT_EQ(third->offset, before);
  EXPECT_EQ(page_bytes(), 10 * kMiB);
  first.reset();
  auto fourth = take(4 * kMiB);
  EXPECT_EQ(fourth->offset, 0u);
  EXPECT_EQ(page_bytes(), 10 * kMiB);
  // An arena for one that is larger than any.
  auto large = take(ClientArenas::kLeast + 1);
  EXPECT_EQ(files_.size(), 2u);
  EXPECT_EQ(page_bytes(), 10 * kMiB + ClientArenas::kLeast + ClientArenas::kAlign);
  std::byte sum{};
  for (size_t i = 0; i < large->bytes; i += 4096) sum |= large->data[i];
  EXPECT_EQ(sum, std::byte{0});
}

}  // namespace
}  // namespace mcast::test
