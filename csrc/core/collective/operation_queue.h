// The operations of one group on one lane, in the order of the calls, from the oldest that is not
// complete everywhere to the newest. Also tracks which operations have work to do.
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
  // State of an operation that is kept until it is complete everywhere. If a rank is late, small
  // operations are complete here long before that, so a settled entry is small: the descriptor and,
  // at the root, the block, for members that lack it.
  struct Entry {
    std::unique_ptr<Operation> op;      // null: settled
    std::vector<std::byte> kept;        // settled, at its root
    const std::string* name = nullptr;  // for error texts
    uint64_t bytes = 0;
    uint32_t hash = 0;
    Member root = kNoMember;
    wire::Kind kind = wire::Kind::kBarrier;
    uint8_t element = 0, reduction = 0;
    wire::Descriptor descriptor() const;
  };
  // Memory of a settled operation besides its block, including allocator overhead.
  static constexpr size_t kSettledCost = sizeof(Entry) + 64;

  explicit OperationQueue(Sequence first) : base_(first) {}

  Sequence base() const { return base_; }  // all operations below are complete everywhere
  Sequence next() const { return base_ + static_cast<Sequence>(entries_.size()); }
  bool empty() const { return entries_.empty(); }
  Entry* entry(Sequence s) { return s < base_ || s >= next() ? nullptr : &entries_[s - base_]; }
  const Entry* entry(Sequence s) const {
    return s < base_ || s >= next() ? nullptr : &entries_[s - base_];
  }
  // Null if it is not posted yet, settled, or complete everywhere.
  Operation* find(Sequence s) {
    Entry* const at = entry(s);
    return at == nullptr ? nullptr : at->op.get();
  }
  const Operation* find(Sequence s) const {
    const Entry* const at = entry(s);
    return at == nullptr ? nullptr : at->op.get();
  }

  // The sequence of `op` must be next().
  Operation& push(std::unique_ptr<Operation> op);
  // Frees everything except the data that Entry keeps.
  void settle(Sequence s);
  // A member requests the block of a settled operation of this root: `op` takes over the block.
  Operation& revive(Sequence s, std::unique_ptr<Operation> op);
  // Removes the oldest operation. Returns null if it was settled.
  std::unique_ptr<Operation> pop();
  void clear();

  // Marks the operation for the next due(), because an event has changed it.
  void touch(Operation& op);
  // Whether the operation may have work on every progress().
  void set_busy(Operation& op, bool busy);
  void set_timer(Operation& op, Nanos when);
  // Operations to visit, in order: touched ones, those whose timers are due, and the oldest busy
  // ones. Busy operations behind these wait for them in any case, and visiting them would make the
  // cost of progress() grow with the queue.
  // Valid until the next call.
  const std::vector<Sequence>& due(Nanos now);
  const std::set<Sequence>& busy() const { return busy_; }
  // Whether due() would return more than when it was last called.
  bool touched() const { return moved_ || !touched_.empty(); }
  Nanos deadline() const { return timers_.empty() ? kNever : timers_.begin()->first; }

  // Number of operations that due() has returned so far; measures the cost of driving the group.
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
  bool moved_ = false;  // the set of oldest busy operations has changed
  std::set<std::pair<Nanos, Sequence>> timers_;
  std::set<std::string> names_;
};

}  // namespace mcast
