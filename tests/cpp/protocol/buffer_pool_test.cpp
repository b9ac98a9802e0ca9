// BufferPool: buffers are reused, and only few unused ones are kept.
#include "protocol/buffer_pool.h"

#include <gtest/gtest.h>

namespace mcast::test {
namespace {

TEST(BufferPool, KeepsNoMoreThanItMay) {
  BufferPool pool(2);
  for (int i = 0; i < 3; i++) pool.give(std::vector<std::byte>(8));
  EXPECT_EQ(pool.held(), 2u);
  EXPECT_EQ(pool.take(20).size(), 20u);
  EXPECT_EQ(pool.take(4).size(), 4u);
  EXPECT_EQ(pool.held(), 0u);
}

TEST(BufferPool, HandsOutTheMemoryThatItWasGiven) {
  BufferPool pool;
  std::vector<std::byte> buffer(100);
  const std::byte* const memory = buffer.data();
  pool.give(std::move(buffer));
  EXPECT_EQ(pool.take(60).data(), memory) << "a smaller size needs no other memory";
  pool.give({});
  EXPECT_EQ(pool.held(), 0u) << "what holds no memory is not kept";
}

}  // namespace
}  // namespace mcast::test
