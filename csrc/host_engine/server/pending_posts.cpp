// Counts the bytes of runs as they are stored here. A post of a group that does not exist costs its
// head only; their number is limited like the number of groups.
#include "host_engine/server/pending_posts.h"

#include <utility>

#include "base/units.h"

namespace mcast::service {

std::string PendingPosts::charge(size_t runs) {
  bytes_ += runs * sizeof(ipc::SliceRun);
  if (bytes_ <= kMostBytes) return "";
  return "its process has more than " + size_text(kMostBytes) + " of unfinished posts";
}

void PendingPosts::drop_runs(Pending& pending) {
  bytes_ -= pending.post.runs.size() * sizeof(ipc::SliceRun);
  pending.post.runs = {};
}

std::string PendingPosts::begin(ipc::PostRecord post, bool there) {
  if (posts_.count(post.group) != 0)
    return "its process broke the engine's protocol: a post inside a post";
  if (posts_.size() >= most_) return "its process began too many posts";
  Pending& pending = posts_[post.group];
  pending = {std::move(post), there};
  if (!there) pending.post.runs = {};
  return charge(pending.post.runs.size());
}

std::string PendingPosts::add(const ipc::PartRecord& part, std::optional<ipc::PostRecord>& whole) {
  const auto it = posts_.find(part.group);
  if (it == posts_.end()) return "its process broke the engine's protocol: a part of no post";
  Pending& pending = it->second;
  if (pending.there) {
    auto& runs = pending.post.runs;
    if (runs.size() + part.runs.size() > ipc::kMostSlices)
      return "its process posted too many slices";
    if (std::string why = charge(part.runs.size()); !why.empty()) return why;
    runs.insert(runs.end(), part.runs.begin(), part.runs.end());
  }
  if (part.more) return "";
  whole = std::move(pending.post);
  bytes_ -= whole->runs.size() * sizeof(ipc::SliceRun);
  posts_.erase(it);
  return "";
}

void PendingPosts::pass_over(uint32_t group) {
  const auto it = posts_.find(group);
  if (it == posts_.end()) return;
  drop_runs(it->second);
  it->second.there = false;
}

}  // namespace mcast::service
