// This process among the ranks of its host: the mailbox that the others ring, a thread per lane
// that replies to them and drives groups without a waiting caller, and the processes that share
// groups with it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "shm/mailbox.h"
#include "shm/process.h"
#include "shm/segment.h"
#include "shm/thread.h"

namespace mcast {

// The address by which peers find this process: travels in the rendezvous record.
struct HostAddress {
  int64_t pid = 0;
  int mailbox = -1;           // descriptor of its mailbox
  uint64_t token = 0;         // of the mailbox
  uint64_t private_copy = 0;  // address of a copy of the token in its private memory
  int segment = -1;           // rank 0: descriptor of the group's segment
  int arena = -1;             // descriptor of its ArenaPool; -1: no pool
  uint64_t arena_bytes = 0;
  // For a rank that an engine of the host runs: its token in the engine's directory
  // (shm/directory.h); the fields above are unused. 0: none.
  uint64_t token_here = 0;
  std::string encode() const;
  // Decodes an address; "" gives pid 0. Returns false if malformed.
  static bool decode(const std::string& text, HostAddress& address);
};

// Another process of this host. All groups with it share one object: it holds a descriptor.
struct HostPeer {
  PeerProcess process;
  Segment page;
  Segment arena;  // its ArenaPool; empty if it has none
  HostMailbox& mailbox() const { return *reinterpret_cast<HostMailbox*>(page.data()); }

  // Sends "are you there" to its host thread; returns the number of the question.
  uint64_t ask() const;
  bool answered(uint64_t question) const;
  // Error that reports it as ended, as rank `rank` of a group.
  Status ended(Member rank) const;
  static Status silent(Member rank, Nanos silence, Nanos limit);
};

class PeerRegistry {
 public:
  // Made with the first group, kept as long as the engine.
  static Result<std::unique_ptr<PeerRegistry>> make(HostClock clock);
  HostThread& thread(size_t lane) { return *threads_[lane]; }
  HostClock clock() const { return clock_; }
  HostAddress address() const;
  // Ends the threads; groups must be closed.
  void stop();
  // Returns the process at this address, if it is the announced one. One thread at a time, as for
  // abandon_after_fork().
  Result<std::shared_ptr<const HostPeer>> find(const HostAddress& address);
  // A group has this many ranks on this host. One thread at a time, as find().
  void note_ranks(uint32_t ranks);
  // Returns true if every rank of the job on this host can have a core of its own, as far as this
  // process has seen ranks. Any thread.
  bool core_each() const { return core_each_.load(std::memory_order_relaxed); }
  // In the child of a fork.
  void abandon_after_fork() noexcept;

 private:
  explicit PeerRegistry(HostClock monotonic) : clock_(monotonic) {}
  HostMailbox& mailbox() const { return *reinterpret_cast<HostMailbox*>(page_.data()); }

  const HostClock clock_;
  Segment page_;
  std::unique_ptr<uint64_t> token_;  // in private memory, for the probe that reads it
  std::unique_ptr<HostThread> threads_[kHostLanes];
  std::map<std::pair<int64_t, uint64_t>, std::weak_ptr<HostPeer>> peers_;  // by pid and token
  uint32_t ranks_ = 1;                                                     // most that were noted
  std::atomic<bool> core_each_{false};
};

}  // namespace mcast
