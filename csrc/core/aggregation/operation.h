// One operation at a station: what is dealt to it, who has posted, how far each rank has
// contributed. A job has a fixed number of these and uses them again and again. Pure.
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

// A segment that is dealt to the station.
struct ListEntry {
  uint32_t segment = 0;   // of the owner's shard
  Member owner = 0;       //
  uint32_t bytes = 0;     // in elements of the result, at least one
  bool own_kept = false;  // the owner's host does not contribute: the owner adds its own last
};

// The station's list of one operation, in the order in which ranks contribute. Equal on all ranks.
class WorkList {
 public:
  virtual ~WorkList() = default;
  virtual uint32_t size() const = 0;
  virtual ListEntry at(uint32_t number) const = 0;  // number < size()
  // Bytes that it takes, at most.
  virtual size_t memory() const { return 0; }

  // In a tree of stations a leaf folds the contributions of one rack, and sends the sums to
  // stations at the top, each of which folds the racks. Stations are numbered by whoever drives the
  // job, from the number of ranks on.
  struct Partner {
    Member station = kNoMember;
    uint32_t rack = 0;  // of a leaf
  };
  // At a leaf its rack.
  virtual std::optional<uint32_t> rack() const { return std::nullopt; }
  // At a leaf the stations at the top, at the top all leaves.
  virtual std::vector<Partner> partners() const { return {}; }
  // At a leaf: whose list has the entry too, and as which number.
  struct Parent {
    Member station = kNoMember;
    uint32_t number = 0;
  };
  virtual Parent parent(uint32_t /*number*/) const { return {}; }
  // At the top: who brings the rack's sum for an entry of the list. A rack without partners has
  // none: its ranks bring their contributions.
  virtual Member leaf(uint32_t /*rack*/, const ListEntry& /*entry*/) const { return kNoMember; }
};

class Planner {
 public:
  virtual ~Planner() = default;
  // What of an operation, an all_reduce or reduce_scatter of elements that can be reduced, is this
  // station's, as version `roster` of the roster deals it; a failure says why it cannot be folded
  // here. A result, partial ones in accumulator elements, fits a frame of the reduce channel. A
  // rank says how long the operation is, so the list takes `room` bytes at most, or there is none.
  virtual Result<std::unique_ptr<const WorkList>> plan(uint32_t roster,
                                                       const wire::Descriptor& descriptor,
                                                       size_t room) const = 0;
};

class Operation {
 public:
  // `hosts` and `racks`, of the hosts, outlive this object.
  Operation(const Hosts& hosts, const Racks& racks, FoldOrder order);

  // The next operation, of which nobody has told yet; what is left of the one before is forgotten.
  // Nothing is allocated, but for the stations of a tree. `planned`: its list, or why it is
  // declined.
  void begin(Sequence sequence, const wire::Descriptor& descriptor,
             Result<std::unique_ptr<const WorkList>> planned);
  // It is over: gives its list back.
  void end();

  Sequence sequence() const { return sequence_; }
  uint32_t hash() const { return hash_; }
  const wire::Descriptor& descriptor() const { return descriptor_; }
  const FoldRule& rule() const { return rule_; }
  uint32_t size() const { return list_ ? list_->size() : 0; }
  // Asked several times for each contribution, and by all ranks for the same few entries: the list,
  // whose answer takes time in proportion to the ranks, is asked once.
  ListEntry at(uint32_t number) const {
    Known& known = known_[number % kKnown];
    if (known.number != number) known = {number, list_->at(number)};
    return known.entry;
  }
  size_t list_memory() const { return list_ ? list_->memory() : 0; }

  void open(Member rank);
  bool opened(Member rank) const { return opened_[rank]; }
  bool opened_by_all() const { return openers_ == opened_.size(); }

  // Not folded here any more; why.
  void decline(Status why);
  bool is_declined() const { return !declined_.ok(); }
  const Status& declined() const { return declined_; }

  // It ends without some contributors, whose inputs never come: `partial`, which fits the ranks and
  // is the same for all owners. An owner's segments do from the moment that it has said so: until
  // then it takes no result without them.
  void excuse(const wire::PartialResult& partial) { partial_ = partial; }
  bool is_partial() const { return partial_.contributors != 0; }
  const wire::PartialResult& partial() const { return partial_; }
  void tell(Member owner) { told_[owner] = true; }
  bool told(Member owner) const { return told_[owner]; }

  // Numbers below this may be contributed.
  uint32_t granted() const { return granted_; }
  void grant(uint32_t more) { granted_ += more; }
  uint32_t ungranted() const { return size() - granted_; }
  // Results that have left.
  uint32_t emitted() const { return emitted_; }
  void emit() { emitted_++; }
  // Granted, and their results have not left: so many places it takes.
  uint32_t outstanding() const { return granted_ - emitted_; }
  // Nothing of it is to come from anybody, nor to be sent.
  bool finished() const;

  // The other stations of the tree that it goes through.
  struct Partner {
    WorkList::Partner who;
    bool opened = false;   // it has posted it: a leaf, to which entries are granted
    uint32_t granted = 0;  // by it: of its list, at the top
    uint32_t next = 0;     // of our list: what comes from it next, or goes to it
  };
  std::vector<Partner>& partners() { return partners_; }
  // Null: it is none.
  Partner* partner(Member station);
  // The next entry of our list has come from the partner, or gone to it.
  void passed(Partner& partner);
  bool is_leaf() const { return list_ && list_->rack().has_value(); }
  // At a leaf its rack, which alone is folded.
  std::optional<uint32_t> only() const { return list_ ? list_->rack() : std::nullopt; }
  WorkList::Parent parent(uint32_t number) const { return list_->parent(number); }

  // Whether the contribution of the host is folded into an entry, by whatever way it comes.
  bool takes(uint32_t host, const ListEntry& entry) const;
  // Whether `rank` brings its host's contribution to an entry.
  bool leads(Member rank, const ListEntry& entry) const;
  // The entry that `rank` contributes to next; size(): it has contributed to all of its.
  uint32_t next_of(Member rank) const { return next_[rank]; }
  void contributed(Member rank);
  // Whose contributions an entry's fold takes, in which order.
  FoldRun run(const ListEntry& entry) const;

 private:
  struct Known {
    uint32_t number = UINT32_MAX;  // none
    ListEntry entry;
  };
  static constexpr uint32_t kKnown = 256;
  // Whether ranks of the host contribute here, to some entries.
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
  wire::PartialResult partial_;  // 0 contributors: all contribute
  std::vector<bool> told_;       // by rank
  uint32_t granted_ = 0, emitted_ = 0;
  std::vector<uint32_t> next_;  // by rank
  std::vector<Partner> partners_;
  mutable std::array<Known, kKnown> known_;
};

}  // namespace mcast::aggregation
