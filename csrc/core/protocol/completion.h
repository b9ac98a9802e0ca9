// Completion of one (group, lane) at one member: cumulative reports up the control tree ("every op
// below N is complete in my subtree"), the release ("... everywhere") back down, and the check that
// all ranks posted the same operations. Pure; time is an argument.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/types.h"

namespace mcast {

class CompletionTracker {
 public:
  // report_delay: how long a report that no rank waits for may be held to cover more operations.
  // `first`: the sequence of the first operation.
  CompletionTracker(uint32_t children, bool top, Nanos report_delay, Sequence first = 0)
      : child_(children, first),
        top_(top),
        report_delay_(report_delay),
        own_(first),
        reported_(first),
        released_(first) {}

  // This rank posted op `sequence` (consecutive); `hash` of its descriptor. Returns the child whose
  // earlier report named another hash, if there is one.
  std::optional<uint32_t> on_post(Sequence sequence, uint32_t hash);

  // Every op below `end` is complete here. `urgent`: a rank waits for the release.
  void complete_own(Sequence end, bool urgent, Nanos now);
  // Handles a child's report with the hashes of ops from `first` on. kInvalid: it goes back, or
  // beyond the existing ops.
  enum class Report { kOk, kInvalid, kMismatch };
  // kMismatch: `mismatch` is the op, `other` the child that reported another hash for it, or kOwn.
  static constexpr uint32_t kOwn = 0xffffffff;
  Report on_child(uint32_t child, Sequence end, Sequence first, std::span<const uint32_t> hashes,
                  Sequence& mismatch, uint32_t& other, Nanos now);

  // Most hashes of one report, so that it fits a control frame however many operations end at once.
  static constexpr Sequence kMaxReport = 8192;
  struct Up {
    Sequence end = 0;    // complete below this in the subtree
    Sequence first = 0;  // hashes of [first, end)
    std::vector<uint32_t> hashes;
  };
  // Returns true if a report to the parent is due, and fills it in. Never at the top.
  bool report_due(Nanos now, Up& out);
  // At the top: the subtree is the group. Elsewhere kNever until a Released frame arrives.
  Sequence subtree_complete() const;
  // Ops below `end` are released; returns false if that was known. Frees the records of older ops.
  bool on_released(Sequence end);

  Sequence own_complete() const { return own_; }
  Sequence released() const { return released_; }
  Sequence child_complete(uint32_t child) const { return child_[child]; }
  Nanos deadline() const { return due_; }

 private:
  struct Seen {
    uint32_t hash;
    uint32_t child;  // the first child that reported it, if this member has not posted it yet
    bool own;
  };
  Seen* at(Sequence sequence);

  std::vector<Sequence> child_;
  bool top_;
  Nanos report_delay_;
  Sequence own_, reported_, released_;
  std::deque<std::optional<Seen>> seen_;  // index 0 is op released_
  Nanos due_ = kNever;
};

}  // namespace mcast
