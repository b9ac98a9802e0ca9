// One reduction's inputs at the ranks of one host. They are folded there before anything is sent
// over the network: this class keeps the addresses of each rank's input, reads them, and tracks
// which ranks have read ours. (A group within a single host does not use it: shm/core.h.)
//
// A rank offers its input to the others once all of it can be read, and keeps it until they have
// reported that they took what they need. A rank that returns its memory early (its group failed)
// withdraws the offer first, and readers check the offer after they have read. So bytes that the
// caller has changed since are never used.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/counters.h"
#include "base/fence.h"
#include "collective/movements/reduce_args.h"
#include "protocol/hosts.h"
#include "wire/frame.h"

namespace mcast {

// Copies `length` bytes at `address` in the process of member `from`, which is on this host.
// Returns false if the process is gone or nothing is mapped there.
struct HostReader {
  std::function<bool(Member from, uint64_t address, std::byte* to, size_t length)> read;
  // Where others can read published memory only: lets them read this memory as long as `owner`
  // exists. Null: they can read everything.
  std::function<void(const void* data, size_t bytes, const std::shared_ptr<const void>& owner)>
      publish;
  explicit operator bool() const { return read != nullptr; }
};

class HostInputs {
 public:
  // Memory that the reductions of a group use one after the other.
  struct Scratch {
    std::vector<std::byte> read, sum, out;
  };

  // `share`: bytes of a member's block, unless args.inputs are by owner. `cookie`: unique among all
  // reductions of this process, in any rank and group (memory is reused), and a number that data is
  // unlikely to contain. `hosts`, `read` and `counters` outlive this.
  HostInputs(const Hosts& hosts, Member self, const ReduceArgs& args, size_t share, uint64_t cookie,
             const HostReader& read, Counters& counters);
  ~HostInputs() { take_back(); }
  HostInputs(const HostInputs&) = delete;
  HostInputs& operator=(const HostInputs&) = delete;

  // The other ranks of this host.
  const std::vector<Member>& others() const { return others_; }
  // The offer to send to them.
  wire::ReduceOffer offer() const;
  void take_back() {
    live_->store(0, std::memory_order_relaxed);
    full_fence();  // then the memory may be written
  }
  // Return false if the member is not on this host or has reported this before.
  bool on_offer(Member from, const wire::ReduceOffer& offer);
  bool on_taken(Member from);
  bool all_offered() const { return missing_ == 0; }
  // True once no other rank reads our input any more.
  bool all_taken() const { return reading_ == 0; }

  // The reduction that folds the hosts' contributions.
  Reduction reduction() const { return between_; }
  // Whether these contributions are in elements of the accumulator.
  bool wide() const { return wide_; }

  // This host's contribution to `owner`: `bytes` of it from `offset`, whole elements. Valid until
  // the next call with the same scratch. Nullopt: refused() cannot be read.
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
  // Read by the others: the addresses of our inputs, and whether they may still be taken.
  const std::shared_ptr<std::vector<uint64_t>> addresses_;
  const std::shared_ptr<std::atomic<uint64_t>> live_;
};

}  // namespace mcast
