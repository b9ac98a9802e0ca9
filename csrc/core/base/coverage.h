// Rare branches of the core that no counter shows. A test program, or a swarm, can check which of
// them it has reached; over the whole C++ suite each must be reached (tools/reach.py). Counts are
// per process, for all groups together: the threads of all lanes write them without a locked
// instruction, so a count may be too small, but never 0 if a branch was taken.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mcast {

// name, description of the event.
#define MCAST_COVER_POINTS(X)                                                                     \
  X(post_waits_for_a_line, "a post is deferred until a cut-over is complete or there is room")    \
  X(abort_by_datagram, "the multicast abort arrived before that of a stream")                     \
  X(abort_brings_the_release, "news of a failure says which operations were complete")            \
  X(abort_after_leaving, "a rank that has left receives a failure that no longer affects it")     \
  X(failed_group_is_asked, "a failed group answers a ping with its failure")                      \
  X(mended_by_the_last_repetition, "a chunk is multicast again for the last time that it may be") \
  X(repetition_refused, "a chunk was repeated as often as it may be: streams deliver it")         \
  X(repetition_put_back, "a repetition that the interface refused waits")                         \
  X(chunk_put_back, "a chunk that the interface refused waits")                                   \
  X(turn_passed_over, "a root sends although one before it in its chain has not")                 \
  X(position_by_stream, "sent data is announced by stream, after multicast failed")               \
  X(announced_too_early, "a stream that flowed was announced: patience doubles")                  \
  X(window_at_its_least, "losses cut a window to the least that keeps credit going")              \
  X(ring_queue_full, "the ring stops at its successor's queue")                                   \
  X(contribution_queue_full, "a contribution waits for its owner's queue")                        \
  X(result_queue_full, "a reduce's result waits for the root's queue")                            \
  X(exchange_queue_full, "a piece of an exchange waits for its receiver's queue")                 \
  X(message_queue_full, "a piece of a message waits for its receiver's queue")                    \
  X(repair_queue_full, "repairs wait for the requester's queue")                                  \
  X(own_block_revived, "an operation that is over here is repaired for another rank")             \
  X(request_kept_open, "a donor that is sending gets more time for the request")                  \
  X(unasked_account_full, "data that needs no grant waits for room at its receiver")              \
  X(exchange_granted_meanwhile, "data that waited for room in an account is granted")             \
  X(grant_too_small, "a grant waits since little room is left and something comes")               \
  X(goodbye_before_the_release, "a rank closed in order before its news of the end was read")     \
  X(lost_after_the_end, "a rank is lost that nobody waits for, but repairs may be needed")        \
  X(reduce_lane_fails_first, "the reduce lane takes the multicast lane with it")                  \
  X(other_lane_fails, "a lane is failed by the other one, since no abort has come")               \
  X(frame_before_its_group, "a frame is kept for a group that is not made here yet")              \
  X(frame_without_its_group, "a frame whose group never came is dropped")

enum class ReachPoint : uint8_t {
#define MCAST_COVER_POINT(name, help) name,
  MCAST_COVER_POINTS(MCAST_COVER_POINT)
#undef MCAST_COVER_POINT
};
#define MCAST_COVER_POINT(name, help) +1
inline constexpr size_t kCoverPoints = MCAST_COVER_POINTS(MCAST_COVER_POINT);
#undef MCAST_COVER_POINT

namespace reach_points {

inline std::array<std::atomic<uint64_t>, kCoverPoints> counts{};

inline void hit(ReachPoint point) noexcept {
  std::atomic<uint64_t>& count = counts[static_cast<size_t>(point)];
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}
inline uint64_t count(size_t point) noexcept {
  return counts[point].load(std::memory_order_relaxed);
}
const char* name(size_t point) noexcept;

}  // namespace reach_points
}  // namespace mcast

#define MCAST_COVER(name) ::mcast::reach_points::hit(::mcast::ReachPoint::name)
