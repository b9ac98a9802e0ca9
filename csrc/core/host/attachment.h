// Attaching to the memory of the other ranks of this host when a group is made: rank 0's segment,
// and everybody's mailbox. All ranks come to the same verdict: "direct" (all can read each other's
// memory), "slots" (they share memory, and no more), or why they cannot share it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collective/host_inputs.h"
#include "host/plan.h"
#include "host/shared.h"

namespace mcast {

// Movable. One thread at a time.
class Attachment {
 public:
  // Before the records are exchanged: this rank's address; `makes_segment` at rank 0, unless the
  // group takes the network in any case. Not ok: this rank cannot share memory; the others learn it
  // from the missing address.
  //
  // `directory`: of the engine of the host that runs this rank, for group `name`; null: none does.
  static Result<Attachment> prepare(Member self, uint32_t size, const PeerRegistry& registry,
                                    bool makes_segment,
                                    const std::shared_ptr<HostDirectory>& directory = nullptr,
                                    const std::string& name = "");
  // Where the others find it.
  HostAddress address() const;

  // Maps everybody's memory; `addresses` by rank; `most` may be done with it. As
  // PeerRegistry::find().
  void attach(std::vector<HostAddress> addresses, PeerMemory most, PeerRegistry& registry);
  // A group of several hosts: finds the ranks of this one only.
  void attach_neighbours(std::vector<HostAddress> addresses, const std::vector<uint32_t>& host_of,
                         PeerMemory most, PeerRegistry& registry);
  // Reads their memory. Outlives this.
  HostReader reader() const;

  // This rank's verdict, to be told to the others.
  const std::string& verdict() const { return verdict_; }
  // The word for what can be done with memory, as a verdict.
  static const char* word_of(PeerMemory memory);
  // Of everybody's verdicts: empty if all can share, and how; else why not.
  static std::string unite(const std::vector<std::string>& verdicts, PeerMemory& memory);
  // While the others' verdicts are waited for: a rank that has ended or been silent for `limit`, of
  // those that were found. Ok: none.
  Status look_after(Nanos now, Nanos limit);

  // Over what attach() has mapped, once this rank knows that all share it. Whether all know, for
  // which it sleeps at most `patience`: until then they need the store, which whoever keeps it may
  // take down as soon as it has the group. Not ok: a rank does not have it, and has told why.
  Result<bool> joined_by_all(Nanos patience);
  // Those who do not know.
  std::vector<Member> missing() const;
  // Tells who waits in joined_by_all(), or will, that this rank does not have the group.
  void refuse(const Status& why);

  // What attach() has mapped; nobody attaches to this rank's segment any more.
  std::shared_ptr<HostShared> take();

 private:
  Attachment(Member self, uint32_t size) : self_(self), size_(size) {}
  // `host_of`: only those of the own host; null: all.
  void find_all(const std::vector<HostAddress>& addresses, const std::vector<uint32_t>* host_of,
                PeerMemory most, PeerRegistry& registry);
  // Its memory, at most; none: it cannot be shared, verdict_ says why.
  std::optional<PeerMemory> find(Member rank, const HostAddress& address, PeerRegistry& registry);
  // What a rank has told, as an address in this process's terms. False: verdict_ says why.
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
