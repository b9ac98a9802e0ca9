// Reports are cumulative, so one frame covers any number of finished operations; a report that a
// rank waits for is sent at once, others are delayed a little. Each report carries the descriptor
// hashes of the ops it newly covers; every parent compares them with its own, so two ranks with
// different calls are detected before either op is released, even if no byte of data ever crossed
// between them.
#include "protocol/completion.h"

#include <algorithm>

namespace mcast {

CompletionTracker::Seen* CompletionTracker::at(Sequence sequence) {
  if (sequence < released_) return nullptr;
  const size_t index = sequence - released_;
  if (index >= seen_.size()) seen_.resize(index + 1);
  if (!seen_[index]) seen_[index] = Seen{0, 0, false};
  return &*seen_[index];
}

std::optional<uint32_t> CompletionTracker::on_post(Sequence sequence, uint32_t hash) {
  if (sequence < released_) return std::nullopt;
  const size_t index = sequence - released_;
  if (index >= seen_.size()) seen_.resize(index + 1);
  std::optional<uint32_t> other;
  if (seen_[index] && seen_[index]->hash != hash) other = seen_[index]->child;
  seen_[index] = Seen{hash, 0, true};
  return other;
}

Sequence CompletionTracker::subtree_complete() const {
  Sequence least = own_;
  for (const Sequence c : child_) least = std::min(least, c);
  return least;
}

void CompletionTracker::complete_own(Sequence end, bool urgent, Nanos now) {
  if (end <= own_) return;
  own_ = end;
  if (top_ || subtree_complete() <= reported_) return;
  due_ = std::min(due_, urgent ? now : now + report_delay_);
}

CompletionTracker::Report CompletionTracker::on_child(uint32_t child, Sequence end, Sequence first,
                                                      std::span<const uint32_t> hashes,
                                                      Sequence& mismatch, uint32_t& other,
                                                      Nanos now) {
  // A child reports only what follows its last report, and never below its last released op.
  if (end < child_[child] || first > end || hashes.size() != end - first || first > child_[child] ||
      end - released_ > (1u << 24)) {
    return Report::kInvalid;
  }
  for (Sequence s = std::max(first, released_); s < end; s++) {
    const uint32_t hash = hashes[s - first];
    const size_t index = s - released_;
    if (index < seen_.size() && seen_[index]) {
      if (seen_[index]->hash != hash) {
        mismatch = s;
        other = seen_[index]->own ? kOwn : seen_[index]->child;
        return Report::kMismatch;
      }
    } else {
      *at(s) = Seen{hash, child, false};
    }
  }
  child_[child] = end;
  // The child did not delay its report, so neither does this member.
  if (!top_ && subtree_complete() > reported_) due_ = now;
  return Report::kOk;
}

bool CompletionTracker::report_due(Nanos now, Up& out) {
  if (top_ || now < due_) return false;
  due_ = kNever;
  Sequence end = subtree_complete();
  if (end <= reported_) return false;
  out.first = std::max(reported_, released_);
  if (end - out.first > kMaxReport) {
    end = out.first + kMaxReport;
    due_ = now;  // send the rest at once
  }
  out.end = end;
  out.hashes.clear();
  for (Sequence s = out.first; s < end; s++) out.hashes.push_back(at(s)->hash);
  reported_ = end;
  return true;
}

bool CompletionTracker::on_released(Sequence end) {
  if (end <= released_) return false;
  const size_t drop = std::min<size_t>(end - released_, seen_.size());
  seen_.erase(seen_.begin(), seen_.begin() + static_cast<std::ptrdiff_t>(drop));
  released_ = end;
  return true;
}

}  // namespace mcast
