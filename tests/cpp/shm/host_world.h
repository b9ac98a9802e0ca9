// Ranks of one host in one thread: HostCores over one control block, scheduled by a seed. A rank
// polls, then arms its needs; other ranks run between these two steps. An armed rank sleeps until a
// peer wakes it, so a missing wake-up causes a standstill.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "shm/core.h"
#include "shm/memory_block.h"

namespace mcast::test {

// The monotonic clock, as an engine lends it to a registry.
Nanos monotonic();

// One call of one rank, with its memory.
struct HostCall {
  wire::Descriptor descriptor;
  Element element = Element::kInt32;
  Reduction reduction = Reduction::kSum;
  std::vector<std::vector<std::byte>> inputs;  // as posted
  std::vector<size_t> lengths;                 // of an exchange: bytes in `output` from each rank
  std::vector<std::byte> output;               // all its blocks in order; given back at the end
  std::vector<std::byte> result;               // content of `output` at the end
  int ended = 0;
  Status status;
  std::vector<uint64_t> completed;  // by block: the last completed end
};

// Call `index` of the program of `seed`, for rank `rank`. Kind and size are the same on all ranks.
HostCall make_call(uint64_t seed, uint32_t index, Member rank, uint32_t ranks);
// The same for an exchange.
HostCall make_exchange(uint64_t seed, uint32_t index, Member rank, uint32_t ranks);
// The expected outputs of the ranks, computed without the core.
std::vector<std::vector<std::byte>> expected_outputs(uint64_t seed, uint32_t index, uint32_t ranks,
                                                     FoldOrder fold = FoldOrder::kRank);
Post make_post(HostCall& call, Sequence sequence, Nanos now, bool ends);

// One of the three kinds, by seed.
inline PeerMemory memory_by(uint64_t seed) { return static_cast<PeerMemory>(seed % 3); }

class HostWorld {
 public:
  HostWorld(uint32_t ranks, PeerMemory memory, uint64_t seed, FoldOrder fold = FoldOrder::kRank);
  ~HostWorld();

  uint32_t size() const { return ranks_; }
  HostCore& core(Member m);
  // Polls like the rank's driver: progress(), then callbacks.
  bool turn(Member m, bool large = true);
  uint64_t total(Counter c) const;
  HostCall& post(Member m, HostCall call, Nanos timeout = kNever);
  // An all_reduce of `call.output`.
  HostCall& post_in_place(Member m, HostCall call);
  std::vector<std::unique_ptr<HostCall>>& calls(Member m);
  // Posts the message now, as rank `m`.
  void post(Member m, MessagePost message);
  // Closes the rank: it has nothing in flight, publishes its end, and does nothing more.
  void leave(Member m);
  ControlBlock block() const { return memory_.block(); }

  // Kills the rank: it does nothing more, and its memory cannot be read.
  void kill(Member m);
  // One step of a rank that is awake. Returns false if all ranks sleep.
  bool step();
  // Runs until all ranks sleep; returns false if that takes too many steps.
  bool run(uint64_t steps = 2'000'000);
  // Does the watch's work for ranks that wait for a rank that was killed or has left.
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
