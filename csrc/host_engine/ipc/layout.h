// The memory that an engine of the host shares with one client: a page of words, then two rings of
// bytes. The engine makes it, sealed, one per client. Either side may be hostile to the other, so
// each keeps its own index privately and verifies every word that the other has written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace mcast::ipc {

inline constexpr size_t kSubmissionBytes = size_t{256} << 10;
inline constexpr size_t kCompletionBytes = size_t{64} << 10;

// Bytes written and read since the beginning. Only one side stores each.
struct RingWords {
  alignas(64) std::atomic<uint64_t> tail;  // the writer's
  alignas(64) std::atomic<uint64_t> head;  // the reader's
};

struct LinkPage {
  RingWords submission;  // from the client
  RingWords completion;  // from the engine
  // 1: the engine's thread for this client sleeps; a Look message on the socket wakes it.
  alignas(64) std::atomic<uint32_t> engine_asleep;
  // 1: the thread of the client's link sleeps; a Look message wakes it. The engine checks `waiters`
  // first.
  alignas(64) std::atomic<uint32_t> client_asleep;
  alignas(64) std::atomic<uint32_t> bell;     // futex; counts batches of completions
  alignas(64) std::atomic<uint32_t> waiters;  // threads of the client that sleep at the bell
  // Incremented by the engine as long as it runs, about ten times a second.
  alignas(64) std::atomic<uint64_t> engine_beats;
};

inline constexpr size_t kLinkPageBytes = 4096;
inline constexpr size_t kLinkBytes = kLinkPageBytes + kSubmissionBytes + kCompletionBytes;
static_assert(sizeof(LinkPage) <= kLinkPageBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

inline std::byte* submission_of(std::byte* link) noexcept { return link + kLinkPageBytes; }
inline std::byte* completion_of(std::byte* link) noexcept {
  return submission_of(link) + kSubmissionBytes;
}

}  // namespace mcast::ipc
