// secure_random64() asks getrandom(), then /dev/urandom (old kernels, seccomp filters without the
// call). If both fail, a tag must still differ from those of other processes, so the bytes that the
// kernel put into the auxiliary vector at exec are mixed with the process id (they survive fork)
// and a call counter; the log then says that such values can be guessed.
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

bool from_getrandom(uint64_t* out) noexcept {
  // Requests of up to 256 bytes are all or nothing once the generator is ready; only the wait for
  // that, early at boot, can be interrupted.
  ssize_t n;
  do {
    n = ::getrandom(out, sizeof(*out), 0);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(sizeof(*out));
}

bool from_device(uint64_t* out) noexcept {
  const int fd = ::open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t n;
  do {
    n = ::read(fd, out, sizeof(*out));
  } while (n < 0 && errno == EINTR);
  ::close(fd);
  return n == static_cast<ssize_t>(sizeof(*out));
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

uint64_t secure_random64() noexcept {
  uint64_t value = 0;
  if (from_getrandom(&value) || from_device(&value)) return value;
  static std::atomic<bool> told{false};
  if (!told.exchange(true)) {
    log(LogLevel::kWarn,
        "neither getrandom() nor /dev/urandom works here: group tags are unique but can be "
        "guessed");
  }
  return fallback_random64();
}

}  // namespace mcast
