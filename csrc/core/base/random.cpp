// secure_random64() uses getrandom(), then /dev/urandom (for old kernels, and seccomp filters that
// forbid the call). If both fail, a tag must still differ from those of other processes, so the
// bytes that the kernel put into the auxiliary vector at exec are mixed with the process id (they
// survive fork) and a call counter; the log then warns that such values can be guessed.
#include "base/random.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/rng.h"

namespace mcast {
namespace {

// Fills all of `out` with `more(rest)`, which behaves as read(2): a signal may end it early.
template <typename More>
bool fill(Bytes out, More&& more) noexcept {
  while (!out.empty()) {
    const ssize_t n = more(out);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    out = out.subspan(static_cast<size_t>(n));
  }
  return true;
}

bool from_getrandom(Bytes out) noexcept {
  return fill(out, [](Bytes rest) { return ::getrandom(rest.data(), rest.size(), 0); });
}

bool from_device(Bytes out) noexcept {
  const int fd = ::open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool filled = fill(out, [fd](Bytes rest) { return ::read(fd, rest.data(), rest.size()); });
  ::close(fd);
  return filled;
}

}  // namespace

uint64_t fallback_random64() noexcept {
  static std::atomic<uint64_t> calls{0};
  uint64_t seed[2] = {0, 0};
  if (const auto* bytes = reinterpret_cast<const void*>(::getauxval(AT_RANDOM))) {
    std::memcpy(seed, bytes, sizeof(seed));
  }
  const uint64_t call = calls.fetch_add(1, std::memory_order_relaxed) + 1;
  const auto pid = static_cast<uint64_t>(::getpid());
  return mix64(seed[0] ^ mix64(seed[1] ^ mix64((pid << 40) ^ call)));
}

bool secure_random_bytes(Bytes out) noexcept { return from_getrandom(out) || from_device(out); }

uint64_t secure_random64() noexcept {
  uint64_t value = 0;
  if (secure_random_bytes({reinterpret_cast<std::byte*>(&value), sizeof value})) return value;
  static std::atomic<bool> told{false};
  if (!told.exchange(true)) {
    log(LogLevel::kWarn,
        "neither getrandom() nor /dev/urandom works here: group tags are unique but can be "
        "guessed");
  }
  return fallback_random64();
}

}  // namespace mcast
