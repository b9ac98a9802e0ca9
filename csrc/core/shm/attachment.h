// Attaches to the memory of the other ranks of this host when a group is made: rank 0's segment,
// and everybody's mailbox. All ranks come to the same verdict: "direct" (all can read each other's
// memory), "slots" (they only share memory), or the reason why they cannot share it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collective/movements/host_inputs.h"
#include "shm/plan.h"
#include "shm/shared.h"

namespace mcast {

// Movable. One thread at a time.
class Attachment {
 public:
  // Called before the records are exchanged; makes this rank's address. `makes_segment`: true at
  // rank 0, unless the group uses the network in any case. On error this rank cannot share memory;
  // the others learn that from the missing address.
  //
  // `directory`: of the host engine that runs this rank, for group `name`; null: not run by an
  // engine.
  static Result<Attachment> prepare(Member self, uint32_t size, const PeerRegistry& registry,
                                    bool makes_segment,
                                    const std::shared_ptr<HostDirectory>& directory = nullptr,
                                    const std::string& name = "");
  // The address by which the others find this rank.
  HostAddress address() const;

  // Maps everybody's memory; `addresses` by rank; `most`: the best access that settings allow.
  // Threads as PeerRegistry::find().
  void attach(std::vector<HostAddress> addresses, PeerMemory most, PeerRegistry& registry);
  // For a group of several hosts: finds only the ranks of this host.
  void attach_neighbours(std::vector<HostAddress> addresses, const std::vector<uint32_t>& host_of,
                         PeerMemory most, PeerRegistry& registry);
  // Reads their memory. Outlives this object.
  HostReader reader() const;

  // This rank's verdict, to be sent to the others.
  const std::string& verdict() const { return verdict_; }
  // The verdict that stands for this access.
  static const char* word_of(PeerMemory memory);
  // Combines everybody's verdicts: returns "" if all can share, and sets how; else the reason.
  static std::string unite(const std::vector<std::string>& verdicts, PeerMemory& memory);
  // Called while waiting for the others' verdicts. Returns an error if one of the found ranks has
  // ended or been silent for `limit`.
  Status look_after(Nanos now, Nanos limit);

  // Called after attach(), once this rank knows that all share the memory. Returns true if all
  // ranks know it; sleeps at most `patience` for that. Until then they need the store, and the rank
  // that hosts the store may shut it down as soon as it has the group. Error: a rank does not have
  // the group, and has reported why.
  Result<bool> joined_by_all(Nanos patience);
  // Ranks that have not joined yet.
  std::vector<Member> missing() const;
  // Reports to ranks in joined_by_all(), now or later, that this rank does not have the group.
  void refuse(const Status& why);

  // The shared memory that attach() has mapped; no other rank attaches to this rank's segment any
  // more.
  std::shared_ptr<HostShared> take();

 private:
  Attachment(Member self, uint32_t size) : self_(self), size_(size) {}
  // `host_of`: attaches only to ranks of this rank's host; null: to all.
  void find_all(const std::vector<HostAddress>& addresses, const std::vector<uint32_t>* host_of,
                PeerMemory most, PeerRegistry& registry);
  // Best access to its memory; none: it cannot be shared, and verdict_ contains the reason.
  std::optional<PeerMemory> find(Member rank, const HostAddress& address, PeerRegistry& registry);
  // Converts a rank's announced address to this process's terms. Returns false on failure; verdict_
  // contains the reason.
  bool look_up(Member rank, HostAddress& address);
  bool look_up(std::vector<HostAddress>& addresses, const std::vector<uint32_t>* host_of);

  void ring_all() const;

  Member self_;
  uint32_t size_;
  HostAddress address_;
  std::shared_ptr<HostDirectory> directory_;
  std::string name_;  // of the group
  std::unique_ptr<HostDirectory::Ticket> ticket_;
  std::shared_ptr<HostShared> shared_ = std::make_shared<HostShared>();
  std::string verdict_;
  struct Asked {
    uint64_t question = 0;
    Nanos answered = 0;
  };
  std::vector<Asked> asked_;  // by rank
};

}  // namespace mcast
