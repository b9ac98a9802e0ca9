// One reduction's inputs at the ranks of one host, which are folded there before anything goes over
// the network: where each rank's input is, reading it, and knowing when everybody has read ours.
// (A group of one host only has no need of it: host/core.h.)
//
// A rank offers its input to the others once it can be read whole, and keeps it until they have
// said that they took what they need. A rank that gives its memory back early (its group failed)
// takes the offer back first, and readers look at the offer after they have read: bytes that the
// caller has changed since are never taken for good ones.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/counters.h"
#include "base/fence.h"
#include "collective/reduce_args.h"
#include "protocol/hosts.h"
#include "wire/frame.h"

namespace mcast {

// Copies `length` bytes at `address` of the process of member `from`, which is on this host. False:
// it is gone, or nothing is mapped there.
struct HostReader {
  std::function<bool(Member from, uint64_t address, std::byte* to, size_t length)> read;
  // Where others read only what was published: lets them read this, as long as `owner` is there.
  // Null: they read everything.
  std::function<void(const void* data, size_t bytes, const std::shared_ptr<const void>& owner)>
      publish;
  explicit operator bool() const { return read != nullptr; }
};

class HostInputs {
 public:
  // Memory that a group's reductions use in turn.
  struct Scratch {
    std::vector<std::byte> read, sum, out;
  };

  // `share`: bytes of a member's block, unless args.inputs are by owner. `cookie`: no other
  // reduction of this process has it, whatever its rank or group (memory is used again), nor is it
  // a number that data is likely to hold. `hosts`, `read` and `counters` outlive this.
  HostInputs(const Hosts& hosts, Member self, const ReduceArgs& args, size_t share, uint64_t cookie,
             const HostReader& read, Counters& counters);
  ~HostInputs() { take_back(); }
  HostInputs(const HostInputs&) = delete;
  HostInputs& operator=(const HostInputs&) = delete;

  // The other ranks of this host.
  const std::vector<Member>& others() const { return others_; }
  // What to tell them.
  wire::ReduceOffer offer() const;
  void take_back() {
    live_->store(0, std::memory_order_relaxed);
    full_fence();  // then the memory may be written
  }
  // False: they are not on this host, or have said so before.
  bool on_offer(Member from, const wire::ReduceOffer& offer);
  bool on_taken(Member from);
  bool all_offered() const { return missing_ == 0; }
  // Nobody reads our input any more.
  bool all_taken() const { return reading_ == 0; }

  // How the hosts' contributions are folded then.
  Reduction reduction() const { return between_; }
  // Whether they are in elements of the accumulator.
  bool wide() const { return wide_; }

  // The contribution of this host to `owner`: of `bytes` of it from `offset`, whole elements. Valid
  // until the next call with the same scratch. Nothing: refused() cannot be read.
  std::optional<ConstBytes> fold(Member owner, size_t offset, size_t bytes, Scratch& scratch);
  std::optional<Member> refused() const { return refused_; }

 private:
  struct Source {
    Member member = 0;
    std::optional<wire::ReduceOffer> offer;
    std::vector<uint64_t> inputs;
    bool taken = false;
  };
  Source* other(Member m);
  bool read(const Source& from, uint64_t address, std::byte* to, size_t length);
  const std::byte* own(Member owner) const;

  const ReduceArgs& args_;
  const size_t share_;
  const uint64_t cookie_;
  const HostReader& read_;
  Counters& counters_;
  Reduction within_, between_;
  const bool wide_;
  std::vector<Member> others_;
  std::vector<Source> sources_;  // by rank; ours without an offer
  Member self_;
  uint32_t missing_, reading_;
  std::optional<Member> refused_;
  // For the others to read: where our inputs are, and whether they may still be taken.
  const std::shared_ptr<std::vector<uint64_t>> addresses_;
  const std::shared_ptr<std::atomic<uint64_t>> live_;
};

}  // namespace mcast
