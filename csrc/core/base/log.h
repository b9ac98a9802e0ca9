// Log lines: printf-style, one line per call, to stderr or to a sink. Any thread. Code that runs
// per datagram never logs at a level that is on by default. If stderr is full, a line waits 100 ms,
// later ones do not wait; the next line that is written reports how many were lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/types.h"

namespace mcast {

enum class LogLevel : int { kOff = 0, kError = 1, kWarn = 2, kInfo = 3, kTrace = 4 };

// "off", "error", "warn", "info", "trace", exactly so.
const char* log_level_name(LogLevel level) noexcept;
std::optional<LogLevel> parse_log_level(std::string_view name) noexcept;

// Destination of log lines: level 1 error, 2 warning, 3 info, 4 trace; the line has no newline, is
// valid during the call, and begins with "torch-mcast[pid]". Default (and nullptr): stderr. Set it
// once, early; the sink must be callable from any thread, even from several at once.
using LogSink = void (*)(int level, const char* line);
void set_log_sink(LogSink sink) noexcept;

// Lines above this level are dropped. kWarn at start; one level per process.
void set_log_level(LogLevel level) noexcept;
LogLevel log_level() noexcept;
// For callers whose arguments are costly to compute.
bool log_enabled(LogLevel level) noexcept;

void log(LogLevel level, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

// Allows at most one warning per period, for events that may occur by the thousand. One owner, no
// lock.
class RateLimit {
 public:
  explicit RateLimit(Nanos period) noexcept : period_(period) {}

  // Returns true for the first call, and once `period` has passed since it last returned true.
  bool allow(Nanos now) noexcept {
    if (started_ && now - last_ < period_) {
      ++pending_;
      return false;
    }
    started_ = true;
    last_ = now;
    suppressed_ = pending_;
    pending_ = 0;
    return true;
  }
  // Number of calls refused between the last two that were allowed: "(and 41 more)".
  uint64_t suppressed() const noexcept { return suppressed_; }

 private:
  Nanos period_;
  Nanos last_ = 0;
  bool started_ = false;
  uint64_t pending_ = 0;
  uint64_t suppressed_ = 0;
};

}  // namespace mcast
