// This process among the ranks of its host: a mailbox where the others ring, and a thread per lane
// that answers and drives the groups nobody waits for.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collective/host_board.h"
#include "transport/shm/process.h"
#include "transport/shm/segment.h"

namespace mcast {

class HostLane;

// Between looks at peers that are waited for, and at limits.
inline constexpr Nanos kHostTick = 100 * kMilli;

// One process's page, mapped by its peers.
struct HostMailbox {
  std::atomic<uint64_t> token;  // random: what is mapped is what was announced
  struct alignas(64) Bell {
    std::atomic<uint32_t> rings;
  } bells[kHostLanes];                      // by lane: its host thread sleeps there
  alignas(64) std::atomic<uint64_t> asked;  // "are you there"
  std::atomic<uint64_t> answered;           // questions answered
};

// Drives the groups of one lane of this process while no caller does. Sleeps for good when nothing
// has been posted for a while.
class HostThread {
 public:
  HostThread(HostMailbox& mailbox, size_t lane);
  Status start();
  void add(const std::shared_ptr<HostLane>& lane);
  void remove(const HostLane* lane);
  // Something was posted: its limits are to be watched. Any thread; cheap while the thread is warm.
  void warm_up();
  // Look at the lanes now. Any thread.
  void ring();
  // Tells those who ask that this process is there (lane 0; on lane 1 nothing). Any thread.
  void answer();
  void stop();

 private:
  void loop();
  HostMailbox& mailbox_;
  const size_t lane_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<HostLane>> lanes_;
  std::atomic<bool> warm_{true}, stopping_{false};
  std::thread thread_;
};

// What peers need to find this process: travels in the rendezvous record.
struct HostAddress {
  int64_t pid = 0;
  int mailbox = -1;           // descriptor of its mailbox
  uint64_t token = 0;         // of the mailbox
  uint64_t private_copy = 0;  // address of a copy of the token in its private memory
  int segment = -1;           // rank 0: descriptor of the group's segment
  std::string encode() const;
  // "" gives pid 0; false: malformed.
  static bool decode(const std::string& text, HostAddress& address);
};

// Another process of this host. All groups with it share one: it holds a descriptor.
struct HostPeer {
  PeerProcess process;
  Segment page;
  HostMailbox& mailbox() const { return *reinterpret_cast<HostMailbox*>(page.data()); }

  // "Are you there", to its host thread; the number of the question.
  uint64_t ask() const;
  bool answered(uint64_t question) const;
  // What to say of it as rank `rank` of a group.
  Status ended(Member rank) const;
  static Status silent(Member rank, Nanos silence, Nanos limit);
};

class HostHub {
 public:
  // Made at the first group, kept while the engine is.
  static Result<std::unique_ptr<HostHub>> make();
  HostThread& thread(size_t lane) { return *threads_[lane]; }
  HostAddress address() const;
  // Threads end; groups must be closed.
  void stop();
  // The process that is found there, as announced. Engine's lock held, as for abandon_after_fork().
  Result<std::shared_ptr<const HostPeer>> find(const HostAddress& address);
  void abandon_after_fork() noexcept;

 private:
  HostHub() = default;
  HostMailbox& mailbox() const { return *reinterpret_cast<HostMailbox*>(page_.data()); }
  Segment page_;
  std::unique_ptr<uint64_t> token_;  // private memory, for the reading probe
  std::unique_ptr<HostThread> threads_[kHostLanes];
  std::map<std::pair<int64_t, uint64_t>, std::weak_ptr<HostPeer>> peers_;  // by pid and token
};

inline constexpr size_t kHostMailboxBytes = 4096;
static_assert(sizeof(HostMailbox) <= kHostMailboxBytes);

}  // namespace mcast
