// The memory that the ranks of one group on one host share: for each lane, the rounds that every
// rank has published and consumed, and a ring of slots with its data; for each ordered pair of
// ranks a ring of messages (message_ring.h); for the group, the record of its first failure. It
// contains no pointers: every process maps it at any address. Every field is written by one rank,
// except those of the failure record (written by the first rank to claim it), the needs (peers
// clear the ones they meet), the marks of messages (set by senders) and the doorbells (incremented
// by any peer).
//
// Ranks of one group trust each other's processes: they run under one user and could as well trace
// each other (docs/hosts.md).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace mcast {

// Number of rounds that a rank may be ahead of the slowest: slots per rank and lane.
inline constexpr uint32_t kHostDepth = 8;
// Bytes of data in one slot.
inline constexpr size_t kHostSlot = 128u << 10;
// Most ranks of one group that can share a control block: a slot holds an address for each.
inline constexpr uint32_t kHostMembers = 1024;
inline constexpr size_t kHostLanes = 2;
// The driver of this lane carries the messages: the reduce lane, as over a network.
inline constexpr size_t kMessageLane = 1;
inline constexpr size_t kHostName = 64;
inline constexpr size_t kHostText = 1800;

static_assert(std::atomic<uint64_t>::is_always_lock_free);

// How a waiting rank sleeps: not at all, as a thread that waits for a result (at its own doorbell),
// or as the process's host thread (at its mailbox).
enum class HostWaiter : uint8_t { kNone = 0, kCaller = 1, kThread = 2 };

// The condition for which a rank sleeps, in one word, so that peers wake only ranks that can go on:
// the waiter, the kind of need, the member (kFrom), and the number of rounds.
struct HostNeed {
  enum class Kind : uint8_t {
    kNothing = 0,
    kAll = 1,   // all ranks have published `rounds`
    kFrom = 2,  // `member` has published them
  };
  HostWaiter waiter = HostWaiter::kNone;
  Kind kind = Kind::kNothing;
  Member member = 0;
  uint64_t rounds = 0;  // kRoundBits wide: enough for decades of rounds

  static constexpr int kRoundBits = 44;
  uint64_t pack() const {
    return static_cast<uint64_t>(waiter) << 62 | static_cast<uint64_t>(kind) << 60 |
           static_cast<uint64_t>(member) << kRoundBits |
           (rounds & ((uint64_t{1} << kRoundBits) - 1));
  }
  static HostNeed unpack(uint64_t word) {
    return {static_cast<HostWaiter>(word >> 62), static_cast<Kind>(word >> 60 & 3),
            static_cast<Member>(word >> kRoundBits & 0xffff),
            word & ((uint64_t{1} << kRoundBits) - 1)};
  }
};

// The state of one rank on one lane.
struct alignas(64) RankState {
  std::atomic<uint64_t> published;  // rounds whose slot is filled
  std::atomic<uint64_t> consumed;   // rounds that this rank has finished reading
  std::atomic<uint32_t> called;     // operations posted
  std::atomic<uint32_t> left;       // 1 + operations posted when it left; 0: has not left
  std::atomic<uint32_t> joined;     // on lane 0: it has the group and no longer needs the store
  alignas(64) std::atomic<uint64_t> need_published;
  std::atomic<uint64_t> need_consumed;  // consumed by all; waiter and rounds
  alignas(64) std::atomic<uint32_t> doorbell;
};

// Message state of one receiving rank.
struct alignas(64) MessageBoard {
  // Need of this rank while it sleeps: a HostWaiter, with kAny if any message wakes it; 0: it is
  // awake, or is to be woken only for a full ring.
  static constexpr uint32_t kAny = 4;
  std::atomic<uint32_t> need;
  // One bit per sender: its ring has data that this rank has not read.
  alignas(64) std::atomic<uint64_t> news[kHostMembers / 64];
};

// Header of a message ring. Counts are bytes since the beginning.
struct MessageRingState {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  std::atomic<uint32_t> full;  // the sender waits until half of the ring is free
};

// Header of a slot: the call that its rank makes in this round, which must be equal at all ranks,
// and the place of data that is not in the slot.
struct alignas(64) SlotHeader {
  uint8_t kind, element, reduction, pad;
  Member root;
  uint16_t index_low;  // low bits of the round's number in its operation, to detect mismatches
  uint32_t sequence;
  uint64_t bytes;
  uint64_t address;  // direct operations: HostPort::place_of() the rank's input
  double factor;     // PREMUL_SUM: the rank's factor
  char name[kHostName];
};

// The first failure of the group.
struct alignas(64) FailureRecord {
  std::atomic<uint32_t> state;  // 0 none, 1 being written, 2 readable
  uint32_t code;                // mcast::Code
  Member culprit, reporter;
  char text[kHostText];
};

// Copyable view of memory that its owner keeps mapped. Any thread.
class ControlBlock {
 public:
  ControlBlock() = default;
  // `base`: bytes(members) of zeroed memory, aligned to 64.
  ControlBlock(std::byte* base, uint32_t members) : base_(base), members_(members) {}

  static constexpr size_t bytes(uint32_t members) {
    return rings_at(members) + size_t{members} * members * ring_bytes(members);
  }
  // Bytes of a message ring, including its state. Only used pages are allocated, but all of them
  // take address space: so rings are smaller if there are more of them.
  static constexpr size_t ring_bytes(uint32_t members) {
    size_t bytes = kLargestRing;
    while (bytes > kSmallestRing && size_t{members} * members * bytes > kRings) bytes /= 2;
    return bytes;
  }
  uint32_t members() const { return members_; }
  FailureRecord& failure() const { return *reinterpret_cast<FailureRecord*>(base_); }
  RankState& state(size_t lane, Member m) const {
    return *reinterpret_cast<RankState*>(base_ + kRecord +
                                         (lane * members_ + m) * sizeof(RankState));
  }
  SlotHeader& header(size_t lane, Member m, uint64_t round) const {
    return *reinterpret_cast<SlotHeader*>(slot(lane, m, round));
  }
  std::byte* data(size_t lane, Member m, uint64_t round) const {
    return slot(lane, m, round) + sizeof(SlotHeader);
  }
  MessageBoard& board(Member m) const {
    return *reinterpret_cast<MessageBoard*>(base_ + boards_at(members_) + m * sizeof(MessageBoard));
  }
  // Ring of messages from one rank to another, of ring_bytes().
  std::byte* ring(Member from, Member to) const {
    return base_ + rings_at(members_) + (size_t{to} * members_ + from) * ring_bytes(members_);
  }

 private:
  static constexpr size_t kRecord = 4096, kPage = 4096;
  static constexpr size_t kStride = sizeof(SlotHeader) + kHostSlot;
  static constexpr size_t kLargestRing = 256u << 10, kSmallestRing = 8u << 10;
  static constexpr size_t kRings = 256u << 20;  // address space for all rings together
  static constexpr size_t boards_at(uint32_t members) {
    return kRecord + kHostLanes * members * (sizeof(RankState) + kHostDepth * kStride);
  }
  static constexpr size_t rings_at(uint32_t members) {
    return (boards_at(members) + members * sizeof(MessageBoard) + kPage - 1) / kPage * kPage;
  }
  static_assert(sizeof(FailureRecord) <= kRecord);

  std::byte* slot(size_t lane, Member m, uint64_t round) const {
    return base_ + kRecord + kHostLanes * members_ * sizeof(RankState) +
           ((lane * members_ + m) * kHostDepth + round % kHostDepth) * kStride;
  }

  std::byte* base_ = nullptr;
  uint32_t members_ = 0;
};

}  // namespace mcast
