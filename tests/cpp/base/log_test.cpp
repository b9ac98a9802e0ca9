// Log lines reach the sink whole and only at their level. The rate limit is tested through its time
// argument.
#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace mcast {
namespace {

std::mutex g_mutex;
std::vector<std::pair<int, std::string>> g_logged;

void collect(int level, const char* line) {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_logged.emplace_back(level, line);
}

class Log : public testing::Test {
 protected:
  void SetUp() override {
    g_logged.clear();
    set_log_sink(collect);
    set_log_level(LogLevel::kWarn);
  }
  void TearDown() override {
    set_log_sink(nullptr);
    set_log_level(LogLevel::kWarn);
  }
  static std::string prefix() { return "torch-mcast[" + std::to_string(::getpid()) + "]"; }
};

TEST_F(Log, ALineIsPrefixedAndFormatted) {
  log(LogLevel::kError, "rank %d of %s", 3, "pg0");
  ASSERT_EQ(g_logged.size(), 1u);
  EXPECT_EQ(g_logged[0].first, 1);
  EXPECT_EQ(g_logged[0].second, prefix() + " error: rank 3 of pg0");
}

TEST_F(Log, LevelsFilter) {
  const LogLevel levels[] = {LogLevel::kError, LogLevel::kWarn, LogLevel::kInfo, LogLevel::kTrace};
  for (int limit = 0; limit <= 4; ++limit) {
    g_logged.clear();
    set_log_level(static_cast<LogLevel>(limit));
    EXPECT_EQ(log_level(), static_cast<LogLevel>(limit));
    for (const LogLevel level : levels) {
      EXPECT_EQ(log_enabled(level), static_cast<int>(level) <= limit);
      log(level, "x");
    }
    log(LogLevel::kOff, "never");
    EXPECT_EQ(g_logged.size(), static_cast<size_t>(limit));
  }
}

TEST_F(Log, LongLinesAreWhole) {
  // Sizes around that of the stack buffer, at which the terminator could get lost.
  for (size_t size = 900; size < 1100; ++size) {
    g_logged.clear();
    const std::string text = std::string(size - 1, 'a') + "z";
    log(LogLevel::kWarn, "%s", text.c_str());
    ASSERT_EQ(g_logged.size(), 1u);
    ASSERT_EQ(g_logged[0].second, prefix() + " warn: " + text);
  }
  const std::string huge(100000, 'h');
  log(LogLevel::kWarn, "%s%s", huge.c_str(), huge.c_str());
  EXPECT_EQ(g_logged.back().second, prefix() + " warn: " + huge + huge);
}

TEST_F(Log, ErrnoIsKeptAndUsable) {
  errno = ENOENT;
  log(LogLevel::kWarn, "%m");
  EXPECT_EQ(errno, ENOENT);
  EXPECT_THAT(g_logged[0].second, testing::EndsWith("No such file or directory"));
}

TEST_F(Log, WithoutASinkLinesGoToStderr) {
  set_log_sink(nullptr);
  testing::internal::CaptureStderr();
  log(LogLevel::kWarn, "one");
  log(LogLevel::kInfo, "dropped");
  log(LogLevel::kError, "%s", std::string(2000, 'x').c_str());
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            prefix() + " warn: one\n" + prefix() + " error: " + std::string(2000, 'x') + "\n");
}

// Redirects standard error to a pipe.
class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(::pipe(ends_), 0);
    before_ = ::dup(STDERR_FILENO);
    ::dup2(ends_[1], STDERR_FILENO);
    ::close(ends_[1]);
  }
  ~Pipe() { (void)read(); }
  // Restores standard error, and returns everything that was written to it.
  std::string read() {
    restore();
    return read_some(SIZE_MAX);
  }
  size_t waiting() const {
    int bytes = 0;
    EXPECT_EQ(::ioctl(ends_[0], FIONREAD, &bytes), 0);
    return static_cast<size_t>(bytes);
  }
  std::string read_some(size_t most) {
    std::string text;
    char c = 0;
    while (text.size() < most && ::read(ends_[0], &c, 1) == 1) text += c;
    return text;
  }

 private:
  void restore() {
    if (before_ >= 0) ::dup2(before_, STDERR_FILENO), ::close(before_);
    before_ = -1;
  }
  int ends_[2] = {-1, -1};
  int before_ = -1;
};

TEST_F(Log, UnreadPipeDelaysNoThread) {
  set_log_sink(nullptr);
  const int kLines = 300;  // 1,000 bytes each: more than a pipe holds
  Pipe pipe;
  const auto write = [](int i) {
    log(LogLevel::kWarn, "%d %s", i, std::string(1000, 'x').c_str());
  };
  for (int i = 0; i < kLines; ++i) write(i);
  std::string text = pipe.read_some(pipe.waiting());
  write(kLines);
  text += pipe.read();

  std::vector<int> seen;
  for (size_t at = 0; (at = text.find(" warn: ", at)) != std::string::npos;) {
    at += 7;
    int i = -1, end = 0;
    if (std::sscanf(text.c_str() + at, "%d xxx%n", &i, &end) == 1 && end > 0) seen.push_back(i);
  }
  ASSERT_GT(seen.size(), 3u);
  ASSERT_LT(seen.size(), static_cast<size_t>(kLines));
  EXPECT_EQ(seen.size(), static_cast<size_t>(seen[seen.size() - 2]) + 2) << "from the first on";
  EXPECT_EQ(seen.back(), kLines);
  const size_t lost = static_cast<size_t>(kLines) + 1 - seen.size();
  EXPECT_THAT(
      text,
      testing::EndsWith(
          " warn: " + std::to_string(lost) +
          " lines before this one are lost or cut: the reader of standard error was blocked\n"));
}

// The pipe holds all of it: how long a reader may take is a matter of the test above.
TEST_F(Log, ALongLineGoesThroughAPipeWhole) {
  set_log_sink(nullptr);
  Pipe pipe;
  const std::string long_line(200'000, 'y');
  ASSERT_GE(::fcntl(STDERR_FILENO, F_SETPIPE_SZ, 1 << 20), 200'000 + PIPE_BUF);
  log(LogLevel::kError, "%s", long_line.c_str());
  EXPECT_EQ(pipe.read(), prefix() + " error: " + long_line + "\n");
}

TEST_F(Log, ThreadsDoNotMixLines) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) log(LogLevel::kWarn, "thread %d line %d", t, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(g_logged.size(), 800u);
  std::vector<int> next(4);
  for (const auto& [level, line] : g_logged) {
    int t = -1, i = -1;
    ASSERT_EQ(std::sscanf(line.c_str() + prefix().size(), " warn: thread %d line %d", &t, &i), 2);
    ASSERT_EQ(i, next[static_cast<size_t>(t)]++);
  }
}

TEST(LogLevelNames, RoundTrip) {
  for (int i = 0; i <= 4; ++i) {
    const auto level = static_cast<LogLevel>(i);
    EXPECT_EQ(parse_log_level(log_level_name(level)), level);
  }
  EXPECT_EQ(parse_log_level("loud"), std::nullopt);
  EXPECT_EQ(parse_log_level(""), std::nullopt);
}

TEST(RateLimit, OncePerPeriodAndCountsTheRest) {
  RateLimit limit(kSecond);
  EXPECT_TRUE(limit.allow(5 * kSecond));
  EXPECT_EQ(limit.suppressed(), 0u);
  EXPECT_FALSE(limit.allow(5 * kSecond));
  EXPECT_FALSE(limit.allow(6 * kSecond - 1));
  EXPECT_EQ(limit.suppressed(), 0u);  // before the last line that was allowed
  EXPECT_TRUE(limit.allow(6 * kSecond));
  EXPECT_EQ(limit.suppressed(), 2u);
  EXPECT_TRUE(limit.allow(60 * kSecond));
  EXPECT_EQ(limit.suppressed(), 0u);
}

TEST(RateLimit, TheFirstIsAllowedAtAnyTime) {
  EXPECT_TRUE(RateLimit(kSecond).allow(0));
  EXPECT_TRUE(RateLimit(kSecond).allow(-kSecond));
  EXPECT_TRUE(RateLimit(kSecond).allow(INT64_MAX));
}

TEST(RateLimit, APeriodOfZeroNeverLimits) {
  RateLimit limit(0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.allow(7));
}

}  // namespace
}  // namespace mcast
