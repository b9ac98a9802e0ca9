// Ranks of one host in one thread: HostCores over one control block, scheduled by a seed. A rank
// looks, then arms its needs, in steps of which other ranks do theirs in between; having armed it
// sleeps until a peer wakes it, so a wake-up that is missing ends in a standstill.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "host/core.h"
#include "host/memory_block.h"

namespace mcast::test {

// The monotonic clock, as an engine lends it to a registry.
Nanos monotonic();

// One call of one rank, with its memory.
struct HostCall {
  wire::Descriptor descriptor;
  Element element = Element::kInt32;
  Reduction reduction = Reduction::kSum;
  std::vector<std::vector<std::byte>> inputs;  // as posted
  std::vector<size_t> lengths;    // of an exchange: by rank, of what `output` has from there
  std::vector<std::byte> output;  // all blocks of it, in order; given back with the end
  std::vector<std::byte> result;  // what `output` held then
  int ended = 0;
  Status status;
  std::vector<uint64_t> completed;  // by block: the last completed end
};

// Call `index` of the program of `seed`, as rank `rank` makes it; the same kind and size on all.
HostCall make_call(uint64_t seed, uint32_t index, Member rank, uint32_t ranks);
// The same, an exchange.
HostCall make_exchange(uint64_t seed, uint32_t index, Member rank, uint32_t ranks);
// The outputs that the ranks must have, computed without the core.
std::vector<std::vector<std::byte>> expected_outputs(uint64_t seed, uint32_t index, uint32_t ranks,
                                                     FoldOrder fold = FoldOrder::kRank);
Post make_post(HostCall& call, Sequence sequence, Nanos now, bool ends);

// One of the three, by seed.
inline PeerMemory memory_by(uint64_t seed) { return static_cast<PeerMemory>(seed % 3); }

class HostWorld {
 public:
  HostWorld(uint32_t ranks, PeerMemory memory, uint64_t seed, FoldOrder fold = FoldOrder::kRank);
  ~HostWorld();

  uint32_t size() const { return ranks_; }
  HostCore& core(Member m);
  // As its driver does: progress(), then callbacks.
  bool turn(Member m, bool large = true);
  uint64_t total(Counter c) const;
  HostCall& post(Member m, HostCall call, Nanos timeout = kNever);
  // An all_reduce of `call.output`.
  HostCall& post_in_place(Member m, HostCall call);
  std::vector<std::unique_ptr<HostCall>>& calls(Member m);
  // Now, as rank `m`.
  void post(Member m, MessagePost message);
  // It has nothing in flight, says so, and does nothing any more.
  void leave(Member m);
  ControlBlock block() const { return memory_.block(); }

  // The rank does nothing any more; its memory cannot be read.
  void kill(Member m);
  // One rank that is awake does a step. False: everybody sleeps.
  bool step();
  // Until everybody sleeps; false if it does not end.
  bool run(uint64_t steps = 2'000'000);
  // What a watch does for those that wait for a killed rank, or for one that has left.
  void watch();
  Nanos now = kSecond;
  std::function<void()> on_now;   // called when a rank asks for the time
  std::function<void()> on_read;  // ... before it reads another's memory

 private:
  struct Node;
  const uint32_t ranks_;
  Rng rng_;
  const MemoryBlock memory_;
  const PeerMemory peers_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace mcast::test
