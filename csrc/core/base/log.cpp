// A line is formatted on the stack (on the heap if it is long), prefixed with the process id, since
// all ranks of a host usually share one terminal, and passed to the sink in one piece. The default
// sink makes one write() per line, so that lines of several processes do not mix. Level and sink
// are atomics: no lock is held while a sink runs, so a sink may log.
//
// Standard error is often a pipe, and its reader may stop: an engine's thread that waits for it
// would be considered a dead peer. So a line that finds no room waits kPatienceMs, later ones do
// not wait, and the number of lost lines is counted and logged once there is room again.
#include "base/log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <new>
#include <string>

namespace mcast {
namespace {

constexpr std::array<const char*, 5> kLevelNames = {"off", "error", "warn", "info", "trace"};

std::atomic<LogSink> g_sink{nullptr};
std::atomic<LogLevel> g_level{LogLevel::kWarn};

constexpr int kPatienceMs = 100;
std::atomic<uint64_t> g_lost{0};  // lines lost since the last one that was written

bool has_room() noexcept {
  pollfd err{STDERR_FILENO, POLLOUT, 0};
  const int patience = g_lost.load(std::memory_order_relaxed) == 0 ? kPatienceMs : 0;
  return ::poll(&err, 1, patience) > 0;
}

// Returns false if the pipe is not being read. A pipe that has room takes PIPE_BUF bytes without
// waiting.
bool write_all(const char* data, size_t size) noexcept {
  while (size > 0) {
    if (!has_room()) return false;
    const ssize_t n = ::write(STDERR_FILENO, data, std::min<size_t>(size, PIPE_BUF));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    if (n <= 0) return true;  // there is no reader any more
    data += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

void write_line(const char* line, size_t size) noexcept {
  if (!write_all(line, size)) {
    g_lost.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const uint64_t lost = g_lost.exchange(0, std::memory_order_relaxed);
  if (lost == 0) return;
  std::array<char, 160> note;
  const int n = std::snprintf(note.data(), note.size(),
                              "torch-mcast[%d] warn: %llu lines before this one are lost or cut: "
                              "the reader of standard error was blocked\n",
                              static_cast<int>(::getpid()), static_cast<unsigned long long>(lost));
  write_all(note.data(), static_cast<size_t>(n));
}

// `line` has room for a newline in place of the terminator at line[size].
void emit(LogLevel level, char* line, size_t size) noexcept {
  if (LogSink sink = g_sink.load(std::memory_order_acquire)) {
    sink(static_cast<int>(level), line);
    return;
  }
  line[size] = '\n';
  write_line(line, size + 1);
}

}  // namespace

const char* log_level_name(LogLevel level) noexcept {
  return kLevelNames[static_cast<size_t>(level)];
}

std::optional<LogLevel> parse_log_level(std::string_view name) noexcept {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (name == kLevelNames[i]) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

void set_log_sink(LogSink sink) noexcept { g_sink.store(sink, std::memory_order_release); }

void set_log_level(LogLevel level) noexcept { g_level.store(level, std::memory_order_relaxed); }

LogLevel log_level() noexcept { return g_level.load(std::memory_order_relaxed); }

bool log_enabled(LogLevel level) noexcept {
  return level != LogLevel::kOff && level <= g_level.load(std::memory_order_relaxed);
}

void log(LogLevel level, const char* format, ...) noexcept {
  if (!log_enabled(level)) return;
  const int saved_errno = errno;
  std::array<char, 1024> buffer;
  const int prefix =
      std::snprintf(buffer.data(), buffer.size(),
                    "torch-mcast[%d] %s: ", static_cast<int>(::getpid()), log_level_name(level));
  const auto head = static_cast<size_t>(prefix);

  va_list args;
  va_start(args, format);
  va_list again;
  va_copy(again, args);
  errno = saved_errno;  // %m
  const int body = std::vsnprintf(buffer.data() + head, buffer.size() - head, format, args);
  va_end(args);

  const size_t size = head + (body > 0 ? static_cast<size_t>(body) : 0);
  if (size < buffer.size()) {
    emit(level, buffer.data(), size);
  } else if (char* line = new (std::nothrow) char[size + 1]) {
    std::snprintf(line, size + 1, "%s", buffer.data());
    errno = saved_errno;
    std::vsnprintf(line + head, size + 1 - head, format, again);
    emit(level, line, size);
    delete[] line;
  } else {
    emit(level, buffer.data(),
         buffer.size() - 1);  // out of memory: a truncated line is better than none
  }
  va_end(again);
  errno = saved_errno;
}

}  // namespace mcast
