// This process among the ranks of its host: the mailbox where the others ring, a thread per lane
// that answers and drives the groups nobody waits for, and the processes that share groups with it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "host/mailbox.h"
#include "host/process.h"
#include "host/segment.h"
#include "host/thread.h"

namespace mcast {

// What peers need to find this process: travels in the rendezvous record.
struct HostAddress {
  int64_t pid = 0;
  int mailbox = -1;           // descriptor of its mailbox
  uint64_t token = 0;         // of the mailbox
  uint64_t private_copy = 0;  // address of a copy of the token in its private memory
  int segment = -1;           // rank 0: descriptor of the group's segment
  int arena = -1;             // descriptor of its ArenaPool; -1: it has none
  uint64_t arena_bytes = 0;
  // Of a rank that an engine of the host runs: its token in the engine's directory
  // (host/directory.h), and nothing of the above. 0: none.
  uint64_t token_here = 0;
  std::string encode() const;
  // "" gives pid 0; false: malformed.
  static bool decode(const std::string& text, HostAddress& address);
};

// Another process of this host. All groups with it share one: it holds a descriptor.
struct HostPeer {
  PeerProcess process;
  Segment page;
  Segment arena;  // its ArenaPool, or nothing
  HostMailbox& mailbox() const { return *reinterpret_cast<HostMailbox*>(page.data()); }

  // "Are you there", to its host thread; the number of the question.
  uint64_t ask() const;
  bool answered(uint64_t question) const;
  // What to say of it as rank `rank` of a group.
  Status ended(Member rank) const;
  static Status silent(Member rank, Nanos silence, Nanos limit);
};

class PeerRegistry {
 public:
  // Made at the first group, kept while the engine is.
  static Result<std::unique_ptr<PeerRegistry>> make(HostClock clock);
  HostThread& thread(size_t lane) { return *threads_[lane]; }
  HostClock clock() const { return clock_; }
  HostAddress address() const;
  // Threads end; groups must be closed.
  void stop();
  // The process that is found there, as announced. One thread at a time, as for
  // abandon_after_fork().
  Result<std::shared_ptr<const HostPeer>> find(const HostAddress& address);
  // In the child of a fork.
  void abandon_after_fork() noexcept;

 private:
  explicit PeerRegistry(HostClock monotonic) : clock_(monotonic) {}
  HostMailbox& mailbox() const { return *reinterpret_cast<HostMailbox*>(page_.data()); }

  const HostClock clock_;
  Segment page_;
  std::unique_ptr<uint64_t> token_;  // private memory, for the reading probe
  std::unique_ptr<HostThread> threads_[kHostLanes];
  std::map<std::pair<int64_t, uint64_t>, std::weak_ptr<HostPeer>> peers_;  // by pid and token
};

}  // namespace mcast
