// One process's page, mapped by the other processes of its host that share a group with it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/control_block.h"

namespace mcast {

struct HostMailbox {
  std::atomic<uint64_t> token;  // random: proves that the mapped page is the announced one
  struct alignas(64) Bell {
    std::atomic<uint32_t> rings;
  } bells[kHostLanes];                      // one per lane: its host thread sleeps there
  alignas(64) std::atomic<uint64_t> asked;  // number of the last "are you there"
  std::atomic<uint64_t> answered;           // last number that was answered
};

inline constexpr size_t kHostMailboxBytes = 4096;
static_assert(sizeof(HostMailbox) <= kHostMailboxBytes);

}  // namespace mcast
