// The engine gets 16 random bytes of this process, by which it recognizes it, and the process's own
// memory as a descriptor. Because its owner has opened it, the engine needs no privilege; after an
// exec it is useless.
#include "host_engine/client/own_memory.h"

#include <fcntl.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/random.h"

namespace mcast {

std::optional<ipc::AccessMethod> OwnMemory::method(const char* setting) {
  // Per process, because engines come and go.
  static const std::array<uint64_t, 2> kCookie{secure_random64(), secure_random64()};
  const std::lock_guard<std::mutex> held(mutex_);
  if (asked_) return method_;
  asked_ = true;
  ipc::MemoryOffer offer;
  offer.cookie = kCookie;
  offer.address = reinterpret_cast<uint64_t>(kCookie.data());
  const Fd memory(::open("/proc/self/mem", O_RDWR | O_CLOEXEC));
  const Result<ipc::Memory> found = offer_(offer, memory.get());
  if (found.ok()) {
    method_ = found->method;
  } else {
    log(LogLevel::kWarn, "engine_memory=%s: this process copies its tensors: %s", setting,
        found.status().message().c_str());
  }
  return method_;
}

}  // namespace mcast
