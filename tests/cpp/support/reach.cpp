// Sums are kept per process. A child of fork() starts at zero, since the parent writes its own
// sums. The child creates its sums anew while it has one thread, because the lock that it inherits
// may be held by a thread that it does not have.
#include "support/reach.h"

#include "base/coverage.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <random>
#include <string>

namespace mcast::test {
namespace {

struct Reached {
  uint64_t sum = 0;
  const testing::TestInfo* test =
      nullptr;  // the first to raise it; a child can inherit the pointer
};

struct Reach {
  std::mutex lock;  // groups of a process may end on any thread
  std::array<Reached, kCounterCount> counters;
  std::array<const testing::TestInfo*, kCoverPoints> points{};  // first test to reach each
};

Reach& reach() {
  // Never destroyed: a lane's thread may outlive the program's statics.
  static Reach* const all = [] {
    static const auto fresh = [] {
      new (&reach()) Reach;
      for (auto& count : reach_points::counts) count = 0;
    };
    if (pthread_atfork(nullptr, nullptr, fresh) != 0) std::abort();
    return new Reach;
  }();
  return *all;
}

std::string name_of(const testing::TestInfo* test) {
  return test == nullptr ? "-" : std::string(test->test_suite_name()) + "." + test->name();
}

// Points are not tied to a group or a test: the test that has just ended reached the new ones.
class WhoCameThere final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& test) override {
    Reach& all = reach();
    const std::scoped_lock hold(all.lock);
    for (size_t p = 0; p < kCoverPoints; p++) {
      if (all.points[p] == nullptr && reach_points::count(p) > 0) all.points[p] = &test;
    }
  }
};

class AtTheEnd final : public testing::Environment {
  void SetUp() override { testing::UnitTest::GetInstance()->listeners().Append(new WhoCameThere); }
  void TearDown() override { write_reach(); }
};

[[maybe_unused]] const testing::Environment* const registered =
    testing::AddGlobalTestEnvironment(new AtTheEnd);

}  // namespace

void add_reach(Counter counter, uint64_t count) {
  if (count == 0) return;
  Reach& all = reach();
  const std::scoped_lock hold(all.lock);
  Reached& one = all.counters[static_cast<size_t>(counter)];
  one.sum += count;
  if (one.test == nullptr) one.test = testing::UnitTest::GetInstance()->current_test_info();
}

void add_reach(const Counters& counters) {
  for (size_t c = 0; c < kCounterCount; c++) {
    add_reach(static_cast<Counter>(c), counters.get(static_cast<Counter>(c)));
  }
}

void write_reach() {
  const char* const folder = std::getenv("MCAST_TEST_REACH");
  if (folder == nullptr || *folder == 0) return;
  // Process ids repeat in a long run; a random number keeps the files apart.
  const std::string path = std::string(folder) + "/" + std::to_string(getpid()) + "-" +
                           std::to_string(std::random_device()()) + ".txt";
  // Ranks of some tests cannot write (other users, limits of file sizes). Their sums are lost,
  // which can only make a counter look as if no test reached it.
  std::signal(SIGXFSZ, SIG_IGN);
  const std::string part = path + ".part";
  std::FILE* const out = std::fopen(part.c_str(), "w");
  if (out == nullptr) return;
  Reach& all = reach();
  const std::scoped_lock hold(all.lock);
  for (size_t c = 0; c < kCounterCount; c++) {
    const Reached& one = all.counters[c];
    std::fprintf(out, "%s %llu %s\n", counter_name(static_cast<Counter>(c)),
                 static_cast<unsigned long long>(one.sum), name_of(one.test).c_str());
  }
  for (size_t p = 0; p < kCoverPoints; p++) {
    std::fprintf(out, "point.%s %llu %s\n", reach_points::name(p),
                 static_cast<unsigned long long>(reach_points::count(p)),
                 name_of(all.points[p]).c_str());
  }
  const bool whole = std::ferror(out) == 0;
  if (std::fclose(out) != 0 || !whole || std::rename(part.c_str(), path.c_str()) != 0) {
    (void)std::remove(part.c_str());
  }
}

}  // namespace mcast::test
