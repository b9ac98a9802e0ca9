// The operations of one group and lane, in the order of the calls, from the oldest that is not
// complete everywhere to the newest that is posted; and which of them have something to do.
//
// Threads: the lane's.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "collective/operation.h"

namespace mcast {

class OperationQueue {
 public:
  // What is known of an operation as long as it is not complete everywhere. Small operations are
  // over here long before that where a rank is late, so what stays of them is small: what was
  // called, and at its root the block, for whoever lacks it.
  struct Entry {
    std::unique_ptr<Operation> op;      // null: settled
    std::vector<std::byte> kept;        // settled, of a root
    const std::string* name = nullptr;  // for people
    uint64_t bytes = 0;
    uint32_t hash = 0;
    Member root = kNoMember;
    wire::Kind kind = wire::Kind::kBarrier;
    uint8_t element = 0, reduction = 0;
    wire::Descriptor descriptor() const;
  };
  // Memory of a settled operation beyond its block, with what the allocator adds.
  static constexpr size_t kSettledCost = sizeof(Entry) + 64;

  explicit OperationQueue(Sequence first) : base_(first) {}

  Sequence base() const { return base_; }  // complete everywhere below
  Sequence next() const { return base_ + static_cast<Sequence>(entries_.size()); }
  bool empty() const { return entries_.empty(); }
  Entry* entry(Sequence s) { return s < base_ || s >= next() ? nullptr : &entries_[s - base_]; }
  const Entry* entry(Sequence s) const {
    return s < base_ || s >= next() ? nullptr : &entries_[s - base_];
  }
  // Null if it is not posted, settled or complete everywhere.
  Operation* find(Sequence s) {
    Entry* const at = entry(s);
    return at == nullptr ? nullptr : at->op.get();
  }
  const Operation* find(Sequence s) const {
    const Entry* const at = entry(s);
    return at == nullptr ? nullptr : at->op.get();
  }

  // Its sequence is next().
  Operation& push(std::unique_ptr<Operation> op);
  // Nothing of it is needed but what an Entry keeps.
  void settle(Sequence s);
  // A settled operation of this root whose block is asked for: `op` takes the block.
  Operation& revive(Sequence s, std::unique_ptr<Operation> op);
  // The oldest leaves; null if it was settled.
  std::unique_ptr<Operation> pop();
  void clear();

  // Has something happened that the operation's next visit must look at?
  void touch(Operation& op);
  // Whether it may have something to do whenever the group is driven.
  void set_busy(Operation& op, bool busy);
  void set_timer(Operation& op, Nanos when);
  // Those, in order: touched, due, and the oldest busy ones. What is behind these waits for them in
  // any case, and looking at it would make every turn as long as the queue.
  // Valid until the next call.
  const std::vector<Sequence>& due(Nanos now);
  const std::set<Sequence>& busy() const { return busy_; }
  // Whether due() has more than when it was called last.
  bool touched() const { return moved_ || !touched_.empty(); }
  Nanos deadline() const { return timers_.empty() ? kNever : timers_.begin()->first; }

  // How many due() has named so far: what driving the group has cost.
  uint64_t visits() const { return visits_; }
  // Operations that are not settled.
  size_t unsettled() const { return unsettled_; }

 private:
  void forget(Operation& op);
  const std::string* intern(const std::string& name);

  static constexpr size_t kMostBusy = 64;   // visited at once
  static constexpr size_t kMostNames = 64;  // kept; there are about a dozen

  Sequence base_;
  std::deque<Entry> entries_;  // index 0 is operation base_
  size_t unsettled_ = 0;
  std::vector<Sequence> touched_;
  std::set<Sequence> busy_;
  std::vector<Sequence> due_;
  uint64_t visits_ = 0;
  bool moved_ = false;  // others are the oldest busy ones now
  std::set<std::pair<Nanos, Sequence>> timers_;
  std::set<std::string> names_;
};

}  // namespace mcast
