// One operation at a station: the segments assigned to it, the members that have posted it, and the
// progress of each rank's contributions. A job has a fixed number of these and reuses them. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/fold_order.h"
#include "base/status.h"
#include "base/types.h"
#include "protocol/hosts.h"
#include "protocol/racks.h"
#include "protocol/segment_fold.h"
#include "wire/aggregation.h"

namespace mcast::aggregation {

// A segment assigned to the station.
struct ListEntry {
  uint32_t segment = 0;   // number in the owner's shard
  Member owner = 0;       //
  uint32_t bytes = 0;     // in elements of the result; more than 0
  bool own_kept = false;  // the owner's host does not contribute: the owner adds its own last
};

// The station's list of one operation, in the order in which ranks contribute. Equal on all ranks.
class WorkList {
 public:
  virtual ~WorkList() = default;
  virtual uint32_t size() const = 0;
  virtual ListEntry at(uint32_t number) const = 0;  // number < size()
  // Upper bound of its memory in bytes.
  virtual size_t memory() const { return 0; }

  // In a tree of stations a leaf folds the contributions of one rack, and sends the sums to
  // stations at the top, each of which folds the racks. The job's driver numbers stations, starting
  // at the number of ranks.
  struct Partner {
    Member station = kNoMember;
    uint32_t rack = 0;  // of a leaf
  };
  // At a leaf, its rack.
  virtual std::optional<uint32_t> rack() const { return std::nullopt; }
  // At a leaf, the stations at the top; at the top, all leaves.
  virtual std::vector<Partner> partners() const { return {}; }
  // At a leaf: the station whose list also contains the entry, and its number there.
  struct Parent {
    Member station = kNoMember;
    uint32_t number = 0;
  };
  virtual Parent parent(uint32_t /*number*/) const { return {}; }
  // At the top: the leaf that sends the rack's sum for an entry of the list. A rack without
  // partners has none: its ranks send their contributions.
  virtual Member leaf(uint32_t /*rack*/, const ListEntry& /*entry*/) const { return kNoMember; }
};

class Planner {
 public:
  virtual ~Planner() = default;
  // The station's part of an operation (an all_reduce or reduce_scatter of reducible elements), as
  // version `roster` of the roster assigns it; an error gives the reason why it cannot be folded
  // here. A result (partial ones in accumulator elements) must fit a frame of the reduce channel.
  // The operation's length comes from a rank, so a list that needs more than `room` bytes is
  // refused.
  virtual Result<std::unique_ptr<const WorkList>> plan(uint32_t roster,
                                                       const wire::Descriptor& descriptor,
                                                       size_t room) const = 0;
};

class Operation {
 public:
  // `hosts`, and `racks` of these hosts, outlive this object.
  Operation(const Hosts& hosts, const Racks& racks, FoldOrder order);

  // Begins the next operation, which no rank has opened yet; the previous one is discarded. Does
  // not allocate, except for the stations of a tree. `planned`: its list, or why it is declined.
  void begin(Sequence sequence, const wire::Descriptor& descriptor,
             Result<std::unique_ptr<const WorkList>> planned);
  // The operation is over: frees its list.
  void end();

  Sequence sequence() const { return sequence_; }
  uint32_t hash() const { return hash_; }
  const wire::Descriptor& descriptor() const { return descriptor_; }
  const FoldRule& rule() const { return rule_; }
  uint32_t size() const { return list_ ? list_->size() : 0; }
  // Called several times for each contribution, and by all ranks for the same few entries: the last
  // result is cached, since the list's answer takes time in proportion to the ranks.
  ListEntry at(uint32_t number) const {
    Known& known = known_[number % kKnown];
    if (known.number != number) known = {number, list_->at(number)};
    return known.entry;
  }
  size_t list_memory() const { return list_ ? list_->memory() : 0; }

  void open(Member rank);
  bool opened(Member rank) const { return opened_[rank]; }
  bool opened_by_all() const { return openers_ == opened_.size(); }

  // The operation is not folded here any more; `why`: the reason.
  void decline(Status why);
  bool is_declined() const { return !declined_.ok(); }
  const Status& declined() const { return declined_; }

  // The operation ends without some contributors, whose inputs never arrive: `partial`, which
  // matches the ranks and is the same for all owners. It applies to an owner's segments from the
  // moment that the owner has reported it: until then the owner takes no result without these
  // inputs.
  void excuse(const wire::PartialResult& partial) { partial_ = partial; }
  bool is_partial() const { return partial_.contributors != 0; }
  const wire::PartialResult& partial() const { return partial_; }
  void tell(Member owner) { told_[owner] = true; }
  bool told(Member owner) const { return told_[owner]; }

  // End of the numbers that may be contributed.
  uint32_t granted() const { return granted_; }
  void grant(uint32_t more) { granted_ += more; }
  uint32_t ungranted() const { return size() - granted_; }
  // Number of results that have been sent.
  uint32_t emitted() const { return emitted_; }
  void emit() { emitted_++; }
  // Number of entries granted whose results have not been sent: the places that it uses.
  uint32_t outstanding() const { return granted_ - emitted_; }
  // Returns true if it neither expects any frame nor has to send one.
  bool finished() const;

  // The other stations of the tree that the operation involves.
  struct Partner {
    WorkList::Partner who;
    bool opened = false;   // a leaf that has posted it, which gets grants
    uint32_t granted = 0;  // by it, at the top: of its list
    uint32_t next = 0;     // of our list: number of the next entry from it, or to it
  };
  std::vector<Partner>& partners() { return partners_; }
  // Null: not a partner.
  Partner* partner(Member station);
  // The next entry of our list has arrived from the partner, or was sent to it.
  void passed(Partner& partner);
  bool is_leaf() const { return list_ && list_->rack().has_value(); }
  // At a leaf, its rack, the only one that it folds.
  std::optional<uint32_t> only() const { return list_ ? list_->rack() : std::nullopt; }
  WorkList::Parent parent(uint32_t number) const { return list_->parent(number); }

  // Returns true if the host's contribution is folded into an entry, by whatever path it arrives.
  bool takes(uint32_t host, const ListEntry& entry) const;
  // Returns true if `rank` sends its host's contribution to an entry.
  bool leads(Member rank, const ListEntry& entry) const;
  // The next entry to which `rank` contributes; size(): it has contributed to all of its entries.
  uint32_t next_of(Member rank) const { return next_[rank]; }
  void contributed(Member rank);
  // The contributions that an entry's fold takes, in order.
  FoldRun run(const ListEntry& entry) const;

 private:
  struct Known {
    uint32_t number = UINT32_MAX;  // none
    ListEntry entry;
  };
  static constexpr uint32_t kKnown = 256;
  // Returns true if ranks of the host contribute here, to some entries.
  bool brings(uint32_t host) const;
  void skip_to_own(Member rank);
  void skip_to_shared(Partner& partner);

  const Hosts& hosts_;
  const Racks& racks_;
  const FoldOrder order_;
  Sequence sequence_ = 0;
  wire::Descriptor descriptor_;
  uint32_t hash_ = 0;
  FoldRule rule_;
  std::unique_ptr<const WorkList> list_;
  Status declined_;
  std::vector<bool> opened_;
  uint32_t openers_ = 0;
  wire::PartialResult partial_;  // 0 contributors: all of them contribute
  std::vector<bool> told_;       // by rank
  uint32_t granted_ = 0, emitted_ = 0;
  std::vector<uint32_t> next_;  // by rank
  std::vector<Partner> partners_;
  mutable std::array<Known, kKnown> known_;
};

}  // namespace mcast::aggregation
