// A collective as a schedule of sends: the sends of each rank when it begins, when a send has
// arrived for it, and when one of its own sends has been delivered. A schedule has no notion of
// time, memory or network, so anything can run it that delivers sends in the order of each pair of
// ranks.
//
// Sends that arrive before a rank has begun wait until it has. Threads: one.
#pragma once

#include <cstdint>
#include <vector>

namespace mcast::sim {

using RankId = uint32_t;

enum class Collective : uint8_t {
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kGather,
  kScatter,
};
inline constexpr Collective kCollectives[] = {Collective::kBroadcast,     Collective::kAllGather,
                                              Collective::kReduceScatter, Collective::kAllReduce,
                                              Collective::kAllToAll,      Collective::kGather,
                                              Collective::kScatter};

// Division of an operation's bytes: one block per rank, equal except for rounding. A broadcast has
// one block of all bytes, the root's.
struct Layout {
  uint32_t ranks = 0;
  uint64_t size = 0;  // of the whole output or input, bytes; at least one for each rank
  RankId root = 0;

  uint64_t block_at(uint32_t block) const {
    return size / ranks * block + size % ranks * block / ranks;
  }
  uint64_t block_bytes(uint32_t block) const { return block_at(block + 1) - block_at(block); }
  // Bytes of `count` blocks from `first` on, wrapping around after the last one.
  uint64_t blocks_bytes(uint32_t first, uint32_t count) const;
};

struct Send {
  RankId to = 0;
  uint64_t bytes = 0;
  uint64_t note = 0;  // identifies the send for the schedule
};
using Sends = std::vector<Send>;

// The data that a send carries, for tests: bytes [first, first + bytes) of a block. `partial`: a
// reduction's block that contains the contributions of some ranks only.
struct Part {
  uint32_t block = 0;
  uint64_t first = 0, bytes = 0;
  bool partial = false;
};

class Schedule {
 public:
  explicit Schedule(const Layout& layout) : layout_(layout) {}
  virtual ~Schedule() = default;

  const Layout& layout() const { return layout_; }

  // Each callback appends the sends that the rank starts now. `note`: of the send that has arrived.
  virtual void begin(RankId rank, Sends* sends) = 0;
  virtual void arrived(RankId /*rank*/, uint64_t /*note*/, Sends* /*sends*/) {}
  virtual void delivered(RankId /*rank*/, Sends* /*sends*/) {}

  // Total bytes that arrive for this rank. A rank is done when they have arrived and all its sends
  // have been delivered.
  virtual uint64_t expected(RankId rank) const = 0;
  virtual void parts(RankId from, uint64_t note, std::vector<Part>* parts) const = 0;

 protected:
  RankId after(RankId rank, uint32_t steps = 1) const {
    return static_cast<RankId>((uint64_t{rank} + steps) % layout_.ranks);
  }
  RankId before(RankId rank, uint32_t steps = 1) const {
    return after(rank, layout_.ranks - steps % layout_.ranks);
  }

  Layout layout_;
};

}  // namespace mcast::sim
