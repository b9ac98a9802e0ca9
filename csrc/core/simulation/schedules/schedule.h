// A collective as a schedule of sends: what each rank sends when it begins, when something has come
// to it, and when something that it sent has come to its receiver. A schedule knows numbers only,
// neither time nor memory nor a network, so it can be run by anything that delivers sends, in the
// order of each pair of ranks.
//
// What comes to a rank before it has begun waits until it has. Threads: one.
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

// How an operation's bytes are cut: one block per rank, equal but for rounding. A broadcast has
// one, the root's, of all bytes.
struct Layout {
  uint32_t ranks = 0;
  uint64_t size = 0;  // of the whole output or input, bytes; at least one for each rank
  RankId root = 0;

  uint64_t block_at(uint32_t block) const {
    return size / ranks * block + size % ranks * block / ranks;
  }
  uint64_t block_bytes(uint32_t block) const { return block_at(block + 1) - block_at(block); }
  // Of `count` blocks from `first` on, around the last one.
  uint64_t blocks_bytes(uint32_t first, uint32_t count) const;
};

struct Send {
  RankId to = 0;
  uint64_t bytes = 0;
  uint64_t note = 0;  // what it is, for the schedule
};
using Sends = std::vector<Send>;

// What a send carries, for tests: bytes [first, first + bytes) of a block. `partial`: a reduction's
// block into which only some ranks' contributions are folded.
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

  // Each appends what the rank sends now. `note`: of the send that has come.
  virtual void begin(RankId rank, Sends* sends) = 0;
  virtual void arrived(RankId /*rank*/, uint64_t /*note*/, Sends* /*sends*/) {}
  virtual void delivered(RankId /*rank*/, Sends* /*sends*/) {}

  // Bytes that come to this rank in all. A rank is done when they have come, and all that it sent
  // has come to others.
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
