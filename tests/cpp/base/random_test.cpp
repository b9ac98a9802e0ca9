// Seeded numbers are equal everywhere. Secure ones always differ, also in a process that a seccomp
// filter forbids to call getrandom() or to open files.
#include "base/random.h"

#include <gtest/gtest.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <vector>

#include "base/log.h"
#include "base/rng.h"
#include "support/forbidden_calls.h"

namespace mcast {
namespace {

TEST(Rng, TheSequenceOfASeedIsFixed) {
  // splitmix64 with seed 1234567, as published with the reference implementation.
  Rng rng(1234567);
  EXPECT_EQ(rng.next(), 6457827717110365317ULL);
  EXPECT_EQ(rng.next(), 3203168211198807973ULL);
  EXPECT_EQ(rng.next(), 9817491932198370423ULL);
  EXPECT_EQ(rng.next(), 4593380528125082431ULL);
  EXPECT_EQ(rng.next(), 16408922859458223821ULL);
}

TEST(Rng, EqualSeedsEqualSequences) {
  Rng a(7), b(7), c(8);
  int differences = 0;
  for (int i = 0; i < 100; ++i) {
    const uint64_t value = a.next();
    EXPECT_EQ(value, b.next());
    differences += value != c.next();
  }
  EXPECT_EQ(differences, 100);
}

TEST(Rng, BelowStaysBelowAndReachesEveryValue) {
  Rng rng(1);
  std::array<int, 7> seen{};
  for (int i = 0; i < 7000; ++i) {
    const uint64_t value = rng.below(7);
    ASSERT_LT(value, 7u);
    ++seen[value];
  }
  for (const int times : seen) EXPECT_NEAR(times, 1000, 200);  // fixed seed: the same in every run
  for (int i = 0; i < 10; ++i) EXPECT_EQ(rng.below(1), 0u);
  EXPECT_LT(rng.below(UINT64_MAX), UINT64_MAX);
}

TEST(Rng, UnitIsInTheHalfOpenInterval) {
  Rng rng(2);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double value = rng.unit();
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

TEST(Rng, ChanceFollowsItsProbability) {
  Rng rng(3);
  int hits = 0;
  for (int i = 0; i < 10000; ++i) {
    EXPECT_FALSE(rng.chance(0));
    EXPECT_FALSE(rng.chance(-1));
    EXPECT_TRUE(rng.chance(1));
    hits += rng.chance(0.1);
  }
  EXPECT_NEAR(hits, 1000, 150);
}

TEST(Random, ValuesDiffer) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(seen.insert(secure_random64()).second);
    EXPECT_TRUE(seen.insert(fallback_random64()).second);
  }
}

TEST(Random, TheFallbackDiffersInAForkedChild) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const uint64_t value = fallback_random64();
    ::_exit(::write(pipe_ends[1], &value, sizeof(value)) == sizeof(value) ? 0 : 1);
  }
  ::close(pipe_ends[1]);
  const uint64_t mine = fallback_random64();
  uint64_t theirs = mine;
  EXPECT_EQ(::read(pipe_ends[0], &theirs, sizeof(theirs)), static_cast<ssize_t>(sizeof(theirs)));
  ::close(pipe_ends[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_NE(mine, theirs);
}

int g_warnings = 0;

// Runs a child under such a filter. Returns 0 if it succeeds, else the number of the step that
// failed.
int restricted_child(const std::vector<long>& calls, int expected_warnings) {
  const pid_t child = ::fork();
  if (child == 0) {
    set_log_sink([](int level, const char* line) {
      g_warnings += level == 2 && std::strstr(line, "can be guessed") != nullptr;
    });
    if (!test::forbid(calls)) ::_exit(1);
    uint64_t probe = 0;
    if (::getrandom(&probe, sizeof(probe), 0) >= 0 || errno != ENOSYS) ::_exit(2);
    std::set<uint64_t> seen;
    for (int i = 0; i < 100; ++i) {
      if (!seen.insert(secure_random64()).second) ::_exit(3);
    }
    // If only predictable values are available, a tag gets one of them, but a key is refused.
    std::array<std::byte, 40> key{};
    if (secure_random_bytes(key) != (expected_warnings == 0)) ::_exit(6);
    ::_exit(g_warnings == expected_warnings ? 0 : 4);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 5;
  return WEXITSTATUS(status);
}

TEST(Random, WithoutGetrandomTheDeviceIsUsed) {
  EXPECT_EQ(restricted_child({SYS_getrandom}, 0), 0);
}

TEST(Random, WithoutBothItWarnsOnce) {
  EXPECT_EQ(restricted_child({SYS_getrandom, SYS_openat}, 1), 0);
}

}  // namespace
}  // namespace mcast
