// One process's page, mapped by the other processes of its host that share a group with it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "host/control_block.h"

namespace mcast {

struct HostMailbox {
  std::atomic<uint64_t> token;  // random: what is mapped is what was announced
  struct alignas(64) Bell {
    std::atomic<uint32_t> rings;
  } bells[kHostLanes];                      // by lane: its host thread sleeps there
  alignas(64) std::atomic<uint64_t> asked;  // "are you there"
  std::atomic<uint64_t> answered;           // questions answered
};

inline constexpr size_t kHostMailboxBytes = 4096;
static_assert(sizeof(HostMailbox) <= kHostMailboxBytes);

}  // namespace mcast
