// The cost of a client's end must not fall on a thread for which others wait: the engine's
// heartbeat thread unmaps nothing large. Each munmap() of this program is recorded by thread.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MCAST_OWN_MUNMAP 0  // sanitizers have their own
#endif
#endif
#if !defined(MCAST_OWN_MUNMAP) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string_view>

#include "base/clock.h"
#include "host_engine/client/client_link.h"
#include "support/engine_here.h"
#include "support/until.h"

namespace mcast::test {
namespace {

constexpr size_t kLargeMapping = size_t{32} << 20;
std::atomic<uint64_t> g_by_engine{0}, g_by_reaper{0};

void note_munmap(size_t bytes) {
  std::array<char, 16> name{};
  if (bytes < kLargeMapping || ::pthread_getname_np(::pthread_self(), name.data(), 16) != 0) return;
  if (std::string_view(name.data()) == "mcast-engine") g_by_engine++;
  if (std::string_view(name.data()) == "mcast-reaper") g_by_reaper++;
}

}  // namespace
}  // namespace mcast::test

// Replaces libc's in the whole program.
extern "C" int munmap(void* at, size_t bytes) {
  mcast::test::note_munmap(bytes);
  return static_cast<int>(::syscall(SYS_munmap, at, bytes));
}

namespace mcast::test {
namespace {

TEST(EngineReaper, TheThreadThatBeatsUnmapsNoArenaOfAClient) {
  const EngineHere engine;
  ASSERT_TRUE(engine);
  g_by_engine = g_by_reaper = 0;
  for (uint64_t round = 1; round <= 10; round++) {
    auto link = ClientLink::connect(engine.path(), 30 * kSecond);
    ASSERT_TRUE(link.ok()) << link.status().to_string();
    ASSERT_TRUE((*link)->arenas().take(kLargeMapping).ok());
    link->reset();
    EXPECT_TRUE(until([&] { return g_by_engine + g_by_reaper >= round; }, "an arena that goes"));
  }
  EXPECT_EQ(g_by_engine, 0u);
  EXPECT_EQ(g_by_reaper, 10u);
}

}  // namespace
}  // namespace mcast::test

#endif
